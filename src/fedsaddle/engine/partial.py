"""Walks that are cut short: after so many seconds, a device sends the steps that it has made."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.engine.study import Study
from fedsaddle.fleet import NEVER


def planned_steps(study: Study, round: int, number: int) -> list[int]:
    """The local steps of each lane's visits, if they are not cut short."""
    phase = study.phases[number]
    chances = [0.0] * len(study.seeds)
    if phase.varied:
        key = draws.key(draws.STEPS, study.lane_seeds, round, number)
        chances = draws.uniform(key, 1).squeeze(-1).tolist()
    return [phase.length(chance) for chance in chances]


def cut_short(
    study: Study, round: int, number: int, invited: Tensor, delays: Tensor
) -> tuple[Tensor, list[dict[int, int]]]:
    """When the invited clients (lane, place) answer, and the steps of those whose walks are cut short."""
    seconds = study.quorum.partial_work
    if seconds is None or not study.task(number).partial:
        return delays, [{} for _ in study.seeds]
    planned = torch.tensor(planned_steps(study, round, number))[:, None]
    begun = getattr(study.fleet, "begun", torch.zeros_like)(delays)
    delays, made = steps_by(seconds, delays, begun, planned)
    lanes = zip(invited.tolist(), made.tolist(), (made < planned).tolist(), strict=True)
    return delays, [
        {client: steps for client, steps, short in zip(*lane, strict=True) if short} for lane in lanes
    ]


def steps_by(seconds: float, delays: Tensor, begun: Tensor, planned: Tensor) -> tuple[Tensor, Tensor]:
    """When devices answer that send what they have after so many seconds, and of how many steps it is.

    Each takes its steps one as long as the other from when it has begun, and sends one step at least.
    """
    step = (delays - begun) / planned
    made = torch.minimum(torch.floor((seconds - begun) / step).clamp(min=1), planned)
    unfinished = (delays > seconds) & (delays < NEVER)
    made = torch.where(unfinished, made, planned).to(torch.int64)
    there = torch.where(made < planned, (begun + step).clamp(min=seconds), delays)
    return torch.where(unfinished, there, delays), made
