"""What was trained comes back: as a module, as scores, as files for others, as pictures."""

import csv
import hashlib
import importlib.util
import io
import json
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from safetensors.torch import load as unpacked
from safetensors.torch import save
from torch import nn

import fedsaddle as fs
from fedsaddle import networks
from fedsaddle.app import models
from fedsaddle.app.run import SILENT
from fedsaddle.blueprint import BUILDERS, Blueprint
from fedsaddle.border.trained import which_model
from fedsaddle.cli import main
from fedsaddle.data.reading import Reader
from fedsaddle.engine.course import Row, Stop
from fedsaddle.errors import BadInput
from fedsaddle.metric import Metric
from fedsaddle.problem import Modelled
from fedsaddle.runs import Plan, RunFolder, execute, read_model
from fedsaddle.runs.best import Best
from fedsaddle.scores import auroc

HAVE_ONNX = all(importlib.util.find_spec(name) for name in ("onnxscript", "onnxruntime"))


def lines(rows=90):
    yield "amount,still,kind,shop,outcome"
    for n in range(rows):
        fraud = n % 5 == 4
        amount, kind = 1_700_000_000 + (n * 37) % 50 + 20 * fraud, ("card", "cash", "cheque")[n % 3]
        yield f"{amount},7,{kind},s{n % 4},{'fraud' if fraud else 'fine'}"


def table(folder: Path) -> str:
    path = folder / "payments.csv"
    path.write_text("\n".join(lines()) + "\n")
    return str(path)


def payments(folder: Path, **dials) -> fs.AUC:
    dials = {"label": "outcome", "client": "shop", "positive": "fraud", "partition": "column"} | dials
    return fs.AUC(table(folder), validation_share=0.3, **dials)


def train(path: Path, problem, rounds=4, every=2, seeds=(0, 1), resume=False) -> Path:
    """Run a problem in a folder, as the command line does, but without an experiment file."""
    rule = fs.CDMANC(0.3, 0.3, K=2)
    study = fs.make_study(
        problem, [rule], names=["cdma-nc"], seeds=seeds, quorum=fs.Quorum(invite=2), device="cpu"
    )
    resolved = {"name": "mine", "rounds": rounds, "algorithms": {"cdma-nc": {}}}
    folder = RunFolder(path, Plan(resolved, {"cdma-nc": study}, rounds, every), resume, may_grow=True)
    try:
        execute(folder, SILENT, checkpoint_seconds=0)
    finally:
        folder.close()
    return path


def point(run: Path, seed=0) -> fs.Pair:
    held = unpacked((run / "final" / "cdma-nc.safetensors").read_bytes())
    return fs.Pair(held[f"{seed}.x"], held[f"{seed}.y"])


