"""What happened to the invitations of a run, written down so that it can be played again.

`history.jsonl` has one line for each lane, round and phase that was reached, in the order of the rounds:

    {"algorithm": "cdma-one", "seed": 0, "round": 3, "phase": 1, "invited": [4, 17, 2, 9], "used": [17, 4],
     "late": [9], "refused": {"2": "a value is not finite"}, "lost": [], "seconds": 12.5, "verdict": "go"}

`invited` is in the order of the invitations; it may be longer than S^, since a server may invite more when
answers fail. `used` is in the order in which answers were accepted. A client is in at most one of used, late
(answered, but not to be used), refused (with the reason) and lost (never answered); one in none of them still
owed its answer when the line was written. `duplicate`, if it is there, names clients whose answer came twice.
`overdue`, if it is there, names clients whose answer to this phase of an earlier round came only now.
`away`, if it is there, names clients that were passed over, in whose turn others were invited: they were not
online, or still owed an answer.
`steps`, if it is there, says how many local steps those in `used` have made whose walks were cut short.
`times`, if it is there, says how often those in `used` count that were drawn more than once.
An abandoned phase is the last of its round and uses nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedsaddle.errors import BadInput
from fedsaddle.fleet import Quorum, Verdict


class Gathering(NamedTuple):
    """One phase of one lane: who was invited, and what became of their answers."""

    invited: list[int]
    used: list[int]
    late: list[int]
    refused: dict[int, str]
    lost: list[int]
    seconds: float  # from the invitation to the decision
    verdict: Verdict
    duplicate: list[int]
    answered: int = 0  # good answers that were there when it was decided
    overdue: Sequence[int] = ()  # whose answers to an earlier round came only now; counted as late
    steps: Mapping[int, int] = {}  # of those used, whose walks were cut short: to so many
    away: Sequence[int] = ()  # who would have been invited, and could not be
    times: Mapping[int, int] = {}  # of those used, who were drawn more than once: so often


class Told(NamedTuple):
    """A gathering, and whose it was."""

    algorithm: str  # what the lane is filed under
    seed: int
    round: int
    phase: int
    gathering: Gathering


def line(told: Told) -> str:
    """One line of a history, with its end."""
    own = told.gathering
    entry: dict[str, Any] = {
        "algorithm": told.algorithm,
        "seed": told.seed,
        "round": told.round,
        "phase": told.phase,
        "invited": own.invited,
        "used": own.used,
        "late": own.late,
        "refused": {str(client): why for client, why in own.refused.items()},
        "lost": own.lost,
        "seconds": own.seconds,
        "verdict": own.verdict.value,
    }
    if own.duplicate:
        entry["duplicate"] = own.duplicate
    if own.overdue:
        entry["overdue"] = list(own.overdue)
    if own.steps:
        entry["steps"] = {str(client): steps for client, steps in own.steps.items()}
    if own.away:
        entry["away"] = list(own.away)
    if own.times:
        entry["times"] = {str(client): times for client, times in own.times.items()}
    return json.dumps(entry, allow_nan=False) + "\n"


@dataclass(frozen=True)
class History:
    """The gatherings of every lane, by round and phase."""

    lanes: dict[tuple[str, int], list[list[Gathering]]]  # (algorithm, seed) -> round -> phase

    def round(self, algorithm: str, seed: int, round: int) -> list[Gathering]:
        """The phases that a lane reached in a round; none after its last."""
        rounds = self.lanes.get((algorithm, seed), [])
        return rounds[round] if round < len(rounds) else []


class Rules(NamedTuple):
    """What the lanes of one algorithm must obey."""

    quorums: Sequence[Quorum]  # of each phase
    clients: int
    phases: int
    rounds: int
    seeds: Sequence[int]


def read_history(data: bytes, rules: dict[str, Rules], where: str = "history.jsonl") -> History:
    """A history that obeys the rules of each algorithm. Hands and disks damage files: nothing is trusted."""
    lanes: dict[tuple[str, int], list[list[Gathering]]] = {}
    for place, told in _lines(data, rules, where):
        rule, name = rules[told.algorithm], f"{told.algorithm} seed {told.seed}"
        rounds = lanes.setdefault((told.algorithm, told.seed), [])
        due = (len(rounds), 0)
        if rounds and rounds[-1][-1].verdict is Verdict.GO and len(rounds[-1]) < rule.phases:
            due = (len(rounds) - 1, len(rounds[-1]))
        if (told.round, told.phase) != due:
            raise _wrong(
                place,
                f"expected round {due[0]}, phase {due[1]} of {name}, "
                f"got round {told.round}, phase {told.phase}",
            )
        if due[1] == 0:
            rounds.append([])
        rounds[-1].append(told.gathering)
    for (algorithm, seed), rounds in lanes.items():
        if rounds[-1][-1].verdict is Verdict.GO and len(rounds[-1]) < rules[algorithm].phases:
            raise _wrong(where, f"round {len(rounds) - 1} of {algorithm} seed {seed} is not whole")
    return History(lanes)


def _wrong(place: str, why: str) -> BadInput:
    return BadInput(f"{place} cannot be replayed: {why}; restore the folder from a copy")


def _lines(data: bytes, rules: dict[str, Rules], where: str) -> Iterator[tuple[str, Told]]:
    try:
        text = data.decode()
    except ValueError:
        raise _wrong(where, "it is not text") from None
    if text and not text.endswith("\n"):
        raise _wrong(where, "its last line is cut off")
    for number, entry in enumerate(text.split("\n")[:-1], start=1):
        place = f"{where}, line {number}"
        try:
            yield place, _told(entry, rules)
        except _Broken as error:
            raise _wrong(place, str(error)) from None


class _Broken(Exception):
    """What is wrong with a line."""


FIELDS = {
    "algorithm": str,
    "seed": int,
    "round": int,
    "phase": int,
    "invited": list,
    "used": list,
    "late": list,
    "refused": dict,
    "lost": list,
    "seconds": (int, float),
    "verdict": str,
    "duplicate": list,
    "overdue": list,
    "steps": dict,
    "away": list,
    "times": dict,
}


def _told(text: str, rules: dict[str, Rules]) -> Told:
    """One line, which must obey the rules by itself."""
    try:
        entry = json.loads(text, parse_constant=_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise _Broken("it is not JSON") from None
    if not isinstance(entry, dict):
        raise _Broken("it is not an object")
    entry = {"duplicate": [], "overdue": [], "steps": {}, "away": [], "times": {}, **entry}
    for key in {*entry, *FIELDS}:
        if key not in entry:
            raise _Broken(f"'{key}' is missing")
        if key not in FIELDS:
            raise _Broken(f"nobody knows '{key[:40]}'")
        if not isinstance(entry[key], FIELDS[key]) or isinstance(entry[key], bool):  # type: ignore[arg-type]
            raise _Broken(f"'{key}' is not what it should be")
    if entry["algorithm"] not in rules:
        raise _Broken(f"the experiment has no algorithm '{entry['algorithm'][:80]}'")
    rule = rules[entry["algorithm"]]
    if entry["seed"] not in rule.seeds:
        raise _Broken(f"the experiment has no seed {str(entry['seed'])[:30]}")
    if not 0 <= entry["round"] < rule.rounds:
        raise _Broken(f"the experiment has no round {str(entry['round'])[:30]}")
    if not 0 <= entry["phase"] < rule.phases:
        raise _Broken(f"the algorithm has no phase {str(entry['phase'])[:30]}")
    if not 0 <= entry["seconds"] < 1e300:
        raise _Broken("'seconds' must be at least 0, and finite")
    if entry["verdict"] not in (Verdict.GO.value, Verdict.ABANDON.value):
        raise _Broken(f"'verdict' is neither go nor abandon but '{entry['verdict'][:40]}'")
    refused = {_client(key): str(why) for key, why in entry["refused"].items()}
    own = Gathering(
        entry["invited"],
        entry["used"],
        entry["late"],
        refused,
        entry["lost"],
        float(entry["seconds"]),
        Verdict(entry["verdict"]),
        entry["duplicate"],
        overdue=tuple(entry["overdue"]),
        steps={_client(key): steps for key, steps in entry["steps"].items()},
        away=tuple(entry["away"]),
        times={_client(key): times for key, times in entry["times"].items()},
    )
    _obeys(own, rule, rule.quorums[entry["phase"]])
    return Told(entry["algorithm"], entry["seed"], entry["round"], entry["phase"], own)


def _obeys(own: Gathering, rule: Rules, quorum: Quorum) -> None:
    for client in [*own.invited, *own.overdue, *own.away]:
        if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < rule.clients:
            raise _Broken(f"{str(client)[:30]} is not one of the {rule.clients} clients")
    _once("in invited and away together", [*own.invited, *own.away])
    became = [*own.used, *own.late, *own.refused, *own.lost]
    for client in [*became, *own.duplicate]:
        if isinstance(client, bool) or not isinstance(client, int) or client not in own.invited:
            raise _Broken(f"client {str(client)[:30]} was not invited")
    _once("in used, late, refused and lost together", became)
    _once("in duplicate", own.duplicate)
    for client, steps in own.steps.items():
        if client not in own.used:
            raise _Broken(f"steps of client {client}, whose answer was not used")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise _Broken(f"client {client} made {str(steps)[:30]} steps")
        if quorum.partial_work is None:
            raise _Broken(f"the walk of client {client} was cut short, and partial_work is not set")
    for client, times in own.times.items():
        if client not in own.used:
            raise _Broken(f"times of client {client}, whose answer was not used")
        if isinstance(times, bool) or not isinstance(times, int) or not 2 <= times <= quorum.invite:
            raise _Broken(f"client {client} counts {str(times)[:30]} times")
        if not quorum.replacement:
            raise _Broken(f"client {client} counts {times} times, and replacement is not set")
    if own.times and len(own.used) + sum(own.times.values()) - len(own.times) > quorum.wanted:
        raise _Broken(f"its answers count more than {quorum.wanted} times together")
    if own.verdict is Verdict.ABANDON and own.used:
        raise _Broken("an abandoned phase uses nothing")
    if own.verdict is Verdict.GO and not quorum.minimum <= len(own.used) <= quorum.wanted:
        least, most = quorum.minimum, quorum.wanted
        raise _Broken(f"a round goes on with {least} to {most} answers, not with {len(own.used)}")


def _once(where: str, clients: Iterable[int]) -> None:
    seen: set[int] = set()
    for client in clients:
        if client in seen:
            raise _Broken(f"client {client} is twice {where}")
        seen.add(client)


def _client(key: str) -> int:
    if not key.isascii() or not key.isdecimal() or len(key) > 18:
        raise _Broken(f"'{key[:30]}' is not a client")
    return int(key)


def _constant(constant: str) -> None:
    raise ValueError(constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)
