"""A task of one's own: players, a loss and clients, without a class."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, relu
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import TensorDataset

import fedsaddle as fs
from fedsaddle import draws, layers, networks
from fedsaddle.core import Pair
from fedsaddle.data.datasets import scaled
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from fedsaddle.engine.visits import field_of
from fedsaddle.errors import Notice
from fedsaddle.layers import Mapped
from fedsaddle.problem import Batch
from fedsaddle.problems.identity import fingerprint
from fedsaddle.problems.players import Applied
from fedsaddle.simulate import make_study

ADA = fs.CDMAADA(c_eta=0.1, c_gamma=0.1, c_alpha=5.0, rho=0.2, K=3)
QUORUM = fs.Quorum(invite=4)


def rows(count: int, seed: int) -> dict[str, Tensor]:
    key = draws.key(draws.PROBLEM, seed)
    inputs = draws.normal(key, count, 6).float()
    return {"input": inputs, "label": (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()}


def data(sizes: tuple[int, ...] = (8, 11, 9, 8, 12, 10)) -> fs.Clients:
    return fs.clients([rows(size, number) for number, size in enumerate(sizes)], test=rows(40, 99))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(inputs)))


def loss(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return 3 * y[batch["label"]] * cross_entropy(x(batch["input"]), batch["label"], reduction="none")


def right(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (x(batch["input"]).argmax(1) == batch["label"]).float()


def run(task: fs.task, **more: object) -> fs.Outcome:
    given = {"rounds": 12, "seeds": range(2), "quorum": QUORUM, "progress": False, "batch": 4} | more
    return fs.simulate(task, given.pop("algorithm", ADA), **given)


# --- the same as what ships ------------------------------------------------------------------------------


def test_a_shipped_task_written_as_one_s_own_is_the_same_to_the_last_bit() -> None:
    fair = fs.Fair(dataset="digits", clients=20, hidden=8)
    held = fair.federation
    ends = held.sizes.cumsum(0).tolist()
    clients = [
        {name: table[end - size : end] for name, table in held.rows.items()}
        for end, size in zip(ends, held.sizes.tolist(), strict=True)
    ]

    def own_loss(x: Applied, y: Tensor, batch: fs.task) -> Tensor:
        harm = cross_entropy(x(scaled(batch["input"], y.dtype)), batch["label"], reduction="none")
        return batch.mean(y[batch["label"]] * batch["worth"] * harm) - fair.price(y)

    task = fs.task(
        x=lambda: networks.mlp(64, 10, 8), y=fs.Simplex(10), loss=own_loss, data=fs.clients(clients)
    )
    ours, theirs = (run(problem, rounds=5) for problem in (task, fair))
    for mine, shipped in zip(ours.z, theirs.z, strict=True):
        assert torch.equal(mine.x, shipped.x)
        assert torch.equal(mine.y, shipped.y)


class LeNet(nn.Module):
    """As a person would write it: some layers are modules, some are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5, stride=(1, 1), padding="valid")
        self.pool, self.full = nn.MaxPool2d(2), nn.Linear(256, 3)

    def forward(self, pictures: Tensor) -> Tensor:
        hidden = max_pool2d(relu(self.one(pictures)), 2)
        return self.full(self.pool(relu(self.two(hidden))).flatten(1))


