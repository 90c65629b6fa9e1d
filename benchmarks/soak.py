"""A deployment that is ill-treated for a long time: `python -m benchmarks.soak`, 1,000 rounds, half an hour.

A server and 16 nodes, each a process, through a forwarder. CODASCA, whose clients must remember. All the time
nodes are killed, connections are cut and answers come late; now and then the network is away, or one of the
server's own processes is killed. What must not grow is looked at every 20 rounds: memory, open files and
threads of each process, files on disk. In the end the history is replayed. Adds to
docs/results/deployment.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.deployment import RESULT, ROOT, Forwarder, children, megabytes
from benchmarks.scale import cpu

NODES, INVITE, ENOUGH, DEADLINE = 16, 12, 8, 4.0
LATE = 0.02  # the share of answers that come late: some in time to be used, some not

SOAK = f"""
name = "soak"
rounds = {{rounds}}
evaluate_every = 100
seeds = "0"
batch = 2
K = 3
[problem]
name = "quadratic"
clients = {NODES}
[quorum]
invite = {INVITE}
enough = {ENOUGH}
minimum = 4
deadline = {DEADLINE}
[algorithms]
codasca = {{{{ eta_l = 0.05, eta_g = 1.1, theta = 0.3, K_0 = 6 }}}}
"""


class Rough(Forwarder):
    """A network that can be cut."""

    def __init__(self, port: int) -> None:
        self.away, self.open = 0.0, list[socket.socket]()
        super().__init__(port)

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        self.open = [*self.there(), source]
        if time.monotonic() < self.away:
            self.cut(source)
        super()._pass(source, target, way)

    def there(self) -> list[socket.socket]:
        return [one for one in self.open if one.fileno() >= 0]

    def cut(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

    def cut_one(self, chance: random.Random) -> None:
        if there := self.there():
            self.cut(chance.choice(there))

    def cut_all(self, seconds: float) -> None:
        self.away = time.monotonic() + seconds
        for one in self.there():
            self.cut(one)


# --- the nodes ----------------------------------------------------------------------------------------------


def live(experiment: str, folder: str, server: str) -> None:
    """The process that starts the nodes, and starts them again."""
    from fedsaddle.border.build import load
    from fedsaddle.flower import deploy, keys
    from fedsaddle.flower.client import Site, client_app
    from fedsaddle.flower.node import Address
    from fedsaddle.flower.supervise import Child, Processes, asked_to_end

    plan, root, family = load(experiment, engine="loop", device="cpu"), Path(folder), Processes()
    largest = Site(plan, 0, root / "client-0").prepare()

    def start(client: int) -> Child:
        site, chance = Site(plan, client, root / f"client-{client}"), random.Random()
        site.folder.mkdir(exist_ok=True)
        key, ca = keys.node_key(root / "keys" / f"node-{client}")
        app = client_app(site)

        def answer(message: Any, context: Any) -> Any:
            if chance.random() < LATE:
                time.sleep(chance.uniform(0, 2 * DEADLINE))
            return app(message, context)

        address = Address(server, ca, key)
        return family.start(
            f"{client}", lambda: deploy.node(site, answer, address, largest), root / "node.log"
        )

    with asked_to_end() as asked:
        nodes = [start(client) for client in range(NODES)]
        while not asked():
            nodes = [one if one.alive() else start(client) for client, one in enumerate(nodes)]
            time.sleep(0.5)
        family.end()


# --- what is done to it -------------------------------------------------------------------------------------


class Soak:
    def __init__(self, folder: Path, rounds: int) -> None:
        from fedsaddle.flower import deploy, keys

        self.folder, self.run, self.rounds = folder, folder / "run", rounds
        self.experiment, self.temporary = folder / "soak.toml", folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.experiment.write_text(SOAK.format(rounds=rounds))
        keys.make(folder / "keys", NODES)  # if they are not there: a soak can be gone on with
        self.port, self.chance, self.done = deploy.free_port(), random.Random(0), Counter[str]()
        self.network = Rough(self.port)
        self.serve = self.start_server()
        words = ("-m", "benchmarks.soak", "--live", self.experiment, folder, self.network.address)
        self.nodes = self._start("nodes", *words)

    def _start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TMPDIR": str(self.temporary)}
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, *map(str, words)]
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=env)

    def start_server(self) -> subprocess.Popen[bytes]:
        place = ["--keys", self.folder / "keys" / "server", "--listen", f"127.0.0.1:{self.port}"]
        words = ("-m", "fedsaddle", "serve", self.experiment, *place, "--out", self.run, "--resume")
        return self._start("server", *words)

    def played(self) -> int:
        with contextlib.suppress(OSError):
            return (self.run / "history.jsonl").read_bytes().count(b"\n")
        return 0

    # Each of these leaves the deployment to recover by itself.

    def kill_a_node(self) -> None:
        self._kill(self.chance.choice(children(self.nodes.pid)))

    def cut_a_connection(self) -> None:
        self.network.cut_one(self.chance)

    def cut_the_network(self) -> None:
        self.network.cut_all(6.0)

    def kill_the_server_app(self) -> None:
        self._kill(children(self.serve.pid)[1])

    def kill_the_superlink(self) -> None:
        self._kill(children(self.serve.pid)[0])

    def kill_serve(self) -> None:
        self._kill(self.serve.pid)
        self.serve.wait()
        self.serve = self.start_server()

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def mischief(self) -> list[tuple[int, Callable[[], None]]]:
        """What happens after which round."""
        every = {
            self.kill_a_node: 6,
            self.cut_a_connection: 4,
            self.cut_the_network: 90,
            self.kill_the_server_app: 170,
            self.kill_the_superlink: 310,
            self.kill_serve: 450,
        }
        plan = [(at, what) for what, step in every.items() for at in range(step, self.rounds - 5, step)]
        return sorted(plan, key=lambda one: one[0])

    # --- what is seen ---

    def sample(self) -> dict[str, Any] | None:
        """None while something is being started."""
        try:
            hub, app = children(self.serve.pid)
            nodes = children(self.nodes.pid)
            pids = {"serve": [self.serve.pid], "superlink": [hub], "serverapp": [app], "nodes": nodes}
            found: dict[str, Any] = {
                "round": self.played(),
                "cpu": {"superlink": cpu(hub), "serverapp": cpu(app)},
            }
            for name, those in pids.items():
                found[name] = {
                    "pid": those[0],
                    "mb": max(megabytes(pid) for pid in those),
                    "descriptors": max(len(os.listdir(f"/proc/{pid}/fd")) for pid in those),
                    "threads": max(len(os.listdir(f"/proc/{pid}/task")) for pid in those),
                }
        except (OSError, ValueError):
            return None
        held = {
            path: size
            for client in range(NODES)
            for path, size in files_of(self.folder / f"client-{client}").items()
        }
        found["disk"] = {
            "temporary": len(list(self.temporary.iterdir())),
            "files of a run": len(files_of(self.run)),
            "link.db": sum(
                size for path, size in files_of(self.run).items() if path.name.startswith("link.db")
            ),
            "files of a node": len(held) / NODES,
            "what a node remembers": sum(size for path, size in held.items() if path.suffix == ".safetensors")
            / NODES,
        }
        return found

    def end(self) -> None:
        for process in (self.serve, self.nodes):
            process.terminate()
        for process in (self.serve, self.nodes):
            process.wait(60)


def files_of(folder: Path) -> dict[Path, int]:
    """What is there, and how large. Files come and go while this looks."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.suffix != ".part":
                found[path] = path.stat().st_size
    return found


