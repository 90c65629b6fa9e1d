"""Grids of small pictures, as PNG files whose bytes depend on the pictures alone."""

from __future__ import annotations

import io
from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

ACROSS = 8  # pictures in a line of a grid
GAP = 1  # white pixels below and right of each, before they are enlarged
LEGIBLE = 48  # pixels that a smaller picture is enlarged to, as far as whole steps go
MOST_ROUNDS = 10  # rounds in a grid over rounds


def grid(pictures: Tensor) -> bytes:
    """Pictures (row, channel, height, width) in bytes, eight side by side."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    framed = pad(pictures.cpu(), (0, GAP, 0, GAP, 0, 0, 0, -len(pictures) % ACROSS), value=255)
    count, channels, height, width = framed.shape
    lines = framed.reshape(count // ACROSS, ACROSS, channels, height, width).permute(0, 3, 1, 4, 2)
    times = max(1, LEGIBLE // width)
    pixels = lines.reshape(-1, ACROSS * width, channels)
    large = pixels.repeat_interleave(times, 0).repeat_interleave(times, 1)
    notes = PngInfo()
    notes.add_text("line", str(times * height))  # so that a line can be cut out again
    return _png(Image.fromarray(large.squeeze(2).numpy()), notes)


def over_rounds(grids: Sequence[bytes]) -> bytes:
    """The first lines of grids that were made over the rounds, at most ten of them, evenly chosen.

    All come from the same noise, so each column follows one picture from the first round to the last.
    """
    from PIL import Image

    chosen = [grids[place] for place in chosen_lines(len(grids))]
    lines = len(chosen)
    opened = [Image.open(io.BytesIO(data), formats=("PNG",)) for data in chosen]
    height = int(opened[0].info["line"])
    whole = Image.new(opened[0].mode, (opened[0].width, height * lines))
    for number, picture in enumerate(opened):
        whole.paste(picture.crop((0, 0, picture.width, height)), (0, number * height))
    return _png(whole)


def chosen_lines(grids: int) -> list[int]:
    """Which of so many grids a picture over the rounds shows."""
    last, lines = grids - 1, min(grids, MOST_ROUNDS)
    return [round(number * last / max(1, lines - 1)) for number in range(lines)]


def _png(picture: object, notes: object = None) -> bytes:
    file = io.BytesIO()
    picture.save(file, format="png", pnginfo=notes)  # type: ignore[attr-defined]
    return file.getvalue()
