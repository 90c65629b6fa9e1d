"""The outer door: who may come in, how many at once, for how long, and with how much.

A connection belongs to a stranger until it has shown a registered key. Strangers are few, in all and from one
address, and have seconds to do so. When there is no room, the one that has dawdled longest makes it. Nothing
that a stranger sends is kept: a header of at most 16 kB is looked at, and no body is read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedsaddle.flower.post import ANSWER, FETCH, HERE, LEAVE, TWICE, Post
from fedsaddle.flower.signing import DIGEST, KEY, Headers, digest_of, header_named, signed_at

HEADER_BYTES = 16 << 10  # bytes of a request's line and headers
BODY_BYTES = 16 << 10  # bytes of a body that carries no floats
SHOW = 10.0  # seconds that a stranger has to show a key
DAWDLE = 2.0  # seconds after which a stranger may have to make room
STRANGERS, OF_ADDRESS = 256, 128
OF_NODE = 4  # connections of one registered node
COMING = 50.0, 256.0  # connections a second from one address, and at once: each costs a handshake
ASKING = 20.0, 60.0  # requests a second of one node, and at once; then each waits for
SLOWLY = 1.0  # seconds
BODY_SECONDS = 60.0  # seconds that a body may take to come, if nobody waits for it longer
LEFT, TOO_LATE = 499, 408  # who sent it has gone; it took too long
REFUSED = 0.002  # seconds before the next connection is looked at, after one that was not let in
RESERVED = 64  # file descriptors that the server needs for itself
CLOCK_AHEAD, CLOCK_BEHIND = 5.0, 300.0  # seconds that a signature's time may be off
SAID_AGAIN = 60.0  # seconds before the same line is said again

Scope = MutableMapping[str, Any]
ASGIEvent = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIEvent]]
Send = Callable[[ASGIEvent], Awaitable[None]]
Serve = Callable[[Scope, Receive, Send], Awaitable[None]]


# --- connections --------------------------------------------------------------------------------------------


@dataclass
class Allowance:
    """How often somebody may come: so often a second in the long run, and so often at once."""

    rate: float
    burst: float
    most: int = 10_000  # of whom this is known; those not seen for longest are forgotten
    left: dict[Hashable, tuple[float, float]] = field(default_factory=dict)  # and when that was so

    def allows(self, who: Hashable, now: float) -> bool:
        left, then = self.left.pop(who, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        self.left[who] = (left - 1.0, now) if left >= 1.0 else (left, now)
        if len(self.left) > self.most:
            del self.left[next(iter(self.left))]
        return left >= 1.0


def network_of(host: str) -> str:
    """Who is behind an address: of IPv6, a network, in which one machine has as many as it wants."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


At = tuple[str, int]  # an address and a port


@dataclass(eq=False)
class Visitor:
    """One connection."""

    address: str
    since: float
    drop: Callable[[], object]


