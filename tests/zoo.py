"""What several tests share: every algorithm with a setting, every fleet, and small problems."""

from pathlib import Path

import torch
from torch import nn

import fedsaddle as fs
from fedsaddle.convolutions import Conv2d
from fedsaddle.networks import Network
from fedsaddle.pooling import MaxPool2d

ALGORITHMS = {
    "cdma-nc": fs.CDMANC(eta=0.05, gamma=0.08, K=3),
    "cdma-one": fs.CDMAONE(eta=0.05, gamma=0.08, K=3),
    "cdma-ada": fs.CDMAADA(c_eta=0.05, c_gamma=0.08, c_alpha=0.7, rho=0.3, K=3),
    "parallel-sgda": fs.ParallelSGDA(eta=0.2, gamma=0.3),
    "local-sgda-plus": fs.LocalSGDAPlus(eta=0.05, gamma=0.08, s=2, K=3),
    "extra-step": fs.ExtraStep(eta_l=0.05, K=3),
    "coda-plus": fs.CODAPlus(eta_l=0.05, theta=0.3, K_0=6, K=3),
    "codasca": fs.CODASCA(eta_l=0.05, eta_g=1.1, theta=0.3, K_0=6, K=3),
    "catalyst-scaffold-s": fs.CatalystScaffoldS(eta_l=0.05, eta_g=0.06, theta=0.3, K_0=6, K=3),
}

NEWER = {
    "fsgda": fs.FSGDA(eta=0.05, gamma=0.08, eta_g=1.2, gamma_g=0.8, K=3),
    "fess-gda": fs.FESSGDA(eta=0.05, gamma=0.08, p=0.3, beta=0.4, eta_g=1.2, gamma_g=0.8, K=3),
    "momentum-local-sgda": fs.MomentumLocalSGDA(eta=0.05, gamma=0.08, b=0.6, K=3),
    "fedavg-m": fs.FedAvgM(eta=0.05, gamma=0.08, b=0.6, rho=0.2, K=3),
    "sagda": fs.SAGDA(eta=0.05, gamma=0.08, eta_g=1.2, gamma_g=0.8, K=3),
    "sagda-minibatch": fs.SAGDAMinibatch(eta=0.05, gamma=0.08, eta_g=1.2, gamma_g=0.8, K=3),
    "fedgda-gt": fs.FedGDAGT(eta_l=0.05, K=3),
    "fgda": fs.FGDA(c_eta=0.05, c_gamma=0.08, c_alpha=0.7, rho=0.3, K=3),
    "adafgda": fs.AdaFGDA(c_eta=0.02, c_gamma=0.03, c_alpha=0.7, rho=0.3, decay=0.8, floor=0.05, K=3),
    "fednest": fs.FedNest(eta=0.05, gamma=0.08, T=2, K=3),
    "fed-norm-sgda": fs.FedNormSGDA(eta=0.05, gamma=0.08, eta_g=1.2, gamma_g=0.8, K=3),
    "fed-norm-sgda-plus": fs.FedNormSGDAPlus(eta=0.05, gamma=0.08, eta_g=1.2, gamma_g=0.8, s=2, K=3),
    "drfa": fs.DRFA(eta=0.05, gamma=0.02, K=3),
    "afl": fs.ParallelSGDA(eta=0.2, gamma=0.1),
    "server-eg": fs.ServerEG(eta=0.05, gamma=0.08, K=3),
    "server-ogda": fs.ServerOGDA(eta=0.05, gamma=0.08, K=3),
    "fedualex": fs.FeDualEx(eta_l=0.05, eta_g=1.1, K=3),
    "proxskip-vip": fs.ProxSkipVIP(eta_l=0.05, K=3),
}


def fleets(folder: Path) -> dict[str, object]:
    trace = folder / "trace.csv"
    spans = [f"{client},{3 * (client % 4)},{3 * (client % 4) + 9}" for client in range(12)]
    trace.write_text("client,start,end\n" + "\n".join(spans) + "\n")
    return {
        "paper": fs.Paper(),
        "everybody": fs.Everybody(),
        "dropout": fs.Dropout(tuple(0.05 * client for client in range(12))),
        "latency": fs.Latency(dropout=0.1),
        "trace": fs.Trace(str(trace), seconds=2.0),
    }


def quadratic(**dials: object) -> fs.Quadratic:
    """Small, with clients of unequal size."""
    return fs.Quadratic(**{"clients": 12, "dim_x": 3, "dim_y": 4, "samples": (2, 7)} | dials)


class Pictures:
    """Least squares of a small network's outputs; y shifts them."""

    metrics = {"norm": fs.Metric("low", rows="none")}  # noqa: RUF012

    def __init__(self):
        self.network = Network(
            lambda: nn.Sequential(
                Conv2d(1, 4, 3), nn.ReLU(), MaxPool2d(2), Conv2d(4, 3, 2), nn.LeakyReLU(), MaxPool2d(2),
                nn.Flatten(), nn.Linear(3, 1),
            ).double()
        )  # fmt: skip
        source = torch.Generator().manual_seed(0)
        rows = {
            "input": torch.randn(40, 1, 8, 8, generator=source, dtype=torch.float64),
            "b": torch.randn(40, generator=source, dtype=torch.float64),
        }
        self.federation = fs.problem.Federation(rows, torch.tensor([2, 3, 4, 5, 6, 3, 2, 4, 5, 6]))

    def init(self, seed):
        return fs.Pair(self.network.init(seed), torch.zeros(1, dtype=torch.float64))

    def loss(self, z, xi):
        outputs = self.network(z.x, xi.rows["input"])[:, 0]
        return xi.mean((outputs + z.y - xi.rows["b"]) ** 2) - z.y[0] ** 2

    def evaluate(self, z):
        return {"norm": float(z.x.norm())}
