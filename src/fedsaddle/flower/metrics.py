"""How a deployment is, for monitoring: `/health` and Prometheus's `/metrics`, on loopback only.

The ServerApp writes down how it is, at most once a second, while it waits. A small process reads that for
whoever asks, so that it answers while the ServerApp computes, and after it has died.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedsaddle.errors import BadInput
from fedsaddle.flower import keys
from fedsaddle.history import Told

CALLERS = 32  # connections
EVERY = 1.0  # seconds between what is written down
UNHEARD = 120.0  # seconds after which a silent server is not well; an evaluation may take some time

HELP = {
    "up": ("gauge", "Whether the server has been heard of lately."),
    "nodes_registered": ("gauge", "Devices that may join."),
    "nodes_online": ("gauge", "Devices that are online."),
    "nodes_barred": ("gauge", "Devices that are no longer invited, after refused answers."),
    "answers_owed": ("gauge", "Messages that are not answered yet."),
    "answers_total": ("counter", "What became of invitations, since the server started."),
    "phases_total": ("counter", "Phases that went on or were abandoned, since the server started."),
    "rounds": ("gauge", "Rounds played, by algorithm and seed."),
    "phase_seconds": ("gauge", "How long the last phase took."),
    "certificate_ends_seconds": ("gauge", "When a certificate ends, in seconds since 1970."),
}


@dataclass
class Status:
    """What the ServerApp knows of itself; without a path it tells nobody."""

    path: Path | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _written: float = 0.0

    def count(self, told: Told) -> None:
        """Take note of a phase."""
        end = told.gathering
        for outcome in ("used", "late", "refused", "lost", "overdue"):
            self.counts[f'answers_total{{outcome="{outcome}"}}'] += len(getattr(end, outcome))
        self.counts[f'phases_total{{verdict="{end.verdict.value}"}}'] += 1
        lane = f'{{algorithm="{told.algorithm}",seed="{told.seed}"}}'
        self.numbers |= {f"rounds{lane}": told.round + 1, "phase_seconds": end.seconds}

    def write(self, **numbers: float) -> None:
        """Write it down, if it was not only just done. Nothing depends on it: it is not synced."""
        if self.path is None or time.monotonic() - self._written < EVERY:
            return
        self._written = time.monotonic()
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"at": time.time(), **self.numbers, **self.counts, **numbers}))
        part.replace(self.path)


class Listener(ThreadingHTTPServer):
    """A few are heard at once. When one more comes, who has been there longest has to go."""

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.here: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        known = [one for one in self.here if one.fileno() >= 0]
        for oldest in known[: len(known) - CALLERS + 1]:
            with contextlib.suppress(OSError):  # it has gone by itself
                oldest.shutdown(socket.SHUT_RDWR)
        self.here = [*known[-CALLERS + 1 :], request]
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Who asked has gone: nothing to log."""


def endpoint(port: int, status: Path, server: Path) -> Listener:
    """A listener on loopback; the process that it is given to serves for ever."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            known = numbers_of(status, server)
            if self.path == "/metrics":
                self.answer(200, prometheus(known), "text/plain; version=0.0.4")
            elif self.path == "/health":
                well = known["up"] == 1
                told = "ok\n" if well else f"the server was not heard of for {UNHEARD:g} s\n"
                self.answer(200 if well else 503, told, "text/plain")
            else:
                self.answer(404, "there are /health and /metrics\n", "text/plain")

        def answer(self, code: int, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        return Listener(port, Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"--metrics-port {port} cannot be used on 127.0.0.1: {why}") from None


def numbers_of(status: Path, server: Path) -> dict[str, float]:
    """All numbers, by name and labels."""
    try:
        known: dict[str, float] = json.loads(status.read_bytes())
    except (OSError, ValueError):
        known = {}
    up = time.time() - known.pop("at", 0.0) < UNHEARD
    found = {"up": float(up), **known}
    with contextlib.suppress(BadInput):  # being replaced just now; serve says so if they stay away
        for path, end in keys.certificates(server).items():
            found[f'certificate_ends_seconds{{file="{path.name}"}}'] = end.timestamp()
    return found


def prometheus(numbers: dict[str, float]) -> str:
    """Prometheus's text format."""
    lines = []
    for name, (kind, told) in HELP.items():
        own = {key: value for key, value in numbers.items() if key.partition("{")[0] == name}
        if own:
            lines += [f"# HELP fedsaddle_{name} {told}", f"# TYPE fedsaddle_{name} {kind}"]
            lines += [f"fedsaddle_{key} {value:g}" for key, value in own.items()]
    return "\n".join(lines) + "\n"
