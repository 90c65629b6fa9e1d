"""A run's report, served while the run goes on: on this machine alone, and nothing but the report.

    GET /        the page
    GET /data    its values, as JSON; 304 to whoever has them already

The page asks for new values every other second and draws them anew. A name in the Host header that is not
this machine's is refused: a page from elsewhere that has its own name point here may not read the report.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedsaddle.errors import BadInput
from fedsaddle.report import read_runs
from fedsaddle.report.page import as_block, filled, page_data

ONLY_HERE = "127.0.0.1"
USUAL = 8642  # the port, if nobody asks for another and it is free
REST = 1.0  # seconds between two looks at the folder, however many ask
OWN_NAMES = (ONLY_HERE, "localhost")


class Latest:
    """The newest values of a folder. They are made again when a file of it has changed, and somebody asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._looked = -REST
        self._seen: tuple[Any, ...] | None = None
        self._data: dict[str, Any] = {}
        self._block, self._tag = "", ""

    def values(self) -> tuple[str, str]:
        """The JSON, and a tag that changes with it."""
        with self._lock:
            if time.monotonic() - self._looked >= REST:
                self._look()
                self._looked = time.monotonic()
            return self._block, self._tag

    def _look(self) -> None:
        seen = _state(self.folder)
        if seen == self._seen and self._block:
            return
        self._seen = seen
        try:
            found = page_data(read_runs([self.folder])) | {"live": True}
        except BadInput as error:
            # Where nothing is yet, it waits; what was there before is still shown, with a word.
            told = str(error) if _begun(self.folder) else f"There is no run in {self.folder} yet."
            found = self._data | {"trouble": told} if self._data else {"waiting": told}
        else:
            self._data = found
        self._block = as_block(found)
        self._tag = f'"{hashlib.sha256(self._block.encode()).hexdigest()[:24]}"'


def _begun(folder: Path) -> bool:
    return os.path.exists(folder / "experiment.json")


def _state(folder: Path) -> tuple[Any, ...]:
    """What changes when a run goes on."""
    names = ("experiment.json", "metrics.json", "rounds.csv", "traffic.csv", "events.csv", "environment.json")
    found: list[Any] = []
    for path in (*(folder / name for name in names), folder / "details", folder / "samples"):
        try:
            stat = path.stat()
            found.append((stat.st_size, stat.st_mtime_ns, stat.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


class Pages(BaseHTTPRequestHandler):
    """Answers with the page or its values, and with nothing else."""

    server: LiveReport
    server_version, sys_version = "FedSaddle", ""
    timeout = 30  # seconds that a connection may say nothing

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0].lower()
        if host not in OWN_NAMES:
            self._answer(HTTPStatus.FORBIDDEN, b"This page is for this machine alone.\n")
            return
        place = self.path.partition("?")[0]
        if place not in ("/", "/data"):
            self._answer(HTTPStatus.NOT_FOUND, b"There is only the report, at /.\n")
            return
        block, tag = self.server.latest.values()
        if place == "/":
            self._answer(HTTPStatus.OK, filled(block, live=True).encode(), "text/html; charset=utf-8")
        elif self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", tag=tag)
        else:
            self._answer(HTTPStatus.OK, block.encode(), "application/json", tag)

    do_HEAD = do_GET

    def _answer(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", tag: str = ""
    ) -> None:
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }
        self.send_response(status)
        for name, value in (headers | ({"ETag": tag} if tag else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing: a page that asks every other second would fill the terminal."""


class LiveReport(ThreadingHTTPServer):
    """Serves one folder's report on this machine."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folder: Path, port: int) -> None:
        self.latest = Latest(folder)
        super().__init__((ONLY_HERE, port), Pages)

    @property
    def url(self) -> str:
        return f"http://{ONLY_HERE}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has gone away."""


@contextmanager
def live_report(folder: Path, port: int | None = None) -> Iterator[LiveReport]:
    """A server that waits to be told `serve_forever`; without a port, at the usual one, or a free one."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise BadInput(f"{folder} is a file: name the folder of a run")
    if port is not None and not 0 <= port <= 65535:
        raise BadInput(f"--port must be from 0 to 65535, got {port}")
    try:
        server = LiveReport(folder, USUAL if port is None else port)
    except OSError as error:
        if port is not None:
            why = error.strerror or str(error)
            raise BadInput(f"port {port} cannot be had ({why}): say another --port, or 0 for any") from None
        server = LiveReport(folder, 0)
    try:
        yield server
    finally:
        server.server_close()
