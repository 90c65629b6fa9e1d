"""CelebA as its authors give it: a folder that a person has downloaded, with any part of the pictures.

img_align_celeba/*.jpg      the pictures
identity_CelebA.txt         a picture and whose face it is, on each line
list_eval_partition.txt     a picture and 0 (to learn from), 1 (left out here) or 2 (to test on)
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from fedsaddle.data import sources
from fedsaddle.data.datasets import Dataset
from fedsaddle.errors import BadInput, check_memory

SIDE = 64
PICTURES, IDENTITIES, PARTS = "img_align_celeba", "identity_CelebA.txt", "list_eval_partition.txt"


def folder_of(path: str) -> Path:
    """The folder somebody named, or the one of that name in the data cache."""
    folder = Path(path) if path else sources.cache() / "celeba"
    for name in (PICTURES, IDENTITIES, PARTS):
        if not (folder / name).exists():
            raise BadInput(
                f"{folder} lacks CelebA's {name}: download {PICTURES}.zip, {IDENTITIES} and {PARTS} from its "
                "authors (mmlab.ie.cuhk.edu.hk/projects/CelebA.html) and unpack them there, or name their "
                "folder by problem.path"
            )
    return folder


def celeba(path: str = "") -> Dataset:
    """Faces of 64 x 64 pixels: the shorter side scaled to 64, the middle kept. Labels are identities."""
    folder = folder_of(path)
    identity, part = _column(folder / IDENTITIES), _column(folder / PARTS)
    there = sorted(set(os.listdir(folder / PICTURES)) & identity.keys() & part.keys())
    halves = [[name for name in there if part[name] == wanted] for wanted in (0, 2)]
    for names, half in zip(halves, ("learn from", "test on"), strict=True):
        if not names:
            raise BadInput(f"{folder / PICTURES} holds no pictures to {half} that {PARTS} knows of")
    check_memory("CelebA", len(there) * 3 * SIDE * SIDE // 8)
    train, test = (_pictures(folder / PICTURES, names) for names in halves)
    labels, test_labels = (torch.tensor([identity[name] for name in names]) for names in halves)
    return Dataset(train, labels, test, test_labels, classes=())


def _column(path: Path) -> dict[str, int]:
    """The number beside each picture's name."""
    found = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path} ({error})") from None
    for number, line in enumerate(lines, start=1):
        name, *rest = line.split() or [""]
        if len(rest) != 1 or not rest[0].isdecimal() or len(rest[0]) > 18:
            raise BadInput(
                f"{path}, line {number}: expected a picture's name and a number, got '{line[:80]}'"
            )
        found[name] = int(rest[0])
    return found


def _pictures(folder: Path, names: list[str]) -> Tensor:
    """(picture, channel, height, width), as bytes."""
    import numpy
    from PIL import Image

    pixels = numpy.empty((len(names), SIDE, SIDE, 3), dtype=numpy.uint8)

    def read(number: int) -> None:
        try:
            with Image.open(folder / names[number]) as picture:
                rgb = picture.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise BadInput(f"{folder / names[number]} cannot be read ({error}); get it again") from None
        short = min(rgb.size)
        width, height = (max(SIDE, SIDE * side // short) for side in rgb.size)
        left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
        scaled = rgb.resize((width, height), Image.Resampling.BILINEAR)
        pixels[number] = numpy.asarray(scaled.crop((left, top, left + SIDE, top + SIDE)))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, range(len(names))):
            pass
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
