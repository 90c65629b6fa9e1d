"""Files that say when each client is reachable."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from pathlib import Path

from fedsaddle.errors import BadInput


def read_trace(path: Path) -> tuple[dict[int, list[tuple[float, float]]], str]:
    """The times each client is reachable, in order, with touching ones joined; and the file's SHA-256."""
    try:
        data = path.read_bytes()
        lines = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    except OSError as error:
        raise BadInput(f"cannot read the trace {path}: {error.strerror}") from None
    except (ValueError, csv.Error):  # also a path that no file can have
        raise BadInput(f"cannot read the trace {path}: it is not a CSV text file") from None
    if not lines or [name.strip() for name in lines[0]] != ["client", "start", "end"]:
        raise BadInput(f"{path}: the first line must be client,start,end")
    found: dict[int, list[tuple[float, float]]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        try:
            client, start, end = int(line[0]), float(line[1]), float(line[2])
            ok = len(line) == 3 and client >= 0 and 0 <= start < end < math.inf
        except (ValueError, IndexError):
            ok = False
        if not ok:
            raise BadInput(
                f"{path}, line {number}: expected a client and 0 <= start < end, got {','.join(line)}"
            )
        found.setdefault(client, []).append((start, end))
    if not found:
        raise BadInput(f"{path}: no client is ever reachable")
    spans = {client: whole_spans(sorted(own)) for client, own in found.items()}
    return spans, hashlib.sha256(data).hexdigest()


def whole_spans(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans in their order, with those that touch made one."""
    joined = [spans[0]]
    for start, end in spans[1:]:
        if start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
