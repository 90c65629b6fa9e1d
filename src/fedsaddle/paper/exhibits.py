"""All figures and tables of the paper in its numbering, and the panels that it lacks."""

from __future__ import annotations

from fedsaddle.paper.bodies import (
    along_an_axis,
    best_scores,
    chosen_settings,
    curves,
    local_steps,
    rates,
    samples,
)
from fedsaddle.paper.hall import Exhibit
from fedsaddle.paper.trials import PANELS

_AUC, _ROBUST = ("auc-mnist", "auc-cifar10"), ("robust-mnist", "robust-fashion")
_GAN, _K = ("gan-mnist", "gan-fashion", "gan-celeba"), ("gan-mnist-k", "gan-fashion-k")
_FIGURE_3 = local_steps((_K[0], "cdma-one"), (_K[0], "cdma-ada"))
_FIGURE_5 = local_steps((_K[0], "cdma-nc"), (_K[1], "cdma-nc"), (_K[1], "cdma-one"), (_K[1], "cdma-ada"))
_ALL = (
    Exhibit(
        "table-1",
        "Table 1: what communication costs",
        "Bounds on the rounds to an eps-stationary point: CDMA-ADA's grows as eps^-3, those of CDMA-ONE and "
        "CDMA-NC as eps^-4, Parallel SGDA's as eps^-5.",
        (),
        rates,
        "rates",
    ),
    Exhibit(
        "figure-1",
        "Figure 1: AUC maximisation",
        "Training AUC above, test AUC below, over the floats that the server received. CDMA-ADA and CDMA-ONE "
        "lie above all others on both datasets.",
        _AUC,
        curves,
    ),
    Exhibit(
        "figure-2",
        "Figure 2: robust training",
        "The robust loss on training rows above and on test rows below. CDMA-ADA is lowest; CDMA-ONE is "
        "below CDMA-NC and Parallel SGDA.",
        _ROBUST,
        curves,
    ),
    Exhibit(
        "table-2",
        "Table 2: the best scores of GANs",
        "CDMA-ADA has the best score on all three datasets, CDMA-ONE the second best.",
        _GAN,
        best_scores,
    ),
    Exhibit(
        "figure-3",
        "Figure 3: local steps, the GAN on MNIST",
        "Scores of CDMA-ONE and CDMA-ADA for K from 1 to 25: several local steps do far better than one. "
        "(With K = 1 they take their step on the server, send one vector and invite 16.)",
        _K[:1],
        _FIGURE_3,
    ),
    Exhibit(
        "figure-4",
        "Figure 4: GANs on the way",
        "The scores of Table 2 over the floats that the server received.",
        _GAN,
        curves,
    ),
    Exhibit(
        "figure-5",
        "Figure 5: local steps, the rest",
        "CDMA-NC on both datasets, CDMA-ONE and CDMA-ADA on Fashion-MNIST: several local steps do far better "
        "than one.",
        _K,
        _FIGURE_5,
    ),
    Exhibit(
        "figure-6",
        "Figure 6: pictures of MNIST",
        "Samples of all nine algorithms from the same noise; those of CDMA-ONE and CDMA-ADA are called good.",
        _GAN[:1],
        samples,
    ),
    Exhibit("figure-7", "Figure 7: pictures of Fashion-MNIST", "The same.", _GAN[1:2], samples),
    Exhibit("figure-8", "Figure 8: pictures of CelebA", "The same.", _GAN[2:], samples),
    Exhibit(
        "table-3",
        "Table 3: settings of AUC maximisation",
        "The best of each algorithm's grid.",
        _AUC,
        chosen_settings,
        memory=True,
    ),
    Exhibit(
        "table-4",
        "Table 4: settings of robust training",
        "The best of each algorithm's grid. An eta of 3.162e-4, twice on MNIST, is in none of them.",
        _ROBUST,
        chosen_settings,
        memory=True,
    ),
    Exhibit(
        "table-5",
        "Table 5: settings of GANs",
        "The best of each algorithm's grid.",
        _GAN[:2],
        chosen_settings,
        memory=True,
    ),
    Exhibit(
        "table-6",
        "Table 6: settings on CelebA",
        "The best of each algorithm's grid, and of K in 10, 15, 20, 25.",
        _GAN[2:],
        chosen_settings,
    ),
    Exhibit(
        "table-7",
        "Table 7: settings by local steps",
        "The best of the grid for each K. For K = 20 it disagrees with Table 5.",
        _K,
        chosen_settings,
    ),
)
_LACKING = "Nothing: it has no such experiment."
EXHIBITS = {one.name: one for one in _ALL} | {
    panel.name: Exhibit(
        panel.name, f"Panel: {panel.title}", _LACKING, (), along_an_axis, f"panels/{panel.name}"
    )
    for panel in PANELS.values()
}
