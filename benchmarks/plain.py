"""The plain loop: one client after another, as a careful person writes it with PyTorch alone.

One module; its parameters are set to the server's before each visit, gradients come from autograd.grad, and
nothing is copied that need not be. What a round does is CDMA-NC or CDMA-ADA (docs/algorithms.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.work import Clock, Order, answer
from fedsaddle.engine import machine


class Plain:
    """A server and its clients, in turn."""

    def __init__(self, order: Order) -> None:
        self.order, self.rule, self.model = order, order.rule, order.model()
        self.x, self.y = self.model.descending(), self.model.ascending()
        self.w = [*self.x, *self.y]  # where the client that is visited stands
        self.z = [value.detach().clone() for value in self.w]
        self.z_old, self.u = self.z, [torch.zeros_like(value) for value in self.z]
        self.collect = order.tensor("collect").tolist()  # (round, visit): whose gradients are collected
        self.t = 0

    def play(self, round: int) -> None:
        (self._nc if self.rule["algorithm"] == "cdma-nc" else self._ada)(round)
        self.t += 1

    @torch.no_grad()
    def _set(self, values: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.w, values)

    @torch.no_grad()
    def _step(self, d: list[Tensor], eta: float, gamma: float) -> None:
        torch._foreach_add_(self.x, d[: len(self.x)], alpha=-eta)
        torch._foreach_add_(self.y, d[len(self.x) :], alpha=gamma)

    def _nc(self, round: int) -> None:
        total = [torch.zeros_like(value) for value in self.z]
        for visit in range(self.order.visits):
            self._set(self.z)
            for inputs, labels in self._minibatches(round, visit):
                self._step(self.model.grads(inputs, labels), self.rule["eta"], self.rule["gamma"])
            self._add(total, self.w)
        self.z = self._divided(total)

    def _ada(self, round: int) -> None:
        decay = (self.t + 1) ** self.rule["rho"]
        past = 0.0 if self.t == 0 else 1 - min(1.0, self.rule["c_alpha"] / decay**2)

        g = [torch.zeros_like(value) for value in self.z]
        self._set(self.z)
        for client in self.collect[round]:
            self._add(g, self.model.grads(*self.order.client(client)))
        if past:
            self._set(self.z_old)
            for client in self.collect[round]:
                self._add(g, self.model.grads(*self.order.client(client)), -past)
        torch._foreach_mul_(self.u, past)
        torch._foreach_add_(self.u, self._divided(g))

        total = [torch.zeros_like(value) for value in self.z]
        for visit in range(self.order.visits):
            self._set(self.z)
            minibatches = self._minibatches(round, visit)
            at_start = [self.model.grads(*minibatch) for minibatch in minibatches]
            for minibatch, known in zip(minibatches, at_start, strict=True):
                d = self.model.grads(*minibatch)
                torch._foreach_add_(d, self.u)
                torch._foreach_sub_(d, known)
                self._step(d, self.rule["c_eta"] / decay, self.rule["c_gamma"] / decay)
            self._add(total, self.w)
        self.z_old, self.z = self.z, self._divided(total)

    def _minibatches(self, round: int, visit: int) -> list[tuple[Tensor, Tensor]]:
        inputs, labels = self.order.minibatches(round, visit)
        size = self.rule["batch"]
        return list(zip(inputs.split(size), labels.split(size), strict=True))

    @torch.no_grad()
    def _add(self, total: list[Tensor], values: Sequence[Tensor], weight: float = 1.0) -> None:
        torch._foreach_add_(total, values, alpha=weight)

    def _divided(self, total: list[Tensor]) -> list[Tensor]:
        torch._foreach_div_(total, self.order.visits)
        return total

    def point(self) -> tuple[Tensor, Tensor]:
        """x and y of the server as flat vectors."""
        flat = nn.utils.parameters_to_vector
        return flat(self.z[: len(self.x)]), flat(self.z[len(self.x) :])


def main(folder: str, device: str) -> None:
    machine.prepare()  # the loop may keep freed memory too
    order = Order(folder, device)
    plain = Plain(order)
    clock = Clock(device, order.rounds).run(plain.play)
    answer(order, clock, *plain.point())


if __name__ == "__main__":
    main(*sys.argv[1:3])