def fedsaddle(*words, monkeypatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedsaddle", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def task(home):
    return payments(home)


@pytest.fixture(scope="module")
def run(home, task):
    return train(home / "run", task)


# --- the module ------------------------------------------------------------------------------------------


def test_the_module_scores_rows_of_the_file_as_the_task_does(run, task, home):
    raw, labels = task.blueprint.reader.labelled(table(home))
    assert raw.dtype == torch.float64
    inputs = task.blueprint.reader.scaled(raw)
    module = fs.load(run, seed=1)
    assert not module.training
    own = module(raw)
    assert own.sub(task.scores(point(run, 1).x, inputs)).abs().max() < 1e-6
    assert own.std() > 1e-3  # the numbers are told apart, though they are beyond what a float32 tells apart
    assert fs.load(run, "CDMA-NC", seed=0)(raw).sub(own).abs().max() > 1e-4
    assert labels.tolist() == [n % 5 == 4 for n in range(90)]


def test_rows_are_read_as_they_were_in_training(task, home):
    """All rows that the task has, in any order, are those that its reader finds."""
    inputs = task.blueprint.reader.scaled(task.blueprint.reader.rows(table(home)))
    known = {tuple(row) for row in torch.cat([task.data.inputs, task.data.test_inputs]).tolist()}
    assert {tuple(row) for row in inputs.tolist()} == known


@pytest.mark.parametrize("name", [*BUILDERS, *networks.NETWORKS])
def test_every_network_is_plain_and_computes_the_same(name):
    known = {**BUILDERS, **networks.NETWORKS}
    build = partial(known[name], 5) if name in ("logistic", "mlp") else known[name]
    rows = torch.randn(
        4,
        *{
            "lenet5": (1, 28, 28), "cifar-cnn": (3, 32, 32), "logistic": (5,), "mlp": (5,),
            "mnist-discriminator": (1, 28, 28), "dcgan-discriminator": (3, 64, 64),
            "digits-discriminator": (1, 8, 8),
        }.get(name, (networks.NOISE,)),
    )  # fmt: skip
    module = build()
    weights = (torch.full((4,), 0.25),) if "generator" in name or "discriminator" in name else ()
    with torch.no_grad():
        before = module(rows, *weights)
        plain = networks.plain(module)
        assert not any("convolutions" in type(layer).__module__ for layer in plain.modules())
        assert plain(rows).sub(before).abs().max() < 2e-5


@pytest.mark.parametrize("scoring", ["sigmoid", "softmax", "release"])
@pytest.mark.parametrize("network", ["mlp", "lenet5"])
def test_every_scoring_is_the_tasks(scoring, network, tmp_path):
    rng = numpy.random.default_rng(0)
    path = tmp_path / "mine.npz"
    images = rng.integers(0, 256, (40, 28, 28), dtype=numpy.uint8)
    numpy.savez(path, features=images, label=numpy.arange(40) % 2)
    task = fs.AUC(str(path), positive=1, network=network, scoring=scoring, clients=2, partition="iid")
    z = task.init(3)
    raw = torch.from_numpy(images)[:, None]
    assert task.models(z)["score"](raw).sub(task.scores(z.x, raw)).abs().max() < 1e-6
    assert torch.equal(task.blueprint.reader.rows(str(path)), raw)


def test_a_blueprint_is_json_and_back(task):
    for one in (task, fs.GAN(), fs.Fair(), fs.Robust()):
        assert isinstance(one, Modelled)
        held = json.loads(json.dumps(one.blueprint.to_json()))
        again = Blueprint.from_json(held)
        assert again.to_json() == held
        state = one.models(one.init(0))
        for role, model in state.items():
            assert again.model(role, model.state_dict()).state_dict().keys() == model.state_dict().keys()


class Half(nn.Module):
    """A network part of which is frozen."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, 3).requires_grad_(False)
        self.register_buffer("shift", torch.ones(3))
        self.last = nn.Linear(3, outputs)

    def forward(self, rows):
        return self.last(torch.relu(self.first(rows.flatten(1)) + self.shift))


def test_what_is_frozen_comes_back_too(monkeypatch, tmp_path):
    monkeypatch.setitem(networks.NETWORKS, "half", Half)
    task = fs.AUC(network="half", clients=4)
    run = train(tmp_path / "run", task, rounds=1, seeds=(0,))
    rows = task.data.test_inputs[:9]
    assert fs.load(run)(rows).sub(task.scores(point(run).x, rows)).abs().max() < 1e-6
    monkeypatch.delitem(networks.NETWORKS, "half")
    with pytest.raises(BadInput, match="network half is not known here"):
        fs.load(run)


def test_giving_networks_back_draws_no_random_numbers():
    task = fs.GAN()
    z = task.init(0)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    task.models(z)
    assert torch.equal(torch.get_rng_state(), before)


class Mine:
    """A task made in Python, whose network only its own code can build."""

    def __init__(self) -> None:
        self._rest = fs.Quadratic(clients=4, dim_x=3, dim_y=3)
        self.federation, self.metrics, self.init = self._rest.federation, self._rest.metrics, self._rest.init
        self.evaluate, self.loss = self._rest.evaluate, self._rest.loss

    def models(self, z):
        layer = nn.Linear(3, 1, bias=False, dtype=z.x.dtype)
        layer.load_state_dict({"weight": z.x.detach().cpu()[None]})
        return {"x": layer}


def test_a_task_made_in_python_is_needed_to_load_its_model(tmp_path):
    run = train(tmp_path / "run", Mine())
    with pytest.raises(BadInput, match=r"made in Python, and no code.*task=task"):
        fs.load(run, seed=0)
    with pytest.raises(BadInput, match="made in Python"):
        models.predict(run, "rows.csv", seed=0)
    assert torch.equal(fs.load(run, seed=1, task=Mine()).weight[0], point(run, 1).x)
    some = {"rounds": 2, "quorum": fs.Quorum(invite=2), "progress": False}
    whole = fs.run(Mine(), fs.CDMANC(eta=0.1, gamma=0.1), out=tmp_path / "whole", **some)
    assert torch.equal(fs.load(whole.folder, task=Mine()).weight, whole.model().weight)
    with pytest.raises(BadInput, match=r"made in Python, and no code.*task=task"):
        fs.load(whole.folder)
    with pytest.raises(BadInput, match=r"the task has score; .* holds x"):
        fs.load(run, seed=0, task=fs.AUC())


# --- the best --------------------------------------------------------------------------------------------


def test_the_best_is_that_of_the_validation_metric_and_of_equals_the_earlier(run, task):
    with (run / "rounds.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "0"]
    first = max(rows, key=lambda row: float(row["validation_auc"]))  # the first of equals
    saved = json.loads((run / "checkpoint.json").read_text())["models"]["lanes"]["cdma-nc"]["0"]["best"]
    assert (saved["metric"], saved["round"]) == ("validation_auc", int(first["round"]))
    assert saved["value"] == float(first["validation_auc"])
    held = task._validated.rows
    module = fs.load(run, seed=0, best=True)
    scores = torch.sigmoid(module.network(held["input"]).squeeze(1)).detach()  # these rows are scaled already
    assert abs(float(auroc(scores, held["positive"])) - saved["value"]) < 1e-9


@pytest.mark.parametrize("better", ["high", "low"])
def test_the_sign_is_the_metrics_and_a_tie_changes_nothing(better):
    metrics = {"loss": Metric("low", "train"), "worth": Metric(better, "validation")}
    study = SimpleNamespace(problem=SimpleNamespace(metrics=metrics))
    lanes = SimpleNamespace(server=SimpleNamespace(z=fs.Pair(torch.zeros(1, 2), torch.zeros(1, 2))))
    best, sign = Best(), 1 if better == "high" else -1
    for round, value in enumerate((0.5, 0.7, 0.7, 0.6, 0.8)):
        lanes.server.z.x.fill_(round)
        row = Row(0, 0, round, 0, 0, 0.0, {"loss": 9.0 - round, "worth": sign * value})
        best.see(study, Stop(round, lanes, [row], []), every=3)
        assert best.lanes[0].round == (0, 1, 1, 1, 4)[round]
    assert best.lanes[0].z.x.tolist() == [4, 4]
    assert best.on_beat[0].z.x.tolist() == [1, 1]  # as it was after round 3
    assert best.on_beat[0].value == sign * 0.7


def written(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.glob("models/**/*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_that_goes_on_to_more_rounds_keeps_the_same_best(task, tmp_path):
    """Its first end is off the beat: the evaluation there is none of the longer run's."""
    whole = train(tmp_path / "whole", task, rounds=7, every=4)
    grown = train(tmp_path / "grown", task, rounds=3, every=4)
    assert written(grown).keys() == written(whole).keys()
    assert written(train(grown, task, rounds=7, every=4, resume=True)) == written(whole)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import test_models
from fedsaddle.runs import RunFolder
save, saves = RunFolder.save, []
def counted(self, algorithm, stop):
    save(self, algorithm, stop)
    saves.append(stop)
    if len(saves) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
RunFolder.save = counted
home = Path({home!r})
test_models.train(home / "killed", test_models.payments(home), rounds=8, every=1)
"""


def test_killed_and_resumed_it_keeps_the_same_models(task, home):
    program = KILLED.format(tests=str(Path(__file__).parent), home=str(home))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    killed = home / "killed"
    assert not (killed / "models").exists()
    (killed / "models").mkdir()
    (killed / "models" / "model.json.part").write_text("half")
    train(killed, task, rounds=8, every=1, resume=True)
    whole = train(home / "whole", task, rounds=8, every=1)
    assert written(killed) == written(whole)
    assert len(written(whole)) == 5
    lanes = json.loads((whole / "checkpoint.json").read_text())["models"]["lanes"]["cdma-nc"]
    assert min(entry["best"]["round"] for entry in lanes.values()) < 4  # or else this shows nothing


def test_an_older_folder_has_no_models_and_says_so(run, tmp_path):
    old = Path(shutil.copytree(run, tmp_path / "old"))
    forge(old, lambda saved: saved.pop("models"))
    with pytest.raises(BadInput, match="holds no model: its task trains no network, or an older version"):
        fs.load(old, seed=0)


@pytest.mark.parametrize(
    ("own", "how"),
    [
        ({}, "fedsaddle run --resume --out {}"),
        ({"python": ["problem"]}, "fs.run(..., out='{}', resume=True)"),
    ],
)
def test_a_run_that_has_only_begun_says_how_it_goes_on(own, how, tmp_path):
    (tmp_path / "checkpoint.json").write_text(json.dumps({"done": {}, "experiment": own}))
    with pytest.raises(BadInput) as refused:
        which_model(tmp_path)
    assert str(refused.value).endswith(f"has had all rounds yet; go on with {how.format(tmp_path)}")


def test_an_older_state_has_no_best_and_none_is_made_up():
    best = Best()
    best.read({}, {"completed": [3]})
    tensors, rest = {}, {}
    best.write(tensors, rest, best.lanes)
    assert "best" not in rest


# --- which ------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_the_only_one_and_errors_say_what_there_is(run, task, tmp_path):
    with pytest.raises(BadInput, match="several seeds: say which, of 0, 1"):
        fs.load(run)
    for wrong, told in (
        ({"algorithm": "cdma-nk"}, "did you mean 'cdma-nc'"),
        ({"algorithm": "../cdma-nc", "seed": 0}, "known: cdma-nc"),
        ({"seed": 9}, "no model of seed 9; there is 0, 1"),
        ({"seed": "../0"}, "no model of seed ../0"),
        ({"seed": 0, "role": "critic"}, "known: score"),
    ):
        with pytest.raises(BadInput, match=told):
            fs.load(run, **wrong)
    with pytest.raises(BadInput, match=r"not the folder of a run: it has no checkpoint.json"):
        fs.load(tmp_path)
    plain = train(tmp_path / "plain", fs.Fair(clients=4), rounds=1, seeds=(3,))
    assert fs.load(plain)(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).sum(1).sub(1).abs().max() < 1e-6
    with pytest.raises(BadInput, match="keeps no best model of cdma-nc with seed 3"):
        fs.load(plain, best=True)
    none = train(tmp_path / "none", fs.Quadratic(clients=4), rounds=1)
    assert not (none / "models").exists()
    with pytest.raises(BadInput, match="trains no network"):
        fs.load(none)


# --- predict ---------------------------------------------------------------------------------------------


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_predict_scores_as_the_task_does(run, task, home, tmp_path, monkeypatch, capsys):
    rows = list(lines())
    new = tmp_path / "new.csv"  # columns in another order, no label, and a word that nobody knows
    cells = [row.split(",") for row in rows[1:21]]
    new.write_text(
        "kind,still,amount\n" + "".join(f"{c[2]},{c[1]},{c[0]}\n" for c in cells) + "barter,7,1700000000\n"
    )
    out = tmp_path / "scores.csv"
    assert fedsaddle("predict", run, new, "--seed", 0, "--out", out, monkeypatch=monkeypatch) == 0
    scores = [float(row["score"]) for row in read(out)]
    assert [row["row"] for row in read(out)] == [str(n) for n in range(21)]
    reader = task.blueprint.reader
    own = task.scores(point(run).x, reader.scaled(reader.rows(table(home))))[:20]
    assert torch.tensor(scores[:20]).sub(own).abs().max() < 1e-6
    capsys.readouterr()
    for seed in ("1", "all"):
        assert fedsaddle("predict", run, new, "--seed", seed, monkeypatch=monkeypatch) == 0
    other, mean = (
        [float(row["score"]) for row in csv.DictReader(io.StringIO("row" + text))]
        for text in capsys.readouterr().out.split("row")[1:]
    )
    assert mean == pytest.approx([(a + b) / 2 for a, b in zip(scores, other, strict=True)], abs=1e-6)


def test_a_label_that_is_there_is_not_looked_at(run, tmp_path):
    for name, text in (
        ("a", "amount,still,kind\n1700000005,7,card\n"),
        ("b", "outcome,amount,shop,still,kind\n,1700000005,,7,card\n"),
    ):
        (tmp_path / f"{name}.csv").write_text(text)
    one, two = (list(models.predict(run, tmp_path / f"{name}.csv", seed=0).rows) for name in "ab")
    assert one == two


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("amount,still\n1,2\n", "lacks the column 'kind'"),
        ("amount,still,kind,more\n1,2,card,3\n", "has another column 'more'"),
        ("amount,still,kind\nnan,2,card\n", "column 'amount', line 2: the value is missing"),
        ("amount,still,kind\n1e300,2,card\n", "expected a number below"),
        ("amount,still,kind\nx,2,card\n", "column 'amount': expected numbers"),
        ("amount,still,kind\n1,2,3\n", "column 'kind': expected words"),
        ("amount,still,kind\n", "no rows below its first line"),
        ("", "the first line is empty"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_a_line(run, tmp_path, text, told, monkeypatch, capsys):
    path = tmp_path / "new.csv"
    path.write_text(text)
    assert fedsaddle("predict", run, path, "--seed", 0, monkeypatch=monkeypatch) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert told in message


def test_what_is_there_is_not_written_over(run, tmp_path, monkeypatch, capsys):
    new, kept = tmp_path / "new.csv", tmp_path / "kept.csv"
    new.write_text("amount,still,kind\n1700000005,7,card\n")
    kept.write_text("mine")
    words, before = ("predict", run, new, "--seed", 0, "--out"), new.read_bytes()
    for out, told in (
        (kept, f"{kept} is there already: choose another --out, or write over it with --force"),
        (new, "is the table of the rows that are scored: choose another --out"),
        (tmp_path / "." / "new.csv", "is the table of the rows"),
        (run / "rounds.csv", f"lies in {run}, which is the folder of a run: choose another --out"),
        (run / "models" / "cdma-nc" / "new.csv", f"lies in {run}, which is the folder of a run"),
        (tmp_path / "payments.toml", "scores are written as .csv"),
    ):
        if out != kept:
            assert fedsaddle(*words, out, "--force", monkeypatch=monkeypatch) == 2
            assert told in capsys.readouterr().err
        assert fedsaddle(*words, out, monkeypatch=monkeypatch) == 2
        assert told in capsys.readouterr().err
    for inside in (run / "m.pt2", run / "models" / "cdma-nc" / "0.safetensors"):
        assert fedsaddle("export", run, "--seed", 0, "--to", inside, "--force", monkeypatch=monkeypatch) == 2
        assert "the folder of a run: choose another --to" in capsys.readouterr().err
    assert fedsaddle("rescore", run, "--out", tmp_path / "s.toml", monkeypatch=monkeypatch) == 2
    assert fedsaddle("rescore", run, "--out", run / "rounds.csv", monkeypatch=monkeypatch) == 2
    assert (new.read_bytes(), kept.read_text()) == (before, "mine")
    assert fedsaddle(*words, kept, "--force", monkeypatch=monkeypatch) == 0
    assert len(read(kept)) == 1


def test_a_classifier_gives_classes_and_probabilities(tmp_path, monkeypatch, capsys):
    task = fs.Fair(clients=4)
    run = train(tmp_path / "run", task, rounds=2, seeds=(0,))
    images = task.data.test_inputs[:30]
    numpy.savez(tmp_path / "new.npz", features=images[:, 0].numpy())
    out = tmp_path / "scores.csv"
    assert fedsaddle("predict", run, tmp_path / "new.npz", "--out", out, monkeypatch=monkeypatch) == 0
    found = read(out)
    logits = task.model(point(run).x, (images.float() - 127.5) * (1 / 127.5))
    assert [row["class"] for row in found] == [str(n) for n in logits.argmax(1).tolist()]
    given = torch.tensor([[float(row[f"p_{n}"]) for n in range(10)] for row in found])
    assert given.sub(torch.softmax(logits, 1)).abs().max() < 1e-6
    numpy.savez(tmp_path / "floats.npz", features=images[:, 0].numpy() / 255)
    assert fedsaddle("predict", run, tmp_path / "floats.npz", monkeypatch=monkeypatch) == 2
    assert "expected rows of (1, 8, 8) in uint8" in capsys.readouterr().err
    assert fedsaddle("predict", run, table(tmp_path), monkeypatch=monkeypatch) == 2
    assert "expected a .npz file with an array 'features'" in capsys.readouterr().err
    numpy.savez(tmp_path / "none.npz", features=images[:0, 0].numpy())
    assert fedsaddle("predict", run, tmp_path / "none.npz", monkeypatch=monkeypatch) == 2
    assert "none.npz, features: there are no rows" in capsys.readouterr().err


# --- export ----------------------------------------------------------------------------------------------

ALONE = """
import json, sys
sys.modules["fedsaddle"] = None  # whoever asks for it is refused
import torch
rows = torch.tensor(json.loads(sys.argv[2]), dtype=torch.float64)
if sys.argv[1].endswith(".pt2"):
    note = {"fedsaddle.json": ""}
    module = torch.export.load(sys.argv[1], extra_files=note).module()
    answers, note = [module(rows), module(rows[:1])], note["fedsaddle.json"]
else:
    import onnxruntime
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    answers = [torch.from_numpy(session.run(None, {"rows": some.numpy()})[0]) for some in (rows, rows[:1])]
    note = session.get_modelmeta().custom_metadata_map["fedsaddle"]
print(json.dumps([[answer.tolist() for answer in answers], json.loads(note)["features"]]))
"""


@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_an_exported_model_gives_the_same_scores_without_fedsaddle(
    form, run, home, tmp_path, monkeypatch, capsys
):
    if form == "onnx" and not HAVE_ONNX:
        pytest.skip("onnxscript and onnxruntime are not here")
    to = tmp_path / f"model.{form}"
    assert fedsaddle("export", run, "--to", to, "--seed", 1, monkeypatch=monkeypatch) == 0
    assert "takes    (row, 5) in float64: amount, still, kind=card" in capsys.readouterr().out
    raw = Reader.from_json(read_model(run, "cdma-nc", 1).blueprint.to_json()["reader"]).rows(table(home))
    words = [sys.executable, "-c", ALONE, str(to), json.dumps(raw.tolist())]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (many, one), features = json.loads(done.stdout)
    own = [row[1] for row in models.predict(run, table(home), seed=1).rows]
    assert many == pytest.approx(own, abs=1e-6)
    assert one == pytest.approx(own[:1], abs=1e-6)
    assert features == ["amount", "still", "kind=card", "kind=cash", "kind=cheque"]


OWN = """
import torch
from torch import nn
import fedsaddle as fs


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(3, 2), nn.Linear(4, 1)

    def forward(self, numbers, word):
        return self.last(torch.cat([numbers, self.words(word)], 1)).squeeze(1)


def mine():
    table = {"a": torch.arange(60.0).view(30, 2) / 30, "word": ["x", "y", "z"] * 10, "b": torch.ones(30)}
    loss = lambda x, y, batch: (x(batch["a"] / 2, batch["word"]) - batch["b"]) ** 2 + y - y**2
    return fs.task(x=Two, y=1, loss=loss, data=fs.clients(table, count=3), name="mine")
"""


def test_a_task_of_one_s_own_is_exported_by_its_code(tmp_path, monkeypatch, capsys):
    code, file = tmp_path / "mine.py", tmp_path / "mine.toml"
    code.write_text(OWN)
    file.write_text('problem.name = "mine.py:mine"\nname = "m"\nrounds = 2\nseeds = "0"\n'
                    "quorum.invite = 2\nalgorithms.cdma-nc = {eta = 0.1, gamma = 0.1}\n")  # fmt: skip
    run = fs.run(file, out=tmp_path / "run", code=[code], progress=False, report=False).folder
    own = fs.load(run, code=[code])
    inputs = torch.randn(7, 2), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    to = tmp_path / "model.pt2"
    words = ("export", run, "--to", to, "--code", code)
    assert fedsaddle(*words, monkeypatch=monkeypatch) == 0
    assert "takes    input0 (row, 2) in float32; word (row) in int64" in capsys.readouterr().out
    note = {"fedsaddle.json": ""}
    module = torch.export.load(str(to), extra_files=note).module()
    assert json.loads(note["fedsaddle.json"])["words"] == {"word": ["x", "y", "z"]}
    for some in (inputs, [one[:1] for one in inputs]):
        assert module(*some).sub(own(*some)).abs().max() < 1e-6
    assert set(
        unpacked(models.export(run, tmp_path / "m.safetensors", code=[code]).path.read_bytes())
    ) == set(own.state_dict())
    assert fedsaddle("export", run, "--to", to, monkeypatch=monkeypatch) == 2
    assert "is there already: choose another --to, or write over it with --force" in capsys.readouterr().err
    assert fedsaddle("export", run, "--to", to, "--force", monkeypatch=monkeypatch) == 2
    assert f"its network is built by your code: add --code {code}\n" in capsys.readouterr().err
    assert fedsaddle(*words, "--force", monkeypatch=monkeypatch) == 0


def test_safetensors_hold_the_scaling_and_what_it_is_for(run, tmp_path):
    from safetensors import safe_open

    made = models.export(run, tmp_path / "new" / "m.safetensors", seed=0, best=True)
    with safe_open(made.path, "pt") as file:
        note = json.loads(file.metadata()["fedsaddle"])
        assert set(file.keys()) == set(fs.load(run, seed=0).state_dict())
        mean = file.get_tensor("inputs.mean")
    assert note["best"] is True
    assert mean[0] > 1.6e9
    assert note["reader"]["mean"] == mean[:2].tolist()
    with pytest.raises(BadInput, match="never as a pickle"):
        models.export(run, tmp_path / "m.pt", seed=0)
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(BadInput, match="cannot write"):
        models.export(run, tmp_path / "taken" / "m.pt2", seed=0)


def test_without_onnxscript_it_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(BadInput, match=r"pip install 'onnxscript.*'"):
        models.export(run, tmp_path / "m.onnx", seed=0)
    assert not list(tmp_path.iterdir())


# --- pictures --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gan(home):
    task = fs.GAN(clients=4)
    quick = pytest.MonkeyPatch()
    quick.setattr(fs.GAN, "evaluate", lambda self, z: dict.fromkeys(self.metrics, 0.0))  # no judge is trained
    try:
        return train(home / "gan", task, rounds=1, seeds=(0,))
    finally:
        quick.undo()


def test_a_generator_makes_pictures(gan, tmp_path, monkeypatch, capsys):
    from PIL import Image

    out = tmp_path / "grid.png"
    assert fedsaddle("sample", gan, "--count", 20, "--out", out, monkeypatch=monkeypatch) == 0
    with Image.open(out) as picture:
        assert picture.size == (8 * 9 * 5, 3 * 9 * 5)  # eight across, three lines, enlarged
    assert out.read_bytes() == models.sample(gan, 20)
    assert models.sample(gan, 20, noise_seed=1) != models.sample(gan, 20)
    capsys.readouterr()
    assert fedsaddle("sample", gan, "--out", out, monkeypatch=monkeypatch) == 2
    assert "grid.png is there already: choose another --out, or write" in capsys.readouterr().err
    assert fedsaddle("sample", gan, "--out", out, "--force", monkeypatch=monkeypatch) == 0
    assert fedsaddle("sample", gan, "--count", 0, monkeypatch=monkeypatch) == 2
    assert fedsaddle("sample", gan, "--out", tmp_path / "x.gif", monkeypatch=monkeypatch) == 2
    assert fedsaddle("predict", gan, out, monkeypatch=monkeypatch) == 2
    assert "see fedsaddle sample" in capsys.readouterr().err.splitlines()[-1]


def test_both_networks_of_a_gan_are_the_tasks(gan, home):
    task, z = fs.GAN(clients=4), point(gan)
    real = task.data.test_inputs[:6]
    weight = torch.full((6,), 1 / 6)
    own = task.D(z.y, (real.float() - 127.5) * (1 / 127.5), weight).squeeze(1)
    assert fs.load(gan, role="discriminator")(real).sub(own).abs().max() < 1e-5
    noise = torch.rand(6, networks.NOISE) * 2 - 1
    assert fs.load(gan)(noise).sub(task.G(z.x, noise, weight)).abs().max() < 1e-5


def test_only_a_gan_makes_pictures(run):
    with pytest.raises(BadInput, match="holds no generator"):
        models.sample(run)  # of several seeds: which one does not matter


# --- what is damaged, or hostile -------------------------------------------------------------------------


def forge(folder: Path, change=lambda saved: None) -> None:
    """Change a checkpoint as somebody would who does know of its checksums, and of those in it."""
    from fedsaddle.runs.files import as_json, sha256

    saved = json.loads((folder / "checkpoint.json").read_text())
    saved.pop("checksum")
    for name, seeds in saved.get("models", {}).get("lanes", {}).items():
        for seed, entry in seeds.items():
            entry["sha256"] = sha256((folder / "models" / name / f"{seed}.safetensors").read_bytes())
    saved["models"]["sha256"] = sha256((folder / "models" / "model.json").read_bytes())
    change(saved)
    (folder / "checkpoint.json").write_bytes(as_json({**saved, "checksum": sha256(as_json(saved))}))


def edited(change):
    def apply(folder: Path) -> None:
        path = folder / "models" / "model.json"
        about = json.loads(path.read_text())
        change(about)
        path.write_text(json.dumps(about))

    return apply


def values(change):
    def apply(folder: Path) -> None:
        path = folder / "models" / "cdma-nc" / "0.safetensors"
        held = unpacked(path.read_bytes())
        change(held)
        path.write_bytes(save(held))

    return apply


def arguments(about, **new):
    about["blueprint"]["parts"]["score"]["arguments"].update(new)


HOSTILE = {
    "not safetensors": lambda f: (f / "models/cdma-nc/0.safetensors").write_bytes(b"\x80\x04junk" * 9),
    "cut": lambda f: (f / "models/cdma-nc/0.safetensors").write_bytes(b""),
    "not a number": values(lambda held: held["network.1.weight"].fill_(float("nan"))),
    "another shape": values(lambda held: held.update({"network.1.weight": torch.zeros(2, 2)})),
    "another type": values(lambda held: held.update({"network.1.bias": torch.zeros(64).double()})),
    "a value too many": values(lambda held: held.update({"more": torch.zeros(1)})),
    "a value too few": values(lambda held: held.pop("network.1.bias")),
    "another network": edited(lambda about: about["blueprint"]["parts"]["score"].update(network="os.system")),
    "a huge network": edited(lambda about: arguments(about, features=10**7, hidden=10**7)),
    "a monstrous network": edited(lambda about: arguments(about, features=10**30)),
    "no number": edited(lambda about: arguments(about, features="5")),
    "arguments it has not": edited(lambda about: arguments(about, bias=1)),
    "a future format": edited(lambda about: about.update(format=2)),
    "other roles": edited(lambda about: about.update(roles=["score", "../x"])),
    "scaling of others": edited(lambda about: about["blueprint"]["reader"].update(mean=[1.0])),
    "scaling by words": edited(lambda about: about["blueprint"]["reader"].update(mean=["a", "b"])),
    "a shape of nothing": edited(lambda about: about["blueprint"]["reader"].update(shape=[-1])),
    "no reader": edited(lambda about: about["blueprint"].pop("reader")),
    "nested": lambda f: (f / "models/model.json").write_text("[" * 100_000),
    "a list": lambda f: (f / "models/model.json").write_text("[1]"),
}  # fmt: skip


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_forged_model_ends_in_one_line(run, tmp_path, damage, monkeypatch, capsys):
    """Even where all hashes were made to fit."""
    bad = Path(shutil.copytree(run, tmp_path / "bad"))
    HOSTILE[damage](bad)
    forge(bad)
    assert fedsaddle("export", bad, "--seed=0", f"--to={tmp_path / 'm.pt2'}", monkeypatch=monkeypatch) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize("file", ["models/model.json", "models/cdma-nc/0.safetensors", "checkpoint.json"])
def test_what_was_edited_is_refused(run, tmp_path, file):
    bad = Path(shutil.copytree(run, tmp_path / "bad"))
    data = bytearray((bad / file).read_bytes())
    data[len(data) // 2] ^= 4
    (bad / file).write_bytes(bytes(data))
    with pytest.raises(BadInput, match="is damaged"):
        fs.load(bad, seed=0)
    (bad / file).unlink()
    with pytest.raises(BadInput, match=r"is damaged|no checkpoint.json"):
        fs.load(bad, seed=0)


def test_a_resume_holds_the_models_to_their_hashes(run, task, tmp_path):
    bad = Path(shutil.copytree(run, tmp_path / "bad"))
    (bad / "models" / "cdma-nc" / "1-best.safetensors").write_bytes(b"")
    with pytest.raises(BadInput, match=r"1-best.safetensors is damaged"):
        train(bad, task, resume=True)


@pytest.mark.parametrize("name", ["../../outside", "/etc/outside", ".."])
def test_a_name_that_leaves_the_folder_is_refused(run, tmp_path, name):
    bad = Path(shutil.copytree(run, tmp_path / "bad"))

    def leave(saved):
        saved["models"]["lanes"] = {name: saved["models"]["lanes"]["cdma-nc"]}

    forge(bad, leave)
    with pytest.raises(BadInput, match="holds no model of"):
        fs.load(bad, seed=0)
    assert which_model(run, seed=0).algorithm == "cdma-nc"
