"""A run folder: what a run leaves behind, and how it goes on after a crash as if nothing had happened.

    experiment.json         the resolved experiment; it can be run again as it is
    metrics.json            what the problem declares of each metric
    rounds.csv              one row an evaluation of a lane
    traffic.csv             floats sent so far at each evaluation, by direction, variable and kind
    events.csv              abandoned rounds, lanes that diverged or collapsed or were dropped by a sweep,
                            answers that were lost with a worker, a lack of memory
    history.jsonl           if it was asked for: what became of every invitation
    clock.jsonl             seconds on the wall's clock at each evaluation
    environment.json        for each time it was started: when, with what, on what, and for how long
    final/ALGORITHM.safetensors   each seed's last finite point
    models/model.json       of a problem with networks: how to build them, and what new rows need
    models/ALGORITHM/SEED.safetensors   the same points by the names of parameters; SEED-best, where there
                            are validation rows: that of the best evaluation
    samples/ALGORITHM-ROUND.png   of a problem that makes pictures: the first seed's at each evaluation,
    samples/ALGORITHM-rounds.png  and some of them over the rounds
    samples/real.png              some of what it was to learn
    real.json               what real rows have by the metrics, if the problem can say so
    details/ALGORITHM.json  what the problem tells of each seed's end, if it tells anything
    best.toml               of a sweep: an experiment with each algorithm's best setting
    checkpoint.json, state-*.safetensors
    checkpoint-before.json  the checkpoint before that one, for when a disk has damaged it
    kept/*.safetensors      where each algorithm was at its end, so that it can go on to more rounds
    before-ROUNDS/          while a run goes on to more rounds: the tables as they were

checkpoint.json is the one place that says how far the run is. It names the state file and holds its hash,
the length and hash of every table, and a hash of itself; replacing it, atomically, is what makes a
checkpoint. A resumed run cuts the tables back to the lengths in it and goes on: since no draw depends on
anything but (seed, round, phase, client), it writes the same bytes again.

A run goes on to more rounds in the same way. Tables hold one algorithm after another, so the rows that there
are are put aside; each algorithm, in its turn, takes up its own and goes on from where it was.

    plan          what is to be run, and who is told how it goes
    files         written whole or not at all, and held to their hash
    tables        which only grow
    best          the best evaluation so far
    models        trained networks by their parameters' names
    checkpoints   lanes as tensors and JSON, and back
    before        the checkpoint before the last
    another       what is said where a folder is to go on with something else
    folder        all of that in its place, for one process at a time
    details       what problems tell and show beside their metrics
    diary         environment.json and clock.jsonl, on which nothing depends
    execution     runs what is left
"""

from fedsaddle.runs.checkpoints import read_checkpoint, read_state, read_tensors
from fedsaddle.runs.details import REAL
from fedsaddle.runs.diary import read_clock, read_environment, refuse_constant
from fedsaddle.runs.execution import execute
from fedsaddle.runs.files import sealed, unsealed, verified, write_atomically
from fedsaddle.runs.folder import RunFolder
from fedsaddle.runs.models import NOTE, StoredModel, read_model
from fedsaddle.runs.plan import Interrupted, Plan, Watch
from fedsaddle.runs.tables import HISTORY, KEYS

__all__ = [
    "HISTORY",
    "KEYS",
    "NOTE",
    "REAL",
    "Interrupted",
    "Plan",
    "RunFolder",
    "StoredModel",
    "Watch",
    "execute",
    "read_checkpoint",
    "read_clock",
    "read_environment",
    "read_model",
    "read_state",
    "read_tensors",
    "refuse_constant",
    "sealed",
    "unsealed",
    "verified",
    "write_atomically",
]
