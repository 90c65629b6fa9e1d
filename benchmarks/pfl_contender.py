"""pfl-research (its SimulatedBackend and FederatedAveraging), run in an environment of its own.

Local SGD with one parameter group for each player, the second of which is maximised, is CDMA-NC. Users and
their minibatches come in the order that FedSaddle drew them; pfl's evaluations are off.
"""

from __future__ import annotations

import sys
from itertools import count

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn.utils import parameters_to_vector

from benchmarks.work import Clock, Order, answer


class Watch(TrainingProcessCallback):
    """A round goes from one call to the next."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.clock.begin(0)
        return Metrics()

    def after_central_iteration(self, metrics: Metrics, model: PyTorchModel, *, central_iteration: int):
        self.clock.end(central_iteration)
        self.clock.begin(central_iteration + 1)
        return False, Metrics()


def main(folder: str, device: str) -> None:
    order, places = Order(folder, device), count()
    module, rule = order.model(), order.rule

    def optimiser(parameters: object, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [
                {"params": module.descending(), "lr": rule["eta"]},
                {"params": module.ascending(), "lr": rule["gamma"], "maximize": True},
            ]
        )

    def dataset(place: int) -> PyTorchTensorDataset:
        inputs, labels = order.minibatches(*divmod(place, order.visits))
        return PyTorchTensorDataset(tensors=[inputs, labels])

    model = PyTorchModel(module, optimiser, torch.optim.SGD(module.parameters(), lr=1.0))
    users = FederatedDataset(dataset, lambda: next(places))
    clock = Clock(device, order.rounds)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=order.rounds,
            evaluation_frequency=order.rounds,  # never, but in the first, which is not timed
            train_cohort_size=order.visits,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_batch_size=rule["batch"],
            local_num_epochs=1,
            local_learning_rate=rule["eta"],
        ),
        callbacks=[Watch(clock)],
        send_metrics_to_platform=False,
    )
    answer(order, clock, parameters_to_vector(module.descending()), parameters_to_vector(module.ascending()))


if __name__ == "__main__":
    main(*sys.argv[1:3])
