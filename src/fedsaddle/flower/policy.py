"""What a device lets a server ask, whatever the contract allows.

Minibatches are a public function of (seed, round, phase, client). A curious server could ask one model under
many seeds and rounds, and separate the rows. So a device answers rounds in their order, as often as its
person allows in all, and only about so many rows at once.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedsaddle.core import Count, Message, Pair
from fedsaddle.engine.study import Study
from fedsaddle.errors import BadInput
from fedsaddle.flower.wire import Refused
from fedsaddle.ranges import check
from fedsaddle.runs import sealed, unsealed, write_atomically

BACK = 2  # rounds that a server may go back, which has lost its last checkpoint
ASKED_AGAIN = 8  # times that it may ask for the same: one that dies asks again
LANES = 256  # of which the last round is remembered; those not asked for longest are forgotten


@dataclass(frozen=True)
class Policy:
    """What a person allows."""

    visits: Count | None = None  # that are answered, in all runs
    batch: Count = 1  # the least rows of a minibatch
    rows: Count = 1  # the least rows of a full gradient

    def __post_init__(self) -> None:
        check(self)


@dataclass
class Logbook:
    """The visits that a device has answered, in a file of its folder."""

    path: Path
    count: int = 0
    lanes: dict[str, list[int]] = field(default_factory=dict)  # round, phase, and how often it was asked for

    @staticmethod
    def at(path: Path) -> Logbook:
        """As the file says; a damaged one is refused."""
        if not path.exists():
            return Logbook(path)
        try:
            return Logbook(path, **json.loads(unsealed(path)))
        except BadInput:
            raise BadInput(
                f"{path} is damaged: restore it from a copy, or remove it to count visits from 0"
            ) from None

    def enter(self, policy: Policy, run: str, algorithm: str, seed: int, round: int, phase: int) -> None:
        """Count one more visit, or refuse it."""
        if policy.visits is not None and self.count >= policy.visits:
            raise Refused(f"policy: this device has answered {self.count} visits, and may no more")
        lane = f"{run} {algorithm} {seed}"
        last, at, times = self.lanes.pop(lane, [round, phase, 0])
        times = times + 1 if (last, at) == (round, phase) else 1
        fine = round >= last - BACK and times <= ASKED_AGAIN
        told = [max(round, last), phase, times] if fine else [last, at, times]
        self.lanes = dict([*self.lanes.items(), (lane, told)][-LANES:])
        if not fine:
            raise Refused(
                f"policy: rounds must rise: round {round} was asked for after round {last}"
                if round < last - BACK
                else f"policy: round {round} was asked for more than {ASKED_AGAIN} times"
            )
        self.count += 1
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        known: dict[str, Any] = {"count": self.count, "lanes": self.lanes}
        write_atomically(self.path, sealed(json.dumps(known).encode()))


def check_rows(policy: Policy, study: Study, phase: int, down: Message, client: int) -> None:
    """Refuse a phase that asks about too few rows."""
    if policy.batch == policy.rows == 1:
        return
    rows, asked = int(study.problem.federation.sizes[client]), asked_for(study, phase, down)
    batch = min(study.batch, rows)  # a smaller client's rows come up more than once
    if "minibatches" in asked and batch < policy.batch:
        raise Refused(f"policy: a minibatch has {batch} rows, this device wants at least {policy.batch}")
    if "full gradient" in asked and rows < policy.rows:
        raise Refused(f"policy: a full gradient has {rows} rows, this device wants at least {policy.rows}")


class _Oracle:
    """A client that answers anything, and notes what it was asked for."""

    def __init__(self, kept: Pair) -> None:
        self.t = self.steps = self.chance = torch.ones(())
        self.kept, self.asked = kept, set[str]()

    def grad(self, z: Pair, xi: object) -> Pair:
        return z

    def full_grad(self, z: Pair) -> Pair:
        self.asked.add("full gradient")
        return z

    def project(self, z: Pair) -> Pair:
        return z

    def normalised(self, start: Pair, end: Pair) -> Pair:
        return end

    def walk(self, move: Callable[..., Any], start: Any) -> Any:
        self.asked.add("minibatches")
        return move(start, *[None] * (len(inspect.signature(move).parameters) - 1))


def asked_for(study: Study, phase: int, down: Message) -> set[str]:
    """What the work of a phase asks a client for. Work that cannot be tried asks for anything."""
    oracle = _Oracle(next(iter(down.values())))
    client: Any = oracle
    try:
        study.phases[phase].work(client, **down)
    except Exception:
        return {"minibatches", "full gradient"}
    return oracle.asked
