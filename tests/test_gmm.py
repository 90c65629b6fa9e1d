"""DeepGMM: rows by their definition, both players' slopes, moments that vanish at g0 alone; the example."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

import fedsaddle as fs
from fedsaddle.app import models
from fedsaddle.core import Pair
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from fedsaddle.engine.visits import field_of
from fedsaddle.problem import Batch
from fedsaddle.problems.gmm import RESPONSES

EXAMPLE = Path(__file__).parent.parent / "examples" / "deepgmm.py"


def batch(problem: fs.DeepGMM, rows: int = 12) -> Batch:
    some = {name: table[:rows].double() for name, table in problem.federation.rows.items()}
    return Batch(some, {}, torch.full((rows,), 1 / rows, dtype=torch.float64), torch.tensor(5))


def start(problem: fs.DeepGMM, seed: int = 3) -> Pair:
    return Pair(*(values.double() for values in problem.init(seed)))


# --- who holds what --------------------------------------------------------------------------------------


@pytest.mark.parametrize("g0", RESPONSES)
def test_rows_are_what_they_are_said_to_be(g0: str) -> None:
    table = fs.DeepGMM(g0=g0, held_out=40_000).test.rows
    z, x, y, true = (table[name].double() for name in ("z", "x", "y", "g0"))
    cause = x[:, 0] - z[:, 0]  # e and a little noise
    known = {
        "sine": torch.sin(x[:, 0]),
        "step": (x[:, 0] >= 0).double(),
        "abs": x[:, 0].abs(),
        "linear": x[:, 0],
    }[g0]
    spread = float(known.std() / true.std())  # of Y in the training rows, by which both were divided
    torch.testing.assert_close((known - known.mean()) / spread, true - true.mean(), rtol=0, atol=1e-5)
    rest = (y - true) * spread
    assert z.abs().max() <= 3
    assert float(z.var(0).min()) == pytest.approx(3, rel=0.02)  # of U[-3, 3]
    assert float(cause.var()) == pytest.approx(1.01, rel=0.02)
    assert float(rest.var()) == pytest.approx(1.01, rel=0.02)
    assert float((cause * rest).mean()) == pytest.approx(1, rel=0.02)  # what a regression takes for g0
    assert float((z * rest[:, None]).mean(0).abs().max()) < 0.03  # what instruments know nothing of
    held = fs.DeepGMM(g0=g0).federation.rows
    assert set(held) == {"z", "x", "y"}
    assert float(held["y"].mean()) == pytest.approx(0, abs=1e-5)
    assert float(held["y"].std()) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_clients_differ_by_their_slice_of_the_first_instrument(part: float) -> None:
    problem = fs.DeepGMM(rows=20_003, clients=10, heterogeneity=part)
    assert problem.federation.sizes.tolist() == [2001] * 3 + [2000] * 7
    first = problem.federation.rows["z"][:, 0]
    inside = [
        float(((own >= 0.6 * number - 3) & (own <= 0.6 * (number + 1) - 3)).float().mean())
        for number, own in enumerate(first.split(problem.federation.sizes.tolist()))
    ]
    assert inside == pytest.approx([part + (1 - part) / 10] * 10, abs=0.04)
    # All together have it anywhere.
    assert torch.histc(first, 10, -3, 3).tolist() == pytest.approx([2000] * 10, rel=0.1)
    assert torch.equal(problem.test.rows["z"], fs.DeepGMM(heterogeneity=0.2).test.rows["z"])


def test_rows_are_pure_in_the_seed_and_no_two_tables_share_any() -> None:
    one, other = fs.DeepGMM(seed=4), fs.DeepGMM(seed=5)
    assert torch.equal(one.test.rows["x"], fs.DeepGMM(seed=4).test.rows["x"])
    tables = [one.test, one.validation, one.federation, other.test]
    drawn = torch.cat([table.rows["z"][:, 1] for table in tables])
    assert len(drawn.unique()) > 0.999 * len(drawn)


def test_what_cannot_be_is_refused() -> None:
    for given, told in (
        ({"g0": "cosine"}, "unknown g0 'cosine'.* known: abs, linear, sine, step"),
        ({"rows": 40}, "rows must be at least one for each of 50 clients, got 40"),
        ({"heterogeneity": 1.5}, "heterogeneity must be"),
        ({"held_out": 1}, "held_out must be"),
    ):
        with pytest.raises(fs.BadInput, match=told):
            fs.DeepGMM(**given)


# --- the game --------------------------------------------------------------------------------------------


def test_both_slopes_against_finite_differences() -> None:
    """x descends the first mean alone; y ascends both."""
    problem = fs.DeepGMM(hidden=8)
    z, xi, h = start(problem), batch(problem), 1e-6

    def parts(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = xi.rows["y"] - problem.g(x, xi.rows["x"])[:, 0]
        critic = problem.f(y, xi.rows["z"])[:, 0]
        return (critic * residual).mean(), 0.25 * (critic**2 * residual**2).mean()

    g = field_of(problem)(z, xi)
    assert float(problem.loss(z, xi)) == pytest.approx(float(parts(*z)[0] - parts(*z)[1]))
    luck = torch.Generator().manual_seed(1)
    for _ in range(3):
        d, e = (torch.randn(len(v), generator=luck, dtype=torch.float64) for v in z)
        moments = [parts(z.x + sign * h * d, z.y)[0] for sign in (1, -1)]
        assert float(g.x @ d) == pytest.approx(float(moments[0] - moments[1]) / (2 * h), rel=1e-5)
        whole = [torch.stack(parts(z.x, z.y + sign * h * e)) for sign in (1, -1)]
        slope = (whole[0] - whole[1]) / (2 * h)
        assert float(g.y @ e) == pytest.approx(float(slope[0] - slope[1]), rel=1e-5)


def test_all_at_once_is_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fs.DeepGMM(rows=103, clients=10, hidden=8)  # of unequal sizes
    init = problem.init
    monkeypatch.setattr(fs.DeepGMM, "init", lambda self, seed: Pair(*(v.double() for v in init(seed))))
    ends = []
    for ask in (fs.Vectorised(), fs.Loop()):
        study = fs.make_study(problem, fs.CDMAADA(0.05, 0.05, K=2), seeds=(0, 1), executor=ask, batch=4)
        lanes = begin(study)
        for round in range(2):
            lanes, _ = play(study, lanes, round)
        ends.append(lanes.server.z)
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-11)


# --- what it has learnt ----------------------------------------------------------------------------------


def test_moments_vanish_at_g0_and_not_at_the_regression() -> None:
    problem = fs.DeepGMM(g0="linear", held_out=20_000)
    rows, x = problem.validation.rows, torch.zeros(1)
    slope = float((rows["x"][:, 0] * rows["y"]).mean() / rows["x"][:, 0].var())
    found = {}
    for name, g in {
        "true": lambda _, inputs: rows["g0"][:, None],
        "regression": lambda _, inputs: slope * inputs,
        "nothing": lambda _, inputs: 0 * inputs,
    }.items():
        problem.__dict__["g"] = g
        found[name] = float(problem.violation(x, rows))
    assert found["true"] < 3 * 13 / 20_000  # thirteen means of so many rows
    assert found["true"] < 0.1 * found["regression"] < 0.1 * found["nothing"]
    # What a cosine along an instrument would explain is measured in full, whichever it is.
    wave = math.sqrt(2) * torch.cos(math.pi / 2 * (rows["z"][:, 1] / 3 + 1))
    problem.__dict__["g"] = lambda _, inputs: (rows["y"] - 0.5 * wave)[:, None]
    assert float(problem.violation(x, rows)) == pytest.approx(0.25, rel=0.05)


def test_the_models_are_what_was_measured() -> None:
    problem = fs.DeepGMM()
    z = problem.init(0)
    made, test = problem.models(z), problem.test.rows
    assert list(made) == ["g", "f"]
    assert made["f"](test["z"]).shape == (2000,)
    y = problem._train[0]["y"]
    found = (made["g"](test["x"].double()) - float(y.mean())) / float(y.std())  # in the unit of Y
    error = (found - test["g0"]).square().mean()
    assert problem.evaluate(z)["test_mse"] == pytest.approx(float(error.detach()), rel=1e-5)
    constant = float((test["g0"] - test["g0"].mean()).square().mean())
    assert problem.metrics["test_mse"].chance == pytest.approx(constant)


def test_a_run_folder_gives_its_response_back(tmp_path) -> None:
    problem, out = fs.DeepGMM(g0="linear", hidden=8, clients=10), tmp_path / "run"
    outcome = fs.run(problem, fs.CDMANC(0.05, 0.05), rounds=1, out=out, progress=False, report=False)
    x = torch.tensor([[-1.0], [0.25], [2.0]], dtype=torch.float64)
    (tmp_path / "new.csv").write_text("x\n-1\n0.25\n2\n")
    expected = outcome.model(seed=0)(x).tolist()
    assert fs.load(out)(x).tolist() == expected
    assert fs.load(out, role="f")(torch.zeros(3, 2)).shape == (3,)
    found = models.predict(out, tmp_path / "new.csv")
    assert found.header == ["row", "response"]
    assert [value for _, value in found.rows] == pytest.approx(expected)
    assert models.export(out, tmp_path / "g.pt2").takes == "(row, 1) in float64: x"
    assert torch.export.load(tmp_path / "g.pt2").module()(x).tolist() == pytest.approx(expected)
    assert models.export(out, tmp_path / "f.safetensors", role="f").takes == "(row, 2) in float32: z_1, z_2"


# --- the example -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("deepgmm", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_short() -> None:
    lines = [line.strip() for line in EXAMPLE.read_text().splitlines()]
    assert len([line for line in lines if line and not line.startswith("#")]) <= 60


def test_the_example_learns_and_reports(example, tmp_path, capsys) -> None:
    outcome = example.main(rounds=60, clients=20, out=str(tmp_path / "it.html"))
    first = [row.metrics["test_mse"] for row in outcome.rows if row.round == 0]
    last = outcome.last("test_mse")
    assert len(last) == 5
    assert sum(last) < 0.75 * sum(first)
    assert "test_mse" in (tmp_path / "it.html").read_text()
    assert "60 rounds" in capsys.readouterr().out
    assert outcome.model(seed=2)(torch.zeros(3, 1)).shape == (3,)


def test_the_example_plays_the_shipped_game(example) -> None:
    """Its pair of losses has the slopes of the loss whose weight is held constant."""
    problem = fs.DeepGMM(hidden=32)
    xi = batch(problem)
    task = fs.task(
        x=lambda: example.network(1).double(),
        y=lambda: example.network(2).double(),
        loss=example.loss,
        data=fs.clients([{name: rows.double() for name, rows in xi.rows.items()}], dtype=torch.float64),
    )
    z = start(problem)
    torch.testing.assert_close(field_of(task)(z, xi), field_of(problem)(z, xi), rtol=1e-10, atol=1e-12)
