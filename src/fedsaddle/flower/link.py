"""The SuperLink: Flower's own, and the post, listening at two doors.

From outside only the post can be reached (door.py), over TLS, by nodes whose keys are registered. Flower's
APIs, by which whoever reaches them could run anything, and the ServerApp's side of the post are behind a Unix
socket in a folder that only this user can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket as sockets
import ssl
import time
from asyncio import sslproto
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import uvicorn

from fedsaddle.errors import BadInput
from fedsaddle.flower import _flwr, door
from fedsaddle.flower._flwr import ControlHttpClient, RuntimeHttpClient, open_client
from fedsaddle.flower.post import Post, asked
from fedsaddle.flower.wire import OVERHEAD

TLS_BUFFER = 32 << 10  # bytes
COLLECT_EVERY = 30.0  # seconds


@dataclass
class Inside:
    """The inner door: all of Flower's API, the ServerApp's side of the post, and who may come in outside."""

    flower: door.Serve
    outside: door.Outside

    async def __call__(self, scope: door.Scope, receive: door.Receive, send: door.Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith("/post/"):
            await self.flower(scope, receive, send)
            return
        body = await door.body_of(receive)
        if isinstance(body, int):
            return
        if path == "/post/members":
            self.outside.admit_members(json.loads(body))
            await door.say(send, 200)
        else:
            await door.say(send, 200, asked(self.outside.post, path, body))


class Outer(uvicorn.Server):
    """The server of the outer door. Before it ends, it lets go of those who wait there."""

    def __init__(self, config: uvicorn.Config, post: Post) -> None:
        super().__init__(config)
        self.post = post

    async def shutdown(self, sockets: list[sockets.socket] | None = None) -> None:
        self.post.close()
        await super().shutdown(sockets)


def listen(
    socket: Path, database: Path, address: tuple[str, int], files: tuple[Path, Path], largest: int
) -> None:
    """Run the SuperLink at both doors until the process is ended."""
    flower = _flwr.superlink(database, address)
    outside = door.Outside(Post(), door.Visitors(door.capacity()), 2 * largest + OVERHEAD)
    config = partial(uvicorn.Config, http="h11", ws="none", log_level="warning", server_header=False)
    inner = uvicorn.Server(config(Inside(flower, outside), uds=str(socket)))
    outer = Outer(
        config(
            outside,
            lifespan="off",
            h11_max_incomplete_event_size=door.HEADER_BYTES,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        ),
        outside.post,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(*files)
    family = sockets.AF_INET6 if ":" in address[0] else sockets.AF_INET
    listener = sockets.create_server(address, family=family, backlog=512)
    listener.setblocking(False)

    # Of 256 kB, for each connection: more than all else that one costs.
    sslproto.SSLProtocol.max_size = TLS_BUFFER

    async def both() -> None:
        outer.config.load()
        taking = asyncio.create_task(door.admit(listener, outer, tls, outside.visitors))
        tidying = asyncio.create_task(collect_garbage())
        await asyncio.gather(inner.serve(), outer.serve(sockets=[]))
        taking.cancel()
        tidying.cancel()

    asyncio.run(both())


async def collect_garbage() -> None:
    """Free what lost connections leave, now and then.

    A socket's transport holds itself in a circle, 2 to 3 kB. Python would look for such only after many
    thousands of them, and then through all of Flower's modules, which are not looked through here.
    """
    gc.freeze()
    while True:
        await asyncio.sleep(COLLECT_EVERY)
        gc.collect()


# --- what the server asks of it, at the inner door --------------------------------------------------------


def wait_until_up(socket: Path, alive: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Whether the SuperLink has come up in time."""
    end = time.monotonic() + seconds
    with open_client(ControlHttpClient, socket) as control:
        while time.monotonic() < end and alive():
            try:
                _flwr.list_nodes(control)
                return True
            except httpx.HTTPError:  # not there yet, or not ready
                time.sleep(0.1)
    return False


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
                except httpx.HTTPStatusError as error:  # Flower does not take a key twice
                    if error.response.status_code >= 500:
                        raise
                    raise BadInput(
                        f"the key of client {client} was locked out of this run before; remove "
                        f"node-{client} and its .pub, and make a new key with fedsaddle keys"
                    ) from None
    nodes = {client: known[key] for client, key in keys.items()}
    told = {key.decode(): (client, nodes[client]) for client, key in keys.items()}
    with to_post(socket) as post:
        post.post("/post/members", content=json.dumps(told)).raise_for_status()
    return nodes


def to_post(socket: Path) -> httpx.Client:
    """The inner side of the post."""
    return httpx.Client(base_url="http://post", transport=httpx.HTTPTransport(uds=str(socket)), timeout=30.0)


class NotStarted(Exception):
    """The SuperLink has taken a run and does not begin it."""


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
    raise NotStarted


def stop_run(socket: Path, run: int) -> None:
    """End a run, so that no node answers its messages any more."""
    # It may have ended already, and so may the SuperLink.
    with open_client(ControlHttpClient, socket) as control, contextlib.suppress(httpx.HTTPError):
        _flwr.end_run(control, run)
