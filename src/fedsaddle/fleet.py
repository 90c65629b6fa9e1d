"""Who is invited, who answers and when, and when the server goes on (SIWER).

Start-Immediately-With-Enough-Responses: the server invites S^ clients and goes on with the first S_t
answers. `Quorum` holds that rule, for simulated and for real arrivals alike. A fleet says how long each
invited client takes to answer; infinitely long if it never does. Every fleet is a pure function of
(seed, round, phase, client); the paper's also of who else is invited, a trace of the simulated time.
"""

from __future__ import annotations

import enum
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.core import Count, Range
from fedsaddle.errors import MOST, BadInput, Notice, without_effect
from fedsaddle.ranges import Delay, Duration, Rate, check
from fedsaddle.rates import ClientRates, by_stratum, check_each, rate_of
from fedsaddle.traces import read_trace, whole_spans

NEVER = math.inf


# --- enough responses ---------------------------------------------------------------------------------


class Verdict(enum.Enum):
    WAIT = "wait"
    GO = "go"
    ABANDON = "abandon"


class Settled(NamedTuple):
    """How one phase ended, by the places of the invited clients in their list."""

    accepted: list[int]
    late: list[int]  # answered, but not to be used: too late, or in vain
    seconds: float  # from the invitation to the decision
    verdict: Verdict
    answered: int  # good answers that counted when it was decided
    refused: list[int]  # answers that were there, and bad


