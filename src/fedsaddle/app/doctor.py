"""`fedsaddle doctor`: what a run depends on here, what is wrong or slow, and what to do about it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from packaging.requirements import Requirement

from fedsaddle.data import sources
from fedsaddle.engine.compile.record import record
from fedsaddle.engine.compile.tapes import cores
from fedsaddle.environment import SOURCE, here

GIB = 2**30
SCANT = 2 * GIB  # of a disk or of memory


class Diagnosis(NamedTuple):
    """One thing that was looked at."""

    kind: Literal["ok", "note", "problem"]
    what: str
    told: str
    todo: str = ""  # what to do, if something is to be done


def examine() -> Iterator[Diagnosis]:
    """Everything, one after another."""
    yield from _versions()
    yield from _devices()
    yield from _processor()
    yield from _memory()
    yield _player()
    yield from _data()
    yield from _folders()


# --- versions --------------------------------------------------------------------------------------------


def _versions() -> Iterator[Diagnosis]:
    about = here()
    commit = f", commit {about['commit'][:12]}" if "commit" in about else ""
    yield Diagnosis("ok", "fedsaddle", f"{about['fedsaddle']}{commit}; Python {platform.python_version()}")
    try:
        needed = [Requirement(one) for one in metadata.requires("fedsaddle") or []]
    except metadata.PackageNotFoundError:
        yield Diagnosis("note", "packages", "fedsaddle is not installed, so what it needs is not known")
        return
    fit: list[str] = []
    extras: dict[str, list[str]] = {}  # what is missing of each
    for one in needed:
        version = _installed(one.name)
        fits = version is not None and version in one.specifier
        extra = re.search(r"extra == ['\"](\w+)['\"]", str(one.marker))
        if extra is not None:
            if extra[1] not in ("dev", "docs"):
                extras.setdefault(extra[1], []).extend([] if fits else [f"'{one.name}{one.specifier}'"])
        elif not fits:
            told = f"{one.name} {version or 'is not here'}, and {one.specifier} is needed"
            yield Diagnosis("problem", "packages", told, f"pip install '{one.name}{one.specifier}'")
        else:
            fit.append(f"{one.name} {version}" if one.name in ("torch", "numpy") else "")
    yield Diagnosis("ok", "packages", f"{', '.join(filter(None, fit))} and {fit.count('')} more fit")
    for name, missing in sorted(extras.items()):
        told, todo = ("is not here", f"pip install {' '.join(missing)}") if missing else ("is here", "")
        yield Diagnosis("note" if missing else "ok", f"extra {name}", told, todo)
    yield from _lock()


def _lock() -> Iterator[Diagnosis]:
    """Of a source tree: what differs from the versions that were tested."""
    path = SOURCE / "requirements.lock"
    if not path.is_file():
        return
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(encoding="utf-8"), flags=re.M)
    found = [(name, pin, _installed(name)) for name, pin in pins]
    others = [
        f"{name} {version} for {pin}"
        for name, pin, version in found
        if version and _bare(version) != _bare(pin)
    ]
    if others:
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        told = f"not the versions that were tested: {', '.join(others[:4])}{more}"
        yield Diagnosis(
            "note", "lock", told, "results may differ in their last digits; make setup installs them"
        )
    else:
        yield Diagnosis(
            "ok", "lock", f"all of the {len(pins)} pinned packages that are here have their version"
        )


def _bare(version: str) -> str:
    return version.partition("+")[0]  # a build of torch has a name after that


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# --- machines --------------------------------------------------------------------------------------------


def _devices() -> Iterator[Diagnosis]:
    if not torch.cuda.is_available():
        driver = shutil.which("nvidia-smi") is not None
        if driver and torch.version.cuda is None:
            told = f"a driver is here, but torch {torch.__version__} is a build without CUDA"
            yield Diagnosis("problem", "GPU", told, "install a build of torch for CUDA")
        elif driver:
            told = "a driver is here, and torch finds no GPU"
            yield Diagnosis("problem", "GPU", told, "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES")
        else:
            yield Diagnosis(
                "note", "GPU", "none: convolutional networks and GANs are slow", "use --rounds, --seeds 0"
            )
        return
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        try:
            free, whole = torch.cuda.mem_get_info(number)
        except RuntimeError as error:
            yield Diagnosis(
                "problem", f"GPU {number}", f"{name} cannot be used: {str(error).splitlines()[0]}"
            )
            continue
        told = f"{name}, {free / GIB:.3g} of {whole / GIB:.3g} GiB free"
        busy = free < whole / 2
        todo = f"it is in use: choose another, or --set memory_gb={free / GIB / 2:.1f}" if busy else ""
        yield Diagnosis("note" if busy else "ok", f"GPU {number}", told, todo)


def _processor() -> Iterator[Diagnosis]:
    there, usable = os.cpu_count() or 1, cores()
    load = os.getloadavg()[0]
    if usable < there:
        told = f"{usable} of {there} may be used by this process"
        yield Diagnosis("note", "cores", told, "taskset or a container says so; more would be faster")
    else:
        yield Diagnosis("ok", "cores", f"{usable}; a run has a worker for each")
    if load > usable:
        told = f"{load:.1f} on {usable} cores: others compute here too"
        yield Diagnosis("note", "load", told, "a run will be slower than its usual")
    level = torch.backends.cpu.get_cpu_capability()
    told = f"{level} ({here().get('processor', 'unknown')})"
    held = [name for name in ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS") if os.environ.get(name)]
    if held:
        yield Diagnosis("note", "instructions", f"{told}, held there by {held[0]}", f"unset {held[0]}")
    elif level == "DEFAULT":
        yield Diagnosis("note", "instructions", f"{told}: no vector instructions are used, which is slow")
    else:
        yield Diagnosis("ok", "instructions", told)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name):
            told = f"{name}={os.environ[name]} has no effect on runs, which set PyTorch's threads themselves"
            yield Diagnosis("ok", "threads", told, "more threads for each worker: --set threads=2")


def _memory() -> Iterator[Diagnosis]:
    pages = {"whole": os.sysconf("SC_PHYS_PAGES"), "free": os.sysconf("SC_AVPHYS_PAGES")}
    whole, free = (pages[key] * os.sysconf("SC_PAGE_SIZE") for key in ("whole", "free"))
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        free = int(re.findall(r"^MemAvailable:\s+(\d+) kB", text, flags=re.M)[0]) * 1024
    except (OSError, IndexError):
        pass  # then what is used for caches counts as taken
    told = f"{free / GIB:.3g} of {whole / GIB:.3g} GiB can be had"
    if free < SCANT:
        yield Diagnosis("note", "memory", told, "--set memory_gb=0.5 and fewer seeds need less")
    else:
        yield Diagnosis("ok", "memory", told)


def _player() -> Diagnosis:
    """Whether what is recorded can be replayed without Python."""
    x = torch.ones(2)
    why = record(lambda inputs: inputs[0] * 2 + inputs[1], (x, x)).why
    if why is None:
        return Diagnosis("ok", "player", "TorchScript replays recorded rounds, on all cores")
    told = f"torch.fx, which is slower than TorchScript: {why}"
    return Diagnosis("note", "player", told, "another version of torch may have it")


# --- data and folders ------------------------------------------------------------------------------------


def _data() -> Iterator[Diagnosis]:
    away = []
    for name, files in sources.CATALOGUE.items():
        folder = sources.cache() / name
        some = [file for file in files.hashes if (folder / file).is_file()]
        if not some:
            away.append(name)
        elif sources.is_there(name):
            size = sum((folder / file).stat().st_size for file in some)
            yield Diagnosis(
                "ok", f"data {name}", f"{size / 1e6:.0f} MB, verified, from {sources.served_by(name)}"
            )
        else:
            told = f"{folder} holds files that are not what they should be, or not all"
            yield Diagnosis("problem", f"data {name}", told, f"fedsaddle data {name} gets it anew")
    if away:
        told = f"not here, got when they are first needed: {', '.join(away)}"
        yield Diagnosis("ok", "data", told)


def _folders() -> Iterator[Diagnosis]:
    places = (
        ("runs", Path("runs"), "use --out DIR"),
        ("data cache", sources.cache(), "set FEDSADDLE_DATA to another folder"),
        ("temporary", Path(tempfile.gettempdir()), "set TMPDIR to another folder"),
    )
    for what, place, todo in places:
        there = next(one for one in (place.absolute(), *place.absolute().parents) if one.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                free = shutil.disk_usage(there).free
        except OSError as error:
            yield Diagnosis("problem", what, f"{place} cannot be written to: {error.strerror}", todo)
            continue
        told = f"{place}, {free / GIB:.3g} GiB free"
        if free < SCANT:
            yield Diagnosis("note", what, told, "a run that fills the disk stops, and can be resumed")
        else:
            yield Diagnosis("ok", what, told)
