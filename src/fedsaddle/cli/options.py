"""What commands may be told, each option once; and the slips in them that can be seen at once.

A slip is answered here, before PyTorch is waited for.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import shlex
import signal
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsaddle.border import files, plugins, slips, unfit
from fedsaddle.errors import BadInput, check_count, check_device, meant, unknown

if TYPE_CHECKING:
    from fedsaddle.border.build import Wanted


# --- what a shell completes: names are read off the sources, so that nobody waits for PyTorch ---------------


def _begun(incomplete: str, known: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, told) for name, told in known.items() if name.startswith(incomplete)]


def _experiments(incomplete: str) -> list[tuple[str, str]]:
    return _begun(incomplete, files.shipped())


def _algorithms(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Those of the experiment, or all; after a comma, one more."""
    known, experiment = files.algorithms(), ctx.params.get("experiment")
    try:
        own = files.read_tables(experiment)[0].get("algorithms", {}) if experiment else known
    except BadInput:
        own = known
    before, comma, last = incomplete.rpartition(",")
    said = before.split(",")
    rest = {name: known.get(name, "") for name in own if name not in said}
    return [(f"{before}{comma}{name}", told) for name, told in _begun(last, rest)]


def _engines(incomplete: str) -> list[tuple[str, str]]:
    return _begun(incomplete, dict.fromkeys(ENGINES, ""))


def _devices(incomplete: str) -> list[tuple[str, str]]:
    return _begun(incomplete, dict.fromkeys(("auto", "cpu", "cuda"), ""))


# --- options ---------------------------------------------------------------------------------------------

