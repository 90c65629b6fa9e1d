"""The grids of the appendix, and as many settings of each algorithm as of any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Choices = dict[str, Any]  # as an experiment's [sweep.grid.ALGORITHM] has it

THIRD = 1 / 3
_EXTRA = [1.0, 0.3162, 0.1, 0.03162, 0.01, 0.003162, 0.001, 0.0003162, 0.0001]


def _grids(
    steps: Choices, ada: Choices, local: Sequence[float], extra: Sequence[float]
) -> dict[str, Choices]:
    stages: Choices = {"eta_l": list(local), "theta": [0.0, 0.1, 10.0], "K_0": [2000, 4000]}
    return {
        "cdma-ada": ada,
        "cdma-one": steps,
        "codasca": stages | {"eta_g": [1.1, 1.0, 0.99]},
        "catalyst-scaffold-s": stages | {"eta_g": "eta_l"},
        "cdma-nc": steps,
        "parallel-sgda": steps,
        "local-sgda-plus": steps,
        "extra-step": {"eta_l": list(extra)},
        "coda-plus": stages,
    }


_AUC = {
    "eta": [1.0, 0.7, 0.3162, 0.25, 0.2, 0.1],
    "gamma": [1.0, 0.3162, 0.1, 0.03162, 0.01, 0.003162, 0.001],
}
_ROBUST = [0.03162, 0.01, 0.003162, 0.001]
_GAN = [0.01, 0.001, 0.0001]

# By the kind of task. Two oddities are the appendix's own: robust training has other gammas for CDMA-ADA than
# for the rest, and its published eta of 3.162e-4 (Table 4) is in no grid.
GRIDS = {
    "auc": _grids(
        _AUC,
        {
            "c_eta": _AUC["eta"],
            "c_gamma": _AUC["gamma"],
            "c_alpha": [0.95, 0.99, 5.0, 10.0],
            "rho": [0.0, 0.2, THIRD],
        },
        [1.0, 0.3162, 0.1, 0.03162, 0.01],
        _EXTRA,
    ),
    "robust": _grids(
        {"eta": _ROBUST, "gamma": [1.0, 0.3162, 0.1, 0.03162, 0.001]},
        {
            "c_eta": _ROBUST,
            "c_gamma": [1.0, 0.3162, 0.1, 0.03162, 0.01],
            "c_alpha": [5.0, 10.0],
            "rho": [0.2, THIRD],
        },
        [0.1, 0.03162, 0.01, 0.003162, 0.001],
        _EXTRA,
    ),
    "gan": _grids(
        {"eta": _GAN, "gamma": _GAN},
        {"c_eta": _GAN, "c_gamma": _GAN, "c_alpha": [0.99, 5.0, 10.0], "rho": [0.0, 0.2, THIRD]},
        _GAN,
        [0.01, 0.001, 0.0001, 0.00001],
    ),
}
CELEBA_K = [10, 15, 20, 25]  # from which the paper chose on CelebA, of all but Parallel SGDA


def size(grid: Mapping[str, Any]) -> int:
    """How many settings it holds."""
    return math.prod(len(values) for values in grid.values() if isinstance(values, list))


def refined(grid: Mapping[str, Any], budget: int) -> Choices:
    """A grid of at least so many settings: the geometric mean is put into the widest gap of its longest list.

    So whoever has fewer settings in the paper has no fewer tries here, and none beyond the paper's range.
    """
    found = dict(grid)
    longest = max((key for key in grid if isinstance(grid[key], list)), key=lambda key: len(grid[key]))
    while size(found) < budget:
        values = sorted(found[longest], reverse=True)
        gap = max(range(len(values) - 1), key=lambda at: values[at] / values[at + 1])
        between = float(f"{math.sqrt(values[gap] * values[gap + 1]):.4g}")
        found[longest] = [*values[: gap + 1], between, *values[gap + 1 :]]
    return found
