"""An experiment on devices: its server, one of its devices, or all of them as processes of this machine."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Unpack

from fedsaddle.app.run import PLAINLY, SILENT, Ran, Show, Way, carry_out, place
from fedsaddle.border.build import Wanted, load
from fedsaddle.border.files import parse_address
from fedsaddle.errors import BadInput, is_machines
from fedsaddle.flower import deploy
from fedsaddle.flower import keys as identities
from fedsaddle.flower.client import Site
from fedsaddle.flower.journal import say
from fedsaddle.flower.node import Address
from fedsaddle.flower.policy import Policy
from fedsaddle.flower.server import Deployment
from fedsaddle.runs import Plan, RunFolder

DISK_FULL = 30.0  # seconds before a server whose disk is full tries again


def serve(
    experiment: str,
    keys: Path,
    listen: str,
    way: Way = PLAINLY,
    metrics_port: int | None = None,
    **wanted: Unpack[Wanted],
) -> Ran:
    """Run an experiment on the devices that join. Monitoring finds how it is at the `metrics_port`."""
    asked: Wanted = {**wanted, "engine": "loop", "history": True}
    plan = load(experiment, devices=True, **asked)
    path = place(plan, way)
    address = parse_address(listen, "--listen")
    server = replace(_server(plan, path, keys, address, way), metrics=metrics_port)
    may_join = len(deploy.check_keys(server))
    _try_folder(server, way)
    way.show.say(f"listening on {listen}; {may_join} devices may join")
    return Ran(path, deploy.serve(server))


def local(experiment: str, nodes: int, way: Way = PLAINLY, **wanted: Unpack[Wanted]) -> Ran:
    """Run an experiment on devices that are processes of this machine, with keys of their own."""
    asked: Wanted = {**wanted, "engine": "loop", "history": True, "clients": nodes}
    plan = load(experiment, **asked)
    path = place(plan, way)
    own = path / "deployment" / "keys"
    server = _server(plan, path, own / "server", ("127.0.0.1", deploy.free_port()), way)
    _try_folder(server, way)
    identities.make(own, nodes)
    return Ran(path, deploy.local(server, list(range(nodes))))


def _try_folder(server: deploy.Serving, way: Way) -> None:
    """A folder that cannot be used is refused before all is started."""
    if server.room.exists():
        with deploy.sole_server(server):
            pass
    folder = RunFolder(server.folder, server.plan, way.resume)
    if folder.fell_back:
        way.show.say(f"note: {folder.fell_back}")
    folder.close()


def _server(plan: Plan, path: Path, keys: Path, address: tuple[str, int], way: Way) -> deploy.Serving:
    def work(deployment: Deployment, again: bool) -> int:
        """In the ServerApp's process: the rounds, to an exit code."""
        here = replace(way, resume=way.resume or again, asked=lambda: deployment.roll.asked)
        try:
            return carry_out(plan, path, here, deployment.play).code
        except OSError as error:
            if error.errno is None:  # the SuperLink is lost
                raise
            where = f" ({error.filename})" if error.filename else ""
            if not is_machines(error):
                say(f"error: {error.strerror}{where}")
                return 1
            say(f"{error.strerror}{where}; trying again in {DISK_FULL:g} s, from the last checkpoint")
            end = time.monotonic() + DISK_FULL
            while time.monotonic() < end and not deployment.roll.asked():
                time.sleep(0.1)
            return deploy.WAITED

    return deploy.Serving(plan, path, keys, address, work, way.asked)


class Device(NamedTuple):
    """One device, as its person describes it."""

    client: int | None = None  # by default, as its keys' folder says
    data: Path | None = None  # its own rows
    folder: Path | None = None  # where it keeps things; by default, beside its key
    policy: Policy = Policy()  # what it lets a server ask


def join(
    experiment: str, server: str, key: Path, own: Device, show: Show = SILENT, **wanted: Unpack[Wanted]
) -> int:
    """Take part in an experiment as one device, until it is asked to end: to an exit code."""
    host, port = parse_address(server, "--server")
    number = own.client if own.client is not None else _client_of(key)
    private, ca = identities.node_key(key)
    asked: Wanted = {**wanted, "engine": "loop", "device": "cpu"}
    plan = load(experiment, devices=own.data is not None, **asked)
    there = min(len(study.problem.federation) for study in plan.studies.values())
    if not 0 <= number < there:
        raise BadInput(f"--client must be from 0 to {there - 1} in this experiment, got {number}")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    kept = own.folder or key / "state"
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make {kept}: {error.strerror}; choose another place with --folder") from None
    site = Site(plan, number, kept, own.policy)
    if own.data is not None:
        site = Site.holding(plan, number, kept, str(own.data), own.policy)
    show.say(f"visits answered so far: {site.logbook.count}")
    show.say(f"client {number} of {there}, joining {place}")
    return deploy.join(site, Address(place, ca, private))


def _client_of(key: Path) -> int:
    name = key.resolve().name
    if not name.startswith("node-") or not name[5:].isdecimal():
        raise BadInput(f"which client is this? Say --client N, or name the keys' folder node-N; got {key}")
    return int(name[5:])
