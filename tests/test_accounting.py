"""Floats up, down and late, exactly: the formula of every algorithm, by variable and by kind.

p and q are the sizes of x and y; a phase invites I clients, uses the answers of S and gets L late.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import pytest

import fedsaddle as fs
from fedsaddle.core import Parameters, Phase, Reply
from fedsaddle.engine.course import traffic
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from zoo import ALGORITHMS, NEWER, quadratic

P, Q = 3, 4
Z = {("x", "parameters"): P, ("y", "parameters"): Q}  # an iterate
G = {("x", "gradients"): P, ("y", "gradients"): Q}  # a gradient or a correction
C = {("x", "control variates"): P, ("y", "control variates"): Q}  # a control variate
X = {("x", "parameters"): P}  # the x of an iterate: a snapshot, a centre
Y = {("y", "parameters"): Q}
GX, GY = {("x", "gradients"): P}, {("y", "gradients"): Q}  # one player's part of a gradient

# For each phase: what one invitation carries, what one answer carries.
FORMULAS = {
    "cdma-nc": [([Z], [Z])],
    "cdma-one": [([Z], [G]), ([Z, G], [Z])],
    "cdma-ada": [([Z, Z], [G]), ([Z, G], [Z])],
    "parallel-sgda": [([Z], [G])],
    "local-sgda-plus": [([Z, X], [Z])],
    "extra-step": [([Z], [Z])],
    "coda-plus": [([Z, X], [Z])],
    "codasca": [([Z, X, C], [Z, C])],
    "catalyst-scaffold-s": [([Z], [G]), ([Z, Z, G], [Z])],
    "fsgda": [([Z], [Z])],
    "fess-gda": [([Z], [Z])],
    "momentum-local-sgda": [([Z], [Z])],
    "fedavg-m": [([Z, G], [Z])],
    "sagda": [([Z], [G]), ([Z, G], [Z])],
    "sagda-minibatch": [([Z], [G]), ([Z, G], [Z])],
    "fedgda-gt": [([Z], [G]), ([Z, G], [Z])],
    "fgda": [([Z, G], [Z, G])],
    "adafgda": [([Z, G, G], [Z, G])],
    "fednest": [([Z], [GY]), ([Z, GY], [Y])] * 2 + [([Z], [GX]), ([Z, GX], [X])],
    "fed-norm-sgda": [([Z], [G])],
    "fed-norm-sgda-plus": [([Z, X], [G])],
    "drfa": [([Z], [X, GX]), ([Z], [GY])],
    "afl": [([Z], [G])],
    "server-eg": [([Z], [Z]), ([Z], [Z])],
    "server-ogda": [([Z], [Z])],
    "fedualex": [([Z, G], [G])],
    "proxskip-vip": [([Z], [Z])],
}


RULES = ALGORITHMS | NEWER


class Counted(NamedTuple):
    invited: int
    used: int
    late: int


@dataclass(frozen=True)
class Recorded:
    """A quorum that writes down how its phases end."""

    quorum: fs.Quorum
    log: list

    @property
    def collecting(self):
        return self

    def __getattr__(self, name):
        return getattr(self.quorum, name)

    def settle(self, delays, *more):
        settled = self.quorum.settle(delays, *more)
        self.log.append(Counted(len(delays), len(settled.accepted), len(settled.late)))
        return settled


@pytest.mark.parametrize("name", RULES)
def test_floats_follow_the_formula(name):
    log = []
    quorum = Recorded(fs.Quorum(invite=6, enough=4, minimum=3), log)
    study = fs.make_study(quadratic(), RULES[name], quorum=quorum, fleet=fs.Latency(dropout=0.2))
    lanes = begin(study)
    rounds = 6
    for round in range(rounds):
        lanes, events = play(study, lanes, round)
        assert not events
    phases = FORMULAS[name]
    assert len(log) == rounds * len(phases)
    expected = Counter()
    for number, counted in enumerate(log):
        down, up = phases[number % len(phases)]
        for direction, message, times in (
            ("down", down, counted.invited),
            ("up", up, counted.used),
            ("late", up, counted.late),
        ):
            for part in message:
                for content, floats in part.items():
                    expected[(direction, *content)] += times * floats
    found = {
        (flow.direction, *flow.content): floats for flow, floats in traffic(study, lanes, 0).items() if floats
    }
    assert found == {key: floats for key, floats in expected.items() if floats}
    assert sum(counted.late for counted in log) > 0


def test_one_and_nc_send_the_same_number_of_floats_up_with_half_the_cohort():
    """The paper's comparison: S^ = 8 for two vectors, 16 for one. Everybody answers, so it is exact."""

    def up(algorithm, invite):
        outcome = fs.simulate(
            fs.Quadratic(clients=20),
            algorithm,
            rounds=3,
            quorum=fs.Quorum(invite=invite),
            fleet=fs.Everybody(),
        )
        return outcome.rows[-1].floats_up

    assert up(fs.CDMAONE(0.01, 0.01), 8) == up(fs.CDMANC(0.01, 0.01), 16) == 3 * 16 * 20


def test_an_abandoned_phase_counts_its_answers_as_late():
    study = fs.make_study(
        quadratic(), ALGORITHMS["cdma-nc"], quorum=fs.Quorum(invite=6, minimum=6), fleet=fs.Dropout(0.5)
    )
    lanes, (event,) = play(study, begin(study), 0)
    answers = int(event.detail.split()[1])
    assert 0 < answers < 6
    found = {(flow.direction, *flow.content): floats for flow, floats in traffic(study, lanes, 0).items()}
    assert found["late", "x", "parameters"] == answers * P
    assert found["up", "x", "parameters"] == 0


def test_a_message_without_a_kind_is_refused():
    @dataclass(frozen=True)
    class Sloppy(fs.CDMANC):
        def silent(self, client, z: fs.Pair) -> Reply:
            return Reply({"z": z})

        def phases(self):
            return (Phase("update", self.send, self.silent, self.average),)

    with pytest.raises(fs.BadInput, match="annotate 'z' of silent with Parameters"):
        fs.simulate(quadratic(), Sloppy(0.1, 0.1), rounds=1)


def test_a_message_nobody_takes_is_refused():
    @dataclass(frozen=True)
    class Wordy(fs.CDMANC):
        def update(self, client, z: Parameters) -> Reply:
            return Reply({"z": z, "more": z})

    with pytest.raises(fs.BadInput, match="sends 'more', which average does not take"):
        fs.simulate(quadratic(), Wordy(0.1, 0.1), rounds=1)


def test_a_message_that_is_missed_is_refused():
    @dataclass(frozen=True)
    class Silent(fs.CDMANC):
        def send(self, server):
            return {}

    with pytest.raises(fs.BadInput, match="does not send 'z', which update takes"):
        fs.simulate(quadratic(), Silent(0.1, 0.1), rounds=1)
