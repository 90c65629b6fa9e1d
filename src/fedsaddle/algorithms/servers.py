"""Servers that several rules have: what they know, what they send, and where they go on.

What a client computes, and what is merged otherwise, is in the file of each rule.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedsaddle.core import Client, Gradients, Message, Pair, Parameters, Phase, Reply, Turn, zeros_like


class Point(NamedTuple):
    z: Pair


class Corrected(NamedTuple):
    z: Pair
    u: Pair  # the correction


class AtPoint:
    """A server that knows a point alone."""

    def init(self, z: Pair) -> Point:
        return Point(z)

    def send(self, server: Point) -> Message:
        return {"z": server.z}


class Averaging(AtPoint):
    """One that goes on at the mean of the ends of its clients' walks."""

    def average(self, server: Point, turn: Turn, z: Parameters) -> Point:
        return Point(z)


class Tracking:
    """A server whose clients' walks are corrected by u = mean_i g_i(z), of another cohort."""

    def init(self, z: Pair) -> Any:
        return Corrected(z, zeros_like(z))

    def send_point(self, server: Any) -> Message:
        return {"z": server.z}

    def collect(self, client: Client, z: Parameters) -> Reply:
        return Reply({"g": client.full_grad(z)})

    def correct(self, server: Any, turn: Turn, g: Gradients) -> Any:
        return server._replace(u=g)

    def send_correction(self, server: Any) -> Message:
        return {"z": server.z, "u": server.u}

    @property
    def collecting(self) -> Phase:
        return Phase("collect", self.send_point, self.collect, self.correct)
