"""Generative adversarial networks (Goodfellow 2014): x = the generator G, y = the discriminator D.

    f = E log sigma(D(a))  +  E log(1 - sigma(D(G(w)))),        w ~ U[-1, 1]^100, D gives logits

y ascends f. What x descends is a named objective:

    saturating        f itself, the paper's minimax problem; its slope vanishes where D is sure of itself
    non-saturating    -E log sigma(D(G(w))), which the authors' release descends: a game without a common loss
    wasserstein       another f, E D(a) - E D(G(w)), of which y also pays a penalty (Gulrajani 2017):

    penalty E(|grad D(m)| - 1)^2,        m = u a + (1 - u) G(w), u ~ U[0, 1]

The noise of a batch is drawn from its key, one vector for each of its rows; so are the u. So two gradients on
the same xi share all their randomness, as the corrections of CDMA need. Both players use the same noise; with
`noise = "apart"` G's slope has a draw of its own, as in the authors' release. Batch normalisation uses the
batch's own statistics, in training and when pictures are made to be judged (a hundred at a time). A full
local gradient takes all rows of a client as one batch, or as batches of `chunk` rows, as the release does:
these are two functions, for a mean over 120 rows is not the mean of four over 30.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fedsaddle import draws, judges, networks, scores
from fedsaddle.blueprint import Blueprint, Piece
from fedsaddle.core import Count, Pair, Range, zeros_like
from fedsaddle.data import celeba
from fedsaddle.data.datasets import DATASETS, Dataset, scaled
from fedsaddle.data.devices import DEVICES, Columns, Local, OnDevices
from fedsaddle.data.federated import set_aside
from fedsaddle.data.partition import divide, idle_dials
from fedsaddle.errors import BadInput, unknown, without_effect
from fedsaddle.judges import Judge
from fedsaddle.metric import Metric
from fedsaddle.networks import NOISE, BatchNorm, Network
from fedsaddle.problem import Batch, Federation
from fedsaddle.ranges import Above0, CountOr0, Seed, check


def logsigmoid(logits: Tensor) -> Tensor:
    """PyTorch's own cannot be mapped twice on a GPU."""
    return -softplus(-logits)


class Objective(NamedTuple):
    """What the players play for, as functions of D's outputs."""

    real: Callable[[Tensor], Tensor]  # f is this of the real pictures
    fake: Callable[[Tensor], Tensor]  # and this of the generated ones
    descends: Callable[[Tensor], Tensor]  # x, of the generated ones
    bounded: bool = False  # whether D's slope is penalised


OBJECTIVES = {
    "saturating": Objective(
        logsigmoid, lambda logits: logsigmoid(-logits), lambda logits: logsigmoid(-logits)
    ),
    "non-saturating": Objective(
        logsigmoid, lambda logits: logsigmoid(-logits), lambda logits: -logsigmoid(logits)
    ),
    "wasserstein": Objective(
        lambda outputs: outputs, lambda outputs: -outputs, lambda outputs: -outputs, True
    ),
}
# What a batch's key is folded with, for the u, for noise of G's own and for chunks; noise is numbered from 0.
MIXTURE, OTHER_NOISE, CHUNKS = 1 << 40, 1 << 41, 1 << 42
PLAYERS = {  # generator, discriminator, and the pictures they are for
    "digits": (networks.digits_generator, networks.digits_discriminator, (1, 8, 8)),
    "mnist": (networks.mnist_generator, networks.mnist_discriminator, (1, 28, 28)),
    "dcgan": (networks.dcgan_generator, networks.dcgan_discriminator, (3, 64, 64)),
}
DATA = ("digits", "mnist", "fashion-mnist", "celeba")
JUDGES = ("small", "resnet18", "inception")
GAN_PARTITIONS = ("label", "iid", "dirichlet", DEVICES)
PICTURES_TOGETHER = 100  # pictures that are made together, as in the release: they share batch statistics
LOSS_ROWS = 1_000  # of the test rows and of the generated pictures, that the losses are judged by
SHOWN = 64  # pictures in a grid
TWO_KINDS = 2.0  # an Inception Score up to this is that of one or two kinds of pictures, over and over
NO_SLOPE = 1e-12  # added to a squared one, so that its root has a slope at 0
TABLE = 1 << 33  # what the noise of an evaluation is drawn for; the partitions' draws are numbered from 0


