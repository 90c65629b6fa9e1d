"""Randomness without state: the right numbers, and the same ones whoever asks.

The words are compared with SplitMix64 written a second time on Python's integers, which can also be run
backwards, to find keys whose words are extreme. Distributions are tested at fixed seeds, on both sides where
there are enough cells: numbers that are too even are no more random than uneven ones. The last part runs
whole simulations of a game that gives away the rows and the noise it was handed, and compares what every
(seed, round, phase, client) got over engines, cohorts, lanes and chunks.
"""

import itertools
import math
import time
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsaddle import (
    BadInput,
    Everybody,
    Loop,
    Metric,
    Pair,
    Paper,
    Quorum,
    Vectorised,
    draws,
    make_study,
    simulate,
)
from fedsaddle.algorithms.servers import Point
from fedsaddle.core import Count, Parameters, Phase, Reply, StepSize
from fedsaddle.engine.phase import exchange
from fedsaddle.engine.study import Executor
from fedsaddle.problem import Federation

FULL = 2**64
LEAST, MOST = -(2**63), 2**63 - 1
int64 = st.one_of(st.integers(LEAST, MOST), st.sampled_from([LEAST, LEAST + 1, -2, -1, 0, 1, MOST - 1, MOST]))
relaxed = settings(deadline=None, max_examples=60)


def chi_square(counts, expected):
    """The statistic, in standard deviations from its mean."""
    assert len(counts) == len(expected)
    assert min(expected) > 5
    statistic = sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True))
    cells = len(counts) - 1
    return (statistic - cells) / math.sqrt(2 * cells)


def even(counts):
    return chi_square(counts, [sum(counts) / len(counts)] * len(counts))


# --- SplitMix64, a second time ------------------------------------------------------------------------

GAMMA = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(word):
    word = (word ^ (word >> 30)) * MIX_1 % FULL
    word = (word ^ (word >> 27)) * MIX_2 % FULL
    return word ^ (word >> 31)


def splitmix64(state):
    while True:
        state = (state + GAMMA) % FULL
        yield mix(state)


def signed(word):
    return word - FULL if word >= 2**63 else word


