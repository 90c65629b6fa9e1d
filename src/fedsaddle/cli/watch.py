"""`fedsaddle watch`: a run's report in a browser while the run goes on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer


def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a run, perhaps one that is yet to begin.")],
    port: Annotated[
        int | None, typer.Option(help="Where to serve it; 0: any port that is free.", show_default="8642")
    ] = None,
) -> None:
    """Serve a run's report on this machine while the run goes on; Ctrl-C ends it."""
    from fedsaddle.app.watch import live_report

    with live_report(run, port) as server:
        print(f"report   {server.url}", flush=True)
        if not os.path.exists(run / "experiment.json"):
            print(f"waiting for a run at {run}", file=sys.stderr, flush=True)
        signal.signal(signal.SIGTERM, _end)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("no longer served; the run is not touched")


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