@dataclass(frozen=True)
class GAN(OnDevices):
    """A generator and a discriminator, over clients that hold their own pictures."""

    dataset: str = "digits"  # digits, mnist, fashion-mnist or celeba
    clients: Count = 50
    partition: str = "label"  # label (in celeba, whose face it is), iid, dirichlet or devices
    alpha: float = 0.5  # of dirichlet
    network: str = "digits"  # digits, mnist or dcgan
    objective: Literal["saturating", "non-saturating", "wasserstein"] = "saturating"
    penalty: Above0 = 10.0  # of wasserstein: what y pays for a slope of D that is not 1
    noise: Literal["shared", "apart"] = "shared"  # whether G's slope has the noise of D's, or its own
    chunk: CountOr0 = 0  # rows of a gradient that are normalised together; with 0, all
    judge: str = "small"  # small, resnet18 or inception
    judge_epochs: CountOr0 = 0  # that a classifier is trained for; with 0, as its recipe says
    splits: Literal["disjoint", "nested"] = "disjoint"  # of the Inception Score
    samples: Annotated[int, Range(least=PICTURES_TOGETHER, most=10**6)] = 10_000  # pictures that are judged
    seed: Seed = 0  # of the partition
    # Of each class's training pictures, kept from the clients to choose settings by:
    validation_share: Annotated[float, Range(least=0, below=1)] = 0.0
    path: str = ""  # of a folder of faces; by default, what `fedsaddle data celeba --from FOLDER` keeps
    sha256: str = ""  # of these faces; if given, others are refused
    inception: str = ""  # a TorchScript file; by default, what `fedsaddle data inception` gets
    _local: Local = field(default_factory=Local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, given, known in (
            ("dataset", self.dataset, DATA),
            ("partition", self.partition, GAN_PARTITIONS),
            ("network", self.network, PLAYERS),
            ("objective", self.objective, OBJECTIVES),
            ("noise", self.noise, ("shared", "apart")),
            ("judge", self.judge, JUDGES),
            ("splits", self.splits, scores.SPLITS),
        ):
            if given not in known and not (what == "dataset" and ":" in given and given in DATASETS):
                raise unknown(what, given, known)
        check(self)
        if self.judge != "inception" and (self.dataset, self.judge) not in judges.RECIPES:
            able = [size for name, size in judges.RECIPES if name == self.dataset] + ["inception"]
            raise BadInput(f"judge {self.judge} does not know {self.dataset}; what does: {', '.join(able)}")
        if self.dataset == "celeba" and self.sha256 not in ("", *self.data.sha256):
            now = ", ".join(self.data.sha256)
            raise BadInput(f"the faces have changed: their sha256 is {now}, not {self.sha256}")
        fits = PLAYERS[self.network][2]
        shape = tuple(self.data.inputs.shape[1:])
        if fits != shape:
            raise BadInput(f"network {self.network} makes pictures of {fits}, {self.dataset} has {shape}")
        if self.away and self.validation_share:
            raise BadInput("with partition devices no rows are here to be set aside: no validation_share")
        self.parts  # noqa: B018  a partition that cannot be made is refused here
        if self.rule.bounded and any(isinstance(layer, BatchNorm) for layer in self.D.module.modules()):
            able = [name for name in PLAYERS if name != self.network]
            raise BadInput(
                f"objective {self.objective} penalises D's slope at each picture, but the discriminator of "
                f"{self.network} normalises batches, so that it depends on the others; try {', '.join(able)}"
            )
        self.G, self.D  # noqa: B018  made now: inside a gradient no parameter can be

    @property
    def pinned(self) -> dict[str, str]:
        """What an experiment has to say to mean the same files again."""
        found = {}
        if self.dataset == "celeba":
            found = {"path": str(celeba.folder_of(self.path).resolve())}
            found |= dict(zip(("sha256",), self.data.sha256, strict=False))
        return found | ({"inception": str(Path(self.inception).resolve())} if self.inception else {})

    @property
    def notes(self) -> list[str]:
        """What was asked for and has no effect."""
        idle = idle_dials(self.partition)
        if self.validation_share:
            idle.pop("seed", None)
        if self.dataset != "celeba":
            idle["path"] = idle["sha256"] = f"it is of celeba, not of {self.dataset}"
        if not self.rule.bounded:
            idle["penalty"] = f"it is of objective wasserstein, not of {self.objective}"
        if self.judge == "inception":
            idle["splits"] = "judge inception gives no Inception Score"
            idle["judge_epochs"] = "judge inception is not trained here"
        else:
            idle["inception"] = f"it is of judge inception, not of {self.judge}"
        return without_effect(self, idle)

    # --- who holds what ---

    @cached_property
    def data(self) -> Dataset:
        return celeba.celeba(self.path) if self.dataset == "celeba" else DATASETS[self.dataset]()

    def read(self, path: str) -> Columns:
        """A device's pictures, whatever its file says of classes."""
        return {"real": self.reader.rows(path)}

    @cached_property
    def parts(self) -> list[Tensor]:
        if self.away:
            return [torch.arange(1)] * self.clients  # nobody looks at them
        rows, _ = set_aside(self.data, self.validation_share, self.seed)
        parts = divide(self.data.labels[rows], self.partition, self.clients, self.alpha, self.seed, None)
        return [rows[part] for part in parts]

    @cached_property
    def federation(self) -> Federation:
        if self._local.rows is not None:
            return self._local.rows
        sizes = torch.tensor([len(part) for part in self.parts])
        return Federation(rows={"real": self.data.inputs[torch.cat(self.parts)]}, sizes=sizes)

    # --- the game ---

    @cached_property
    def G(self) -> Network:
        return Network(PLAYERS[self.network][0])

    @cached_property
    def D(self) -> Network:
        return Network(PLAYERS[self.network][1])

    @property
    def rule(self) -> Objective:
        return OBJECTIVES[self.objective]

    def init(self, seed: int) -> Pair:
        """Xavier's weights in linear and transposed layers, but not in dcgan; PyTorch's own elsewhere."""
        x, y = (int(draws.key(draws.INIT, seed, player)) for player in (0, 1))
        return Pair(self.G.init(x), self.D.init(y))

    def drawn(self, xi: Batch, like: Tensor) -> Tensor:
        """(row, 100) in [-1, 1]; a row's does not depend on how many rows there are."""
        return (2 * draws.uniform(xi.key, len(xi.weight), NOISE) - 1).to(like.dtype)

    def field(self, z: Pair, xi: Batch) -> Pair:
        """What x descends and what y ascends, over all rows as one batch or over chunks of them."""
        if not self.chunk or len(xi.weight) <= self.chunk:
            return self.slopes(z, xi)
        found = zeros_like(z)
        for number, start in enumerate(range(0, len(xi.weight), self.chunk)):
            rows = slice(start, start + self.chunk)
            part = xi.weight[rows].sum()
            # Rows that only pad a client may fill a chunk: it counts nothing, and must not divide by that.
            weight = torch.where(part > 0, xi.weight[rows] / part, 1 / len(xi.weight[rows]))
            key = draws.fold(xi.key, CHUNKS + number)
            some = xi._replace(rows={"real": xi.rows["real"][rows]}, weight=weight, key=key)
            found = found + part.to(z.x.dtype) * self.slopes(z, some)
        return found

    def slopes(self, z: Pair, xi: Batch) -> Pair:
        """Those of both players on one batch."""
        found = self.played(z, xi, self.drawn(xi, z.x))
        if self.noise == "shared":
            return found
        other = xi._replace(key=draws.fold(xi.key, OTHER_NOISE))
        return Pair(self.played(z, xi, self.drawn(other, z.x)).x, found.y)

    def played(self, z: Pair, xi: Batch, noise: Tensor) -> Pair:
        """D sees real and generated pictures by themselves, and each once, for both players."""
        weight, real = xi.weight.to(z.y.dtype), scaled(xi.rows["real"], z.y.dtype)

        def ascends(y: Tensor) -> tuple[Tensor, Tensor]:
            def descends(x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
                fake = self.G(x, noise, weight)
                on_fake = self.D(y, fake, weight).squeeze(1)
                return xi.mean(self.rule.descends(on_fake)), (on_fake, fake)

            slope, (on_fake, fake) = torch.func.grad(descends, has_aux=True)(z.x)
            right = self.rule.real(self.D(y, real, weight).squeeze(1)) + self.rule.fake(on_fake)
            if self.rule.bounded:
                right = right - self.penalty * self.steepness(y, self.between(xi, real, fake), weight)
            return xi.mean(right), slope

        climb, slope = torch.func.grad(ascends, has_aux=True)(z.y)
        return Pair(slope, climb)

    def between(self, xi: Batch, real: Tensor, fake: Tensor) -> Tensor:
        """A picture for each row, somewhere between the real and the generated one."""
        u = draws.uniform(draws.fold(xi.key, MIXTURE), len(xi.weight)).to(real.dtype)[:, None, None, None]
        return u * real + (1 - u) * fake

    def steepness(self, y: Tensor, pictures: Tensor, weight: Tensor) -> Tensor:
        """How far D's slope at each picture is from 1, squared."""
        slopes = torch.func.grad(lambda pictures: self.D(y, pictures, weight).sum())(pictures)
        norms: Tensor = (slopes.flatten(1).square().sum(1) + NO_SLOPE).sqrt()
        return (norms - 1).square()

    # --- what it has learnt ---

    def generate(self, x: Tensor, count: int) -> list[Tensor]:
        """Pictures in [-1, 1] from the same noise for all generators, a hundred at a time."""
        key = draws.key(draws.PROBLEM, torch.full((), TABLE, device=x.device))
        noise = (2 * draws.uniform(key, count, NOISE) - 1).to(x.dtype)
        return [self.G(x, some, _equal(some)) for some in noise.split(PICTURES_TOGETHER)]

    @cached_property
    def blueprint(self) -> Blueprint:
        """How both networks are built, with what comes before and after them."""
        parts = {
            "generator": Piece(f"{self.network}-generator", {}, "picture", noise=NOISE),
            "discriminator": Piece(f"{self.network}-discriminator", {}, "logit"),
        }
        return Blueprint(parts, self.reader, together=PICTURES_TOGETHER)

    def models(self, z: Pair) -> dict[str, nn.Module]:
        """What makes pictures in [-1, 1] of noise, and what gives one in bytes the logit of being real."""
        return self.blueprint.whole({"generator": self.G.at(z.x), "discriminator": self.D.at(z.y)})

    def pictures(self, z: Pair) -> dict[str, Tensor]:
        """The first generated pictures, as bytes."""
        fake = self.generate(z.x, PICTURES_TOGETHER)[0][:SHOWN]
        return {"samples": ((fake + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)}

    def originals(self) -> dict[str, Tensor]:
        """As many real pictures, evenly chosen from the test rows, to be laid beside the generated ones."""
        rows = self.data.test_inputs
        real = scaled(rows[torch.arange(SHOWN) * len(rows) // SHOWN], torch.float32)
        return {"samples": ((real + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)}

    @cache  # noqa: B019  a problem lives as long as its program
    def _judge(self, device: torch.device) -> tuple[Judge, dict[str, scores.Moments]]:
        """Who judges, and what it sees in the test rows, and in those that were set aside."""
        if self.judge == "inception":
            judge = judges.inception(self.inception, device)
        else:
            judge = judges.classifier(self.dataset, self.judge, self.data, device, self.judge_epochs)
        rows = {"": self.data.test_inputs}
        if self.validation_share:
            rows["validation_"] = self.data.inputs[set_aside(self.data, self.validation_share, self.seed)[1]]
        return judge, {name: judges.real_moments(judge, own, device) for name, own in rows.items()}

    @cache  # noqa: B019
    def real_scores(self, device: torch.device) -> dict[str, float]:
        """What real pictures score: those of the test rows, and how far as many training rows are from them.

        No generator should be expected to do better.
        """
        judge, real = self._judge(device)
        rows = self.data.inputs
        some = rows[torch.arange(min(self.samples, len(rows))) * len(rows) // min(self.samples, len(rows))]
        near = self.scored(judge, judges.look(judge, some, device), {"": real[""]})
        own = self.scored(judge, judges.look(judge, self.data.test_inputs, device), {})
        return near | own

    def scored(self, judge: Judge, features: Tensor, real: dict[str, scores.Moments]) -> dict[str, float]:
        """Inception Score, if the judge tells classes, and Frechet distances, or FID, to these moments."""
        found = {}
        if judge.probabilities is not None:
            splits = scores.SPLITS[self.splits](len(features), 10)
            found["inception_score"] = scores.inception_score(judge.probabilities(features), splits)
        if real:
            name, seen = "fid" if judge.probabilities is None else "frechet", scores.moments(features)
            found |= {f"{rows}{name}": scores.frechet_distance(seen, own) for rows, own in real.items()}
        return found

    @property
    def metrics(self) -> dict[str, Metric]:
        name = "fid" if self.judge == "inception" else "frechet"
        score = {"inception_score": Metric("high", rows="none", chance=TWO_KINDS)}
        found = {} if self.judge == "inception" else score
        found[name] = Metric("low", rows="test")
        if self.validation_share:
            found[f"validation_{name}"] = Metric("low", rows="validation")
        return found | {
            "f": Metric("neither", rows="test"),
            "generator_loss": Metric("neither", rows="none"),
        }

    def evaluate(self, z: Pair) -> dict[str, float]:
        """Inception Score and Frechet distance by a classifier, or FID by Inception; both players' losses."""
        judge, real = self._judge(z.x.device)
        fakes = self.generate(z.x, self.samples)
        features = torch.cat([judges.look(judge, fake, z.x.device) for fake in fakes])
        found = self.scored(judge, features, real)
        return found | self.losses(z, torch.cat(fakes[: LOSS_ROWS // PICTURES_TOGETHER]))

    def losses(self, z: Pair, fake: Tensor) -> dict[str, float]:
        """What both players play for, on test rows and generated pictures."""
        real = scaled(self.data.test_inputs[:LOSS_ROWS].to(z.x.device), z.x.dtype)
        on_real, on_fake = (
            torch.cat([self.D(z.y, some, _equal(some)).squeeze(1) for some in rows.split(PICTURES_TOGETHER)])
            for rows in (real, fake)
        )
        return {
            "f": float(self.rule.real(on_real).mean() + self.rule.fake(on_fake).mean()),
            "generator_loss": float(self.rule.descends(on_fake).mean()),
        }


def _equal(rows: Tensor) -> Tensor:
    return torch.full((len(rows),), 1 / len(rows), dtype=rows.dtype, device=rows.device)
