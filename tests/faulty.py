"""A node that misbehaves as it is told: `python faulty.py JOIN-OPTIONS-AS-JSON`.

The plan says what happens in which round and phase: {"2.1": "nan"}. Everything else is a node as `fedsaddle
join` runs it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedsaddle.border.build import load
from fedsaddle.core import Pair
from fedsaddle.flower import deploy, node
from fedsaddle.flower.client import Site, client_app
from fedsaddle.flower.keys import node_key
from fedsaddle.flower.wire import HEADER, pack


class Faulty:
    def __init__(self, site: Site, plan: dict[str, str], folder: Path) -> None:
        self.app, self.plan, self.folder = client_app(site), plan, folder
        self.push, node.push_message = node.push_message, self.pushed
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
        if self.fault in ("nan", "shape", "huge", "far"):
            up = self._answer(reply)
            name, own = next(iter(up.items()))
            x = {
                "nan": torch.full_like(own.x, torch.nan),
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

    def pushed(self, reply: Message, seconds: float, send: object, push_object: object) -> None:
        if self.fault == "envelope":  # and never its contents
            push_object = lambda *contents: None  # noqa: E731
        self.push(reply, seconds, send, push_object)
        if self.fault == "twice":
            try:
                self.push(reply, seconds, send, push_object)
                print("the second copy was taken", flush=True)
            except Exception as error:
                print(f"the second copy was refused: {error}", flush=True)


def main() -> None:
    told = json.loads(sys.argv[1])
    plan = load(told["experiment"], engine="loop", device="cpu")
    folder = Path(told["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(plan, told["client"], folder)
    key, ca = node_key(Path(told["key"]))
    address = node.Address(told["server"], ca, key)
    sys.exit(deploy.join(site, address, 0.3, Faulty(site, told["plan"], folder)))


if __name__ == "__main__":
    main()