def unshift(word, by):
    result = word
    for _ in range(64 // by):
        result = word ^ (result >> by)
    return result


def key_with_word(word, number):
    """The key whose word of this number is `word`: SplitMix64 backwards."""
    word = unshift(word, 31) * pow(MIX_2, -1, FULL) % FULL
    word = unshift(word, 27) * pow(MIX_1, -1, FULL) % FULL
    return torch.tensor(signed((unshift(word, 30) - GAMMA * (number + 1)) % FULL))


def test_fold_gives_the_published_stream():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert list(itertools.islice(splitmix64(1234567), 5)) == published
    assert [draws.fold(torch.tensor(1234567), j).item() % FULL for j in range(5)] == published
    assert (draws.fold(torch.tensor(1234567), torch.arange(5)) % 2**32).tolist() == [
        word % 2**32 for word in published
    ]


@relaxed
@given(int64, int64)
@example(MOST, MOST)
@example(LEAST, LEAST)
@example(LEAST, MOST)
@example(MOST, -1)
def test_fold_is_splitmix64_for_every_key_and_number(key, number):
    expected = mix((key + GAMMA * (number + 1)) % FULL)
    assert draws.fold(torch.tensor(key), number).item() == signed(expected)
    assert draws.fold(torch.tensor(key), torch.tensor(number)).item() == signed(expected)


@relaxed
@given(int64, st.integers(1, 40))
def test_words_are_the_stream_without_the_last_bit(key, count):
    stream = list(itertools.islice(splitmix64(key % FULL), count))
    assert draws.words(torch.tensor(key), count).tolist() == [word >> 1 for word in stream]


@relaxed
@given(st.lists(int64, min_size=1, max_size=4), st.lists(int64, min_size=1, max_size=4))
def test_fold_broadcasts_keys_against_numbers(keys, numbers):
    table = draws.fold(torch.tensor(keys)[:, None], torch.tensor(numbers))
    assert table.tolist() == [[draws.fold(torch.tensor(k), n).item() for n in numbers] for k in keys]
    folded = torch.func.vmap(lambda key: draws.fold(key, torch.tensor(numbers)))(torch.tensor(keys))
    assert torch.equal(folded, table)


@relaxed
@given(st.integers(0, 5), st.lists(int64, min_size=1, max_size=5))
def test_a_key_is_one_fold_for_each_number(purpose, numbers):
    expected = purpose
    for number in numbers:
        expected = mix((expected + GAMMA * (number + 1)) % FULL)
    assert draws.key(purpose, *numbers).item() == signed(expected)
    assert draws.key(purpose, *[torch.tensor([number]) for number in numbers]).item() == signed(expected)


# --- purposes -----------------------------------------------------------------------------------------

PURPOSES = (draws.COHORT, draws.FLEET, draws.BATCHES, draws.STEPS, draws.INIT, draws.PROBLEM)


def test_two_purposes_share_no_seed():
    # mix is one to one, so fold(p, a) = fold(q, b) only where GAMMA (a - b) = q - p: far beyond any seed.
    assert len(set(PURPOSES)) == 6
    for p, q in itertools.permutations(PURPOSES, 2):
        apart = (q - p) * pow(GAMMA, -1, FULL) % FULL
        assert min(apart, FULL - apart) > 2**59


def test_no_key_comes_twice():
    seeds = torch.tensor([0, 1, 2, 3, 2**32, MOST])
    rounds, phases, clients = torch.arange(40), torch.arange(3), torch.arange(30)
    keys = []
    for purpose in PURPOSES:
        one = draws.key(purpose, seeds)
        two = draws.key(purpose, seeds[:, None], rounds)
        three = draws.key(purpose, seeds[:, None, None], rounds[:, None], phases)
        four = draws.key(purpose, seeds[:, None, None, None], rounds[:, None, None], phases[:, None], clients)
        # Phase 0's key is the first word of its round, and so on: only keys of one depth must differ.
        keys.append([level.flatten() for level in (one, two, three, four)])
    for level in zip(*keys, strict=True):
        every = torch.cat(level)
        assert len(every.unique()) == len(every)
    assert len(every) == 6 * 6 * 40 * 3 * 30


# --- uniform and normal -------------------------------------------------------------------------------


@relaxed
@given(int64, st.integers(1, 30), st.integers(0, 30))
def test_an_element_depends_on_the_key_and_its_place_alone(key, count, more):
    key = torch.tensor(key)
    for draw in (draws.uniform, draws.normal, draws.words):
        assert torch.equal(draw(key, count), draw(key, count + more)[:count])
    assert torch.equal(draws.uniform(key, 2, count), draws.uniform(key, 2 * count).reshape(2, count))
    assert torch.equal(draws.normal(key, count, 3), draws.normal(key, 3 * count).reshape(count, 3))


@relaxed
@given(st.lists(int64, min_size=1, max_size=5), st.integers(1, 5))
def test_a_key_draws_the_same_alone_in_a_batch_and_under_vmap(keys, count):
    keys = torch.tensor(keys)
    for draw in (draws.uniform, draws.normal, draws.words):
        alone = torch.stack([draw(key, count) for key in keys])
        assert torch.equal(draw(keys, count), alone)
        assert torch.equal(torch.func.vmap(lambda key: draw(key, count))(keys), alone)  # noqa: B023


@relaxed
@given(int64)
def test_uniforms_are_the_upper_53_bits(key):
    found = draws.uniform(torch.tensor(key), 8)
    assert found.dtype == torch.float64
    expected = [word >> 11 for word in itertools.islice(splitmix64(key % FULL), 8)]
    assert [u * 2.0**53 for u in found.tolist()] == expected  # exact: multiples of 2^-53
    assert all(0 <= u < 1 for u in found.tolist())


@pytest.mark.parametrize("place", [0, 1, 6])
def test_the_extreme_words_give_the_extreme_uniforms(place):
    assert draws.uniform(key_with_word(0, place), 7)[place] == 0
    assert draws.uniform(key_with_word(2**11 - 1, place), 7)[place] == 0
    assert draws.uniform(key_with_word(2**11, place), 7)[place] == 2.0**-53
    assert draws.uniform(key_with_word(2**63, place), 7)[place] == 0.5
    assert draws.uniform(key_with_word(FULL - 1, place), 7)[place] == 1 - 2.0**-53


def one_key(count):
    return draws.uniform(draws.key(draws.PROBLEM, 17), count)


def many_keys(count):
    return draws.uniform(draws.key(draws.FLEET, 3, 5, 1, torch.arange(count)), 1).squeeze(-1)


def many_seeds(count):
    return draws.uniform(draws.key(draws.FLEET, torch.arange(count), 0), 1).squeeze(-1)


@pytest.mark.parametrize("draw", [one_key, many_keys, many_seeds])
def test_uniforms_are_uniform(draw):
    count = 100_000
    u = draw(count).sort().values
    steps = torch.arange(count) / count
    farthest = max((u - steps).max().item(), (steps + 1 / count - u).max().item())
    assert 0.3 < farthest * math.sqrt(count) < 1.95  # Kolmogorov-Smirnov, one in a thousand
    assert abs(even(torch.histc(u, 1000, 0, 1).tolist())) < 4


@pytest.mark.parametrize("draw", [one_key, many_keys, many_seeds])
def test_every_bit_is_even_and_neighbours_are_independent(draw):
    count = 100_000
    u = draw(count)
    bits = ((u * 2.0**53).to(torch.int64)[:, None] >> torch.arange(53)) & 1
    off = (bits.to(torch.float64).mean(0) - 0.5) * 2 * math.sqrt(count)
    assert off.abs().max() < 4.5
    assert abs(off.std() - 1) < 0.5
    for lag in (1, 2, 7):
        pair = (u[:-lag] * 30).floor() * 30 + (u[lag:] * 30).floor()
        assert abs(even(pair.to(torch.int64).bincount(minlength=900).tolist())) < 4


def test_normals_are_normal():
    count = 400_000
    z = draws.normal(draws.key(draws.PROBLEM, 4), count)
    assert z.dtype == torch.float64
    assert torch.isfinite(z).all()
    # The moments of N(0, 1), each with its standard deviation over a sample.
    for power, moment, spread in [(1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)]:
        assert abs((z**power).mean() - moment) < 4 * spread / math.sqrt(count), power
    cells = torch.histc(0.5 * torch.erfc(-z / 2**0.5), 500, 0, 1)
    assert abs(even(cells.tolist())) < 4


@pytest.mark.parametrize("word", [0, 2**11, 2**62, 2**63, 3 * 2**62, FULL - 2**12, FULL - 1])
def test_normals_invert_the_uniforms_and_are_finite(word):
    z = draws.normal(key_with_word(word, 2), 3)[2]
    assert torch.isfinite(z)
    u = draws.uniform(key_with_word(word, 2), 3)[2]
    torch.testing.assert_close(torch.special.ndtr(z), u, rtol=1e-9, atol=2.0**-53)


# --- batches ------------------------------------------------------------------------------------------


@relaxed
@given(st.integers(1, 15), st.integers(0, 80), st.integers(0, 40), int64)
@example(1, 80, 0, 0)
@example(15, 1, 0, 5)
@example(7, 14, 3, -1)
def test_every_epoch_is_a_permutation(size, count, longer, key):
    rows = draws.batches(torch.tensor(key), torch.tensor(size), count, size + longer).tolist()
    assert len(rows) == count
    for start in range(0, count, size):
        epoch = rows[start : start + size]
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(size))
        assert len(epoch) == size or start + size > count


