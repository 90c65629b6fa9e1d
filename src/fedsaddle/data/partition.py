"""Who holds what: rows of a dataset divided among clients.

Every way returns, for each client, the numbers of its rows. Draws come from a seed by `draws`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsaddle import draws
from fedsaddle.errors import BadInput, check_count, unknown

PARTITIONS = ("label", "iid", "dirichlet", "zipf", "column")
SHAPED = ("dirichlet", "zipf")  # those that look at alpha
SPLIT = 1 << 32  # what the draw of test rows is for; the partitions' draws are numbered from 0
VALIDATION = 3 << 32  # and that of validation rows
PIECES = 5 << 32  # and those of the pieces that large clients are cut into
RANKS = 7 << 32  # and that of who is large


def _check(rows: int, clients: int) -> None:
    check_count("clients", clients)
    if clients > rows:
        raise BadInput(f"clients must be at most the number of rows ({rows}), got {clients}")


def check_alpha(alpha: float) -> None:
    if not 0 < alpha < math.inf:
        raise BadInput(f"alpha must be a finite number above 0, got {alpha}")


def idle_dials(how: str) -> dict[str, str]:
    """The dials that a partition does not look at, and why."""
    found = {} if how in SHAPED else {"alpha": f"it is of partition {' or '.join(SHAPED)}, not of {how}"}
    return found if how in ("iid", *SHAPED) else found | {"seed": f"partition {how} draws nothing"}


def divide(
    labels: Tensor, how: str, clients: int, alpha: float, seed: int, owners: Tensor | None = None
) -> list[Tensor]:
    """By one of the PARTITIONS; alpha is of the SHAPED, and of column there are as many clients as owners."""
    check_alpha(alpha)  # whether it is used or not
    if how not in PARTITIONS:
        raise unknown("partition", how, PARTITIONS)
    if how == "column":
        if owners is None:
            raise BadInput(
                "partition: this dataset does not say who holds a row; try label, iid, dirichlet or zipf"
            )
        return by_column(owners)
    if how == "label":
        return by_label(labels, clients)
    if how == "iid":
        return iid(labels, clients, seed)
    return {"dirichlet": dirichlet, "zipf": zipf}[how](labels, clients, alpha, seed)


def by_label(labels: Tensor, clients: int) -> list[Tensor]:
    """Sorted by label, then cut into blocks: nearly every client holds one class (the paper's way).

    The blocks' sizes differ by at most one. All rows are given away: those left out would be of one class.
    """
    _check(len(labels), clients)
    return list(torch.argsort(labels, stable=True).tensor_split(clients))


def zipf(labels: Tensor, clients: int, alpha: float, seed: int) -> list[Tensor]:
    """By label, but of unequal sizes: the k-th largest client has about 1 / k^alpha of what the largest has.

    Who is large is drawn. Everybody has at least one row.
    """
    _check(len(labels), clients)
    check_alpha(alpha)
    ranks = _shuffled(torch.arange(1, clients + 1), seed, RANKS)
    shares = ranks.to(torch.float64) ** -alpha
    more = (shares.cumsum(0) / shares.sum() * (len(labels) - clients)).round().to(torch.int64)
    cuts = (more + torch.arange(1, clients + 1))[:-1]
    return list(torch.argsort(labels, stable=True).tensor_split(cuts))


def iid(labels: Tensor, clients: int, seed: int) -> list[Tensor]:
    """Shuffled, then cut into blocks whose sizes differ by at most one."""
    _check(len(labels), clients)
    return list(_shuffled(torch.arange(len(labels)), seed, 0).tensor_split(clients))


def dirichlet(labels: Tensor, clients: int, alpha: float, seed: int) -> list[Tensor]:
    """Each class is divided in proportions drawn from Dirichlet(alpha): the smaller alpha, the more unequal.

    Every client gets at least one row: those left without any take one each from the largest.
    """
    _check(len(labels), clients)
    check_alpha(alpha)
    shares: list[list[Tensor]] = [[] for _ in range(clients)]
    for number, label in enumerate(labels.unique().tolist()):
        rows = _shuffled((labels == label).nonzero().flatten(), seed, 1 + 2 * number)
        proportions = _dirichlet(clients, alpha, draws.key(draws.PROBLEM, seed, 2 + 2 * number))
        cuts = (proportions.cumsum(0)[:-1] * len(rows)).round().to(torch.int64).clamp(0, len(rows))
        for share, part in zip(shares, rows.tensor_split(cuts), strict=True):
            share.append(part)
    parts = [torch.cat(share) for share in shares]
    for client in [client for client, part in enumerate(parts) if not len(part)]:
        largest = max(range(clients), key=lambda other: len(parts[other]))
        parts[client], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return parts


def by_column(column: Tensor) -> list[Tensor]:
    """One client for each value of a column, in the order of the values."""
    values, where = column.unique(return_inverse=True)
    return list(
        torch.argsort(where, stable=True).split(torch.bincount(where, minlength=len(values)).tolist())
    )


def in_pieces(parts: list[Tensor], most: int, seed: int) -> list[Tensor]:
    """Clients with more rows than that as several, which share theirs at random: none has more then."""
    return [
        piece
        for number, rows in enumerate(parts)
        for piece in (
            _shuffled(rows, seed, PIECES + number).tensor_split(math.ceil(len(rows) / most))
            if len(rows) > most
            else (rows,)
        )
    ]


def held_out(
    labels: Tensor, share: float, seed: int, owners: Tensor | None = None, what: int = SPLIT
) -> Tensor:
    """Which rows are set aside, for the test or else: a share of each class, never a client's last row.

    A class keeps at least one row to learn from and, where its clients can spare one, gives one.
    """
    rank = torch.empty_like(labels)
    rank[_shuffled(torch.arange(len(labels)), seed, what)] = torch.arange(len(labels))
    bound = torch.zeros(len(labels), dtype=torch.bool)
    if owners is not None:
        # The row that comes last in the shuffled order stays with its client.
        last = torch.zeros(int(owners.max()) + 1, dtype=torch.int64).scatter_reduce(0, owners, rank, "amax")
        bound = rank == last[owners]
    out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        count = min(max(1, round(share * len(members))), len(members) - 1)
        free = members[~bound[members]]
        out[free[torch.argsort(rank[free])[:count]]] = True
    return out


def _shuffled(rows: Tensor, seed: int, what: int) -> Tensor:
    return rows[torch.argsort(draws.words(draws.key(draws.PROBLEM, seed, what), len(rows)), stable=True)]


def _dirichlet(count: int, alpha: float, key: Tensor) -> Tensor:
    """Proportions from gammas, by Marsaglia and Tsang's rejection: the first of 64 tries that is accepted."""
    boosted = alpha + 1  # below one the method needs a boost: Gamma(a) = Gamma(a + 1) U^(1/a)
    d = boosted - 1 / 3
    c = 1 / math.sqrt(9 * d)
    normals = draws.normal(draws.fold(key, 0), count, 64)
    chances = draws.uniform(draws.fold(key, 1), count, 64) + 2.0**-54
    v = (1 + c * normals) ** 3
    accepted = (v > 0) & (
        torch.log(chances) < 0.5 * normals**2 + d - d * v + d * torch.log(v.clamp(min=1e-300))
    )
    first = accepted.to(torch.int64).argmax(dim=1, keepdim=True)
    log_gamma = torch.log(d * v.gather(1, first)[:, 0])
    log_boost = torch.log(draws.uniform(draws.fold(key, 2), count) + 2.0**-54) / alpha
    return torch.softmax(
        log_gamma + log_boost, dim=0
    )  # in logarithms, where a small alpha does not underflow
