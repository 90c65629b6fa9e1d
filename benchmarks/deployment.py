"""What a deployment costs: `python -m benchmarks.deployment`, about fifteen minutes on two idle cores.

Real processes on this machine's loopback: `fedsaddle serve`, nodes as `fedsaddle join` runs them, all through
a forwarder that counts bytes. Writes docs/results/deployment.json; docs/results/deployment.md is about it.

    overhead   seconds of a phase whose work takes milliseconds, with 2, 4 and 8 nodes
    bytes      what crosses the wire, against the floats that are counted
    memory     of the SuperLink, the ServerApp and a node, over 100 rounds with two late 1 MB answers each
    recovery   from SIGKILL of a node to the end of the next completed round
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "docs" / "results" / "deployment.json"

SMALL = """
name = "small"
rounds = {rounds}
evaluate_every = 1000
seeds = "0"
batch = 2
K = 3
[problem]
name = "quadratic"
clients = {nodes}
[quorum]
invite = {nodes}
deadline = 30.0
[algorithms]
cdma-nc = {{ eta = 0.05, gamma = 0.08 }}
"""

LARGE = """
name = "large"
rounds = {rounds}
evaluate_every = 1000
seeds = "0"
batch = 10
K = 1
[problem]
name = "robust"
dataset = "digits"
clients = {nodes}
hidden = 450
evaluate_rows = 10
ascent_steps = 1
[quorum]
{quorum}
[algorithms]
cdma-nc = {{ eta = 0.05, gamma = 0.08 }}
"""


class Forwarder:
    """Passes connections on, and counts their bytes."""

    def __init__(self, port: int) -> None:
        self.port, self.up, self.down = port, 0, 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.door.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                near.close()
                continue
            for source, target, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass, args=(source, target, way), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()


class Deployed:
    """A server and its nodes."""

    def __init__(self, folder: Path, text: str, nodes: int) -> None:
        from fedsaddle.flower import deploy, keys

        self.folder, self.run = folder, folder / "run"
        self.experiment = folder / "experiment.toml"
        self.experiment.write_text(text)
        keys.make(folder / "keys", nodes)
        port = deploy.free_port()
        self.forwarder = Forwarder(port)
        place = ["--keys", folder / "keys" / "server", "--listen", f"127.0.0.1:{port}", "--out", self.run]
        self.serve = self._start("server", "-m", "fedsaddle", "serve", self.experiment, *place)
        join = ["-m", "fedsaddle", "join", self.experiment, "--server", self.forwarder.address]
        self.nodes = [
            self._start(f"node-{n}", *join, "--key", folder / "keys" / f"node-{n}") for n in range(nodes)
        ]

    def _start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, *map(str, words)], stdout=log, stderr=log, cwd=ROOT)

    def history(self) -> list[dict[str, Any]]:
        path = self.run / "history.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, rounds: int, seconds: float = 900) -> None:
        end = time.monotonic() + seconds
        while len(self.history()) < rounds:
            if time.monotonic() > end or self.serve.poll() not in (None, 0):
                raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.05)


@contextmanager
def deployed(text: str, nodes: int) -> Iterator[Deployed]:
    with tempfile.TemporaryDirectory() as folder:
        one = Deployed(Path(folder), text, nodes)
        try:
            yield one
        finally:
            for process in (one.serve, *one.nodes):
                process.terminate()
            for process in (one.serve, *one.nodes):
                process.wait(60)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def megabytes(pid: int) -> float:
    """What a process holds for itself, without the pages it shares with the one it was forked from."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    held = {line.split()[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return (held["Private_Clean:"] + held["Private_Dirty:"]) / 1024


# --- what is measured -------------------------------------------------------------------------------------


def overhead(nodes: int, rounds: int = 20) -> dict[str, Any]:
    with deployed(SMALL.format(nodes=nodes, rounds=rounds + 2), nodes) as one:
        one.wait_for(rounds + 2)
        seconds = [line["seconds"] for line in one.history()[2:]]  # the first warm up
    return {
        "nodes": nodes,
        "phases": len(seconds),
        "median": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
    }


