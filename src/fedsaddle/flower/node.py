"""One device's connection to the server: fetch a message, answer it, fetch the next.

It does what Flower's SuperNode does, with Flower's own client of the fleet API, but FedSaddle's ClientApp
answers in this very process. A SuperNode starts a Python process for each message, which costs seconds, and
runs the app that the server sends; here nothing that comes from the server is ever run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from fedsaddle.flower._flwr import (
    Context,
    Error,
    ErrorCode,
    Message,
    RecordDict,
    RunNotRunningException,
    connected,
    deactivate_node,
    pull_message,
    push_message,
)
from fedsaddle.flower.wire import OVERHEAD

App = Callable[[Message, Context], Message]

CONTENT_TIMEOUT = 300.0  # seconds for a message's contents to follow its envelope
REASON_LENGTH = 400  # characters


@dataclass(frozen=True)
class Address:
    """Where the server is, what it is known by, and who this is."""

    server: str  # HOST:PORT
    ca: Path
    key: ec.EllipticCurvePrivateKey


def attend(app: App, address: Address, largest: int, poll: float, memo: Path) -> None:
    """Answer messages until the server refuses the connection. While it is away, calls are retried.

    `largest` bounds the bytes of a message's floats; `poll` is the pause after finding no message. `memo` is
    a file in which this node notes its number.
    """
    _leave(address, memo)
    with connected(address.server, address.ca.read_bytes(), address.key) as connection:
        node, receive, send, pull_object, push_object, confirm = connection
        memo.write_text(str(node))
        print(f"online as node {node}", file=sys.stderr, flush=True)
        while True:
            try:
                got = receive()
                if got is None:
                    time.sleep(poll)
                    continue
                envelope, tree = got
                run = envelope.metadata.run_id
                pull = _bounded(partial(pull_object, run), 2 * largest + OVERHEAD)
                message = pull_message(tree, pull, partial(confirm, run), CONTENT_TIMEOUT)
                began = time.monotonic()
                reply = answered(app, message, node)
                push_message(reply, time.monotonic() - began, send, partial(push_object, run))
            except RunNotRunningException:  # the run has ended, or has been started anew
                continue


def _leave(address: Address, memo: Path) -> None:
    """Tell the server that this node has gone, if it was killed before it could say so.

    The server would else believe it to be online for another minute, and its key to be in use.
    """
    try:
        number = int(memo.read_text())
        deactivate_node(address.server, address.ca.read_bytes(), address.key, number)
    except (OSError, ValueError, httpx.HTTPError):
        pass  # it was never there, or is not known any more, or nobody listens


def _bounded(pull: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    taken = 0

    def bounded(name: str) -> bytes:
        nonlocal taken
        data = pull(name)
        taken += len(data)
        if taken > most:
            raise ValueError(f"a message of more than {most} bytes was refused")
        return data

    return bounded


def answered(app: App, message: Message, node: int) -> Message:
    """The app's answer, or the reason why there is none."""
    run = message.metadata.run_id
    context = Context(run_id=run, node_id=node, node_config={}, state=RecordDict(), run_config={})
    try:
        return app(message, context)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH]
        print(f"not answered: {reason}", file=sys.stderr, flush=True)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
