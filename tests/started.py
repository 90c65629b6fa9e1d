"""Processes that are commands, without each waiting for PyTorch's and Flower's imports.

A server that has imported them forks one for each, as `fedsaddle serve` forks its own. What becomes of a
process that is killed, asked to end or left alone is the same. `python -m fedsaddle` is for other tests.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "fedsaddle.app.run",
        "fedsaddle.cli.tables",
        "fedsaddle.report",
        "matplotlib.figure",
        "fedsaddle.app.deploy",  # Flower, where it is installed
        "fedsaddle.flower.link",
    ]
)


class Started:
    """What subprocess.Popen would give, of `fedsaddle WORDS` or of `python SCRIPT.py WORDS`."""

    def __init__(self, words, log: Path, prelude: str = ""):
        """What it prints goes to a log; `prelude` is run before anything else."""
        self.args, self.log = list(map(str, words)), log
        self.process = FORKS.Process(target=_become, args=(self.args, str(log), prelude))
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become(words: list[str], log: str, prelude: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    sys.argv = words
    exec(prelude, {})
    if words[0] == "fedsaddle":
        runpy.run_module("fedsaddle", run_name="__main__")
    else:
        runpy.run_path(words[0], run_name="__main__")
