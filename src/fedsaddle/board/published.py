"""Which settings each algorithm may try: the ranges that were published, and where; or that they are ours.

One rule for all. A pair of numbers is drawn from log-uniformly; of a list one is chosen; a name means the
same value as another hyperparameter. A step size that is not named here is drawn from its task's range, which
is the same for all algorithms. Whatever else is not named keeps its default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedsaddle.algorithms import ALGORITHMS, Entry
from fedsaddle.errors import BadInput
from fedsaddle.steady import step_sizes

Domain = tuple[float, float] | list[Any] | str


class Ranges(NamedTuple):
    """What is drawn for an algorithm's settings."""

    source: str
    values: Mapping[str, Domain] = {}
    everybody: bool = False  # whether all clients must be invited, and answer
    problems: tuple[str, ...] = ()  # the only ones that it is for; without any, all


_APPENDIX = "the appendix of the CDMA paper (AAAI 2023), AUC maximisation"
_STAGES: dict[str, Domain] = {"theta": [0.0, 0.1, 10.0], "K_0": [2000, 4000]}
# The appendix has 0.95 to 10. On a quadratic a tenth of that is best (docs/results/quadratic.md), so that all
# recursive momenta may go as low.
_RECURSIVE: dict[str, Domain] = {"c_alpha": (0.03, 10.0), "rho": [0.0, 0.2, 1 / 3]}
_SERVER: dict[str, Domain] = {"eta_g": (1.0, 2.0), "gamma_g": (1.0, 2.0)}

PUBLISHED: dict[str, Ranges] = {
    "cdma-nc": Ranges(_APPENDIX),
    "cdma-one": Ranges(_APPENDIX),
    "cdma-ada": Ranges(f"{_APPENDIX}; c_alpha also lower", _RECURSIVE),
    "parallel-sgda": Ranges(_APPENDIX),
    "local-sgda-plus": Ranges(f"{_APPENDIX}; the snapshot is renewed every round"),
    "extra-step": Ranges(_APPENDIX),
    "coda-plus": Ranges(_APPENDIX, _STAGES),
    "codasca": Ranges(_APPENDIX, {"eta_g": (0.99, 1.1), **_STAGES}),
    "catalyst-scaffold-s": Ranges(_APPENDIX, {"eta_g": "eta_l", **_STAGES}),
    "fsgda": Ranges("Shen, AISTATS 2024", _SERVER),
    "fess-gda": Ranges("Shen, AISTATS 2024", {"p": (0.01, 1.0), "beta": (0.05, 0.9), **_SERVER}),
    "momentum-local-sgda": Ranges("Sharma, ICML 2022; the range of b is ours", {"b": (0.05, 1.0)}),
    "fedavg-m": Ranges(
        "Cheng, ICLR 2024, and rho of the CDMA paper; the range of b is ours",
        {"b": (0.05, 1.0), "rho": [0.0, 0.2, 1 / 3]},
    ),
    "sagda": Ranges("Yang, NeurIPS 2022; server steps as in Shen 2024", _SERVER),
    "fedgda-gt": Ranges("Sun & Wei, NeurIPS 2022: one step size"),
    "fgda": Ranges("Huang, AISTATS 2024, in CDMA-ADA's terms", _RECURSIVE),
    "adafgda": Ranges(
        "Huang, AISTATS 2024, in CDMA-ADA's terms; decay's values are ours",
        {**_RECURSIVE, "decay": [0.9, 0.99]},
    ),
    "fednest": Ranges("Tarzanagh, ICML 2022: T = 1"),
    "drfa": Ranges("Deng, NeurIPS 2020", problems=("groups", "fair")),
    "fed-norm-sgda": Ranges("Sharma, TMLR 2023; server steps as in Shen 2024", _SERVER),
    "fed-norm-sgda-plus": Ranges("Sharma, TMLR 2023; server steps as in Shen 2024", _SERVER),
    "server-eg": Ranges("FedEG of the FedDeepGMM project, 2026"),
    "server-ogda": Ranges("FedOGDA of the FedDeepGMM project, 2026"),
    "fedualex": Ranges("Bai & Bullins, ICLR 2024", {"eta_g": [1.0]}),
    "proxskip-vip": Ranges("Zhang, ICLR 2024", everybody=True),
}
# What is not entered, and why.
LEFT_OUT = {
    "codasca-release": "the release's departure from the published rule",
    "local-sgda-plus-release": "CDMA-NC under another name",
    "sagda-minibatch": "for cohorts that answer twice, which none here does; sagda has anchors on all rows",
    "afl": "Parallel SGDA under another name",
}


class StepRanges(NamedTuple):
    """Between what step sizes lie at a task."""

    x: tuple[float, float]
    y: tuple[float, float]
    both: tuple[float, float]  # of an algorithm with one for both players
    source: str


class Entrant(NamedTuple):
    """An algorithm that takes part."""

    label: str
    algorithm: str  # as an experiment names it
    entry: Entry
    ranges: Ranges


def shipped_entrants() -> tuple[list[Entrant], dict[str, str]]:
    """The algorithms that ship and say what they may try; and those that do not take part, and why."""
    found, out = [], dict(LEFT_OUT)
    for name, entry in ALGORITHMS.items():
        if name in PUBLISHED:
            found.append(Entrant(name, name, entry, PUBLISHED[name]))
        else:
            out.setdefault(name, "no ranges are declared for it")
    return found, out


def submitted(label: str, algorithm: str, entry: Entry) -> Entrant:
    """An algorithm of somebody's own, with the ranges that its class declares."""
    ranges = getattr(entry.rule, "ranges", None)
    if not isinstance(ranges, Ranges):
        raise BadInput(
            f"{algorithm} does not say what it may try: give its class "
            '"ranges: ClassVar = Ranges(source, {...})", of fedsaddle.board.published (CONTRIBUTING.md)'
        )
    fields = {field.name for field in dataclasses.fields(entry.rule)}
    for name in ranges.values:
        if name not in fields:
            raise BadInput(
                f"{algorithm}: ranges name '{name}', which is not among its {', '.join(sorted(fields))}"
            )
    return Entrant(label, algorithm, entry, ranges)


def grid_of(entrant: Entrant, steps: StepRanges) -> dict[str, Any]:
    """What an algorithm draws from at a task, as an experiment's [sweep.grid.ALGORITHM] has it."""
    rule, values = entrant.entry.rule, entrant.ranges.values
    sizes = step_sizes(rule)  # type: ignore[arg-type]
    grid: dict[str, Any] = {}
    for field in dataclasses.fields(rule):
        if field.name in entrant.entry.fixed:
            continue
        if field.name in values:
            grid[field.name] = _as_grid(values[field.name])
        elif field.name in sizes:
            grid[field.name] = _as_grid(_step(field.name, steps))
    return grid


def _step(name: str, steps: StepRanges) -> tuple[float, float]:
    """Step sizes are called eta, of y gamma, and eta_l where there is one for both players."""
    if "gamma" in name:
        return steps.y
    return steps.both if name.endswith("_l") else steps.x


def _as_grid(choice: Domain) -> Any:
    if isinstance(choice, tuple):
        low, high = choice
        return {"low": low, "high": high, "log": True}
    return choice
