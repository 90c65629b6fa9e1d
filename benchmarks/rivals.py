"""The rivals' environments: each is installed by itself, with the PyTorch that FedSaddle runs on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

CACHE = Path(".bench")
REQUIREMENTS = {"pfl": "pfl==0.6.0", "flower": "flwr[simulation]==1.41.0"}
SETTINGS = {  # nobody is called at home, nothing listens beyond this machine, waiting threads do not spin
    "OMP_WAIT_POLICY": "passive",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_HOME": str((CACHE / "flwr").resolve()),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def environment(name: str) -> Path | None:
    """The Python of a rival's environment, made if need be; None if it cannot be had here."""
    folder = CACHE / name
    python, ready = folder / "bin" / "python", folder / "ready"
    same = f"torch=={torch.__version__.partition('+')[0]}"
    wanted = f"{same}\n{REQUIREMENTS[name]}\n"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {REQUIREMENTS[name]} in {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "constraints.txt").write_text(same)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]
    try:
        for words in (
            [sys.executable, "-m", "venv", str(folder)],
            [*install, same],  # first, so that no other build of it is fetched
            [*install, "--constraint", str(folder / "constraints.txt"), REQUIREMENTS[name]],
        ):
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=1800)
    except (OSError, subprocess.SubprocessError) as problem:
        told = (getattr(problem, "stderr", None) or str(problem)).strip().splitlines()
        print(f"{name} is absent: {told[-1] if told else problem}", flush=True)
        return None
    ready.write_text(wanted)
    return python
