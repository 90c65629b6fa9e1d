"""One phase: what is sent, who is asked, and how the answers are judged and merged.

These are functions of tensors. Who computes the answers, and where, is an executor's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedsaddle import draws
from fedsaddle.checks import bounds, judge
from fedsaddle.core import Algorithm, Message, Pair, Turn
from fedsaddle.engine.allowed import projected, proximal
from fedsaddle.engine.gather import drawn_ahead
from fedsaddle.engine.partial import planned_steps
from fedsaddle.engine.study import Calls, Lost, PhaseInputs, PhaseResult, Study
from fedsaddle.engine.visits import Answer, Extent, Task, Visits, check_message, untouched
from fedsaddle.errors import BadInput
from fedsaddle.merges import clipped, weighted

Answers = Callable[[Task, Extent, Visits], Answer | Lost]


def calls_of(
    study: Study,
    completed: list[int],
    round: int,
    number: int,
    asked: list[list[int]],
    cut: Sequence[Mapping[int, int]] = (),
    times: Sequence[Mapping[int, int]] = (),
) -> tuple[Calls, Extent]:
    """The flat list of the clients that each lane asks, and how far the computation must reach.

    The walks of some may have been `cut` short, to so many steps: by lane and client. The answers of some
    may count several `times`.
    """
    counts = tuple(len(clients) for clients in asked)
    client = torch.tensor([number for clients in asked for number in clients])
    planned = tuple(planned_steps(study, round, number))
    steps, walks, mean_steps = whole_walks(planned, counts)
    if any(cut):
        by_lane = [
            [own.get(client, whole) for client in clients]
            for clients, own, whole in zip(asked, cut, planned, strict=True)
        ]
        if any(n > whole for own, whole in zip(by_lane, planned, strict=True) for n in own):
            raise BadInput(f"the history of round {round} has a walk of more steps than were asked for")
        _, walks, mean_steps = walks_of(planned, by_lane)
    rows, longest = int(study.problem.federation.sizes[client].max()), int(walks.max())
    extent = Extent(longest, rows, ragged=int(walks.min()) < longest)

    def keys(rounds: Tensor, phases: Tensor) -> Tensor:
        return draws.key(draws.BATCHES, study.lane_seeds, rounds, phases)

    def chances(rounds: Tensor, phases: Tensor) -> Tensor:
        return draws.uniform(draws.key(draws.STEPS, study.lane_seeds, rounds, phases), 1).squeeze(-1)

    keys_drawn = drawn_ahead(study, "keys", round, keys)
    lane, place, answers = layout(counts, study.quorums[number].wanted)
    if any(times):
        place, answers = repeated(place, asked, times)
    host = Calls(
        lane,
        client,
        place,
        answers,
        torch.tensor(completed),
        steps,
        drawn_ahead(study, "chances", round, chances)[number],
        keys_drawn[number],
        keys_drawn[0],
        walks,
        mean_steps,
        corrupted(study, round, number, lane, client),
    )
    if study.device.type == "cpu":
        return host, extent
    moved: Calls = tree_map(lambda values: values.to(study.device, non_blocking=True), host)
    return moved, extent


def walks_of(planned: tuple[int, ...], by_lane: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """The local steps of each lane's whole walks, those of each visit, and each lane's mean."""
    means = [sum(own) / max(1, len(own)) for own in by_lane]
    walks = torch.tensor([steps for own in by_lane for steps in own])
    return torch.tensor(planned), walks, torch.tensor(means, dtype=torch.float64)


@lru_cache(maxsize=8)
def whole_walks(planned: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """The same where no walk is cut short."""
    return walks_of(planned, [[steps] * count for steps, count in zip(planned, counts, strict=True)])


@lru_cache(maxsize=8)
def layout(counts: tuple[int, ...], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The lane of each visit, where each lane's answers are among the visits, and how many it has."""
    answers = torch.tensor(counts)
    first = answers.cumsum(0) - answers
    place = (first[:, None] + torch.arange(most)).clamp(max=sum(counts) - 1)
    return torch.repeat_interleave(answers), place, answers


def repeated(
    place: Tensor, asked: list[list[int]], times: Sequence[Mapping[int, int]]
) -> tuple[Tensor, Tensor]:
    """The places and numbers of answers of a layout in which some answers count several times."""
    often = [
        torch.tensor([own.get(client, 1) for client in clients], dtype=torch.int64)
        for clients, own in zip(asked, times, strict=True)
    ]
    place = place.clone()
    for lane, own in enumerate(often):
        place[lane, : int(own.sum())] = torch.repeat_interleave(place[lane, : len(own)], own)
    return place, torch.stack([own.sum() for own in often])


def corrupted(study: Study, round: int, number: int, lane: Tensor, client: Tensor) -> Tensor:
    """Which visits' answers are spoilt."""
    if study.faults is None:
        return torch.zeros(len(client), dtype=torch.bool)
    return study.faults.corrupted(study.lane_seeds[lane], round, number, client)


def visits_in(study: Study, number: int, inputs: PhaseInputs) -> Visits:
    """Who is asked in a phase, and all that is sent."""
    kept = inputs.kept if isinstance(inputs.kept, Pair) else None
    return visits_of(study, send(study, inputs.server, number), inputs.calls, kept)


