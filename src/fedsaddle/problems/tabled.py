"""What the tasks on tables of people share: rows on natural clients, a network, and the groups of a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, Self

import torch
from torch import Tensor, nn

from fedsaddle.blueprint import Blueprint, Piece
from fedsaddle.core import Count, Pair
from fedsaddle.data.datasets import Dataset, scaled
from fedsaddle.data.devices import Local, OnDevices, alone
from fedsaddle.data.federated import chunks, dataset_named
from fedsaddle.data.partition import divide, idle_dials, in_pieces
from fedsaddle.errors import BadInput, unknown, without_effect
from fedsaddle.networks import NETWORKS, Network
from fedsaddle.problem import Counts, Facts, Federation, Measured
from fedsaddle.ranges import CountOr0, Seed, check

Cells = dict[str, Tensor]
NETS = ("logistic", "mlp")


@dataclass(frozen=True)
class Tabled(OnDevices, Measured):
    """The dials of such a task, and what follows from them.

    Rows are of `kinds`, such as groups. How many all clients have of each is all that one knows of others.
    """

    dataset: str = "digits"
    partition: str = "iid"  # column, iid, label, dirichlet or zipf; devices, if each holds rows of its own
    clients: Count = 50  # of column, as many as its values
    alpha: float = 0.5  # of dirichlet and zipf
    most_rows: CountOr0 = 0  # of a client; one with more is cut into several, and with 0 none is
    network: Literal["logistic", "mlp"] = "logistic"
    hidden: Count = 64  # of mlp
    seed: Seed = 0  # of the partition
    _local: Local = field(default_factory=Local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.network not in NETS:
            raise unknown("network", self.network, NETS)
        if self.away and self.most_rows:
            raise BadInput("most_rows cuts clients whose rows are here; on devices, each has its own file")
        self.federation  # noqa: B018  what cannot be had is refused here

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        idle = idle_dials(self.partition)
        if self.most_rows:
            idle.pop("seed", None)
        if self.partition == "column":
            idle["clients"] = f"of partition column there are as many as the data say, {len(self.parts)}"
        if self.network == "logistic":
            idle["hidden"] = "it is of network mlp, not of logistic"
        return without_effect(self, idle)

    @cached_property
    def data(self) -> Dataset:
        return dataset_named(self.dataset)

    @cached_property
    def parts(self) -> list[Tensor]:
        """The numbers of each client's rows."""
        data = self.data
        parts = divide(data.labels, self.partition, self.clients, self.alpha, self.seed, data.owners)
        return in_pieces(parts, self.most_rows, self.seed) if self.most_rows else parts

    @cached_property
    def holders(self) -> Tensor:
        """The number of each training row's client."""
        found = torch.empty(len(self.data.labels), dtype=torch.int64)
        for client, rows in enumerate(self.parts):
            found[rows] = client
        return found

    @cached_property
    def federation(self) -> Federation:
        if self.away:
            like = {"input": self.data.test_inputs[:1], "label": self.data.test_labels[:1]}
            one = self.cells({**like, "group": torch.zeros(1, dtype=torch.int64)})
            held = self._local.rows or alone(one, 0, self.clients)
            return Federation({**held.rows, "share": self._share(held.sizes, self.clients)}, held.sizes)
        order = torch.cat(self.parts)
        sizes = torch.tensor([len(part) for part in self.parts])
        rows = {name: table[order] for name, table in self.columns(test=False).items()}
        return Federation({**rows, "share": self._share(sizes, len(sizes))}, sizes)

    def _share(self, sizes: Tensor, clients: int) -> Tensor:
        """What a row counts: its client divides by its rows and the server by clients; this takes both back.

        Then the mean over clients of share / n is the mean over n rows, whoever holds them.
        """
        return sizes.repeat_interleave(sizes) * float(clients)

    @cached_property
    def test(self) -> Federation:
        rows = self.columns(test=True)
        return Federation(rows, torch.tensor([len(rows["label"])]))

    def columns(self, test: bool) -> Cells:
        """What is known of each row, in the order of the data."""
        data = self.data
        if test:
            return {"input": data.test_inputs, "label": data.test_labels}
        return {"input": data.inputs, "label": data.labels}

    # --- rows on devices ---

    told_by = ""  # what a file must tell of each row beside its label, if anything

    def cells(self, rows: Cells) -> Cells:
        """What is known of a device's rows: of their inputs, labels and, if it must be told, group."""
        raise NotImplementedError

    def kind_of(self, rows: Cells) -> Tensor:
        """The kind of each row, by which rows are counted."""
        raise NotImplementedError

    @property
    def kinds(self) -> int:
        raise NotImplementedError

    @cached_property
    def counted(self) -> Tensor:
        """The training rows of each kind, of all clients together."""
        if not self.away:
            return torch.bincount(self.kind_of(self.federation.rows), minlength=self.kinds)
        known = self._local.facts
        found = torch.tensor([int(known.get(f"kind {kind}", 1)) for kind in range(self.kinds)])
        # A device that joins later may have rows of a kind that nobody had.
        own = self._local.rows is not None
        return torch.maximum(found, self._kinds_in(self._own_rows())) if own else found

    def _kinds_in(self, rows: Cells) -> Tensor:
        return torch.bincount(self.kind_of(rows), minlength=self.kinds)

    def read(self, path: str) -> Cells:
        rows = super().read(path)
        if self.told_by:
            rows["group"] = self.reader.told_apart(path, self.told_by, self.data.groups[self.told_by].names)
        return self.cells(rows)

    def told(self, rows: Cells) -> Counts:
        return {f"kind {kind}": count for kind, count in enumerate(self._kinds_in(rows).tolist())}

    def facts(self, counts: list[Counts]) -> Facts:
        totals = {key: float(sum(one[key] for one in counts)) for key in counts[0] if key != "rows"}
        return {"devices": float(len(counts)), **totals}

    def learn(self, facts: Facts) -> None:
        told = [facts["devices"], *(facts[f"kind {kind}"] for kind in range(self.kinds))]
        if not all(0 <= one < 2**53 and one == int(one) for one in told) or not 0 < told[0] <= self.clients:
            raise BadInput(f"devices and their rows must be whole numbers, got {told}")
        self._local.facts = facts
        self.federation.rows["share"].copy_(self._share(self.federation.sizes, int(told[0])))
        self._count_again()

    def holding(self, client: int, path: str) -> Self:
        own = super().holding(client, path)
        own._count_again()
        return own

    def _count_again(self) -> None:
        """Forget what follows from the numbers of rows."""
        for follows in ("counted", "count", "part", "_trained"):
            vars(self).pop(follows, None)

    def grouped(self, what: str, *more: str) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """A way to tell rows apart: the names of the groups, each training row's and each test row's.

        `more` are the other ways that a task has.
        """
        data = self.data
        if what == "class":
            return data.classes, data.labels, data.test_labels
        if what not in data.groups:
            raise unknown("groups", what, ("class", *more, *data.groups))
        found = data.groups[what]
        return found.names, found.rows, found.test_rows

    @cached_property
    def target(self) -> int:
        """The number of the class to be found: the second of two, or the first of more."""
        return 1 if len(self.data.classes) == 2 else 0

    @property
    def outputs(self) -> int:
        return 1

    @cached_property
    def model(self) -> Network:
        return Network(partial(NETWORKS[self.network], **self._arguments))

    @property
    def _arguments(self) -> dict[str, int]:
        own = {"hidden": self.hidden} if self.network == "mlp" else {}
        return {"features": math.prod(self.data.inputs.shape[1:]), "outputs": self.outputs, **own}

    @cached_property
    def blueprint(self) -> Blueprint:
        """How the network is built, with what comes before and after it."""
        outputs = "score" if self.outputs == 1 else "probabilities"
        part = Piece(self.network, self._arguments, outputs)
        positive = self.data.classes[self.target] if self.outputs == 1 else None
        return Blueprint({"classifier": part}, self.reader, positive)

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """What gives a row, as it is in a file, the probability of each class, or of the one to be found."""
        return self.blueprint.whole({"classifier": self.model.at(z.x[: self.model.size])})

    def output(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """The network's outputs (row, output) for many rows."""
        return torch.cat([self.model(weights, scaled(some, weights.dtype)) for (some,) in chunks(inputs)])
