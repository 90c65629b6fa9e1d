"""How a node shows who it is: with each request its key, and the request, signed by it.

What is signed is when it asks, what for, and the hash of what it says. A proxy that ends TLS can repeat a
request for some minutes, but put nothing else in its place.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

KEY, TIME, DIGEST, SIGNED = (f"fedsaddle-{name}" for name in ("key", "time", "digest", "signature"))
HOW = ec.ECDSA(hashes.SHA256())

Headers = list[tuple[bytes, bytes]]  # as ASGI gives them


class Signature:
    """A node's own.

    `ahead` is how far the server's clock is ahead of this one: the time that counts is the server's.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self.key, self.ahead = key, 0.0
        self.public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def headers(self, path: str, *parts: bytes) -> dict[str, str]:
        """Of a request to this path, with a body of these parts."""
        stamp = (datetime.now(UTC) + timedelta(seconds=self.ahead)).isoformat()
        digest = digest_of(parts)
        signed = self.key.sign(_words(stamp.encode(), path, digest), HOW)
        return {
            KEY: b64encode(self.public).decode(),
            TIME: stamp,
            DIGEST: digest.decode(),
            SIGNED: b64encode(signed).decode(),
        }


def digest_of(parts: Iterable[bytes]) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest().encode()


def _words(stamp: bytes, path: str, digest: bytes) -> bytes:
    return b"\n".join((stamp, path.encode(), digest))


def header_named(headers: Headers, name: str) -> bytes:
    """What a header says; nothing if it is not there."""
    return next((value for key, value in headers if key == name.encode()), b"")


def signed_at(headers: Headers, path: str, key: ec.EllipticCurvePublicKey) -> datetime | None:
    """When these headers were signed by this key, for this path; None if they were not."""
    stamp = header_named(headers, TIME)
    try:
        told = datetime.fromisoformat(stamp.decode("ascii"))
        signature = b64decode(header_named(headers, SIGNED), validate=True)
        key.verify(signature, _words(stamp, path, header_named(headers, DIGEST)), HOW)
        return told if told.tzinfo else None
    except (ValueError, InvalidSignature):
        return None
