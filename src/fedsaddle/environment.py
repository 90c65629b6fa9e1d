"""Where a run was made: the versions, the source and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).parents[2]


def here() -> dict[str, Any]:
    """What a report says of this process's surroundings. What cannot be found out is left out."""
    import fedsaddle

    found = {
        "fedsaddle": fedsaddle.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        # A process that has not woken CUDA has not computed on it.
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
    }
    return {key: value for key, value in found.items() if value}


@cache  # what this process was started from, whatever is committed while it runs
def _commit() -> str | None:
    """The commit of the source tree, if this is one and not an installed copy in somebody's repository."""
    if not (SOURCE / ".git").exists():
        return None
    words = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(words, cwd=SOURCE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