@dataclass
class Visitors:
    """Who is connected. `most` bounds all of them."""

    most: int
    strangers: dict[At, Visitor] = field(default_factory=dict)
    known: dict[At, Visitor] = field(default_factory=dict)
    of_key: dict[bytes, list[At]] = field(default_factory=dict)
    coming: Allowance = field(default_factory=lambda: Allowance(*COMING))

    def room_for(self, address: str, now: float) -> bool:
        """Whether a stranger may come in, perhaps because another had to go."""
        if not self.coming.allows(address, now):
            return False
        share = min(STRANGERS, max(2, self.most // 2))
        while True:
            mine = [one for one in self.strangers.values() if one.address == address]
            if len(mine) >= min(OF_ADDRESS, max(1, share // 2)):
                crowd = mine
            elif len(self.strangers) >= share or len(self.strangers) + len(self.known) >= self.most:
                crowd = list(self.strangers.values())
            else:
                return True
            if not crowd or now - crowd[0].since < DAWDLE:
                return False
            crowd[0].drop()
            self.strangers = {at: one for at, one in self.strangers.items() if one is not crowd[0]}

    def introduce(self, at: At, key: bytes) -> None:
        """The connection at this address and port has shown a key."""
        visitor = self.strangers.pop(at, None)
        if visitor is None:
            return
        self.known[at] = visitor
        own = self.of_key[key] = [*(one for one in self.of_key.get(key, ()) if one in self.known), at]
        for older in own[:-OF_NODE]:
            self.known[older].drop()

    def leave(self, at: At) -> None:
        self.strangers.pop(at, None)
        self.known.pop(at, None)


def capacity() -> int:
    """As many connections as this process may have files open, once it has asked for as many as it can."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(8, files - RESERVED)


class Watched(H11Protocol):
    """HTTP on one connection; says when that is over."""

    left: Callable[[], object]
    lost = False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.left()
        super().connection_lost(error)

    def on_response_complete(self) -> None:
        """Wait for another request; not on a connection that was cut, whose buffers that would hold."""
        if not self.lost:
            super().on_response_complete()


async def admit(
    listener: socket.socket, server: uvicorn.Server, tls: ssl.SSLContext, visitors: Visitors
) -> None:
    """Take connections as long as there is room. Those that find none are closed at once."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    while not server.should_exit:
        try:
            connection, (host, port, *_) = await loop.sock_accept(listener)
        except OSError:  # out of file descriptors, by somebody else's doing
            await asyncio.sleep(0.2)
            continue
        if not visitors.room_for(network_of(host), time.monotonic()):
            connection.close()
            await asyncio.sleep(REFUSED)  # a flood is not to keep the others' answers waiting
            continue
        task = loop.create_task(_greet(connection, (host, port), server, tls, visitors))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _greet(
    connection: socket.socket,
    at: At,
    server: uvicorn.Server,
    tls: ssl.SSLContext,
    visitors: Visitors,
) -> None:
    """Shake hands, and see to it that a stranger shows a key in time."""
    loop, here = asyncio.get_running_loop(), asyncio.current_task()
    assert here is not None
    visitor = visitors.strangers[at] = Visitor(network_of(at[0]), time.monotonic(), here.cancel)
    protocol = Watched(server.config, server.server_state, {}, loop)
    protocol.left = lambda: visitors.leave(at)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=tls,
            ssl_handshake_timeout=SHOW,
        )
    except (OSError, asyncio.CancelledError):  # ssl.SSLError and time-outs are such
        visitors.leave(at)
        connection.close()
        return
    visitor.drop = transport.abort

    def over() -> None:
        if visitors.strangers.get(at) is visitor:
            transport.abort()

    limit = loop.call_later(max(0.0, SHOW - (time.monotonic() - visitor.since)), over)

    def left() -> None:
        limit.cancel()  # it would hold the connection's buffers, 256 kB, until then
        visitors.leave(at)

    protocol.left = left
    if transport.is_closing():
        left()


# --- requests -----------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """Who may join: a client, its Flower node, and its key."""

    client: int
    node: int
    key: ec.EllipticCurvePublicKey

    def __str__(self) -> str:
        return f"client {self.client}, node {self.node}"


def members(told: Mapping[str, tuple[int, int]]) -> dict[bytes, Member]:
    """From (client, node) by public key, by what a request's header says of it."""
    found = {}
    for pem, (client, node) in told.items():
        key = serialization.load_pem_public_key(pem.encode())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        found[b64encode(pem.encode())] = Member(client, node, key)
    return found


@dataclass
class Outside:
    """Lets registered nodes to the post, and nobody else anywhere."""

    post: Post
    visitors: Visitors
    most: int  # bytes of an answer
    members: dict[bytes, Member] = field(default_factory=dict)  # nobody, until they are registered
    asking: Allowance = field(default_factory=lambda: Allowance(*ASKING))  # of nodes
    said: dict[str, float] = field(default_factory=dict)

    def admit_members(self, told: Mapping[str, tuple[int, int]]) -> None:
        """Open the door to these, and to nobody else."""
        self.members = members(told)
        if len(told) > self.visitors.most // 2:
            self.note(f"{len(told)} devices may join; raise the limit of open files for as many connections")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return  # the inner door looks after that
        member, status, why = self.look_at(scope)
        if member is not None:
            call, _, name = scope["path"].rpartition("/")
            if not self.asking.allows(member.node, time.monotonic()):
                await asyncio.sleep(SLOWLY)
            wait = self.post.expects(member.node, name) if call + "/" == ANSWER else BODY_SECONDS
            body = await body_of(receive, max(wait, BODY_SECONDS), keep=wait > 0)
            if isinstance(body, int):
                status, why = body, f"{member}: its request did not come in time"
            elif wait > 0 and digest_of([body]) != header_named(scope["headers"], DIGEST):
                status, why = 401, f"{member}: what it has signed is something else"
            else:
                status, why = self.hear(member, call + "/", name, body)
            if status == 200 and call + "/" == FETCH:
                await self.fetch(member, receive, send)
                return
        if status not in (200, 403, 503):
            self.note(f"refused: {why or f'{member}: {status}'}")
        await say(send, status, why.encode())

    def look_at(self, scope: Scope) -> tuple[Member | None, int, str]:
        """Who asks; or nobody, with a status and perhaps a reason. Only headers are looked at."""
        headers, call = scope.get("headers", []), scope.get("path", "").rpartition("/")[0] + "/"
        if scope["type"] != "http" or scope["method"] != "POST" or call not in (HERE, LEAVE, FETCH, ANSWER):
            return None, 403, ""
        if not self.members or self.post.closed:  # not yet, or no more: a node asks again after a pause
            return None, 503, ""
        member = self.identify(scope["path"], headers, datetime.now(UTC))
        if isinstance(member, str):
            return None, 401, member
        self.visitors.introduce(tuple(scope["client"] or ()), header_named(headers, KEY))
        if not fits(headers, self.most if call == ANSWER else BODY_BYTES):
            return None, 413, f"{member}: too long for {call}"
        return member, 200, ""

    def hear(self, member: Member, call: str, name: str, body: bytes) -> tuple[int, str]:
        """Do what a node asks for, but for a look, which takes time: a status, and a word."""
        if call == ANSWER:
            return self.post.answer(member.node, name, body), ""
        if call == LEAVE:
            if self.post.sessions.get(member.node) == name:
                self.post.leave(member.node)
            return 200, ""
        if not self.post.hear_of(member.node, name[:64]):
            return TWICE, f"{member}: another device is there with its key"
        return 200, str(member.node)

    async def fetch(self, member: Member, receive: Receive, send: Send) -> None:
        left = asyncio.ensure_future(receive())  # nothing more comes than that the connection is lost
        try:
            letter = await self.post.fetch(member.node, left)
        finally:
            left.cancel()
        await (say(send, 204) if letter is None else say(send, 200, *letter.parts))

    def identify(self, path: str, headers: Headers, now: datetime) -> Member | str:
        """Who asks, or why that is not believed."""
        member = self.members.get(header_named(headers, KEY))
        if member is None:
            return "no registered key"
        signed = signed_at(headers, path, member.key)
        if signed is None:
            return f"{member}: not signed by its key"
        ahead = (signed - now).total_seconds()
        if not -CLOCK_BEHIND < ahead < CLOCK_AHEAD:
            way = "ahead of" if ahead > 0 else "behind"
            return f"{member}: its clock is {abs(ahead):.0f} s {way} the server's"
        return member

    def note(self, line: str) -> None:
        """Write a line to the log, not the same one every time."""
        now = time.monotonic()
        if now - self.said.get(line, -SAID_AGAIN) < SAID_AGAIN:
            return
        if len(self.said) >= 1000:
            self.said.clear()
        self.said[line] = now
        print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}", file=sys.stderr, flush=True)


def fits(headers: Headers, most: int) -> bool:
    """Whether a body says how long it is, and is no longer; the HTTP library holds it to that."""
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) != 1 or any(name == b"transfer-encoding" for name, _ in headers):
        return False
    return len(lengths[0]) < 16 and lengths[0].isdigit() and int(lengths[0]) <= most


async def body_of(receive: Receive, seconds: float | None = None, keep: bool = True) -> bytes | int:
    """All of a body, or nothing of it if it is not to be kept; a status if it does not come."""
    parts = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    return LEFT
                parts += [event.get("body", b"")] if keep else []
                if not event.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        return TOO_LATE


async def say(send: Send, status: int, *parts: bytes) -> None:
    length = str(sum(map(len, parts))).encode()
    headers = [] if status == 204 else [(b"content-length", length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
