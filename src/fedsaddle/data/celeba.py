"""Faces by whose they are: CelebA, or any pictures that a person has in a folder.

identity_CelebA.txt         a picture's name and whose face it is, on each line; pictures lie anywhere below
list_eval_partition.txt     if there: a picture and 0 (to learn from), 1 (left out here) or 2 (to test on)
NAME/*.jpg                  without the first: a subfolder for each person
faces.safetensors, .json    what `keep` has made of such a folder, once: pixels, and their hash

Without the second, every tenth person is there to test on.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedsaddle.data import sources
from fedsaddle.data.datasets import Dataset
from fedsaddle.errors import BadInput, check_memory

SIDE = 64
ALIGNED, IDENTITIES, PARTS = "img_align_celeba", "identity_CelebA.txt", "list_eval_partition.txt"
FACES, ABOUT = "faces.safetensors", "faces.json"
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".pgm", ".ppm", ".gif", ".tif", ".tiff"}
TENTH = 10  # every such person is there to test on, where no list says who is
LEARN, TEST = 0, 2  # in the list


def folder_of(path: str) -> Path:
    """The folder somebody named, or the one of that name in the data cache."""
    folder = Path(path) if path else sources.cache() / "celeba"
    if not folder.is_dir():
        raise BadInput(
            f"there is no folder {folder}: download {ALIGNED}.zip, {IDENTITIES} and {PARTS} from CelebA's "
            "authors (mmlab.ie.cuhk.edu.hk/projects/CelebA.html), unpack them, and say: fedsaddle data "
            "celeba --from FOLDER"
        )
    return folder


def celeba(path: str = "") -> Dataset:
    """Faces of 64 x 64 pixels. Labels are identities."""
    folder = folder_of(path)
    return _kept(folder) if (folder / FACES).is_file() else read(folder)


# --- a person's pictures ---------------------------------------------------------------------------------


def read(folder: Path) -> Dataset:
    """What a folder of pictures holds: the shorter side scaled to 64, the middle kept."""
    if (folder / IDENTITIES).is_file():
        places, identity = _listed(folder)
    else:
        places, identity = _by_subfolder(folder)
    part = _parts(folder, identity)
    there = sorted(places.keys() & identity.keys() & part.keys())
    halves = [[name for name in there if part[name] == wanted] for wanted in (LEARN, TEST)]
    for names, half in zip(halves, ("learn from", "test on"), strict=True):
        if not names:
            raise BadInput(f"{folder} holds no pictures to {half} that {PARTS} knows of")
    check_memory("these faces", len(there) * 3 * SIDE * SIDE // 8)
    train, test = (_pictures([places[name] for name in names]) for names in halves)
    labels, test_labels = (torch.tensor([identity[name] for name in names]) for names in halves)
    digest = _hash_of(train, labels, test, test_labels)
    return Dataset(train, labels, test, test_labels, classes=(), sha256=(digest,))


def _listed(folder: Path) -> tuple[dict[str, Path], dict[str, int]]:
    """CelebA's layout: where each picture lies, and whose it is. An aligned one is taken before others."""
    identity = _column(folder / IDENTITIES)
    found: dict[str, Path] = {}
    for path in sorted(_files(folder), key=lambda path: (ALIGNED not in path.parts, path)):
        if path.name in identity:
            found.setdefault(path.name, path)
    if not found:
        raise BadInput(f"{folder} holds no picture that its {IDENTITIES} names; unpack {ALIGNED}.zip there")
    return found, identity


def _by_subfolder(folder: Path) -> tuple[dict[str, Path], dict[str, int]]:
    """A subfolder for each person, numbered in the order of their names."""
    found = {str(path.relative_to(folder)): path for path in _files(folder) if path.parent != folder}
    people = sorted({Path(name).parts[0] for name in found})
    if len(people) < 2:
        raise BadInput(
            f"{folder} has neither {IDENTITIES} nor subfolders with pictures of two people and more: without "
            "one of them nobody knows whose faces these are"
        )
    number = {name: place for place, name in enumerate(people)}
    return found, {name: number[Path(name).parts[0]] for name in found}


def _files(folder: Path) -> list[Path]:
    return [
        Path(place) / name
        for place, _, names in os.walk(folder)
        for name in names
        if Path(name).suffix.lower() in SUFFIXES
    ]


def _parts(folder: Path, identity: dict[str, int]) -> dict[str, int]:
    """What each picture is for. People whom nothing is learnt from are who a generator is tested on."""
    if (folder / PARTS).is_file():
        return _column(folder / PARTS)
    people = sorted(set(identity.values()))
    tested = set(people[TENTH - 1 :: TENTH] or people[-1:])
    return {name: TEST if whose in tested else LEARN for name, whose in identity.items()}


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


def _pictures(paths: list[Path]) -> Tensor:
    """(picture, channel, height, width), as bytes."""
    import numpy
    from PIL import Image

    pixels = numpy.empty((len(paths), SIDE, SIDE, 3), dtype=numpy.uint8)

    def read(number: int) -> None:
        try:
            with Image.open(paths[number]) as picture:
                rgb = picture.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise BadInput(f"{paths[number]} cannot be read ({error}); get it again") from None
        short = min(rgb.size)
        width, height = (max(SIDE, SIDE * side // short) for side in rgb.size)
        left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
        scaled = rgb.resize((width, height), Image.Resampling.BILINEAR)
        pixels[number] = numpy.asarray(scaled.crop((left, top, left + SIDE, top + SIDE)))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(read, range(len(paths))):
            pass
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


# --- converted once --------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Faces in the data cache."""

    path: Path
    pictures: int
    people: int
    tested: int  # of the pictures
    sha256: str  # of all pixels and identities


def keep(folder: Path) -> Kept:
    """Read a person's folder once, and keep its faces in the data cache."""
    from safetensors.torch import save_file

    data = read(folder_of(str(folder)))
    tensors = {
        "inputs": data.inputs,
        "labels": data.labels,
        "test_inputs": data.test_inputs,
        "test_labels": data.test_labels,
    }
    place = sources.cache() / "celeba"
    people = len(torch.cat([data.labels, data.test_labels]).unique())
    whole = len(data.labels) + len(data.test_labels)
    kept = Kept(place / FACES, whole, people, len(data.test_labels), data.sha256[0])
    try:
        place.mkdir(parents=True, exist_ok=True)
        part = place / f"{FACES}.part"
        save_file(tensors, part)
        part.replace(kept.path)
        (place / ABOUT).write_text(json.dumps({**kept._asdict(), "path": FACES}) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"cannot keep faces in {place}: {error.strerror}; name another folder in FEDSADDLE_DATA"
        ) from None
    return kept


def _kept(folder: Path) -> Dataset:
    """Faces that were kept, held to their hash."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        held = load_file(folder / FACES)
        names = ("inputs", "labels", "test_inputs", "test_labels")
        inputs, labels, test_inputs, test_labels = (held[name] for name in names)
        sound = _hash_of(inputs, labels, test_inputs, test_labels) == about["sha256"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        sound = False
    if not sound:
        raise BadInput(f"{folder / FACES} is damaged; make it again: fedsaddle data celeba --from FOLDER")
    return Dataset(inputs, labels, test_inputs, test_labels, classes=(), sha256=(about["sha256"],))


def _hash_of(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.numpy())  # type: ignore[arg-type]  # an array is a buffer
    return digest.hexdigest()
