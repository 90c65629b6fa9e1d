"""How many devices one server bears: `python -m benchmarks.scale 4 16 64 256`, and `--idle 1000`.

Light nodes, threads of one process: each has a key, a TLS connection and `fedsaddle join`'s own loop. CDMA-NC
on the quadratic, everybody invited. The CPU time of the SuperLink, of the ServerApp and of all nodes together
is read from /proc, so that it does not depend on what else the machine does. Adds to
docs/results/deployment.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.deployment import RESULT, ROOT, SMALL, children, megabytes

DEADLINE = 60.0  # seconds of a phase


def cpu(pid: int) -> float:
    """Seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def live(experiment: str, folder: str, server: str, count: int) -> None:
    """The process of the nodes."""
    from fedsaddle.border.build import load
    from fedsaddle.flower import keys
    from fedsaddle.flower.client import Site, client_app
    from fedsaddle.flower.node import Address, attend

    plan = load(experiment, engine="loop", device="cpu")
    largest = Site(plan, 0, Path(folder)).prepare()
    one_at_a_time = threading.Lock()

    def node(number: int) -> None:
        key, ca = keys.node_key(Path(folder) / "keys" / f"node-{number}")
        app = client_app(Site(plan, number, Path(folder) / f"site-{number}"))  # each counts its own visits

        def answer(message: Any, context: Any) -> Any:
            with one_at_a_time:
                return app(message, context)

        attend(answer, Address(server, ca, key), largest, Path(folder) / f"memo-{number}")

    threads = [threading.Thread(target=node, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    threads[0].join()


class Scaled:
    """A server and a process of light nodes."""

    def __init__(self, folder: Path, nodes: int, keys_for: int, rounds: int) -> None:
        from fedsaddle.flower import deploy, keys

        text = SMALL.format(nodes=keys_for, rounds=rounds).replace(
            "deadline = 30.0", f"deadline = {DEADLINE}"
        )
        self.folder, self.run, experiment = folder, folder / "run", folder / "experiment.toml"
        experiment.write_text(text)
        keys.make(folder / "keys", keys_for)
        self.place = place = f"127.0.0.1:{deploy.free_port()}"
        serve = ["serve", experiment, "--keys", folder / "keys" / "server", "--listen", place]
        self.serve = self._start("server", "-m", "fedsaddle", *serve, "--out", self.run)
        self.nodes = self._start(
            "nodes", "-m", "benchmarks.scale", "--live", experiment, folder, place, nodes
        )

    def _start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, *map(str, words)], stdout=log, stderr=log, cwd=ROOT)

    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def phases(self) -> list[dict[str, Any]]:
        path = self.run / "history.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, what: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not what():
            if time.monotonic() > end or self.serve.poll() not in (None, 0):
                raise RuntimeError(self.log()[-2000:])
            time.sleep(0.05)

    def used(self) -> list[float]:
        """CPU seconds of SuperLink, ServerApp and nodes."""
        hub, app = children(self.serve.pid)
        return [cpu(hub), cpu(app), cpu(self.nodes.pid)]

    def end(self) -> None:
        for process in (self.serve, self.nodes):
            process.terminate()
        for process in (self.serve, self.nodes):
            process.wait(60)


def scale(nodes: int, rounds: int) -> dict[str, Any]:
    """CPU seconds of a phase in which everybody is invited."""
    with tempfile.TemporaryDirectory() as folder:
        one = Scaled(Path(folder), nodes, nodes, rounds + 3)
        try:
            one.wait_for(lambda: len(one.phases()) >= 2, 400)
            before, begun = one.used(), len(one.phases())
            one.wait_for(lambda: len(one.phases()) >= rounds + 1, 200 * rounds)
            after, lines = one.used(), one.phases()[begun:]
            hub, _ = children(one.serve.pid)
            memory = megabytes(hub)
        finally:
            one.end()
    phases = len(lines)
    spent = [(b - a) / phases for a, b in zip(before, after, strict=True)]
    return {
        "nodes": nodes,
        "phases": phases,
        "superlink_cpu": spent[0],
        "superlink_cpu_per_node": spent[0] / nodes,
        "serverapp_cpu": spent[1],
        "nodes_cpu": spent[2],
        "superlink_mb": memory,
        "seconds_median": statistics.median(line["seconds"] for line in lines),
        "seconds_most": max(line["seconds"] for line in lines),
        "answers_used": min(len(line["used"]) for line in lines),
        "abandoned": sum(line["verdict"] != "go" for line in lines),
    }


def idle(nodes: int, seconds: float = 60.0) -> dict[str, Any]:
    """CPU time while one node too few is there, and nobody is asked for anything."""
    with tempfile.TemporaryDirectory() as folder:
        one = Scaled(Path(folder), nodes, nodes + 1, 2)
        try:
            there = f"waiting for nodes: {nodes} of {nodes + 1} are online"
            one.wait_for(lambda: there in one.log(), 900)
            before, began = one.used(), time.monotonic()
            time.sleep(seconds)
            after, lasted = one.used(), time.monotonic() - began
        finally:
            one.end()
    hub, app, own = ((b - a) / lasted for a, b in zip(before, after, strict=True))
    return {"nodes": nodes, "superlink": hub, "serverapp": app, "nodes_cpu": own, "seconds": lasted}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("nodes", nargs="*", type=int)
    parser.add_argument("--idle", nargs="*", type=int, default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--live", nargs=4)
    asked = parser.parse_args()
    if asked.live:
        experiment, folder, server, count = asked.live
        return live(experiment, folder, server, int(count))
    found: dict[str, list[dict[str, Any]]] = {"scale": [], "idle": []}
    for name, sizes in (("scale", asked.nodes), ("idle", asked.idle)):
        for size in sizes:
            one = scale(size, asked.rounds) if name == "scale" else idle(size)
            found[name].append({**one, "load": os.getloadavg()[0]})
            print(name, json.dumps(found[name][-1]), flush=True)
    old = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(old | {k: v for k, v in found.items() if v}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