@relaxed
@given(
    st.lists(st.tuples(int64, st.integers(1, 12)), min_size=1, max_size=6),
    st.integers(0, 50),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_rows_depend_neither_on_the_longest_nor_on_others_nor_on_the_count(clients, count, longer, more):
    keys, sizes = (torch.tensor(column) for column in zip(*clients, strict=True))
    together = draws.batches(keys, sizes, count + more, int(sizes.max()) + longer)
    for rows, key, size in zip(together, keys, sizes, strict=True):
        alone = draws.batches(key, size, count, int(size))
        assert torch.equal(rows[:count], alone)


@pytest.mark.parametrize(("size", "count"), [(3, 5000), (1, 2000), (4000, 3), (4000, 0), (1000, 2001)])
def test_rows_of_small_and_large_clients(size, count):
    key = draws.key(draws.BATCHES, 2, 7, 1, torch.arange(4))
    rows = draws.batches(key, torch.full((4,), size), count, 5000)
    for number in range(4):
        assert torch.equal(rows[number], draws.batches(key[number], torch.tensor(size), count, size))
        epochs = rows[number][: count // size * size].reshape(-1, size)
        assert (epochs.sort().values == torch.arange(size)).all()
        rest = rows[number][count // size * size :].tolist()
        assert len(set(rest)) == count % size
        assert all(0 <= row < size for row in rest)


def test_epochs_are_shuffled_evenly_and_independently():
    count = 20_000
    key = draws.key(draws.BATCHES, torch.arange(count), 0)
    rows = draws.batches(key, torch.full((count,), 3), 6, 9)
    found = Counter(tuple(lane) for lane in rows.tolist())
    assert len(found) == 36  # six orders of the first epoch, each with six of the second
    assert abs(even(list(found.values()))) < 4
    first = draws.batches(key, torch.full((count,), 100), 1, 100).flatten()
    assert abs(even(first.bincount(minlength=100).tolist())) < 4


# --- choices ------------------------------------------------------------------------------------------


@relaxed
@given(st.integers(1, 60), st.data(), st.lists(int64, min_size=1, max_size=4))
def test_choices_are_different_and_in_range(population, data, keys):
    count = data.draw(st.integers(1, population))
    chosen = draws.choose(torch.tensor(keys), population, count)
    assert len(chosen) == len(keys)
    for key, picks in zip(keys, chosen, strict=True):
        assert len(picks) == len(set(picks)) == count
        assert set(picks) <= set(range(population))
        assert draws.choose(torch.tensor([key]), population, count) == [picks]
    everybody = draws.choose(torch.tensor(keys), population, population)
    assert all(sorted(picks) == list(range(population)) for picks in everybody)
    assert [picks[:count] for picks in everybody] == chosen  # a smaller cohort is the head of a larger one


@pytest.mark.parametrize(("population", "count"), [(5, 5), (6, 3), (30, 2)])
def test_choices_are_uniform_in_whom_and_in_which_order(population, count):
    lanes = 60 * math.perm(population, count)
    chosen = draws.choose(draws.key(draws.COHORT, torch.arange(lanes), 0, 0), population, count)
    orders = Counter(tuple(picks) for picks in chosen)
    assert len(orders) == math.perm(population, count)
    assert abs(even(list(orders.values()))) < 4


def test_inclusion_is_even_over_the_rounds_of_one_seed():
    chosen = draws.choose(draws.key(draws.COHORT, 8, torch.arange(10_000), 1), 200, 8)
    times = Counter(i for picks in chosen for i in picks)
    # Eight different ones of 200 at a time: a little more even than 80,000 independent picks.
    counts = [times[i] for i in range(200)]
    assert abs(even(counts)) < 4


def test_a_cohort_of_a_billion_costs_no_more():
    began = time.perf_counter()
    chosen = draws.choose(draws.key(draws.COHORT, torch.arange(20), 0, 0), 10**9, 500)
    assert time.perf_counter() - began < 3
    assert all(len(set(picks)) == 500 and min(picks) >= 0 and max(picks) < 10**9 for picks in chosen)
    cells = Counter(i // 10**7 for picks in chosen for i in picks)
    assert abs(even([cells[cell] for cell in range(100)])) < 4


@relaxed
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=1, max_size=30).filter(any),
    st.data(),
    st.lists(int64, min_size=1, max_size=3),
)
def test_weighted_choices_are_different_and_never_of_weight_zero(weights, data, keys):
    able = [i for i, weight in enumerate(weights) if weight]
    count = data.draw(st.integers(1, len(able)))
    odds = torch.tensor(weights, dtype=torch.float64)
    chosen = draws.choose_weighted(torch.tensor(keys), odds, count)
    for key, picks in zip(keys, chosen, strict=True):
        assert len(picks) == len(set(picks)) == count
        assert set(picks) <= set(able)
        assert draws.choose_weighted(torch.tensor([key]), odds, count) == [picks]
    everybody = draws.choose_weighted(torch.tensor(keys), odds, len(able))
    assert all(sorted(picks) == able for picks in everybody)


@pytest.mark.parametrize("word", [0, FULL - 1])
def test_weight_zero_is_not_chosen_even_at_the_extreme_words(word):
    key = key_with_word(word, 1)[None]
    odds = torch.tensor([1.0, 0.0, 1e-300, 2.0], dtype=torch.float64)
    assert sorted(draws.choose_weighted(key, odds, 3)[0]) == [0, 2, 3]


def test_weighted_choices_fall_by_weight_one_after_another():
    weights = [4.0, 1.0, 0.0, 3.0, 2.0]
    lanes, total = 30_000, sum(weights)
    key = draws.key(draws.COHORT, torch.arange(lanes), 0, 0)
    chosen = draws.choose_weighted(key, torch.tensor(weights, dtype=torch.float64), 2)
    able = [i for i, weight in enumerate(weights) if weight]
    first = Counter(picks[0] for picks in chosen)
    assert chi_square([first[i] for i in able], [lanes * weights[i] / total for i in able]) < 4
    pairs = list(itertools.permutations(able, 2))
    both = Counter(tuple(picks) for picks in chosen)
    expected = [lanes * weights[i] / total * weights[j] / (total - weights[i]) for i, j in pairs]
    assert abs(chi_square([both[pair] for pair in pairs], expected)) < 4


# --- the same draws, whatever the cohort, the lanes and the chunks --------------------------------------

SIZES = [1, 2, 3, 5, 7, 11, 4, 1, 9, 6, 10, 8]
OFFSETS = [sum(SIZES[:i]) for i in range(len(SIZES))]
PRIME = 2**31 - 1


class Telltale:
    """A game whose field is what it was given: the rows, as digits of one number, and the noise."""

    metrics = {"nothing": Metric("low", rows="none")}  # noqa: RUF012
    federation = Federation({"row": torch.cat([torch.arange(n) for n in SIZES])}, torch.tensor(SIZES))

    def init(self, seed):
        return Pair(torch.tensor([seed], dtype=torch.float64), torch.zeros(4, dtype=torch.float64))

    def field(self, z, xi):
        digits = torch.where(xi.weight > 0, xi.rows["row"] + 1, 0)
        rows = (digits * 16 ** torch.arange(len(digits))).sum()
        noise = draws.uniform(xi.key, 2) * 2.0**27
        return Pair(
            rows.to(torch.float64)[None], torch.cat([noise.floor(), (noise - noise.floor()) * 2.0**26])
        )

    def evaluate(self, z):
        return {"nothing": 0.0}


def seal(signature, g):
    """Take one field into a signature: whole numbers below 2^53 throughout, so every bit counts."""
    return Pair(*[torch.remainder(48271 * old + new, PRIME) for old, new in zip(signature, g, strict=True)])


@dataclass(frozen=True)
class Sign:
    """Clients answer with a signature of all they drew; the server's z stays the seed."""

    idle: StepSize = 1.0
    K: Count = 5

    def init(self, z):
        return Point(z)

    def send(self, server):
        return {"z": server.z}

    def walk(self, client, z: Parameters):
        def move(w, xi, xi_too):
            return seal(seal(w, client.grad(w, xi)), client.grad(w, xi_too))

        return Reply({"signature": client.walk(move, 0 * z)})

    def gather_and_walk(self, client, z: Parameters):
        def move(w, xi):
            return seal(w, client.grad(w, xi))

        return Reply({"signature": client.walk(move, seal(0 * z, client.full_grad(z)))})

    def ignore(self, server, turn, signature: Parameters):
        return server

    def phases(self):
        return (
            Phase("walk", self.send, self.walk, self.ignore, lambda chance: 1 + int(6 * chance), batches=2),
            Phase("both", self.send, self.gather_and_walk, self.ignore, self.K),
        )


class Recorder(Executor):
    """An executor that remembers who answered what."""

    def __init__(self, ask):
        self.ask, self.seen = ask, {}

    def run(self, study, number, extent, inputs):
        return exchange(study, number, extent, inputs, self.answers)

    def answers(self, task, extent, visits):
        answers = self.ask.answers(task, extent, visits)
        given = visits.given(task.federation)
        seeds, rounds = given["down"]["z"].x[:, 0].tolist(), given["t"].tolist()
        signatures = torch.cat(answers.up["signature"], dim=1).tolist()
        for seed, t, offset, signature in zip(
            seeds, rounds, given["offset"].tolist(), signatures, strict=True
        ):
            name = (int(seed), int(t), task.phase, OFFSETS.index(offset))
            assert self.seen.setdefault(name, tuple(signature)) == tuple(signature)
        return answers


class InThrees(Vectorised):
    def _need(self, task, extent, visits):
        return self.memory // 3


def record(ask, invite, seeds, fleet=None, settings=1, batch=4):
    recorder = Recorder(ask)
    algorithms = [Sign(idle=1.0 + number) for number in range(settings)]
    simulate(
        Telltale(),
        algorithms,
        rounds=5,
        seeds=seeds,
        quorum=Quorum(invite=invite),
        fleet=fleet or Everybody(),
        batch=batch,
        executor=recorder,
    )
    return recorder.seen


@pytest.fixture(scope="module")
def recordings():
    return {
        "everyone, one by one": record(Loop(), 12, (0, 1, 2)),
        "three, one by one": record(Loop(), 3, (0,)),
        "three": record(Vectorised(), 3, (0,)),
        "seven": record(Vectorised(), 7, (0,)),
        "seven, three lanes": record(Vectorised(), 7, (0, 1, 2)),
        "seven, three lanes, another order": record(Vectorised(), 7, (2, 0)),
        "seven, chunks of one": record(Vectorised(memory=1), 7, (0, 1, 2)),
        "seven, chunks of three": record(InThrees(), 7, (0, 1, 2)),
        "seven, some answer": record(Vectorised(), 7, (0, 1, 2), Paper()),
        "three, two settings": record(Vectorised(), 3, (0, 1), settings=2),
    }


def test_draws_are_the_same_whatever_the_cohort_the_lanes_and_the_chunks(recordings):
    common = {}
    for (a, one), (b, other) in itertools.combinations(recordings.items(), 2):
        both = one.keys() & other.keys()
        assert [name for name in both if one[name] != other[name]] == [], (a, b)
        common[a, b] = len(both)
    assert common["three", "seven"] == 5 * 2 * 3
    assert common["seven", "seven, three lanes"] == 5 * 2 * 7
    assert common["seven, three lanes", "seven, chunks of one"] == 3 * 5 * 2 * 7
    assert len(recordings["everyone, one by one"]) == 3 * 5 * 2 * 12
    assert min(common.values()) >= 20


def test_different_visits_draw_differently(recordings):
    every = recordings["everyone, one by one"]
    assert len(set(every.values())) == len(every)
    for place in range(1, 5):  # each part of the noise tells visits apart on its own
        assert len({signature[place] for signature in every.values()}) == len(every)
    rows = [signature[0] for (_, _, _, client), signature in every.items() if SIZES[client] >= 5]
    assert len(set(rows)) == len(rows)


def test_a_signature_is_what_its_key_says(recordings):
    """The walk of phase 0 once more, from the key of (seed, round, phase, client) and nothing else."""
    every = recordings["everyone, one by one"]
    for (seed, t, phase, client), signature in every.items():
        if phase == 1 or t > 1:
            continue
        chance = draws.uniform(draws.key(draws.STEPS, seed, t, phase), 1).item()
        minibatches = 2 * (1 + int(6 * chance))
        key = draws.key(draws.BATCHES, seed, t, phase, client)
        size = SIZES[client]
        rows = draws.batches(draws.fold(key, 0), torch.tensor(size), 4 * minibatches, size).tolist()
        result = [0] * 5
        for number in range(minibatches):
            digits = rows[4 * number : 4 * number + 4]
            noise = draws.uniform(draws.fold(draws.fold(key, 1), number), 2).tolist()
            words = [int(u * 2**53) for u in noise]
            given = [sum((row + 1) * 16**place for place, row in enumerate(digits))]
            given += [word >> 26 for word in words] + [word % 2**26 for word in words]
            result = [(48271 * old + new) % PRIME for old, new in zip(result, given, strict=True)]
        assert list(signature) == result


# --- seeds --------------------------------------------------------------------------------------------


def test_the_largest_seed_is_as_good_as_any():
    seen = record(Vectorised(), 3, (MOST,))
    assert len(set(seen.values())) == 5 * 2 * 3


def test_a_seed_that_is_no_64_bit_number_is_refused():
    with pytest.raises(BadInput):
        make_study(Telltale(), Sign(), seeds=(2**63,))
