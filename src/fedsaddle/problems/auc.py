"""AUC maximisation as a minimax problem (Ying 2016, Liu 2020): x = (network, a, b), y = alpha.

    F = (1-p) (s-a)^2 1+  +  p (s-b)^2 1-  +  2 (1+alpha) (p s 1- - (1-p) s 1+)  -  p (1-p) alpha^2

s is the score of a row, 1+ and 1- say whether its label is positive, p is the part of positives. For fixed
scores the saddle over (a, b, alpha) is p (1-p) (L - 1), where L is the mean of (1 - s_i + s_j)^2 over all
pairs of a positive i and a negative j: the squared surrogate of 1 - AUC.

That holds if p and f are means by the same weights. A federated f is a mean over clients, so where clients
have n_i of n rows, n_i N / n times each one's loss is the mean over all rows (`mean = "rows"`). With
`mean = "clients"` every client counts the same, as in the paper, whose clients are of one size: then p is the
mean of the clients' parts, and a pair counts by the product of its rows' weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fedsaddle.blueprint import Blueprint, Piece
from fedsaddle.core import Count, Pair, Range
from fedsaddle.data import tables
from fedsaddle.data.datasets import DATASETS, Dataset, scaled
from fedsaddle.data.devices import DEVICES, Columns, Local, OnDevices
from fedsaddle.data.federated import chunks
from fedsaddle.data.partition import PARTITIONS, VALIDATION, divide, held_out, idle_dials
from fedsaddle.errors import BadInput, unknown, without_effect
from fedsaddle.metric import Metric
from fedsaddle.networks import NETWORKS, Network, arguments_for, network_named
from fedsaddle.problem import Batch, Counts, Facts, Federation, Measured
from fedsaddle.problems.details import ranking_details
from fedsaddle.ranges import Seed, check
from fedsaddle.scores import auroc, average_precision, row_deviation

# Dials without a named dataset's:
OF_A_FILE = ("label", "client", "test", "test_share", "sha256", "test_sha256")
HARDLY = 0.6  # an AUC up to this is hardly better than guessing, 0.5; the authors give up there too
METRICS = {
    "test_auc": Metric("high", rows="test", chance=HARDLY),
    "validation_auc": Metric("high", rows="validation", chance=HARDLY),
    "train_auc": Metric("high", rows="train", chance=HARDLY),
    "test_precision": Metric("high", rows="test"),
    "loss": Metric("neither", rows="train"),
    "grad_phi": Metric("low", rows="train"),
}


@dataclass(frozen=True)
class AUC(OnDevices, Measured):
    """One class of a dataset against all others, over clients that hold their own rows."""

    dataset: str = "digits"  # a name, or the path of a .csv or .npz file
    clients: Count = 50  # of column, as many as its values
    partition: str = "label"  # label, iid, dirichlet, zipf or column; devices, if each holds rows of its own
    alpha: float = 0.5  # of dirichlet and zipf
    network: str = "mlp"  # lenet5, cifar-cnn, logistic or mlp
    # By one output; by the second of ten classes; or by that after the release's ReLU, of lenet5 alone:
    scoring: Literal["sigmoid", "softmax", "release"] = "sigmoid"
    mean: Literal["rows", "clients"] = "rows"  # who counts the same: all rows, or all clients
    positive: bool | int | str | None = None  # the class to be found; 0 in the datasets with a name
    seed: Seed = 0  # of the partition, and of which rows are tested
    # Of each class's training rows, kept from the clients to choose settings by:
    validation_share: Annotated[float, Range(least=0, below=1)] = 0.0
    grad_phi: bool = False  # whether |grad Phi| is measured too, over all training rows: that takes a while
    # Of a file:
    label: str = "label"  # the column of the classes
    client: str = "client"  # the column that says who holds a row
    test: str = ""  # a second file with the test rows
    test_share: Annotated[float, Range(above=0, below=1)] = 0.2  # of the rows, if there is no second file
    sha256: str = ""  # if given, a file that has changed is refused
    test_sha256: str = ""
    _local: Local = field(default_factory=Local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, given, known in (
            ("dataset", self.dataset, tuple(DATASETS)),
            ("partition", self.partition, (*PARTITIONS, DEVICES)),
            ("network", self.network, NETWORKS),
            ("scoring", self.scoring, ("sigmoid", "softmax", "release")),
            ("mean", self.mean, ("rows", "clients")),
        ):
            if given not in known and not (what == "dataset" and tables.is_table(given)):
                hint = "; or give the path of a .csv or .npz file" if what == "dataset" else ""
                raise BadInput(f"{unknown(what, given, known)}{hint}")
        check(self)
        own, idle = (
            tables.is_table(self.dataset),
            f"it goes with a .csv or .npz file, not with {self.dataset}",
        )
        if not own and (wrong := without_effect(self, dict.fromkeys(OF_A_FILE, idle))):
            raise BadInput(wrong[0])
        if self.test_sha256 and not self.test:
            raise BadInput("test_sha256 is of a test file: give test too")
        if self.away and (self.test or self.validation_share):
            raise BadInput(
                "with partition devices, dataset is what the server and all devices have: it says what the "
                "columns are, and the server tests by it; leave out test and validation_share"
            )
        halves = {"training": self.data.labels, "test": self.data.test_labels}
        if self.validation_share:
            halves["validation"] = self.data.labels[self._validation]
        for rows, labels in halves.items():
            if not 0 < (labels == self.target).float().mean() < 1:
                name = self.data.classes[self.target]
                raise BadInput(
                    f"{self.dataset}: the {rows} rows must hold '{name}' and other classes too; give more "
                    "rows, another test_share or a test file"
                )
        if self.data.owners is None and (self.partition == "column" or self.client != AUC.client):
            raise BadInput(
                f"{self.dataset} has no column '{self.client}' to say who holds a row; name the one that "
                "does by client, or choose another partition"
            )
        shape = tuple(self.data.inputs.shape[1:])
        fits = {"lenet5": (1, 28, 28), "cifar-cnn": (3, 32, 32)}.get(self.network)
        if fits not in (None, shape):
            raise BadInput(
                f"{self.network} takes images of {fits}, {self.dataset} has {shape}; try mlp or logistic"
            )
        self.parts, self.model  # noqa: B018  a partition or network that cannot be made is refused here

    @cached_property
    def data(self) -> Dataset:
        if not tables.is_table(self.dataset):
            return DATASETS[self.dataset]()
        data = self._table(self.dataset if self.away else self.test)
        halves = ((data.inputs, data.test_inputs), (data.labels, data.test_labels))
        if not self.away and all(torch.equal(*half) for half in halves):
            raise BadInput(
                f"{self.test or self.dataset}: the test rows are the training rows, so the test would tell "
                "nothing; give other rows, or leave out test and say a test_share"
            )
        return data

    def _table(self, test: str) -> Dataset:
        return tables.load_table(
            self.dataset,
            test,
            label=self.label,
            client=self.client,
            test_share=self.test_share,
            seed=self.seed,
            sha256=self.sha256,
            test_sha256="" if self.away else self.test_sha256,
        )

    # --- rows on devices ---

    def read(self, path: str) -> Columns:
        found = super().read(path)
        return {"input": found["input"], "positive": found["label"] == self.target}

    def told(self, rows: Columns) -> Counts:
        return {"positives": int(rows["positive"].sum())}

    def facts(self, counts: list[Counts]) -> Facts:
        rows, positives = (sum(one[key] for one in counts) for key in ("rows", "positives"))
        if not 0 < positives < rows:
            raise BadInput(
                f"of all devices' {rows} rows {positives} are positive; there must be some of both"
            )
        parts = [one["positives"] / one["rows"] for one in counts]
        p = positives / rows if self.mean == "rows" else sum(parts) / len(parts)
        return {"p": p, "rows": rows / len(counts)}

    def learn(self, facts: Facts) -> None:
        """Go by the part of positives, and by how many rows a device has on average."""
        p, rows = facts.get("p", 0.0), facts.get("rows", 0.0)
        if not 0 < p < 1 or not 1 <= rows < 2**53:
            raise BadInput(f"p must be between 0 and 1 and rows at least 1, got {p} and {rows}")
        for name, worth in self._worth(self.federation.sizes, rows).items():
            self.federation.own[name].copy_(worth)
        self._local.facts = {"p": p, "rows": rows}

    @property
    def pinned(self) -> dict[str, str]:
        """What an experiment has to say to mean these very files again."""
        found: dict[str, str] = {}
        keys = (("dataset", "sha256"), ("test", "test_sha256"))
        for (file, digest), sha256 in zip(keys[: 1 if self.away else 2], self.data.sha256, strict=False):
            found |= {file: str(Path(getattr(self, file)).resolve()), digest: sha256}
        return found

    @property
    def notes(self) -> list[str]:
        """What was asked for, or is there, and has no effect."""
        idle = idle_dials(self.partition)
        drawn = tables.is_table(self.dataset) and not self.away and not self.data.has_test
        if drawn or self.validation_share:
            idle.pop("seed", None)
        if self.partition == "column":
            idle["clients"] = (
                f"of partition column there are as many as the column has values, {len(self.parts)}"
            )
        if tables.is_table(self.dataset) and not drawn:
            idle["test_share"] = "the test rows are given"
        found = without_effect(self, idle)
        if self.data.owners is not None and self.partition != "column":
            found.append(
                f"the column '{self.client}' of {self.dataset} says who holds a row, and is left aside: "
                f"partition is {self.partition}, not column"
            )
        return found

    @cached_property
    def target(self) -> int:
        """The number of the class to be found."""
        classes = self.data.classes
        if self.positive is None and tables.is_table(self.dataset):
            raise BadInput(f"positive is missing, the class to be found; known: {', '.join(classes)}")
        wanted = "0" if self.positive is None else str(self.positive)
        # An array of booleans has the classes 0 and 1; a CSV file may say true or TRUE.
        names = {True: ("1", "True", "true", "TRUE"), False: ("0", "False", "false", "FALSE")}
        words = names[self.positive] if isinstance(self.positive, bool) else (wanted,)
        found = [word for word in words if word in classes]
        if not found:
            more = f" and {len(classes) - 20} more" if len(classes) > 20 else ""
            known = ", ".join(classes[:20])
            raise BadInput(f"positive must be one of the classes, got '{wanted}'; known: {known}{more}")
        return classes.index(found[0])

    @cached_property
    def _validation(self) -> Tensor:
        """The numbers of the training rows that no client gets."""
        data = self.data
        if not self.validation_share:
            return torch.arange(0)
        out = held_out(data.labels, self.validation_share, self.seed, data.owners, VALIDATION)
        return out.nonzero().flatten()

    @cached_property
    def parts(self) -> list[Tensor]:
        data, left = self.data, torch.ones(len(self.data.labels), dtype=torch.bool)
        left[self._validation] = False
        rows = left.nonzero().flatten()
        if self.away:
            return [rows[:1]] * self.clients  # nobody looks at them
        owners = None if data.owners is None else data.owners[rows]
        parts = divide(data.labels[rows], self.partition, self.clients, self.alpha, self.seed, owners)
        return [rows[part] for part in parts]

    @cached_property
    def federation(self) -> Federation:
        if (held := self._local.rows) is not None:  # what these are worth is learnt
            return Federation(held.rows, held.sizes, self._worth(held.sizes, 1.0))
        order, sizes = torch.cat(self.parts), torch.tensor([len(part) for part in self.parts])
        return Federation(
            rows={"input": self.data.inputs[order], "positive": self.data.labels[order] == self.target},
            sizes=sizes,
            own=self._worth(sizes, len(order) / len(sizes)),
        )

    def _worth(self, sizes: Tensor, rows: float) -> Columns:
        """What each client's loss counts, if it is by its rows and one has so many on average."""
        return {"worth": sizes.to(torch.float64) / rows} if self.mean == "rows" else {}

    def weights(self, device: torch.device) -> Tensor:
        """What each training row counts in f; they add up to one."""
        held = self.federation.to(device)
        each = held.own.get("worth", 1.0) / (held.sizes.to(torch.float64) * len(held))
        return each.repeat_interleave(held.sizes, output_size=len(held.rows["positive"]))

    @cached_property
    def test_rows(self) -> Federation:
        return self._held_out(self.data.test_inputs, self.data.test_labels)

    @cached_property
    def _validated(self) -> Federation:
        rows = self._validation
        return self._held_out(self.data.inputs[rows], self.data.labels[rows])

    def _held_out(self, inputs: Tensor, labels: Tensor) -> Federation:
        """Rows that no client has."""
        return Federation({"input": inputs, "positive": labels == self.target}, torch.tensor([len(labels)]))

    @property
    def p(self) -> float:
        """The part of positives, by rows or by clients; a server adds it up from two numbers of each."""
        return self._local.facts.get("p") or self._counted

    @cached_property
    def _counted(self) -> float:
        return float(self.weights(torch.device("cpu")) @ self.federation.rows["positive"].to(torch.float64))

    @cached_property
    def model(self) -> Network:
        return network_named(self.network, tuple(self.data.inputs.shape[1:]), self._outputs)

    @property
    def _outputs(self) -> int:
        return 1 if self.scoring == "sigmoid" else 10

    @property
    def _relu(self) -> bool:
        """Whether the ten outputs pass a ReLU, as LeNet's in the authors' release.

        If all ten come to lie below zero, every score is the same and no gradient is left: the run has died.
        """
        return self.scoring == "release" and self.network == "lenet5"

    @cached_property
    def blueprint(self) -> Blueprint:
        """How the network is built, with what comes before and after it."""
        outputs = "score" if self.scoring == "sigmoid" else "release-lenet5" if self._relu else "release"
        arguments = arguments_for(self.network, tuple(self.data.inputs.shape[1:]), self._outputs)
        part = Piece(self.network, arguments, outputs)
        return Blueprint({"score": part}, self.reader, positive=self.data.classes[self.target])

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """What scores rows as they are in a file."""
        return self.blueprint.whole({"score": self.model.at(z.x[:-2])})

    def scores(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The score of each row, between 0 and 1."""
        return self._scores(x[:-2], inputs)

    def _scores(self, weights: Tensor, inputs: Tensor) -> Tensor:
        outputs = self.model(weights, scaled(inputs, weights.dtype))
        if self.scoring == "sigmoid":
            return torch.sigmoid(outputs.squeeze(1))
        return torch.softmax(torch.relu(outputs) if self._relu else outputs, dim=1)[:, 1]

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of the network, and a = b = alpha = 0."""
        return Pair(torch.cat([self.model.init(seed), torch.zeros(2)]), torch.zeros(1))

    def objective(self, s: Tensor, positive: Tensor, a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
        """F of each row, from its score."""
        p = self.p
        one, zero = (1 - p) * positive.to(s.dtype), p * (~positive).to(s.dtype)
        squares = (one + zero) * (s - torch.where(positive, a, b)) ** 2
        return squares + 2 * (1 + alpha) * s * (zero - one) - p * (1 - p) * alpha**2

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        weights, a, b = z.x.split([self.model.size, 1, 1])  # in one go, whose gradient is one copy
        s = self._scores(weights, xi.rows["input"])
        f = xi.mean(self.objective(s, xi.rows["positive"], a, b, z.y))
        return f * xi.own["worth"].to(f.dtype) if self.mean == "rows" else f

    def best_alpha(self, s: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
        """The maximiser of f over all rows: the mean score of the negatives less that of the positives."""
        one, zero = weight * positive, weight * ~positive
        return s @ zero / zero.sum() - s @ one / one.sum()

    def all_scores(self, x: Tensor, inputs: Tensor) -> Tensor:
        return torch.cat([self.scores(x, rows) for (rows,) in chunks(inputs)])

    @property
    def metrics(self) -> dict[str, Metric]:
        absent = {"validation_auc": not self.validation_share, "grad_phi": not self.grad_phi}
        return self.known({name: metric for name, metric in METRICS.items() if not absent.get(name)})

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """AUC on both halves, average precision, the loss, and if asked for |grad Phi|."""
        rows = self.federation.to(z.x.device).rows
        train, positive = rows["input"], rows["positive"]
        unseen = self.test_rows.to(z.x.device).rows
        test, test_positive = self.all_scores(z.x, unseen["input"]), unseen["positive"]
        if self.away:
            return {
                "test_auc": auroc(test, test_positive),
                "test_precision": average_precision(test, test_positive),
            }
        s, weight = self.all_scores(z.x, train), self.weights(z.x.device).to(z.x.dtype)
        found = {"test_auc": auroc(test, test_positive)}
        if self.validation_share:
            held = self._validated.to(z.x.device).rows
            found["validation_auc"] = auroc(self.all_scores(z.x, held["input"]), held["positive"])
        found |= {
            "train_auc": auroc(s, positive),
            "test_precision": average_precision(test, test_positive),
            "loss": weight @ self.objective(s, positive, z.x[-2], z.x[-1], z.y[0]),
        }
        return found | ({"grad_phi": self._slope(z, s, weight).norm()} if self.grad_phi else {})

    def score_spread(self, z: Pair) -> float:
        """How much the scores of test rows differ."""
        return row_deviation(self.all_scores(z.x, self.test_rows.to(z.x.device).rows["input"]))

    details = ranking_details

    def _slope(self, z: Pair, s: Tensor, weight: Tensor) -> Tensor:
        """The gradient of Phi = max_y f at x, where all training rows have these scores and weights."""
        rows = self.federation.to(z.x.device).rows
        alpha = self.best_alpha(s, rows["positive"], weight)

        def part(x: Tensor, rows: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
            return weight @ self.objective(self.scores(x, rows), positive, x[-2], x[-1], alpha)

        slope = torch.zeros_like(z.x)
        for some in chunks(rows["input"], rows["positive"], weight):
            slope += torch.func.grad(part)(z.x, *some)
        return slope