class Up(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.odd = nn.ConvTranspose2d(3, 4, 4, 2, 1), nn.Conv2d(4, 2, (3, 1), dilation=2)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.odd(self.up(pictures)).mean((2, 3))


@pytest.mark.parametrize(("network", "shape"), [(LeNet, (5, 1, 28, 28)), (Up, (5, 3, 6, 6))])
def test_plain_layers_are_pytorch_s_whoever_computes_them(network: type[nn.Module], shape: tuple) -> None:
    module = network().double()
    pictures = draws.normal(draws.key(0, 0), *shape)

    def slopes(picture: Tensor) -> dict[str, Tensor]:
        def total(named: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(module, named, picture).square().sum()

        return torch.func.grad(total)(dict(module.named_parameters()))

    many = torch.stack([pictures, 2 * pictures])
    theirs = [slopes(one) for one in many]
    with Mapped():
        ours = torch.func.vmap(slopes)(many)
    for name in ours:
        assert torch.allclose(ours[name], torch.stack([one[name] for one in theirs]), rtol=1e-10, atol=1e-12)


def test_plain_layers_go_where_many_networks_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a person calls them: a mode does not see what PyTorch's own functions call within."""
    called = []
    for name in ("convolution", "halved"):
        real = getattr(layers, name)
        monkeypatch.setattr(layers, name, lambda *given, n=name, f=real: (called.append(n), f(*given))[1])
    with Mapped():
        LeNet()(torch.zeros(3, 1, 28, 28))  # one pool is a module, the other a function
    assert called == ["convolution", "halved"] * 2
    pictures = draws.normal(draws.key(0, 1), 2, 3, 4, 6)
    with Mapped():
        assert torch.equal(torch.max_pool2d(pictures, 2), max_pool2d(pictures, 2))
        called.clear()
        largest, where = max_pool2d(pictures, 2, return_indices=True)
    assert called == []
    assert torch.equal(pictures.flatten(2).gather(2, where.flatten(2)).view(where.shape), largest)


def test_parameters_that_a_loss_looks_at_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = []
    named = networks.Network.named
    monkeypatch.setattr(
        networks.Network, "named", lambda self, vector: (cuts.append(1), named(self, vector))[1]
    )

    def decayed(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return loss(x, y, batch) + sum(value.square().sum() for value in x.parameters.values())

    task = fs.task(x=Net, y=fs.Simplex(3), loss=decayed, data=data())
    z, xi = task.init(0), Batch(rows(8, 0), {}, torch.full((8,), 1 / 8), torch.tensor(0))
    cuts.clear()
    slope = task.field(z, xi)
    assert len(cuts) == 1
    plain = fs.task(x=Net, y=fs.Simplex(3), loss=loss, data=data()).field(z, xi)
    assert torch.allclose(slope.x, plain.x + 2 * z.x, atol=1e-6)


# --- any module ------------------------------------------------------------------------------------------


class Words(nn.Module):
    """An embedding, attention and both normalisations."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention = nn.Embedding(3, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.group, self.last = nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        some = self.words((inputs > 0).long() + (inputs > 1).long())
        some = self.norm(some + self.attention(some, some, some)[0])
        return self.last(self.group(some.mean(1) * self.scale))


@pytest.mark.parametrize("network", [Net, Words])
def test_all_at_once_is_one_after_another(network: type[nn.Module]) -> None:
    task = fs.task(
        x=lambda: network().double(), y=fs.Simplex(torch.ones(3).double() / 3), loss=loss64, data=data64()
    )
    at_once, loop = (run(task, executor=how) for how in (fs.Vectorised(), fs.Loop()))
    for one, other in zip(at_once.z, loop.z, strict=True):
        assert torch.allclose(one.x, other.x, rtol=1e-9, atol=1e-11)
        assert torch.allclose(one.y, other.y, rtol=1e-9, atol=1e-11)
    assert at_once.rows[-1].metrics == pytest.approx(loop.rows[-1].metrics, rel=1e-8)


def data64() -> fs.Clients:
    return data()


def loss64(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
    inputs = batch["input"].to(y.dtype)
    return 3 * y[batch["label"]] * cross_entropy(x(inputs), batch["label"], reduction="none")


def test_what_is_frozen_is_sent_by_nobody_and_comes_back_with_the_model() -> None:
    def tuned() -> nn.Module:
        net = Net()
        net.first.requires_grad_(False)
        return net

    task = fs.task(x=tuned, y=fs.Simplex(3), loss=loss, data=data())
    assert task.x.network is not None
    assert task.x.network.size == 5 * 3 + 3
    outcome = run(task, algorithm=fs.CDMANC(eta=0.1, gamma=0.1, K=2), fleet=fs.Everybody())
    assert outcome.rows[-1].floats_up == 12 * 4 * (18 + 3)
    models = [task.models(z)["x"] for z in outcome.z]
    assert torch.equal(models[0].first.weight, models[1].first.weight)
    assert not torch.equal(models[0].last.weight, models[1].last.weight)
    frozen = dict(task.x.network.module.named_parameters())["first.weight"]
    assert torch.equal(models[0].first.weight, frozen)


def test_pretrained_weights_are_where_a_run_starts() -> None:
    trained = Net()
    task = fs.task(x=trained, y=fs.Simplex(3), loss=loss, data=data())
    start = task.models(task.init(5))["x"]
    for name, value in trained.state_dict().items():
        assert torch.equal(start.state_dict()[name], value)


def test_the_model_that_comes_back_scores_as_the_task_does() -> None:
    task = fs.task(
        x=Net, y=fs.Simplex(3), loss=loss, data=data(), metrics={"right": fs.Metric("high", "test", of=right)}
    )
    outcome = run(task)
    net, test = task.models(outcome.z[1])["x"], rows(40, 99)
    assert type(net) is Net
    assert not net.training
    assert float(right(net, None, test).mean()) == pytest.approx(outcome.last("right")[1])


# --- players and sets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "holds"),
    [
        (fs.Simplex(3), lambda y: abs(y.sum() - 1) < 1e-6 and (y >= 0).all()),
        (fs.Ball(3, 0.1), lambda y: y.norm() <= 0.1 + 1e-6),
        (fs.Box(3, -0.05, 0.1), lambda y: (y >= -0.05).all() and (y <= 0.1).all()),
        (fs.Nonnegative(3, most=0.2), lambda y: (y >= 0).all() and (y <= 0.2).all()),
        (fs.Free(3), lambda y: y.abs().max() > 0.2),
        (3, lambda y: y.abs().max() > 0.2),
        (torch.full((3,), 0.5), lambda y: y.abs().max() > 0.2),
    ],
)
def test_a_vector_stays_in_its_set(y: object, holds: object) -> None:
    task = fs.task(x=Net, y=y, loss=loss, data=data())
    assert holds(run(task, rounds=20).z[0].y)


def test_a_network_stays_in_a_box_too() -> None:
    task = fs.task(x=(2, 3), y=fs.Box(lambda: Net(), -0.01, 0.01), loss=against, data=data())
    z = run(task, rounds=4).z[0]
    assert z.y.abs().max() <= 0.01 + 1e-7
    assert set(task.models(z)) == {"y"}


def against(x: Tensor, y: Applied, batch: dict[str, Tensor]) -> Tensor:
    return y(batch["input"]).sum(1) * x.sum() + x.square().sum()


def test_two_losses_are_a_game_of_two_fields() -> None:
    def both(x: Tensor, y: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        inputs = batch["input"][:, :2]
        return (inputs @ x) * y.sum(), (inputs @ x).square() - (inputs @ y).square()

    task = fs.task(x=torch.tensor([1.0, 2.0]), y=torch.tensor([3.0, -1.0]), loss=both, data=data())
    table = rows(8, 0)
    xi = Batch(table, {}, torch.full((8,), 1 / 8, dtype=torch.float64), torch.tensor(0))
    found, inputs = field_of(task)(task.init(0), xi), table["input"][:, :2]
    assert torch.allclose(found.x, inputs.mean(0) * 2.0)
    climb = (-2 * (inputs @ torch.tensor([3.0, -1.0]))[:, None] * inputs).mean(0)
    assert torch.allclose(found.y, climb, rtol=1e-5)


def test_a_loss_may_see_the_round_and_draw() -> None:
    def annealed(x: Tensor, y: Tensor, batch: fs.task) -> Tensor:
        noise = batch.normal(2, number=3)
        assert noise.shape == (len(batch["label"]), 2)
        return (x * torch.where(batch.round < 1, 1.0, 0.0)).sum() + 0 * noise.sum(1) + 0 * y.sum()

    task = fs.task(x=2, y=1, loss=annealed, data=data())
    sgda = fs.ParallelSGDA(eta=0.5, gamma=0.5)
    once, thrice = (run(task, algorithm=sgda, rounds=rounds).z[0].x for rounds in (1, 3))
    assert torch.equal(once, torch.tensor([-0.5, -0.5]))
    assert torch.equal(once, thrice)


# --- metrics ---------------------------------------------------------------------------------------------


def test_metrics_by_row_by_number_and_by_other_libraries_agree() -> None:
    def scored(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> float:
        from sklearn.metrics import accuracy_score

        return accuracy_score(batch["label"].numpy(), x(batch["input"]).argmax(1).numpy())

    metrics = {
        "rows": fs.Metric("high", "test", of=right),
        "mean": fs.Metric("high", "test", of=lambda x, y, batch: right(x, y, batch).mean()),
        "score": fs.Metric("high", "test", of=scored),
        "whether": fs.Metric("high", "test", of=lambda x, y, batch: right(x, y, batch) > 0),
        "whole": fs.Metric("high", "test", of=lambda x, y, batch: right(x, y, batch).long()),
        "of whole": fs.Metric("high", "test", of=lambda x, y, batch: batch.mean(right(x, y, batch).long())),
    }
    task = fs.task(x=Net, y=fs.Simplex(3), loss=loss, data=data(), metrics=metrics)
    found = task.evaluate(task.init(3))
    assert found["rows"] == pytest.approx(found["mean"]) == pytest.approx(found["score"])
    for name in ("whether", "whole", "of whole"):
        assert found[name] == pytest.approx(found["score"], abs=1e-12)


def test_a_metric_of_another_shape_is_told_by_its_shape() -> None:
    metrics = {"all": fs.Metric("high", "test", of=lambda x, y, batch: x(batch["input"]))}
    task = fs.task(x=Net, y=fs.Simplex(3), loss=loss, data=data(), metrics=metrics)
    with pytest.raises(fs.BadInput, match=r"got a tensor of \(\d+, 3\) in float32$"):
        task.evaluate(task.init(0))


def test_without_metrics_the_objective_is_told_in_which_clients_count_the_same() -> None:
    task = fs.task(x=Net, y=fs.Simplex(3), loss=loss, data=data((2, 30)))
    z = task.init(0)
    whole = [loss(task.x.seen(z.x), z.y, rows(size, number)).mean() for number, size in enumerate((2, 30))]
    assert task.evaluate(z) == {"loss": pytest.approx(float(sum(whole)) / 2, rel=1e-5)}


# --- what cannot be used ---------------------------------------------------------------------------------


class Peeks(Net):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if inputs.sum().item() > 0 else -inputs)


def test_what_vmap_cannot_do_is_named_and_the_loop_does_it() -> None:
    task = fs.task(x=Peeks, y=fs.Simplex(3), loss=loss, data=data())
    with pytest.raises(fs.BadInput, match=r"in Peeks \(test_task.py, line \d+\).*executor=Loop\(\)"):
        run(task)
    assert len(run(task, executor=fs.Loop(), rounds=2).rows) == 4


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"x": nn.BatchNorm1d(6)}, "x: the network's BatchNorm1d.*GroupNorm or LayerNorm"),
        ({"x": lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))}, r"x: .*Dropout \(1\) draws random"),
        ({"x": lambda: 3}, "x: what makes a network must return a torch.nn.Module, got 3"),
        ({"x": lambda: 1 / 0}, "x: what makes its module failed: ZeroDivisionError"),
        ({"x": nn.ReLU}, "x: its module has no parameters"),
        ({"x": "net"}, r"x must be a function that makes a module .* got 'net'"),
        ({"x": 0}, "x must be a function"),
        ({"y": torch.tensor([1])}, "y must start at finite floats"),
        ({"loss": 3}, "loss must be a function of"),
        (
            {"loss": lambda x, y, batch: x(batch["inputs"])},
            r"the loss failed in <lambda> \(test_task.py, line \d+\) on 4 rows \(input \(4, 6\).*KeyError",
        ),
        (
            {"loss": lambda x, y, batch: x(batch["input"])},
            r"\(4,\) for 4 rows.*got a tensor of \(4, 3\) in float32",
        ),
        ({"loss": lambda x, y, batch: 1.0}, "must give one value a row.* got 1.0"),
        ({"loss": lambda x, y, batch: loss(x, y, batch).mean()}, "rows that only pad.*batch.mean"),
        ({"data": [rows(3, 0)]}, r"data must be made by fs.clients"),
        ({"metrics": {"round": fs.Metric("high", "test", of=right)}}, r"\['round'\] is named as a column of"),
        ({"metrics": {"a": "high"}}, r"metrics\['a'\] must be such as Metric"),
        ({"metrics": {"a": fs.Metric("high", "test")}}, r"metrics\['a'\] needs of="),
        ({"metrics": {"a": fs.Metric("high", "validation", of=right)}}, "there are none: give fs.clients"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(given: dict, told: str) -> None:
    with pytest.raises(fs.BadInput, match=told) as error:
        fs.task(**({"x": Net, "y": fs.Simplex(3), "loss": loss, "data": data()} | given))
    assert "\n" not in str(error.value)


def test_one_number_will_do_where_all_clients_are_of_one_size() -> None:
    def mean(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return loss(x, y, batch).mean()

    even = data((8, 8, 8, 8))
    one, other = (run(fs.task(x=Net, y=fs.Simplex(3), loss=rule, data=even)) for rule in (mean, loss))
    assert torch.allclose(one.z[0].x, other.z[0].x, atol=1e-5)


def test_sets_refuse_what_is_none() -> None:
    for made in (
        lambda: fs.Simplex((2, 2)),
        lambda: fs.Ball(3, 0),
        lambda: fs.Box(3, 1, 1),
        lambda: fs.Nonnegative(3, 0),
    ):
        with pytest.raises(fs.BadInput):
            made()


# --- identity --------------------------------------------------------------------------------------------

SCALE = 2.0


def test_another_code_or_other_data_is_another_task() -> None:
    def made(number: float, sizes: tuple[int, ...] = (8, 9)) -> fs.task:
        return fs.task(x=Net, y=3, loss=lambda x, y, b: number * loss(x, y, b), data=data(sizes))

    assert made(1.0).identity == made(1.0).identity
    assert made(1.0).identity["code"] != made(2.0).identity["code"]
    assert made(1.0).identity["data"] != made(1.0, (8, 10)).identity["data"]
    assert fs.task(x=Net, y=fs.Ball(3, 1.0), loss=loss, data=data()).identity != (
        fs.task(x=Net, y=fs.Ball(3, 2.0), loss=loss, data=data()).identity
    )


def test_a_number_beside_a_function_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled_loss(x: Tensor) -> Tensor:
        return SCALE * x

    before = fingerprint(scaled_loss)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(scaled_loss) != before


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from fedsaddle.problems.identity import fingerprint\n"
        "def f(x):\n    return x in {'a', 'b', 'c', 'd'}\n"
        "print(fingerprint(f))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
    assert len(found.pop()) == 65


def test_a_study_can_be_made_of_it_and_runs_on_any_engine() -> None:
    study = make_study(fs.task(x=Net, y=3, loss=loss, data=data()), ADA, quorum=QUORUM)
    lanes, _ = play(study, begin(study), 0)
    assert isinstance(lanes.server.z, Pair)


# --- what people write ------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A module that is another one after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.only, self.calls = nn.Linear(6, 3), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.only(inputs) * self.calls


ONE = Net()


def changing(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
    batch["input"].mul_(2)
    return loss(x, y, batch)


def slope(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
    inputs = batch["input"] * 1
    return torch.autograd.grad(x(inputs).sum(), inputs)[0].sum(1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"loss": lambda x, y, b: loss(x, y, b) * numpy.random.rand()}, "gives other values"),
        ({"loss": lambda x, y, b: loss(x, y, b) * random.random()}, "gives other values"),
        ({"loss": changing}, "gives other values when it is asked"),
        ({"x": Counting}, "gives other values when it is asked"),
        ({"loss": lambda x, y, b: loss(x, y, b) / 0}, "not finite on 4 rows where it starts"),
        ({"loss": slope}, "take gradients by torch.func.grad"),
        ({"loss": lambda x, y, b: loss(x, y, b).detach()}, "x has nothing to descend"),
        (
            {"loss": lambda x, y, b: loss(ONE, y, b), "x": lambda: ONE},
            "or does it call the module itself instead of x?",
        ),
        ({"loss": lambda x, y, b: loss(x, y, b) - loss(x, y, b).mean()}, "depends on the other rows"),
        ({"x": lambda: nn.Sequential(nn.Linear(6, 3), networks.BatchNorm(3))}, "if it is given batch.weight"),
        ({"x": lambda: spectral_norm(nn.Linear(6, 3))}, "changes its buffer 'parametrizations.weight.0._u'"),
        (
            {"loss": lambda x, y, b: loss(x, y, b) * x.first.weight.sum()},
            "a loss has no 'first' of a network",
        ),
        ({"data": fs.clients(TensorDataset(torch.ones(9, 6), torch.ones(9)), count=2)}, "names them"),
    ],
)
def test_a_loss_that_is_none_is_refused_when_the_task_is_made(given: dict[str, object], why: str) -> None:
    with pytest.raises(fs.BadInput, match=re.escape(why)):
        fs.task(**({"x": Net, "y": fs.Simplex(3), "loss": loss, "data": data()} | given))


class Normed(Net):
    """With the batch normalisation that is told which rows count."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = networks.BatchNorm(5)

    def forward(self, inputs: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(inputs), weight)))


def test_batch_normalisation_that_is_given_the_weights_may_be_used() -> None:
    def weighed(x: Applied, y: Tensor, batch: fs.task) -> Tensor:
        return loss(lambda inputs: x(inputs, batch.weight), y, batch)

    task = fs.task(x=Normed, y=fs.Simplex(3), loss=weighed, data=data())
    one, other = (run(task, rounds=3, executor=executor()) for executor in (fs.Loop, fs.Vectorised))
    assert one.last("loss") == pytest.approx(other.last("loss"), rel=1e-4)


def test_a_loss_without_an_opponent_is_said() -> None:
    def alone(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return cross_entropy(x(batch["input"]), batch["label"], reduction="none")

    with pytest.warns(Notice, match="alone: y has nothing to ascend.* plain training"):
        fs.task(x=Net, y=fs.Simplex(3), loss=alone, data=data())


class Remembering(nn.Module):
    """PyTorch cannot map a GRU over networks, and fails in it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.last = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.gru(inputs.unflatten(1, (3, 2)))[0][:, -1])


def bent() -> nn.Module:
    """PyTorch fails in the gradient of PReLU under a map, where nobody's own line is at work."""
    return nn.Sequential(nn.Linear(6, 3), nn.PReLU())


@pytest.mark.parametrize(("network", "where"), [(Remembering, "in Remembering "), (bent, "with CDMAADA")])
def test_what_pytorch_cannot_map_is_said_with_what_would_do(network: object, where: str) -> None:
    task = fs.task(x=network, y=fs.Simplex(3), loss=loss, data=data())
    with pytest.raises(fs.BadInput, match=where + ".*RuntimeError.*--engine loop, executor=Loop"):
        run(task, rounds=1)
    assert run(task, rounds=1, executor=fs.Loop()).rows


def test_mistakes_that_show_later_are_told_in_a_line() -> None:
    tables = [rows(9, number) for number in range(6)]
    tables[4]["label"][7] = 5  # a class that the network does not know
    far = fs.clients(tables, test=rows(9, 99))
    seen = {"right": fs.Metric("high", rows="test", of=right)}
    with pytest.raises(
        fs.BadInput, match=r"failed in loss \(test_task.py, line \d+\) on 9 rows .*IndexError: index 5"
    ):
        run(fs.task(x=Net, y=fs.Simplex(3), loss=loss, data=far, metrics=seen), rounds=30)

    def outside(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return loss(x, y, batch) * torch.from_numpy(batch["input"].numpy().sum(1))

    with pytest.raises(fs.BadInput, match=r"the loss in outside .* computes outside PyTorch, as NumPy does"):
        run(fs.task(x=Net, y=fs.Simplex(3), loss=outside, data=data()))
    broken = {"broken": fs.Metric("high", rows="test", of=lambda x, y, b: 1 / 0)}
    with pytest.raises(fs.BadInput, match=r"metric 'broken' failed in .*: ZeroDivisionError"):
        run(fs.task(x=Net, y=fs.Simplex(3), loss=loss, data=data(), metrics=broken))
    odd = {"odd": fs.Metric("high", rows="test", of=lambda x, y, b: float("nan"))}
    with pytest.warns(Notice, match="where it starts, a metric is not finite"):
        ended = run(fs.task(x=Net, y=fs.Simplex(3), loss=loss, data=data(), metrics=odd))
    assert not ended.rows
    assert "0 rounds, 2 of 2 diverged where it starts" in str(ended)


def test_a_column_that_memory_cannot_hold_is_refused() -> None:
    with pytest.raises(fs.BadInput, match="client 0, column 'input': memory ran out; save it"):
        fs.clients([{"input": torch.zeros(1, dtype=torch.float64).expand(2**44)}])


class Moody(Net):
    """In training it adds something; a part of it is held in eval mode, and never does."""

    def __init__(self) -> None:
        super().__init__()
        self.first.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        assert not self.first.training
        return super().forward(inputs) + (torch.arange(3.0) if self.training else 0)


@pytest.mark.parametrize("executor", [fs.Loop, fs.Vectorised])
def test_a_module_learns_in_train_mode_and_is_judged_in_eval_mode(executor) -> None:
    def high(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return x(batch["input"]).sum(1)

    def shifted(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return loss(lambda inputs: x(inputs) + torch.arange(3.0), y, batch)

    metric = {"high": fs.Metric("high", rows="test", of=high)}
    moody = fs.task(x=Moody, y=fs.Simplex(3), loss=loss, data=data(), metrics=metric)
    plain = fs.task(x=Net, y=fs.Simplex(3), loss=shifted, data=data(), metrics=metric)
    one, other = (run(task, executor=executor(), evaluate_every=3) for task in (moody, plain))
    assert [row.metrics for row in one.rows] == [row.metrics for row in other.rows]
    found = one.model(seed=0)(rows(40, 99)["input"]).sum(1).mean()
    assert float(found.detach()) == pytest.approx(one.last("high")[0], rel=1e-5)


# --- mistakes that show only in rounds -------------------------------------------------------------------


RIGHT = {"right": fs.Metric("high", rows="test", of=right)}


def test_a_loss_that_fails_in_a_round_is_told_with_its_file_line_and_shapes(tmp_path) -> None:
    def of_four(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return loss(x, y, batch) * (1 if len(batch["label"]) == 4 else torch.ones(4))  # as it was tried

    made = fs.task(x=Net, y=fs.Simplex(3), loss=of_four, data=data((8,) * 6), metrics=RIGHT)
    line = of_four.__code__.co_firstlineno + 1
    told = rf"of_four: the loss failed in of_four \(test_task.py, line {line}\) on 8 rows \(input \(8, 6\), "
    for executor in (fs.Loop(), fs.Vectorised()):
        with pytest.raises(fs.BadInput, match=told + ".*size of tensor a"):
            run(made, executor=executor)
    with pytest.raises(fs.BadInput, match=told + r".*\(see .*traceback.txt\)"):
        fs.run(made, ADA, rounds=2, out=tmp_path / "run", quorum=QUORUM, progress=False)
    assert "in of_four\n" in (tmp_path / "run" / "traceback.txt").read_text()


def test_a_loss_of_another_shape_in_a_round_is_refused() -> None:
    def first_four(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return loss(x, y, batch)[:4]

    made = fs.task(x=Net, y=fs.Simplex(3), loss=first_four, data=data((8,) * 6), metrics=RIGHT)
    with pytest.raises(fs.BadInput, match=r"one value a row, \(8,\) for 8 rows.* got a tensor of \(4,\)"):
        run(made)


def test_a_layer_that_is_given_another_shape_is_named() -> None:
    def narrow(x: Applied, y: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return x(batch["input"][:, :5])[:, 0]

    told = r"failed in Net \(test_task.py, line \d+\).*; Linear\(in_features=6, .*\) was given \(4, 5\)"
    with pytest.raises(fs.BadInput, match=told):
        fs.task(x=Net, y=fs.Simplex(3), loss=narrow, data=data())


def test_a_problem_of_a_class_is_told_of_likewise() -> None:
    class Own:
        def __init__(self, wrong: str) -> None:
            self.wrong, self.federation = wrong, data().federation
            self.metrics = {"size": fs.Metric("low", "none")}

        def init(self, seed: int) -> Pair:
            return Pair(torch.zeros(7 if self.wrong == "init" else 6), torch.zeros(1))

        def loss(self, z: Pair, xi: Batch) -> Tensor:
            found = xi.rows["input"] @ z.x * z.y
            return found if self.wrong == "rows" else xi.mean(found)

        def evaluate(self, z: Pair) -> dict[str, float]:
            return {"size": {"size": 1.0}["sise" if self.wrong == "name" else "size"]}

    for wrong, told in {
        "init": r"problem Own failed in loss \(test_task.py, line \d+\): RuntimeError: size mismatch",
        "rows": r"Own.loss must give one number, such as xi.mean\(values\) .* got a tensor of \(\d+,\)",
        "name": r"Own with CDMAADA failed in evaluate \(test_task.py, line \d+\): KeyError: 'sise'",
    }.items():
        with pytest.raises(fs.BadInput, match=told):
            run(Own(wrong))


def test_a_report_is_told_how_each_client_fares() -> None:
    def shifted(x: Applied, y: Tensor, batch: fs.task) -> Tensor:
        return loss(x, y, batch) + batch.own["shift"]

    sizes = (8, 11, 9)
    tables = {name: rows(size, number) for number, (name, size) in enumerate(zip("abc", sizes, strict=True))}
    together = fs.Metric("low", rows="test", of=lambda x, y, batch: right(x, y, batch).mean())
    made = fs.task(
        x=Net,
        y=fs.Simplex(3),
        loss=shifted,
        data=fs.clients(tables, test=rows(40, 99), own={"shift": torch.arange(3.0)}),
        metrics=RIGHT | {"together": together},
    )
    z = made.init(0)
    told = made.details(z)
    assert list(told) == ["Clients by loss", "Clients by right"]
    assert all(detail.valid for detail in told.values())
    assert told["Clients by loss"].columns["client"] == ["a", "b", "c"]
    assert [detail.better for detail in told.values()] == ["low", "high"]
    x, y = made.x.seen(z.x), made.y.seen(z.y)
    for number, table in enumerate(tables.values()):
        expected = float(loss(x, y, table).mean()) + number
        assert told["Clients by loss"].columns["loss"][number] == pytest.approx(expected, rel=1e-5)
        expected = float(right(x, y, table).mean())
        assert told["Clients by right"].columns["right"][number] == pytest.approx(expected)


def test_a_sum_over_rows_is_refused_and_what_does_not_grow_is_not():
    def task(take):
        def loss(x, y, batch):
            return take(
                y[batch["label"]]
                * nn.functional.cross_entropy(x(batch["input"]), batch["label"], reduction="none")
            )

        rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
        table = {"input": rows, "label": (rows.sum(1) > 0).long()}
        return fs.task(x=lambda: nn.Linear(8, 2), y=fs.Simplex(2), loss=loss, data=fs.clients(table, count=6))

    for take in (torch.Tensor.sum, lambda values: values.sum() + 1, lambda values: (values.sum(), values)):
        with pytest.raises(fs.BadInput, match="grows with the number of rows, as a sum does"):
            task(take)
    for take in (
        torch.Tensor.mean,
        lambda values: values.logsumexp(0),
        lambda values: values.std() + values.mean(),
    ):
        task(take)
