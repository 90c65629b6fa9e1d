"""One device's connection to the server: fetch a message, answer it, fetch the next.

It gets its messages from the post, and answers by FedSaddle's ClientApp in this very process. Flower's own
SuperNode starts a Python process for each message, which
costs seconds, and runs the app that the server sends; here nothing that comes from the server is ever run.

A device never gives up by itself. While the server is away, or does not let it in, it says so once and asks
again, at first after a second, then less and less often.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from fedsaddle.flower._flwr import (
    Context,
    Error,
    ErrorCode,
    Message,
    RecordDict,
    message_of,
    parts_of,
)
from fedsaddle.flower.journal import say
from fedsaddle.flower.post import ACCEPTED, ANSWER, FETCH, HERE, HOLD, LEAVE, TWICE, UNASKED
from fedsaddle.flower.signing import Signature
from fedsaddle.flower.wire import OVERHEAD

App = Callable[[Message, Context], Message]

BEAT = 30.0  # seconds between signs of life while it computes; else its looks for messages are such
PAUSE, LONGEST_PAUSE = 1.0, 120.0  # seconds before the first and the later tries, while the server is away
CLOCKS_APART = 2.0  # seconds that clocks may differ without a word
REASON_LENGTH = 400  # characters


@dataclass(frozen=True)
class Address:
    """Where the server is, what it is known by, and who this is."""

    server: str  # HOST:PORT
    ca: Path
    key: ec.EllipticCurvePrivateKey


@dataclass
class Connection:
    """The way to the server: signed requests, repeated until they are answered."""

    address: Address
    say: Callable[[str], None] = say
    signature: Signature = field(init=False)
    trouble: str = ""  # why the server could not be asked, as it was last said
    busy: bool = False  # with an answer
    session: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        self.signature = Signature(self.address.key)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.tls.load_verify_locations(cadata=self.address.ca.read_text("ascii"))
        self.client = httpx.Client(
            base_url=f"https://{self.address.server}", verify=self.tls, timeout=HOLD + 10.0
        )

    def close(self) -> None:
        self.client.close()

    def until_done(self, call: Callable[[], httpx.Response]) -> httpx.Response:
        """What a call gives, however long the server is away or does not let this device in."""
        pause = PAUSE
        while True:
            try:
                response = call()
            except (httpx.HTTPError, OSError) as error:
                self.tell(_away(error))
            else:
                if not self.refused(response):
                    if self.trouble:
                        self.say(f"the server at {self.address.server} is there again")
                    self.trouble = ""
                    return response
                if self.set_clock(response):
                    time.sleep(PAUSE)
                    continue
                failing = response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
                what = "cannot answer" if failing else "does not let this device in"
                self.tell(f"{what}: {_why(response)}")
            time.sleep(pause * random.uniform(0.7, 1.3))
            pause = min(LONGEST_PAUSE, 1.25 * pause)

    def refused(self, response: httpx.Response) -> bool:
        """Whether it is this device that the server does not take, and not what it says."""
        status, answers = response.status_code, response.request.url.path.startswith(ANSWER)
        if answers and 400 <= status < 500:
            return status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        return status >= 300

    def tell(self, trouble: str) -> None:
        """Say what is wrong, once."""
        if trouble != self.trouble:
            self.trouble = trouble
            again = f"trying again, every {LONGEST_PAUSE:.0f} s at last"
            self.say(f"the server at {self.address.server} {trouble}; {again}")

    def set_clock(self, response: httpx.Response) -> bool:
        """Whether a refusal may be due to this device's clock. From now on it signs by the server's."""
        try:
            there = parsedate_to_datetime(response.headers["date"])
        except (KeyError, ValueError):
            return False
        ahead = (there - datetime.now(UTC)).total_seconds()
        if (
            response.status_code != HTTPStatus.UNAUTHORIZED
            or abs(ahead - self.signature.ahead) < CLOCKS_APART
        ):
            return False
        way = "behind" if ahead > 0 else "ahead of"
        self.say(f"this device's clock is {abs(ahead):.0f} s {way} the server's; signing by the server's")
        self.signature.ahead = ahead
        return True

    def post(self, path: str, *parts: bytes) -> httpx.Response:
        headers = self.signature.headers(path, *parts)
        return self.client.post(path, content=b"".join(parts), headers=headers)

    def fetch(self, most: int) -> bytes | None:
        """A message to this node, if there is one by now."""

        def look() -> httpx.Response:
            path = FETCH + self.session
            headers = self.signature.headers(path)
            with self.client.stream("POST", path, content=b"", headers=headers) as response:
                if int(response.headers.get("content-length", 0)) <= most:
                    response.read()
                return response

        response = self.until_done(look)
        if response.status_code == HTTPStatus.NO_CONTENT:
            return None
        if not response.is_stream_consumed:
            raise ValueError(f"a message of more than {most} bytes was refused")
        return response.content

    def answer(self, name: str, reply: Message) -> int:
        """Send an answer; what became of it, in HTTP's words."""
        parts = parts_of(reply)
        return self.until_done(lambda: self.post(ANSWER + name, *parts)).status_code


