"""What classifiers with one hidden layer have in common: their rows, and their network."""

from __future__ import annotations

import math
from functools import cached_property, partial

from torch import nn

from fedsaddle import networks
from fedsaddle.blueprint import Blueprint, Piece
from fedsaddle.core import Pair
from fedsaddle.data.datasets import Dataset
from fedsaddle.data.devices import OnDevices
from fedsaddle.data.federated import dataset_of, pinned_file
from fedsaddle.networks import Network


class Classified(OnDevices):
    """A network that gives each class of a dataset an output. Its x is the network's parameters alone."""

    hidden: int
    seed: int  # of the partition
    sha256: str

    @cached_property
    def data(self) -> Dataset:
        return dataset_of(self.dataset, self.label, self.sha256, self.partition, self.seed)

    @property
    def pinned(self) -> dict[str, str]:
        return pinned_file(self.dataset, self.data)

    @cached_property
    def classes(self) -> int:
        return len(self.data.classes)

    @cached_property
    def features(self) -> int:
        return math.prod(self.data.inputs.shape[1:])

    @cached_property
    def model(self) -> Network:
        return Network(partial(networks.mlp, self.features, self.classes, self.hidden))

    @cached_property
    def blueprint(self) -> Blueprint:
        """How the network is built, with what comes before and after it."""
        sizes = {"features": self.features, "outputs": self.classes, "hidden": self.hidden}
        return Blueprint({"classifier": Piece("mlp", sizes, "probabilities")}, self.reader)

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """What gives a row, as it is in a file, the probabilities of its classes."""
        return self.blueprint.whole({"classifier": self.model.at(z.x)})
