"""The SuperLink: Flower's own, listening at two doors.

From outside only the fleet's paths can be reached, over TLS, by nodes whose keys are registered, with bodies
of bounded size. Flower's control API, by which whoever reaches it could run anything, and the ServerApp's API
are behind a Unix socket in a folder that only this user can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from fedsaddle.errors import BadInput
from fedsaddle.flower import _flwr
from fedsaddle.flower._flwr import KEY_HEADER, ControlHttpClient, RuntimeHttpClient, open_client
from fedsaddle.flower.wire import OVERHEAD

FLEET_PATHS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)  # all that a registered node needs; register-node and unregister-node are the server's affair

Scope = MutableMapping[str, Any]
ASGIEvent = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIEvent]]
Send = Callable[[ASGIEvent], Awaitable[None]]
Serve = Callable[[Scope, Receive, Send], Awaitable[None]]


class Outside:
    """Lets through what a node may ask for, and nothing else.

    An answer has an envelope (push-messages) and then its contents, piece by piece (push-object). Together
    they may have `most` bytes; Flower itself would take any number of pieces.
    """

    def __init__(self, inside: Serve, most: int, ready: Path) -> None:
        self.inside, self.most = inside, most
        self.ready, self.open = ready, False
        self.pushed: dict[bytes, int] = {}  # bytes since the last envelope, by the node's key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return  # the inner door looks after that
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in FLEET_PATHS:
            await _say(send, 403)
            return
        self.open = self.open or self.ready.exists()
        if not self.open:
            await _say(send, 503)  # nodes try again; before its key is registered one would be turned away
            return
        if not self._fits(scope["path"], scope["headers"]):
            await _say(send, 413)
            return
        status = 0

        async def watched(event: ASGIEvent) -> None:
            nonlocal status
            status = event["status"] if event["type"] == "http.response.start" else status
            await send(event)

        await self.inside(scope, receive, watched)
        if 200 <= status < 300:  # only what was taken counts: a stranger may use anybody's public key
            self._count(scope["path"], scope["headers"])

    def _fits(self, path: str, headers: list[tuple[bytes, bytes]]) -> bool:
        # Flower's client says how long a body is, and uvicorn holds it to that.
        lengths = [value for name, value in headers if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in headers)
        if chunked or len(lengths) != 1 or not lengths[0].isdigit() or int(lengths[0]) > self.most:
            return False
        so_far = self.pushed.get(_named(headers, KEY_HEADER), 0) if path.endswith("/push-object") else 0
        return so_far + int(lengths[0]) <= self.most

    def _count(self, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        key = _named(headers, KEY_HEADER)
        if path.endswith("/push-messages"):
            self.pushed[key] = 0
        elif path.endswith("/push-object"):
            self.pushed[key] = self.pushed.get(key, 0) + int(_named(headers, b"content-length"))


def _named(headers: list[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")


async def _say(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def listen(
    socket: Path, database: Path, address: tuple[str, int], files: tuple[Path, Path], largest: int
) -> None:
    """Run the SuperLink at both doors until the process is ended."""
    app = _flwr.superlink(database, address)
    certificate, key = files
    inner = uvicorn.Server(uvicorn.Config(app, uds=str(socket), log_level="warning"))
    outer = uvicorn.Server(
        uvicorn.Config(
            Outside(app, 2 * largest + OVERHEAD, ready_file(socket)),
            host=address[0],
            port=address[1],
            ssl_certfile=str(certificate),
            ssl_keyfile=str(key),
            ssl_version=ssl.PROTOCOL_TLS_SERVER,
            lifespan="off",
            server_header=False,
            log_level="warning",
        )
    )

    async def both() -> None:
        await asyncio.gather(inner.serve(), outer.serve())

    asyncio.run(both())


# --- what the server asks of it, at the inner door --------------------------------------------------------


def wait_until_up(socket: Path, alive: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether the SuperLink has come up in time."""
    end = time.monotonic() + seconds
    with open_client(ControlHttpClient, socket) as control:
        while time.monotonic() < end and alive():
            try:
                _flwr.list_nodes(control)
                return True
            except httpx.TransportError:
                time.sleep(0.1)
    return False


def ready_file(socket: Path) -> Path:
    """The file whose presence opens the outer door."""
    return socket.with_suffix(".ready")


def register(socket: Path, keys: dict[int, bytes]) -> dict[int, int]:
    """Let these keys in and nobody else, and open the outer door; the Flower node of each client."""
    with open_client(ControlHttpClient, socket) as control:
        known = _flwr.list_nodes(control)
        for key in known.keys() - set(keys.values()):
            _flwr.unregister_node(control, known[key])
        for client, key in keys.items():
            if key not in known:
                try:
                    known[key] = _flwr.register_node(control, key, f"client-{client}")
                except httpx.HTTPStatusError:  # Flower does not take a key twice
                    raise BadInput(
                        f"the key of client {client} was locked out of this run before; remove "
                        f"node-{client} and its .pub, and make a new key with fedsaddle keys"
                    ) from None
    ready_file(socket).touch()
    return {client: known[key] for client, key in keys.items()}


# A run needs an app. This one holds no code: each side brings its own.
EMPTY = b"""
[project]
name = "fedsaddle"
version = "1.0.0"
[tool.flwr.app]
publisher = "fedsaddle"
[tool.flwr.app.components]
serverapp = "fedsaddle.flower.server:server_app"
clientapp = "fedsaddle.flower.client:client_app"
"""


def start_run(socket: Path) -> tuple[int, str]:
    """Begin a run of Flower's, and take its ServerApp's place: the run's number, and the token to it."""
    with open_client(ControlHttpClient, socket) as control:
        run = _flwr.begin_run(control, EMPTY)
    with open_client(RuntimeHttpClient, socket) as runtime:
        for _ in range(100):
            task = _flwr.acquire_task(runtime)
            if task is None:
                time.sleep(0.1)
            elif task[0] == run:
                return task
    raise RuntimeError("the SuperLink did not start the run")


def stop_run(socket: Path, run: int) -> None:
    """End a run, so that no node answers its messages any more."""
    # It may have ended already, and so may the SuperLink.
    with open_client(ControlHttpClient, socket) as control, contextlib.suppress(httpx.HTTPError):
        _flwr.end_run(control, run)