def soak(folder: Path, rounds: int) -> dict[str, Any]:
    one, samples, began, loads = (
        Soak(folder, rounds),
        list[dict[str, Any]](),
        time.monotonic(),
        [os.getloadavg()[0]],
    )
    try:
        begun = one.played()
        plan = [(at, what) for at, what in one.mischief() if at > begun]
        moved, last = time.monotonic(), 0
        while one.serve.poll() is None:
            now = one.played()
            if now > last:
                moved, last = time.monotonic(), now
            elif time.monotonic() - moved > 600:
                raise RuntimeError((one.folder / "server.log").read_text()[-2000:])
            while plan and plan[0][0] <= now:
                _, what = plan.pop(0)
                with contextlib.suppress(OSError, IndexError):  # it is being started again just now
                    what()
                    one.done[what.__name__] += 1
            if now and (not samples or now >= samples[-1]["round"] + 20) and (seen := one.sample()):
                samples.append(seen)
                loads.append(os.getloadavg()[0])
                print(json.dumps(seen), flush=True)
            time.sleep(0.1)
        code, seconds = one.serve.returncode, time.monotonic() - began
    finally:
        one.end()
    log = (folder / "server.log").read_text()
    lines = [json.loads(line) for line in (one.run / "history.jsonl").read_text().splitlines()]
    replay = [sys.executable, "-m", "fedsaddle", "replay", str(one.run)]
    told = subprocess.run(replay, capture_output=True, text=True, cwd=ROOT)
    return {
        "rounds": len(lines),
        "seconds": seconds,
        "load": [min(loads), max(loads)],
        "exit": code,
        "done": dict(one.done),
        "tracebacks": log.count("Traceback"),
        "abandoned": sum(line["verdict"] != "go" for line in lines),
        "answers": {
            what: sum(len(line.get(what, [])) for line in lines)
            for what in ("invited", "used", "late", "overdue", "lost", "refused")
        },
        "reasons": sorted({why for line in lines for why in line["refused"].values()})[:5],
        "left": sorted(path.name for path in one.temporary.iterdir()),
        "replay": told.stdout.strip(),
        "replay_exit": told.returncode,
        "samples": samples,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="kept afterwards; by default a temporary one")
    parser.add_argument("--live", nargs=3)
    asked = parser.parse_args()
    if asked.live:
        return live(*asked.live)
    with tempfile.TemporaryDirectory() as own:
        folder = asked.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(folder, asked.rounds)
    print(json.dumps({key: value for key, value in found.items() if key != "samples"}, indent=1))
    old = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(old | {"soak": found}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