ExperimentArgument = Annotated[
    str,
    typer.Argument(help="The name of a shipped experiment, or a TOML file.", autocompletion=_experiments),
]
Perhaps = Annotated[
    str | None,
    typer.Argument(
        help="The name of a shipped experiment, or a TOML file; none to --resume a folder.",
        autocompletion=_experiments,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only these, such as cdma-ada,cdma-one.", autocompletion=_algorithms),
]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.")]
Seeds = Annotated[str | None, typer.Option(help="Such as 0-4 or 0,3,7-9.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change a key: problem.kappa=20.")]
Engine = Annotated[str | None, typer.Option(help="auto, vectorised, loop or ray.", autocompletion=_engines)]
AddressOption = Annotated[
    str | None, typer.Option(help="Of a Ray cluster: auto or host:port; or start one here.")
]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu or cuda.", autocompletion=_devices)]
Deterministic = Annotated[
    bool | None, typer.Option("--deterministic", help="The same bits every time, also on a GPU.")
]
Out = Annotated[Path | None, typer.Option("--out", help="The run's folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")]
Write = Annotated[bool, typer.Option("--history", help="Write down what became of every invitation.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only what goes wrong.")]
Seconds = Annotated[float, typer.Option(help="Make a checkpoint at most so often.")]
Listen = Annotated[str, typer.Option(help="Where nodes find the server, as HOST:PORT.")]
Code = Annotated[
    list[Path] | None,
    typer.Option("--code", help="A Python file of your own that the experiment may run; may be repeated."),
]
Fewer = Annotated[
    int | None,
    typer.Option("--clients", help="So many clients, of whom a quorum asks no more than there are."),
]

ENGINES = ("auto", "vectorised", "loop", "ray")
MOST_JOBS = 8  # that nobody has asked for


def engine_named(engine: str | None) -> str | None:
    if engine is not None and engine.lower() not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    return engine and engine.lower()


# --- groups of options -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """What `run`, `sweep`, `serve` and `local` can be told."""

    algorithm: Only = None
    rounds: Rounds = None
    seeds: Seeds = None
    set_: Set = None
    folder: Out = None
    resume: Resume = False
    quiet: Quiet = False
    code: Code = None

    def __post_init__(self) -> None:
        if self.rounds is not None:
            check_count("rounds", self.rounds)
        if self.seeds is not None:
            files.parse_seeds(self.seeds)
        if self.algorithm and not self.names:
            raise BadInput(
                f"--algorithm takes names such as cdma-ada,cdma-one; got '{','.join(self.algorithm)}'"
            )
        if self.resume and self.folder is None:
            raise BadInput("--resume needs the folder of the run: --out DIR")
        if self.folder is not None and str(self.folder) in ("", "."):
            raise BadInput("--out needs a folder of its own, such as runs/first")

    @property
    def names(self) -> list[str]:
        """The algorithms that were asked for."""
        return [name.strip() for one in self.algorithm or [] for name in one.split(",") if name.strip()]

    @property
    def wanted(self) -> Wanted:
        options: Wanted = {"rounds": self.rounds, "seeds": self.seeds, "settings": self.set_ or []}
        return options | {"algorithms": self.names, "code": self.code or []}

    def experiment(self, given: str | None, command: str, **more: Any) -> str:
        """The experiment that is meant: the one that was given, or that of the folder to go on with.

        It is looked through for slips, with what is said instead of its keys: here, and by `more`.
        """
        more = self.wanted | {key: value for key, value in more.items() if value is not None}
        experiment = given if given is not None else self._resumed(command)
        tables, folder = files.read_tables(experiment)
        if folder is not None:
            plugins.see_from(folder, tables)
        files.as_asked(tables, more)
        known = tables.get("algorithms")
        swept = tables.get("sweep")
        if command == "sweep" and isinstance(swept, dict) and swept.get("settings"):
            known = swept["settings"]
        if command == "sweep":
            slips.check_has_grid(swept)
        if isinstance(known, dict):
            for name in self.names:
                if meant(name, known) not in known:
                    raise unknown("algorithm in this experiment", name, known)
        if "fedsaddle.problems" not in sys.modules:  # else no time is to be saved, and names may be known
            slips.check_names(tables, self.names)
            said = {key: more[key] for key in ("by", "budget", "halving") if key in more}
            if command == "sweep" and isinstance(swept, dict):
                tables["sweep"] = swept | said
            unfit.check_fit(tables, self.names, swept=command == "sweep")
        plugins.check_approved(tables, None, self.code or (), self.names)
        return experiment

    def _resumed(self, command: str) -> str:
        if self.folder is None or not self.resume:
            raise BadInput(
                "an experiment is missing: give the name of a shipped one or a TOML file; or, to go on with "
                "a run, --resume --out DIR"
            )
        experiment = str(self.folder / "experiment.json")
        if not os.path.isfile(experiment):
            raise BadInput(
                f"{self.folder} holds no run to go on with: name the experiment, to begin one there"
            )
        was = files.read_tables(experiment)[0]
        kind = "sweep" if "sweep" in was else "run"
        if kind != command:
            place = shlex.quote(str(self.folder))
            raise BadInput(
                f"{self.folder} holds a {kind}: go on with fedsaddle {kind} --resume --out {place}"
            )
        return experiment


@dataclass(frozen=True)
class Simulation:
    """What `run` and `sweep` can be told beside."""

    engine: Engine = None
    address: AddressOption = None
    device: DeviceOption = None
    deterministic: Deterministic = None
    checkpoint_seconds: Seconds = 10.0

    def __post_init__(self) -> None:
        engine_named(self.engine)
        if self.device is not None:
            check_device(self.device.lower())
        if not self.checkpoint_seconds >= 0:
            raise BadInput(f"--checkpoint-seconds must be at least 0, got {self.checkpoint_seconds}")

    @property
    def wanted(self) -> Wanted:
        return {
            "engine": engine_named(self.engine),
            "address": self.address,
            "device": self.device and self.device.lower(),
            "deterministic": self.deterministic,
        }


@dataclass(frozen=True)
class Sittings:
    """What `reproduce` and `board` can be told, which run many trials in several sittings."""

    device: DeviceOption = None
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where the trials are kept; by default, below runs/.")
    ] = None
    page: Annotated[Path | None, typer.Option(help="The page; by default, in that folder.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the trials in that folder.")] = False
    minutes: Annotated[float | None, typer.Option(help="Stop in time, to go on with --resume.")] = None
    jobs: Annotated[
        int | None, typer.Option(help="So many trials at once; by default 1, with --quick one a core.")
    ] = None
    quick: Annotated[bool, typer.Option("--quick", help="All of it in little, on data that ship.")] = False
    list_: Annotated[bool, typer.Option("--list", help="Show what there is, and how long it takes.")] = False
    quiet: Quiet = False

    def __post_init__(self) -> None:
        if self.device is not None:
            check_device(self.device.lower())
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise BadInput(f"--minutes must be above 0, got {self.minutes:g}")
        if self.jobs is not None:
            check_count("--jobs", self.jobs, most=256)
        if self.page is not None and self.page.suffix != ".md":
            raise BadInput(
                f"--page is a page of Markdown: say {self.page.with_suffix('.md')}, not {self.page}"
            )

    def place(self, name: str) -> Path:
        return self.folder or Path("runs") / (f"{name}-quick" if self.quick else name)

    @property
    def on(self) -> str | None:
        return self.device and self.device.lower()

    @property
    def at_once(self) -> int:
        """How many trials; those of the little form need little memory."""
        from fedsaddle.engine.compile.tapes import cores

        return self.jobs or (min(cores(), MOST_JOBS) if self.quick else 1)


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: typer sees the fields of a dataclass as options of their own."""
    flat: dict[str, inspect.Parameter] = {}
    groups: dict[str, type[Any]] = {}
    kinds = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind = kinds[name]
        if not dataclasses.is_dataclass(kind):
            flat[name] = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind)
            continue
        assert isinstance(kind, type)
        groups[name], own = kind, typing.get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            flat[field.name] = inspect.Parameter(
                field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=own[field.name]
            )

    @wraps(command)
    def call(**given: Any) -> None:
        made = {
            name: kind(**{own.name: given.pop(own.name, own.default) for own in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        command(**given, **made)

    call.__signature__ = inspect.Signature(list(flat.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in flat.items()}
    return call


def until_asked() -> Callable[[], bool]:
    """True once Ctrl-C or SIGTERM has come; a second one ends the program at once."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        print("finishing this round, then making a checkpoint ...", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGINT, note)
    signal.signal(signal.SIGTERM, note)
    return lambda: asked