@dataclass(frozen=True)
class Quorum:
    """Invite S^ clients, go on with the first S_t answers."""

    invite: Count = 8  # S^
    enough: Count | None = None  # S_t; without it, every answer is waited for
    minimum: Count = 1  # fewer answers abandon the round
    deadline: Duration | None = None  # seconds after which the minimum is enough
    grace: Delay = 0.0  # seconds after the deadline in which the minimum may still be reached
    collect: Count | None = None  # S^ of phases without local steps, if it is another
    partial_work: Duration | None = None  # seconds after which a device sends the steps that it has made
    stratified: bool = False  # of each stratum, wait for its share of the S_t
    replacement: bool = False  # draw with replacement: who is drawn twice is asked once, and counts twice

    def __post_init__(self) -> None:
        check(self)
        if self.enough is not None and self.enough > self.invite:
            raise BadInput(f"enough must be at most invite ({self.invite}), got {self.enough}")
        if self.minimum > (self.enough or self.invite):
            name = "invite" if self.enough is None else "enough"
            raise BadInput(
                f"minimum must be at most {name} ({self.enough or self.invite}), got {self.minimum}"
            )
        if self.grace and self.deadline is None:
            raise BadInput("grace begins at the deadline: give a deadline too")
        if self.deadline is not None and (self.partial_work or 0) > self.deadline:
            raise BadInput(
                f"partial_work must be at most deadline ({self.deadline:g}), got {self.partial_work:g}"
            )
        if self.collect is not None and self.collect < self.minimum:
            raise BadInput(f"collect must be at least minimum ({self.minimum}), got {self.collect}")
        if self.replacement and (self.enough or self.minimum > 1 or self.partial_work or self.stratified):
            raise BadInput("replacement waits for all: leave enough, minimum, partial_work, stratified out")

    @property
    def collecting(self) -> Quorum:
        """That of a phase without local steps: of its answers, the same part is enough."""
        if self.collect is None:
            return self
        enough = None if self.enough is None else -(-self.enough * self.collect // self.invite)
        return replace(self, invite=self.collect, enough=enough and max(enough, self.minimum), collect=None)

    @property
    def most(self) -> int:
        """The clients of the largest cohort."""
        return max(self.invite, self.collect or 0)

    @property
    def wanted(self) -> int:
        return self.invite if self.enough is None else self.enough

    def verdict(self, answered: int, pending: int, elapsed: float) -> Verdict:
        """What to do after `elapsed` seconds, with `pending` clients that may still answer."""
        if answered >= self.wanted:
            return Verdict.GO
        overdue = self.deadline is not None and elapsed >= self.deadline
        if answered >= self.minimum and (overdue or pending == 0):
            return Verdict.GO
        if pending == 0 or (overdue and self.deadline is not None and elapsed >= self.deadline + self.grace):
            return Verdict.ABANDON
        return Verdict.WAIT

    def seats(self, strata: Sequence[int], word: int = 0) -> Counter[int]:
        """How many answers are used of each stratum, of which these were invited: its share of the S_t.

        Parts of a seat go round by a random word, so that every stratum has its share on average.
        """
        invited, taken, so_far = Counter(strata), 0, 0
        seats: Counter[int] = Counter()
        for stratum in sorted(invited):
            so_far += invited[stratum]
            upto = (min(self.wanted, len(strata)) * so_far + word % len(strata)) // len(strata)
            seats[stratum], taken = upto - taken, upto
        return seats

    def settle(
        self,
        delays: list[float],
        bad: Collection[int] = (),
        strata: Sequence[int] = (),
        seats: Mapping[int, int] | None = None,
    ) -> Settled:
        """Play the arrivals in order until there is a verdict. Answers from `bad` places are refused.

        With `seats` for the strata of the places, an answer whose stratum has none left is late.

        Without a deadline nobody waits for clients that never answer: a simulation knows when the last
        answer has come. A real server does not, and should be given a deadline.
        """
        arrivals = sorted((delay, place) for place, delay in enumerate(delays) if delay < NEVER)
        moments = {delay for delay, _ in arrivals}
        if self.deadline is not None:
            moments |= {self.deadline, self.deadline + self.grace}
        here, moment, verdict, good = 0, 0.0, Verdict.ABANDON, list[int]()
        free = None if seats is None else Counter(seats)
        for moment in sorted(moments):
            while here < len(arrivals) and arrivals[here][0] <= moment:
                place, here = arrivals[here][1], here + 1
                if place not in bad and (free is None or free[strata[place]] > 0):
                    good.append(place)
                    if free is not None:
                        free[strata[place]] -= 1
            never = self.deadline is None and here == len(arrivals)
            verdict = self.verdict(len(good), 0 if never else len(delays) - here, moment)
            if verdict is not Verdict.WAIT:
                break
        refused = [place for _, place in arrivals[:here] if place in bad]
        used = good[: self.wanted] if verdict is Verdict.GO else []
        looked_at = {*refused, *used}
        late = [place for _, place in arrivals if place not in looked_at]
        return Settled(used, late, moment, verdict, len(good), refused)


# --- invitations --------------------------------------------------------------------------------------

# Whom a round's later phases ask: a cohort of their own, the first phase's, or those whose answers to the
# phase before were used.
Cohorts = Literal["independent", "invited", "answered"]
FORMERLY: dict[str, Cohorts] = {"another": "independent", "same": "invited"}


def cohorts_today(cohorts: Any) -> Any:
    """A value of `cohorts` by its name of today, whatever else was given as it is."""
    return FORMERLY.get(cohorts, cohorts) if isinstance(cohorts, str) else cohorts


def cohorts_given(cohorts: Any) -> Any:
    """The same, where a person has written it down."""
    found = cohorts_today(cohorts)
    if found is not cohorts:
        warnings.warn(f"cohorts = '{cohorts}' is called '{found}' now", Notice, stacklevel=3)
    return found


def invite(
    seeds: Tensor,
    round: int | Tensor,
    phase: int | Tensor,
    clients: int,
    count: int,
    weights: Tensor | None = None,
    barred: Sequence[Collection[int]] = (),
    strata: Tensor | None = None,
    replacement: bool = False,
) -> Tensor:
    """The clients (lane, count) that each lane invites: uniformly, by weight, or strata taking turns.

    Rounds and phases may be many, in dimensions before the lanes'. Those that a lane has `barred` come
    last, where too few others are left. With `replacement` a client may come again.
    """
    key, most = draws.key(draws.COHORT, seeds, round, phase), max(map(len, barred), default=0)
    drawn = count + most if replacement else min(clients, count + most)
    keys, whose = key.flatten().unique(return_inverse=True)  # lanes of one seed draw alike
    if strata is not None:
        chosen = draws.choose_in_turn(keys, strata, drawn)
    elif weights is not None:
        chosen = draws.choose_weighted(keys, weights, drawn)
    else:
        choose = draws.choose_with_replacement if replacement else draws.choose
        chosen = choose(keys, clients, drawn)
    if most:
        chosen = [
            sorted(chosen[own], key=lambda client: client in out)[:count]  # stable: the others stay in order
            for own, out in zip(whose.tolist(), barred, strict=True)
        ]
        return torch.tensor(chosen).reshape(*key.shape, -1)
    return torch.tensor(chosen)[whose].reshape(*key.shape, -1)


# --- fleets -------------------------------------------------------------------------------------------


class Fleet(Protocol):
    """How the clients of a fleet answer.

    If it is `once_a_round`, those who answered in a round answer in it again, where cohorts are `answered`.
    If devices wait before they begin, `begun(delays)` says how long; without it, they begin at once.
    It may be `tied` to the clients' data, by a function that gives each client's stratum by a column.
    """

    def check(self, clients: int) -> None:
        """Refuse a federation this fleet does not fit."""

    def delays(self, seeds: Tensor, round: int, phase: int, clients: Tensor, now: list[float]) -> Tensor:
        """Seconds until each invited client (lane, place) answers, with the lanes' clocks at `now`."""


def _key(seeds: Tensor, round: int, phase: int, clients: Tensor) -> Tensor:
    return draws.key(draws.FLEET, seeds[:, None], round, phase, clients)


@dataclass(frozen=True)
class Everybody:
    """All answer, each after one second."""

    def check(self, clients: int) -> None:
        pass

    def delays(self, seeds: Tensor, round: int, phase: int, clients: Tensor, now: list[float]) -> Tensor:
        return torch.ones(clients.shape, dtype=torch.float64)


@dataclass(frozen=True)
class Paper:
    """S_t = ceil(p_t S^) clients answer, p_t ~ U[least, 1], drawn once a round; each after one second."""

    least: Rate = 0.5
    once_a_round: ClassVar[bool] = True  # those of the S_t that are asked again in a round answer again

    def __post_init__(self) -> None:
        check(self)

    def check(self, clients: int) -> None:
        pass

    def delays(self, seeds: Tensor, round: int, phase: int, clients: Tensor, now: list[float]) -> Tensor:
        p = self.least + (1 - self.least) * draws.uniform(draws.key(draws.FLEET, seeds, round), 1)
        enough = torch.ceil(p * clients.shape[-1])
        luck = draws.uniform(_key(seeds, round, phase, clients), 1).squeeze(-1)
        rank = luck.argsort(dim=-1, stable=True).argsort(dim=-1)
        return torch.where(rank < enough, 1.0, NEVER).to(torch.float64)


@dataclass(frozen=True)
class Dropout:
    """Each client fails to answer with a rate of its own; the others take one second."""

    rate: ClientRates = 0.3

    def __post_init__(self) -> None:
        if isinstance(self.rate, list):
            object.__setattr__(self, "rate", tuple(self.rate))
        check(self)

    def tied(self, strata: Callable[[str], Tensor]) -> Dropout:
        return replace(self, rate=by_stratum("rate", self.rate, strata))

    def check(self, clients: int) -> None:
        check_each("rate", self.rate, clients)

    def delays(self, seeds: Tensor, round: int, phase: int, clients: Tensor, now: list[float]) -> Tensor:
        luck = draws.uniform(_key(seeds, round, phase, clients), 1).squeeze(-1)
        return torch.where(luck < rate_of(self.rate, clients), NEVER, 1.0).to(torch.float64)


@dataclass(frozen=True)
class Latency:
    """Log-normal delays, fast and slow devices; which one a client is stays the same for a whole run."""

    median: Duration = 10.0  # seconds, of a fast device
    spread: Annotated[float, Range(least=0, most=10)] = 0.5  # standard deviation of the delay's logarithm
    slow: ClientRates = 0.3  # the part of clients on slow devices, or the chance that one is
    slowdown: Annotated[float, Range(above=0, most=MOST)] = 4.0  # how much longer these take
    dropout: Rate = 0.0  # the rate at which any client does not answer at all

    def __post_init__(self) -> None:
        if isinstance(self.slow, list):
            object.__setattr__(self, "slow", tuple(self.slow))
        check(self)

    def tied(self, strata: Callable[[str], Tensor]) -> Latency:
        return replace(self, slow=by_stratum("slow", self.slow, strata))

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        if self.slowdown == 1:
            return without_effect(self, {"slow": "slowdown is 1"})
        return without_effect(self, {} if self.slow else {"slowdown": "slow is 0"})

    def check(self, clients: int) -> None:
        check_each("slow", self.slow, clients)

    def delays(self, seeds: Tensor, round: int, phase: int, clients: Tensor, now: list[float]) -> Tensor:
        device = draws.uniform(draws.key(draws.DEVICE, seeds[:, None], clients), 1).squeeze(-1)
        slow = device < rate_of(self.slow, clients)
        median = self.median * (1 + (self.slowdown - 1) * slow.to(torch.float64))
        key = _key(seeds, round, phase, clients)
        delay = median * torch.exp(self.spread * draws.normal(draws.fold(key, 0), 1).squeeze(-1))
        lost = draws.uniform(draws.fold(key, 1), 1).squeeze(-1) < self.dropout
        return torch.where(lost, NEVER, delay)


@dataclass(frozen=True)
class Trace:
    """Clients are reachable when a file says so: CSV with the columns client, start, end (in seconds).

    A client takes up an invitation when it is next reachable for long enough, and answers `seconds` later.
    The trace begins again after its last end.
    """

    path: str
    seconds: Duration = 1.0
    sha256: str = ""  # of the file; if given, a file that has changed is refused
    laps: dict[int, list[tuple[float, float]]] = field(init=False, repr=False, compare=False)
    period: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        spans, digest = read_trace(Path(self.path))
        if self.sha256 not in ("", digest):
            raise BadInput(f"the trace {self.path} has changed: its sha256 is {digest}, not {self.sha256}")
        object.__setattr__(self, "sha256", digest)
        period = max(end for client in spans.values() for _, end in client)
        # Three laps hold every span that begins within a lap from now, whole.
        laps = {
            client: whole_spans(
                [(start + n * period, end + n * period) for n in range(3) for start, end in own]
            )
            for client, own in spans.items()
        }
        object.__setattr__(self, "laps", laps)
        object.__setattr__(self, "period", period)

    @property
    def pinned(self) -> dict[str, str]:
        """What an experiment has to say to mean this very file again."""
        return {"path": str(Path(self.path).resolve()), "sha256": self.sha256}

    def check(self, clients: int) -> None:
        strangers = [client for client in self.laps if client >= clients]
        if strangers:
            raise BadInput(
                f"{self.path}: client {str(min(strangers))[:30]} is not among the {clients} clients, "
                f"0 to {clients - 1}"
            )

    def delays(self, seeds: Tensor, round: int, phase: int, clients: Tensor, now: list[float]) -> Tensor:
        lanes = zip(clients.tolist(), now, strict=True)
        return torch.tensor(
            [[self.delay(i, clock) for i in lane] for lane, clock in lanes], dtype=torch.float64
        )

    def begun(self, delays: Tensor) -> Tensor:
        """When a device that answers then has begun."""
        return delays - self.seconds

    def delay(self, client: int, now: float) -> float:
        moment = now % self.period
        for start, end in self.laps.get(client, []):
            wait = max(0.0, start - moment)
            always = end - start >= 3 * self.period
            if always or moment + wait + self.seconds <= end + 1e-9:
                return wait + self.seconds
        return NEVER


FLEETS = {"paper": Paper, "everybody": Everybody, "dropout": Dropout, "latency": Latency, "trace": Trace}