def wire(rounds: int = 20) -> list[dict[str, Any]]:
    found = []
    quorum = "invite = 4\ndeadline = 60.0"
    for name, text in (
        ("small", SMALL.format(nodes=4, rounds=rounds + 2)),
        ("1 MB", LARGE.format(nodes=4, rounds=rounds + 2, quorum=quorum)),
    ):
        with deployed(text, 4) as one:
            one.wait_for(2)
            before, began = (one.forwarder.up, one.forwarder.down), time.monotonic()
            one.wait_for(rounds + 2)
            up, down = one.forwarder.up - before[0], one.forwarder.down - before[1]
            seconds = time.monotonic() - began
            one.serve.wait(300)
            rows = (one.run / "traffic.csv").read_text().splitlines()[1:]
        last = [row.split(",") for row in rows if row.split(",")[2] == str(rounds + 2)]
        size = 8 if name == "small" else 4
        floats = {
            way: size * sum(int(row[6]) for row in last if row[3] == way) * rounds / (rounds + 2)
            for way in ("up", "down")
        }
        found.append(
            {
                "message": name,
                "messages_each_way": 4 * rounds,
                "seconds": seconds,
                "floats_up_bytes": floats["up"],
                "wire_up_bytes": up,
                "floats_down_bytes": floats["down"],
                "wire_down_bytes": down,
            }
        )
    return found


def memory(rounds: int = 100) -> dict[str, Any]:
    quorum = "invite = 4\nenough = 2\ndeadline = 60.0"
    # Twice as many nodes as are invited: one that owes an answer is not.
    with deployed(LARGE.format(nodes=8, rounds=rounds, quorum=quorum), 8) as one:
        one.wait_for(1)
        hub, app = children(one.serve.pid)
        (node,) = children(one.nodes[0].pid)
        samples = []
        while len(one.history()) < rounds - 1:
            done = len(one.history())
            if not samples or done >= samples[-1]["round"] + 10:
                sizes = {"superlink": megabytes(hub), "serverapp": megabytes(app), "node": megabytes(node)}
                samples.append({"round": done, **sizes})
            time.sleep(0.2)
        lines = one.history()
        late = sum(len(line["late"]) + len(line.get("overdue", [])) for line in lines)
    return {"rounds": rounds, "late": late, "samples": samples}


def recovery() -> list[dict[str, Any]]:
    found = []
    for told, quorum in (
        ("invite 4, wait for all, deadline 10 s", "invite = 4\ndeadline = 10.0"),
        ("invite 4, enough 3, deadline 10 s", "invite = 4\nenough = 3\ndeadline = 10.0"),
    ):
        text = SMALL.format(nodes=4, rounds=60).replace("invite = 4\ndeadline = 30.0", quorum)
        with deployed(text, 4) as one:
            one.wait_for(4)
            (pid,) = children(one.nodes[1].pid)
            os.kill(pid, signal.SIGKILL)
            killed, done = time.monotonic(), len(one.history())
            one.wait_for(done + 1)
            next_round = time.monotonic() - killed
            while not any(1 in line["used"] for line in one.history()[done + 1 :]):
                time.sleep(0.05)
            back = time.monotonic() - killed
        found.append({"quorum": told, "next_round": next_round, "node_used_again": back})
    return found


def main() -> None:
    found: dict[str, Any] = {"load_before": os.getloadavg(), "cores": os.cpu_count()}
    parts = {
        "overhead": lambda: [overhead(nodes) for nodes in (2, 4, 8)],
        "bytes": wire,
        "recovery": recovery,
        "memory": memory,
    }
    for name in sys.argv[1:] or parts:
        found[name] = parts[name]()
        print(name, json.dumps(found[name], indent=1), flush=True)
    found["load_after"] = os.getloadavg()
    old = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(old | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