def _away(error: Exception) -> str:
    """What to say of a server that was not reached."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return f"is away: {str(error).rstrip('.') or type(error).__name__}"
    clock = f"; this device's clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return f"is not the one that ca.crt knows: {cause.verify_message}{clock}"


def _why(response: httpx.Response) -> str:
    with contextlib.suppress(httpx.StreamError):
        text = response.text.strip()
        if text and len(text) < REASON_LENGTH:
            return text
    return f"{response.status_code} {response.reason_phrase}"


@contextlib.contextmanager
def online(line: Connection, memo: Path) -> Iterator[int]:
    """Be there; this node's number. The session is noted in a file.

    A node that was killed is believed to be there for a while, and its key to be in use: the next one says
    that it has gone.
    """
    with contextlib.suppress(OSError):
        before = memo.read_text()
        line.until_done(lambda: line.post(LEAVE + before[:64]))
    node = int(line.until_done(lambda: line.post(HERE + line.session)).text)
    try:
        memo.write_text(line.session)
    except OSError as error:  # then its key is believed to be in use for a while after it was killed
        line.say(f"{memo} cannot be written: {error.strerror}")
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            if line.busy:
                with contextlib.suppress(httpx.HTTPError, OSError):  # fetching says so
                    line.post(HERE + line.session)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield node
    finally:
        over.set()
        with contextlib.suppress(httpx.HTTPError, OSError):
            line.post(LEAVE + line.session)


def attend(app: App, address: Address, largest: int, memo: Path) -> None:
    """Answer messages until this process is ended.

    `largest` bounds the bytes of a message's floats. `memo` is a file in which this node notes its session.
    """
    line = Connection(address)
    with online(line, memo) as node:
        line.say(f"online as node {node}")
        while True:
            data = line.fetch(2 * largest + OVERHEAD)
            if data is None:
                continue
            message = message_of(data)
            line.busy = True
            reply = answered(app, message, node)
            line.busy = False
            status = line.answer(message.metadata.message_id, reply)
            if status not in (ACCEPTED, TWICE, UNASKED):
                refused = f"the server has refused the answer: {HTTPStatus(status).phrase}"
                line.say(refused)
                line.answer(message.metadata.message_id, failed(refused, message))


def answered(app: App, message: Message, node: int) -> Message:
    """The app's answer, or the reason why there is none."""
    run = message.metadata.run_id
    context = Context(run_id=run, node_id=node, node_config={}, state=RecordDict(), run_config={})
    try:
        return app(message, context)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:REASON_LENGTH]
        say(f"not answered: {reason}")
        return failed(reason, message)


def failed(reason: str, message: Message) -> Message:
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
