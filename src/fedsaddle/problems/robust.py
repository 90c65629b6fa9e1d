"""Robust training (the paper's Section 5.2): a network x against one perturbation y, added to every input.

    f_i(x, y) = mean_j CE(h_x(a_ij + y), b_ij) - (penalty / 2) |y|^2,       with a `radius` also |y| <= radius

h is an MLP with two hidden layers of 200, inputs are in [-1, 1], y starts at zero. The paper wants |y| <= 1,
relaxes that to the penalty, and leaves projection to future work; here both can be had. It does not say its
lambda. The authors' release subtracts 0.001 |y|^2, without the half: that is a penalty of 0.002.

The robust loss is max_y f(x, y) over given rows, found by gradient ascent: see `worst`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsaddle import draws
from fedsaddle.core import Count, Pair, Range
from fedsaddle.data.datasets import scaled
from fedsaddle.data.devices import Columns, Local
from fedsaddle.data.federated import chunks, federate, set_aside, test_rows
from fedsaddle.data.partition import idle_dials
from fedsaddle.errors import BadInput, without_effect
from fedsaddle.metric import Metric
from fedsaddle.networks import Network
from fedsaddle.problem import Batch, Detail, Federation, Measured, client_means
from fedsaddle.problems.classified import Classified
from fedsaddle.projections import ball, box
from fedsaddle.ranges import Above0, CountOr0, NotNegative, Seed, check
from fedsaddle.scores import row_deviation

RESTARTS = 1 << 33  # what the draws of starting points are for; partitions number theirs from 0


class Worst(NamedTuple):
    """The perturbation that does the most harm, and what it does."""

    y: Tensor
    loss: Tensor  # with the penalty
    accuracy: Tensor


@dataclass(frozen=True)
class Robust(Classified, Measured):
    """A classifier that must bear one perturbation of all its inputs."""

    dataset: str = "digits"  # a name, or the path of a .csv or .npz file
    clients: Count = 50
    partition: str = "label"  # label, iid, dirichlet or zipf; devices, if each holds rows of its own
    alpha: float = 0.5  # of dirichlet and zipf
    hidden: Count = 200
    penalty: NotNegative = 0.002  # lambda, in (lambda / 2) |y|^2
    radius: Above0 | None = None  # if given, |y| is at most this
    seed: Seed = 0  # of the partition, and of where the ascent begins anew
    # Of each class's training rows, kept from the clients to choose settings by:
    validation_share: Annotated[float, Range(least=0, below=1)] = 0.0
    # How a point is judged:
    evaluate_rows: Count = 10_000  # of the training rows, and of the test rows
    ascent_steps: Count = 20
    ascent_size: Above0 = 1.0
    restarts: CountOr0 = 2  # from random points, beside those from y and from zero
    # PGD, which perturbs each input by itself. Inputs are in [-1, 1]: 0.1 is 12.75 of 255 levels of grey.
    epsilon: NotNegative = 0.1
    steps: Count = 10
    norm: Literal["linf", "l2"] = "linf"
    # Of a file:
    label: str = "label"  # the column of the classes
    sha256: str = ""  # if given, a file that has changed is refused
    _local: Local = field(default_factory=Local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.penalty == 0 and self.radius is None:
            raise BadInput(
                "y needs a penalty above 0 or a radius; without either there is no worst perturbation"
            )
        if self.away and self.validation_share:
            raise BadInput("with partition devices no rows are here to be set aside: no validation_share")
        if self.norm not in ("linf", "l2"):
            raise BadInput(f"norm must be 'linf' or 'l2', got '{self.norm}'")
        self.federation  # noqa: B018  a dataset or partition that cannot be had is refused here

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        idle = idle_dials(self.partition)
        # From points that are drawn; or test or validation rows are.
        if self.restarts or not self.data.has_test or self.validation_share:
            idle.pop("seed", None)
        return without_effect(self, idle)

    @cached_property
    def federation(self) -> Federation:
        dealt = (self.partition, self.clients, self.alpha, self.seed, self.validation_share)
        return self._local.rows or federate(self.data, *dealt)

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of the network, and y = 0."""
        return Pair(self.model.init(seed), torch.zeros(self.features))

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        outputs = self.model(z.x, scaled(xi.rows["input"], z.x.dtype).flatten(1) + z.y)
        harm = cross_entropy(outputs, xi.rows["label"], reduction="none")
        return xi.mean(harm) - self.penalty / 2 * z.y.square().sum()

    def project(self, z: Pair) -> Pair:
        return z if self.radius is None else Pair(z.x, ball(z.y, self.radius))

    # --- the worst perturbation ---------------------------------------------------------------------------

    @cached_property
    def _beyond(self) -> Network:
        """The network behind its first layer."""
        return Network(partial(_behind_the_first, self.model.build))

    def starts(self, y: Tensor) -> Tensor:
        """Where the ascent begins: at y, at zero, and as far as y (at least 1) in random directions."""
        length = y.norm().clamp(min=1)
        return torch.cat([torch.stack([y, torch.zeros_like(y)]), length * self._directions(y.device).to(y)])

    @cache  # noqa: B019  a problem lives as long as its program
    def _directions(self, device: torch.device) -> Tensor:
        keys = draws.key(draws.PROBLEM, self.seed, RESTARTS + torch.arange(self.restarts))
        along = draws.normal(keys, self.features)
        unit: Tensor = along / along.norm(dim=1, keepdim=True)
        return unit.to(device)

    def worst(self, z: Pair, rows: Columns) -> Worst:
        """The best of all points that gradient ascent passes on its way from several starts.

        The release climbs once, from y, or from zero if |y|^2 > 10. A maximum found so is a lower bound; more
        starts can only raise it.
        """
        # All inputs are moved alike, so the first layer is W a + b for each of them, once, and W y for all.
        sizes = [self.hidden * self.features, self.hidden, self._beyond.size]
        flat, b, rest = z.x.split(sizes)
        W, label = flat.view(self.hidden, self.features), rows["label"]
        before = torch.cat([scaled(some, b.dtype).flatten(1) @ W.mT + b for (some,) in chunks(rows["input"])])

        def harm(move: Tensor, some: Tensor, own: Tensor) -> Tensor:
            return cross_entropy(self._beyond(rest, some + move), own, reduction="sum") / len(label)

        def climb(y: Tensor) -> tuple[Tensor, Tensor]:
            best, highest = y, torch.full_like(y[0], -math.inf)
            for _ in range(self.ascent_steps + 1):
                slope, value = torch.zeros_like(b), -self.penalty / 2 * y.square().sum()
                for some, own in chunks(before, label):
                    part, more = torch.func.grad_and_value(harm)(W @ y, some, own)
                    slope, value = slope + part, value + more
                best, highest = torch.where(value > highest, y, best), torch.maximum(value, highest)
                rise = W.mT @ slope - self.penalty * y
                y = self.project(Pair(z.x, y + self.ascent_size * rise)).y
            return best, highest

        ends, losses = torch.func.vmap(lambda start: climb(self.project(Pair(z.x, start)).y))(
            self.starts(z.y)
        )
        y, loss = ends.index_select(0, losses.argmax()[None])[0], losses.max()
        right = [self._beyond(rest, some + W @ y).argmax(1) == own for some, own in chunks(before, label)]
        return Worst(y, loss, torch.cat(right).float().mean())

    def bears(self, x: Tensor, inputs: Tensor, label: Tensor) -> Tensor:
        """Which rows PGD does not turn (Madry 2018): right as they are, and after each of its steps.

        Steps of 2.5 epsilon / steps, from the input itself; what is an image stays one.
        """
        clean, image = scaled(inputs, x.dtype).flatten(1), inputs.dtype == torch.uint8

        def harm(v: Tensor) -> tuple[Tensor, Tensor]:
            outputs = self.model(x, v)
            return cross_entropy(outputs, label, reduction="sum"), outputs

        v, right = clean, torch.ones_like(label, dtype=torch.bool)
        for _ in range(self.steps + 1):
            slope, outputs = torch.func.grad(harm, has_aux=True)(v)
            right = right & (outputs.argmax(1) == label)
            if self.norm == "linf":
                moved = box(
                    v - clean + 2.5 * self.epsilon / self.steps * slope.sign(), -self.epsilon, self.epsilon
                )
            else:
                ahead = slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-30)
                moved = torch.func.vmap(lambda d: ball(d, self.epsilon))(
                    v - clean + 2.5 * self.epsilon / self.steps * ahead
                )
            v = box(clean + moved, -1, 1) if image else clean + moved
        return right

    # --- how a point is judged ----------------------------------------------------------------------------

    def _some(self, rows: Columns) -> Columns:
        """At most `evaluate_rows` of them, evenly spaced, so that all clients and classes are among them."""
        total = len(rows["label"])
        if total <= self.evaluate_rows:
            return rows
        chosen = torch.arange(self.evaluate_rows, device=rows["label"].device) * total // self.evaluate_rows
        return {name: table[chosen] for name, table in rows.items()}

    @cached_property
    def _judged(self) -> tuple[Federation, Federation]:
        """The training and the test rows that are looked at, each as one client's."""
        halves = (self._some(self.federation.rows), self._some(test_rows(self.data).rows))
        train, test = (Federation(rows, torch.tensor([len(rows["label"])])) for rows in halves)
        return train, test

    @cached_property
    def _validated(self) -> Federation:
        """The rows that no client has, of those that are looked at."""
        _, out = set_aside(self.data, self.validation_share, self.seed)
        rows = self._some({"input": self.data.inputs[out], "label": self.data.labels[out]})
        return Federation(rows, torch.tensor([len(rows["label"])]))

    @property
    def metrics(self) -> dict[str, Metric]:
        guessed = math.log(len(self.data.classes))  # what a network loses that holds all classes alike
        held = {"validation_robust_loss": Metric("low", rows="validation", chance=guessed)}
        found = {
            "robust_loss": Metric("low", rows="test", chance=guessed),
            **(held if self.validation_share else {}),
            "train_robust_loss": Metric("low", rows="train", chance=guessed),
            "test_accuracy": Metric("high", rows="test", chance=self.data.majority),
            "robust_accuracy": Metric("high", rows="test"),
            "pgd_accuracy": Metric("high", rows="test"),
            "y_norm": Metric("neither", rows="none"),
            "loss": Metric("neither", rows="train"),
        }
        return self.known(found)

    def score_spread(self, z: Pair) -> float:
        """How much the probabilities of test rows differ."""
        rows = self._judged[1].to(z.x.device).rows["input"]
        outputs = torch.cat([self.model(z.x, scaled(some, z.x.dtype).flatten(1)) for (some,) in chunks(rows)])
        return row_deviation(outputs.softmax(1))

    def details(self, z: Pair) -> dict[str, Detail]:
        """How each client's rows fare, moved by y."""
        held = self.federation.to(z.x.device)
        rows = chunks(held.rows["input"], held.rows["label"])
        right = torch.cat(
            [self.model(z.x, scaled(some, z.x.dtype).flatten(1) + z.y).argmax(1) == own for some, own in rows]
        )
        return {"Clients": Detail("clients", client_means(held, right, "training accuracy under y"))}

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """The robust losses, accuracies on test rows as they are, moved by the worst y, and under PGD."""
        train, test = (half.to(z.x.device).rows for half in self._judged)
        worst = self.worst(z, test)
        right, bears, harm = [], [], []
        for inputs, label in chunks(test["input"], test["label"]):
            right.append(self.model(z.x, scaled(inputs, z.x.dtype).flatten(1)).argmax(1) == label)
            bears.append(self.bears(z.x, inputs, label))
        for inputs, label in chunks(train["input"], train["label"]):
            outputs = self.model(z.x, scaled(inputs, z.x.dtype).flatten(1) + z.y)
            harm.append(cross_entropy(outputs, label, reduction="none"))
        held = self._validated.to(z.x.device).rows if self.validation_share else None
        found = {
            "robust_loss": worst.loss,
            **({} if held is None else {"validation_robust_loss": self.worst(z, held).loss}),
            "train_robust_loss": self.worst(z, train).loss,
            "test_accuracy": torch.cat(right).float().mean(),
            "robust_accuracy": worst.accuracy,
            "pgd_accuracy": torch.cat(bears).float().mean(),
            "y_norm": z.y.norm(),
            "loss": torch.cat(harm).mean() - self.penalty / 2 * z.y.square().sum(),
        }
        return self.seen(found)


def _behind_the_first(build: Callable[[], nn.Module]) -> nn.Module:
    """A network of layers one after another, without the first and what follows it at once."""
    return nn.Sequential(*build()[2:])  # type: ignore[index]