def exchange(
    study: Study, number: int, extent: Extent, inputs: PhaseInputs, answers: Answers
) -> PhaseResult | Lost:
    """One phase: send, have the visits answered, merge."""
    visits = visits_in(study, number, inputs)
    found = answers(study.task(number), extent, visits)
    if isinstance(found, Lost):
        return found
    return conclude(study, number, inputs, visits.by_lane["down"], found)


def conclude(study: Study, number: int, inputs: PhaseInputs, down: Message, answer: Answer) -> PhaseResult:
    """The end of a phase, when answers are there: spoil them, judge them, merge them."""
    faults, checks, calls, up = study.faults, study.checks, inputs.calls, answer.up
    looked_at = faults is not None or checks is not None
    sent = tree_map(lambda values: values[calls.lane], down) if looked_at else {}
    if faults is not None and faults.seen is None:  # what is seen is refused, not used
        up = lane_where(calls.corrupt, faults.spoil(up, sent), up)
    result = PhaseResult(inputs.server, answer.keep)
    if checks is not None and study.history is None:
        result = result._replace(verdict=judge(up, sent, bounds(checks.norm, study.kinds[number])))
    server = lane_where(calls.answers > 0, merge(study, inputs.server, number, calls, up), inputs.server)
    if number == len(study.phases) - 1:
        finite = torch.isfinite(server.z.x).all(-1) & torch.isfinite(server.z.y).all(-1)
        result = result._replace(finite=finite)
    return result._replace(server=server)


def padded(inputs: PhaseInputs, visits: int) -> PhaseInputs:
    """What a phase is given, with its last visit again and again until there are so many."""
    calls, kept = inputs.calls, inputs.kept
    place = torch.arange(visits, device=calls.lane.device).clamp(max=len(calls.lane) - 1)
    by_visit = {name: getattr(calls, name)[place] for name in ("lane", "client", "steps", "corrupt")}
    kept, weight = tree_map(lambda rows: rows[place], (kept, calls.weight))
    return PhaseInputs(inputs.server, calls._replace(**by_visit, weight=weight), kept)


def without_padding(result: PhaseResult, visits: int) -> PhaseResult:
    """What a phase comes to, of its first visits."""
    keep, verdict = (tree_map(lambda rows: rows[:visits], part) for part in (result.keep, result.verdict))
    return result._replace(keep=keep, verdict=verdict)


def send(study: Study, server: Any, number: int) -> Message:
    """What each lane's server sends, stacked by lane."""

    def one(algorithm: Algorithm, server: Any) -> Message:
        phase = algorithm.phases()[number]
        return check_message(f"phase '{phase.name}' of {type(algorithm).__name__} sends", phase.send(server))

    message: Message = study.per_lane(one, server)
    return message


def visits_of(study: Study, down: Message, calls: Calls, kept: Pair | None) -> Visits:
    """Who is asked, and all that is sent."""
    dtype = next(iter(down.values())).x.dtype
    by_lane = {
        "hyper": study.hyper,
        "down": down,
        "t": calls.t.to(dtype),
        "planned": calls.planned,
        "chance": calls.chance,
        "first": calls.first,
    }
    key = draws.fold(calls.key[calls.lane], calls.client)
    return Visits(by_lane, calls.lane, calls.client, key, calls.steps, kept)


def merge(study: Study, server: Any, number: int, calls: Calls, up: Message) -> Any:
    """Every lane's server after it has merged its answers into one."""
    count = calls.answers.to(server.z.x.dtype)
    there = torch.arange(calls.place.shape[1], device=study.device) < calls.answers[:, None]

    walks = any(phase.length(0.0) for phase in study.phases)

    def one(algorithm: Algorithm, server: Any, known: dict[str, Tensor], merged: Message) -> Any:
        turn = Turn(prox=partial(proximal, study.problem), **known)
        phase = study.steady.warmed(algorithm, turn.t).phases()[number]
        who = f"the merge of phase {phase.name} of {type(algorithm).__name__}"
        with untouched(who, server):
            after = phase.merge(server, turn, **merged)
            after = projected(study.problem, study.steady.merged(server, after, walks))
        if looks(after) != looks(server):
            raise BadInput(f"{who} must give a server as it was: {looks(server)}, not {looks(after)}")
        return after

    known = {
        "t": calls.t.to(count.dtype),
        "share": count / len(study.problem.federation),
        "steps": calls.mean_steps,
        "chance": calls.chance,
    }
    clips = bounds(study.merge.clip, study.kinds[number])
    if clips or isinstance(calls.weight, Tensor):
        sent: Message = tree_map(lambda values: values[calls.lane], send(study, server, number))
        up = clipped(up, sent, clips)
    if isinstance(calls.weight, Tensor):
        up = weighted(up, sent, calls.weight, study.kinds[number])
    merged = tree_map(lambda answers: study.merge.rule(answers[calls.place], there), up)
    return study.per_lane(one, server, known, merged)


def looks(state: Any) -> str:
    """Of what sizes and types a state is made."""
    leaves, structure = tree_flatten(state)
    kinds = [f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in leaves]
    return str(tree_unflatten(kinds, structure))


def lane_where(lanes: Tensor, new: Any, old: Any) -> Any:
    """The new state in these lanes, the old one in the others."""

    def pick(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(lanes.reshape(-1, *[1] * (new.dim() - 1)), new, old)

    return tree_map(pick, new, old)
