"""DeepGMM (Bennett, Kallus and Schnabel 2019): x = the response g, y = the critic f of its moments.

    f(x, y) = E[f(Z) (Y - g(X))] - 1/4 E[f(Z)^2 (Y - g~(X))^2]

X and Y have a cause e in common that nobody sees, so a regression of Y on X is wrong. Instruments Z move X
and know nothing of e: at the true g0 every E[f(Z) (Y - g0(X))] is zero. The critic looks for a moment that is
not, and weighs it by its variance. g~ is the present g, held constant: x descends the first mean alone.

    Z ~ U[-3, 3]^2,    X = Z_1 + e + 0.1 c,    Y = g0(X) + e + 0.1 d,    e, c, d ~ N(0, 1)

g0 is known, so a point is judged by it. Y is standardised by the training rows, and g0 with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

import torch
from torch import Tensor, nn

from fedsaddle import draws, networks
from fedsaddle.blueprint import Blueprint, Piece, Response
from fedsaddle.core import Count, Pair, Range
from fedsaddle.data.datasets import Scaling
from fedsaddle.data.reading import Reader
from fedsaddle.errors import BadInput, unknown
from fedsaddle.metric import Metric
from fedsaddle.networks import Network
from fedsaddle.problem import Batch, Federation, Measured
from fedsaddle.ranges import Rate, Seed, check

RESPONSES: dict[str, Callable[[Tensor], Tensor]] = {
    "sine": torch.sin,
    "step": lambda x: (x >= 0).to(x.dtype),
    "abs": torch.abs,
    "linear": lambda x: x,
}
REACH = 3.0  # of an instrument, to both sides
DRAWN = {"train": 0, "validation": 1, "test": 2}  # what rows are for, in the keys of their draws
WAVES = 6  # cosines along each instrument that the moments are looked at by


@dataclass(frozen=True)
class DeepGMM(Measured):
    """A response that is estimated by instruments, over clients that hold their own rows.

    Clients differ by their first instrument: a part of a client's rows, its `heterogeneity`, has it in the
    client's own slice of [-3, 3], and the others anywhere. All clients together have it anywhere, whatever
    the part is.
    """

    g0: str = "sine"  # sine, step, abs or linear
    rows: Count = 2000  # of all clients together
    held_out: Annotated[int, Range(least=2)] = 2000  # test rows, and as many to validate by
    clients: Count = 50
    heterogeneity: Rate = 0.5
    hidden: Count = 32  # units of both layers of g and of f
    seed: Seed = 0  # of the rows

    def __post_init__(self) -> None:
        if self.g0 not in RESPONSES:
            raise unknown("g0", self.g0, RESPONSES)
        check(self)
        if self.rows < self.clients:
            raise BadInput(f"rows must be at least one for each of {self.clients} clients, got {self.rows}")

    # --- who holds what ---

    def drawn(self, purpose: str, rows: int, low: Tensor, high: Tensor) -> dict[str, Tensor]:
        """Rows whose first instrument is between two numbers, one pair a row."""

        def key(number: int) -> Tensor:
            return draws.key(draws.PROBLEM, self.seed, DRAWN[purpose], number)

        z = REACH * (2 * draws.uniform(key(0), rows, 2) - 1)
        z[:, 0] = low + (high - low) * draws.uniform(key(1), rows)
        e, c, d = draws.normal(key(2), 3, rows)
        x = z[:, 0] + e + 0.1 * c
        g0 = RESPONSES[self.g0](x)
        return {"z": z, "x": x[:, None], "y": g0 + e + 0.1 * d, "g0": g0}

    @cached_property
    def _train(self) -> tuple[dict[str, Tensor], Tensor]:
        """The training rows before they are standardised, and how many each client has."""
        sizes = torch.full((self.clients,), self.rows // self.clients)
        sizes[: self.rows % self.clients] += 1
        client = torch.arange(self.clients).repeat_interleave(sizes)
        own = (
            draws.uniform(draws.key(draws.PROBLEM, self.seed, DRAWN["train"], 3), self.rows)
            < self.heterogeneity
        )
        low = torch.where(own, 2 * REACH * client / self.clients - REACH, -REACH)
        high = torch.where(own, low + 2 * REACH / self.clients, REACH)
        return self.drawn("train", self.rows, low.double(), high.double()), sizes

    def _standardised(self, table: dict[str, Tensor]) -> dict[str, Tensor]:
        y = self._train[0]["y"]
        changed = {name: (table[name] - y.mean()) / y.std() for name in ("y", "g0")}
        return {name: column.float() for name, column in (table | changed).items()}

    @cached_property
    def federation(self) -> Federation:
        table, sizes = self._train
        rows = self._standardised(table)
        del rows["g0"]  # which no client knows
        return Federation(rows, sizes)

    def _held(self, purpose: str) -> Federation:
        low = torch.full((self.held_out,), -REACH, dtype=torch.float64)
        rows = self._standardised(self.drawn(purpose, self.held_out, low, -low))
        return Federation(rows, torch.tensor([self.held_out]))

    @cached_property
    def validation(self) -> Federation:
        return self._held("validation")

    @cached_property
    def test(self) -> Federation:
        return self._held("test")

    # --- the game ---

    @cached_property
    def g(self) -> Network:
        return Network(partial(networks.mlp, 1, 1, self.hidden))

    @cached_property
    def f(self) -> Network:
        return Network(partial(networks.mlp, 2, 1, self.hidden))

    def init(self, seed: int) -> Pair:
        """PyTorch's initialisation of both networks."""
        x, y = (int(draws.key(draws.INIT, seed, player)) for player in (0, 1))
        return Pair(self.g.init(x), self.f.init(y))

    def loss(self, z: Pair, xi: Batch) -> Tensor:
        residual = xi.rows["y"].to(z.x.dtype) - self.g(z.x, xi.rows["x"].to(z.x.dtype)).squeeze(1)
        critic = self.f(z.y, xi.rows["z"].to(z.y.dtype)).squeeze(1)
        return xi.mean(critic * residual - (critic * residual.detach()).square() / 4)

    # --- what it has learnt ---

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """The response, in the unit of Y, and the critic."""
        made = self.blueprint.whole({"g": self.g.at(z.x), "f": self.f.at(z.y)})
        y = self._train[0]["y"]
        made["g"].outputs = nn.Sequential(Response(float(y.mean()), float(y.std())))
        return made

    @cached_property
    def blueprint(self) -> Blueprint:
        """How both are built: the response of a file's column x, and the critic of instruments."""
        as_it_is = Scaling(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
        reader = Reader(".csv", "y", "client", {"x": ()}, (1,), "float64", as_it_is, ())
        g, f = ({"features": features, "outputs": 1, "hidden": self.hidden} for features in (1, 2))
        parts = {"g": Piece("mlp", g, "response"), "f": Piece("mlp", f, "moment", takes=("z_1", "z_2"))}
        return Blueprint(parts, reader)

    def violation(self, x: Tensor, rows: dict[str, Tensor]) -> Tensor:
        """The mean square of what the instruments tell of the residual, as far as few cosines can."""
        residual = rows["y"].to(x.dtype) - self.g(x, rows["x"].to(x.dtype)).squeeze(1)
        wave = torch.arange(1, WAVES + 1, device=x.device)
        angle = torch.pi / 2 * (rows["z"].to(x.dtype) / REACH + 1)
        along = 2**0.5 * torch.cos(angle[:, :, None] * wave).flatten(1)  # orthonormal, each of mean zero
        found: Tensor = residual.mean().square() + (residual @ along / len(residual)).square().sum()
        return found

    def measure(self, z: Pair) -> dict[str, Tensor]:
        """The distance from g0, and the moments that are left."""
        test, held, train = (
            rows.to(z.x.device).rows for rows in (self.test, self.validation, self.federation)
        )
        error = self.g(z.x, test["x"].to(z.x.dtype)).squeeze(1) - test["g0"].to(z.x.dtype)
        return {
            "test_mse": error.square().mean(),
            "validation_moments": self.violation(z.x, held),
            "train_moments": self.violation(z.x, train),
        }

    @property
    def metrics(self) -> dict[str, Metric]:
        return {
            "test_mse": Metric("low", rows="test", chance=float(self.test.rows["g0"].var(correction=0))),
            "validation_moments": Metric("low", rows="validation"),
            "train_moments": Metric("low", rows="train"),
        }
