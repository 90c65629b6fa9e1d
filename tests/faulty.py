"""A node that misbehaves as it is told: `python faulty.py JOIN-OPTIONS-AS-JSON`.

The plan says what happens in which round and phase: {"2.1": "nan"}. Everything else is a node as `fedsaddle
join` runs it.
"""

import json
import os
import signal
import socket
import ssl
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedsaddle.border.build import load
from fedsaddle.core import Pair
from fedsaddle.flower import deploy, node, signing
from fedsaddle.flower.client import Site, client_app
from fedsaddle.flower.keys import node_key
from fedsaddle.flower.post import ANSWER
from fedsaddle.flower.wire import HEADER, pack


class Faulty:
    def __init__(self, site: Site, plan: dict[str, str], folder: Path) -> None:
        self.app, self.plan, self.folder = client_app(site), plan, folder
        self.push, node.Connection.answer = (
            node.Connection.answer,
            lambda line, *reply: self.pushed(line, *reply),
        )
        self.fault = ""

    def __call__(self, message: Message, context: object) -> Message:
        header = message.content[HEADER]
        self.fault, _, seconds = self.plan.get(f"{header.get('round')}.{header.get('phase')}", "").partition(
            ":"
        )
        if self.fault == "raise":
            raise RuntimeError("boom")
        if self.fault == "die":
            mark = self.folder / "died"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "mark":  # for a test that waits for this moment
            mark = self.folder / "mark"
            if not mark.exists():
                mark.touch()
                time.sleep(float(seconds))
        if self.fault == "sleep":
            time.sleep(float(seconds))
        reply = self.app(message, context)
        if self.fault in ("pieces", "header"):
            more = {f"{n}": n for n in range(10_000)} if self.fault == "pieces" else {"run": "x" * 900_000}
            return Message(
                RecordDict({**reply.content, HEADER: ConfigRecord({**header, **more})}), reply_to=message
            )
        if self.fault in ("nan", "shape", "huge", "far", "kind"):
            up = self._answer(reply)
            name, own = next(iter(up.items()))
            x = {
                "nan": torch.full_like(own.x, torch.nan),
                "kind": own.x.float(),
                "far": torch.full_like(own.x, 1e300),  # finite
                "shape": torch.ones(2, dtype=own.x.dtype),
                "huge": torch.ones(12_500_000, dtype=torch.float64),  # 100 MB
            }[self.fault]
            return Message(pack(dict(header), {**up, name: Pair(x, own.y)}), reply_to=message)
        if self.fault == "stale":
            return Message(
                RecordDict(
                    {
                        HEADER: ConfigRecord({**header, "round": header["round"] - 1}),
                        "floats": reply.content["floats"],
                    }
                ),
                reply_to=message,
            )
        return reply

    def _answer(self, reply: Message) -> dict[str, Pair]:
        floats = reply.content["floats"]
        names = dict.fromkeys(key.partition(".")[0] for key in floats if not key.endswith(" is"))

        def tensor(key: str) -> torch.Tensor:
            kind = getattr(torch, floats[f"{key} is"].partition("[")[0])
            return torch.frombuffer(bytearray(floats[key]), dtype=kind)

        return {name: Pair(tensor(f"{name}.x"), tensor(f"{name}.y")) for name in names}

    def pushed(self, line: node.Connection, name: str, reply: Message) -> int:
        if self.fault == "half":  # of the answer, and then nothing more
            half(line, name)
            return 200
        if self.fault == "garbage":
            return line.post(ANSWER + name, b"\xff" * 1000).status_code
        status = self.push(line, name, reply)
        if self.fault == "twice":
            again = self.push(line, name, reply)
            print(f"the second copy was {'taken' if again == 200 else 'refused'}", flush=True)
        return status


def half(line: node.Connection, name: str) -> None:
    """Say that 1,000 bytes are coming, and send ten."""
    host, _, port = line.address.server.rpartition(":")
    plain = socket.create_connection((host, int(port)))
    secure = line.tls.wrap_socket(plain, server_hostname=host)
    path = ANSWER + name
    headers = {"host": host, "content-length": "1000", **line.signature.headers(path)}
    lines = [f"POST {path} HTTP/1.1", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
    secure.sendall("\r\n".join(lines).encode() + b"0" * 10)
    KEPT.append(secure)


KEPT: list[ssl.SSLSocket] = []  # connections that stay open


def clock(ahead: float) -> None:
    """Be a device whose clock is wrong."""

    class Wrong(datetime):
        @classmethod
        def now(cls, zone: object = None) -> datetime:
            return datetime.now(zone) + timedelta(seconds=ahead)

    node.datetime = signing.datetime = Wrong


def main() -> None:
    told = json.loads(sys.argv[1])
    plan = load(told["experiment"], engine="loop", device="cpu")
    folder = Path(told["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(plan, told["client"], folder)
    clock(told.get("ahead", 0.0))
    key, ca = node_key(Path(told["key"]))
    address = node.Address(told["server"], ca, key)
    sys.exit(deploy.join(site, address, Faulty(site, told["plan"], folder)))


if __name__ == "__main__":
    main()
