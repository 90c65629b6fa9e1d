"""Federated DeepGMM, from its definition to a report: `python examples/deepgmm.py`.

X and Y have a cause in common that nobody sees. Instruments Z move X and know nothing of it, so that at the
true response g0 every moment E[f(Z) (Y - g0(X))] is zero. g descends the largest moment that f finds:

    min over g, max over f of E[f(Z) (Y - g(X))] - 1/4 E[f(Z)^2 (Y - g(X))^2]

where the second mean weighs f alone. So the players have a loss each.
"""

import sys

import torch
from torch import nn

import fedsaddle as fs


def rows(count, seed, low=-3.0, high=3.0):
    """Rows whose first instrument is between low and high; the true response is the sine."""
    luck = torch.Generator().manual_seed(seed)
    z = 6 * torch.rand(count, 2, generator=luck) - 3
    z[:, 0] = low + (high - low) * torch.rand(count, generator=luck)
    cause, one, other = torch.randn(3, count, generator=luck)
    x = z[:, 0] + cause + 0.1 * one
    y = torch.sin(x) + cause + 0.1 * other
    return {"z": z, "x": x[:, None], "y": y, "g0": torch.sin(x)}


def network(inputs):
    return nn.Sequential(
        nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0)
    )


def loss(g, f, batch):
    """What g descends, and what f ascends."""
    residual, critic = batch["y"] - g(batch["x"]), f(batch["z"])
    moment = critic * residual
    return moment, moment - moment.square() / 4


def error(g, f, batch):
    return (g(batch["x"]) - batch["g0"]).square()


def main(rounds=300, clients=50, out="deepgmm.html"):
    """Client i has the i-th slice of the first instrument for half of its rows. Y is standardised."""
    width, held = 6 / clients, []
    for i in range(clients):
        own, anywhere = rows(20, i, width * i - 3, width * (i + 1) - 3), rows(20, clients + i)
        held.append({name: torch.cat([own[name], anywhere[name]]) for name in own})
    test, y = rows(2000, 10**6), torch.cat([table["y"] for table in held])
    for table in (*held, test):
        table |= {name: (table[name] - y.mean()) / y.std() for name in ("y", "g0")}
    task = fs.task(
        x=lambda: network(1),
        y=lambda: network(2),
        loss=loss,
        data=fs.clients(held, test=test),
        metrics={"test_mse": fs.Metric("low", rows="test", of=error)},
    )
    outcome = fs.simulate(task, fs.CDMANC(eta=0.03, gamma=0.1, K=10), rounds=rounds, seeds=range(5), batch=20)
    print(outcome, outcome.last("test_mse"), outcome.report(out))
    return outcome


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
