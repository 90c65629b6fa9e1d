"""What several tests share: every algorithm with a setting, every fleet, and small problems."""

from pathlib import Path

import fedsaddle as fs

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
