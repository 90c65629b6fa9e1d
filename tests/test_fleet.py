"""Who answers, and when the server goes on.

The rules of the quorum are shown one by one on arrivals made by hand, then compared with a server that looks
at its clock every second. A fleet is compared with what it says of itself, by frequencies at fixed seeds; a
trace with a search over all the moments at which a client could begin. The last part abandons rounds, in one
phase, one lane or all of them, and asks that nothing but the clock and the messages has moved.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves, tree_map

from fedsaddle import (
    CDMAADA,
    CDMAONE,
    CODASCA,
    BadInput,
    Dropout,
    Everybody,
    Latency,
    Metric,
    Notice,
    Paper,
    Quadratic,
    Quorum,
    Trace,
    make_study,
    simulate,
)
from fedsaddle.core import Pair, Parameters, Phase, Reply, StepSize
from fedsaddle.engine.round import play
from fedsaddle.engine.study import Posted, begin
from fedsaddle.fleet import NEVER, Verdict, invite, read_trace
from fedsaddle.problem import Federation

GO, WAIT, ABANDON = Verdict.GO, Verdict.WAIT, Verdict.ABANDON
relaxed = settings(deadline=None, max_examples=100)


def deviation(counts, expected):
    """Chi-square, in standard deviations from its mean."""
    assert len(counts) == len(expected)
    assert min(expected) > 5
    statistic = sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True))
    cells = len(counts) - 1
    return (statistic - cells) / math.sqrt(2 * cells)


def even(counts):
    return deviation(counts, [sum(counts) / len(counts)] * len(counts))


def assert_rate(hits, trials, rate):
    assert abs(hits - trials * rate) < 4 * math.sqrt(trials * rate * (1 - rate)), (hits, trials, rate)


# --- the verdict --------------------------------------------------------------------------------------

LATE = Quorum(invite=5, enough=4, minimum=2, deadline=10.0, grace=5.0)
PATIENT = Quorum(invite=5, enough=4, minimum=2)


@pytest.mark.parametrize(
    ("quorum", "answered", "pending", "elapsed", "verdict"),
    [
        (LATE, 4, 1, 0.0, GO),  # enough, at once
        (LATE, 5, 0, 0.0, GO),
        (LATE, 3, 2, 9.9, WAIT),  # the minimum is not enough before the deadline
        (LATE, 3, 2, 10.0, GO),  # and is at the deadline itself
        (LATE, 2, 3, 10.0, GO),
        (LATE, 1, 4, 10.0, WAIT),  # grace
        (LATE, 2, 3, 12.0, GO),
        (LATE, 1, 4, 14.9, WAIT),
        (LATE, 1, 4, 15.0, ABANDON),  # grace is over
        (LATE, 2, 3, 15.0, GO),
        (LATE, 2, 3, 1e9, GO),
        (LATE, 0, 5, 1e9, ABANDON),
        (LATE, 2, 0, 1.0, GO),  # nobody else can come
        (LATE, 1, 0, 1.0, ABANDON),
        (PATIENT, 4, 1, 0.0, GO),
        (PATIENT, 3, 2, 1e9, WAIT),  # without a deadline, time does not matter
        (PATIENT, 0, 5, 1e9, WAIT),
        (PATIENT, 3, 0, 0.0, GO),
        (PATIENT, 2, 0, 1e9, GO),
        (PATIENT, 1, 0, 1e9, ABANDON),
        (PATIENT, 0, 0, 0.0, ABANDON),
        (Quorum(invite=5), 4, 1, 1e9, WAIT),  # without `enough`, every answer is waited for
        (Quorum(invite=5), 5, 0, 0.0, GO),
        (Quorum(invite=5), 1, 0, 0.0, GO),
        (Quorum(invite=2, minimum=2, deadline=3.0), 1, 1, 3.0, ABANDON),  # no grace
        (Quorum(invite=2, minimum=2, deadline=3.0), 1, 1, 2.9, WAIT),
    ],
)
def test_verdict(quorum, answered, pending, elapsed, verdict):
    assert quorum.verdict(answered, pending, elapsed) is verdict


# --- settling -----------------------------------------------------------------------------------------


def test_the_first_answers_are_enough():
    quorum = Quorum(invite=5, enough=3)
    assert quorum.settle([5.0, 1.0, 4.0, 2.0, 3.0])[:4] == ([1, 3, 4], [2, 0], 3.0, GO)


def test_every_answer_is_waited_for_without_enough():
    assert Quorum(invite=3).settle([5.0, 1.0, 4.0])[:4] == ([1, 2, 0], [], 5.0, GO)


def test_enough_does_not_wait_for_the_deadline():
    quorum = Quorum(invite=4, enough=2, deadline=10.0)
    assert quorum.settle([7.0, 3.0, NEVER, 20.0])[:4] == ([1, 0], [3], 7.0, GO)


def test_at_the_deadline_the_minimum_is_enough():
    quorum = Quorum(invite=5, enough=4, minimum=2, deadline=10.0)
    assert quorum.settle([1.0, 30.0, 2.0, NEVER, 11.0])[:4] == ([0, 2], [4, 1], 10.0, GO)
    assert quorum.settle([1.0, 30.0, 2.0, 3.0, 11.0])[:4] == ([0, 2, 3], [4, 1], 10.0, GO)


def test_an_answer_at_the_deadline_counts():
    quorum = Quorum(invite=3, minimum=2, deadline=10.0)
    assert quorum.settle([10.0, 1.0, 10.5])[:4] == ([1, 0], [2], 10.0, GO)
    assert quorum.settle([10.5, 1.0, 10.5])[:4] == ([], [1, 0, 2], 10.0, ABANDON)


def test_in_the_grace_the_minimum_ends_the_wait():
    quorum = Quorum(invite=5, minimum=3, deadline=10.0, grace=5.0)
    assert quorum.settle([1.0, 12.0, 14.0, 14.5, 2.0])[:4] == ([0, 4, 1], [2, 3], 12.0, GO)
    assert quorum.settle([1.0, 15.0, 16.0, NEVER, 2.0])[:4] == ([0, 4, 1], [2], 15.0, GO)


def test_after_the_grace_the_round_is_abandoned():
    quorum = Quorum(invite=4, minimum=3, deadline=10.0, grace=5.0)
    assert quorum.settle([1.0, 15.5, 2.0, NEVER])[:4] == ([], [0, 2, 1], 15.0, ABANDON)


def test_the_deadline_is_waited_for_even_when_all_answers_are_there():
    # A server with a deadline cannot know that the third one never answers.
    assert Quorum(invite=3, deadline=10.0).settle([1.0, 2.0, NEVER])[:4] == ([0, 1], [], 10.0, GO)


def test_without_a_deadline_the_last_answer_ends_the_wait():
    quorum = Quorum(invite=4, minimum=2)
    assert quorum.settle([1.0, NEVER, 7.0, NEVER])[:4] == ([0, 2], [], 7.0, GO)
    assert quorum.settle([NEVER, NEVER, 7.0, NEVER])[:4] == ([], [2], 7.0, ABANDON)


def test_nobody_answers():
    nobody = [NEVER] * 4
    assert Quorum(invite=4).settle(nobody)[:4] == ([], [], 0.0, ABANDON)
    assert Quorum(invite=4, deadline=10.0).settle(nobody)[:4] == ([], [], 10.0, ABANDON)
    assert Quorum(invite=4, deadline=10.0, grace=2.0).settle(nobody)[:4] == ([], [], 12.0, ABANDON)


def test_ties_go_by_the_place_of_the_invitation_and_the_rest_is_late():
    quorum = Quorum(invite=5, enough=3)
    assert quorum.settle([2.0, 2.0, 1.0, 2.0, 2.0])[:4] == ([2, 0, 1], [3, 4], 2.0, GO)
    everybody = Quorum(invite=4, enough=2, deadline=1.0)
    assert everybody.settle([1.0] * 4)[:4] == ([0, 1], [2, 3], 1.0, GO)
    # Two at once in the grace: both are used, though one would do for the minimum.
    grace = Quorum(invite=4, minimum=2, deadline=1.0, grace=9.0)
    assert grace.settle([0.5, 5.0, 5.0, 6.0])[:4] == ([0, 1, 2], [3], 5.0, GO)


# --- settling, second by second -----------------------------------------------------------------------


def watch_the_clock(quorum, delays):
    """The same rule by a server that looks up every second. All times are whole seconds."""
    wanted = quorum.invite if quorum.enough is None else quorum.enough
    by_arrival = sorted(
        (place for place, d in enumerate(delays) if d < NEVER), key=lambda place: delays[place]
    )
    second = 0
    while True:
        here = [place for place in by_arrival if delays[place] <= second]
        if len(here) >= wanted:
            return here[:wanted], by_arrival[wanted:], second, GO
        if quorum.deadline is None:
            over = last_call = len(here) == len(by_arrival)
        else:
            over, last_call = second >= quorum.deadline, second >= quorum.deadline + quorum.grace
        if over and len(here) >= quorum.minimum:
            return here, by_arrival[len(here) :], second, GO
        if last_call:
            return [], by_arrival, second, ABANDON
        second += 1


@st.composite
def quorums(draw):
    invite = draw(st.integers(1, 7))
    enough = draw(st.none() | st.integers(1, invite))
    minimum = draw(st.integers(1, enough or invite))
    deadline = draw(st.none() | st.integers(1, 12))
    grace = 0 if deadline is None else draw(st.integers(0, 6))
    return Quorum(invite, enough, minimum, deadline, grace)


@st.composite
def arrivals(draw):
    quorum = draw(quorums())
    whole = st.integers(0, 20).map(float) | st.just(NEVER)
    return quorum, draw(st.lists(whole, min_size=quorum.invite, max_size=quorum.invite))


@settings(deadline=None, max_examples=300)
@given(arrivals())
@example((Quorum(3, None, 3, 5, 2), [1.0, 7.0, 7.0]))
@example((Quorum(3, 2, 2, 5, 0), [5.0, 5.0, 5.0]))
def test_settle_is_what_a_server_that_watches_the_clock_does(case):
    quorum, delays = case
    assert quorum.settle(delays)[:4] == watch_the_clock(quorum, delays)


@relaxed
@given(quorums(), st.data())
def test_what_holds_for_every_end(quorum, data):
    late = st.floats(0, 25) | st.just(NEVER)
    delays = data.draw(st.lists(late, min_size=quorum.invite, max_size=quorum.invite))
    end = quorum.settle(delays)
    answered = [place for place, delay in enumerate(delays) if delay < NEVER]
    assert sorted(end.accepted + end.late) == answered
    assert len(end.accepted) <= quorum.wanted
    in_order = [delays[place] for place in end.accepted + end.late]
    assert in_order == sorted(in_order)  # accepted are the earliest
    assert all(delays[place] <= end.seconds for place in end.accepted)
    assert end.verdict in (GO, ABANDON)
    if quorum.deadline is not None:
        assert end.seconds <= quorum.deadline + quorum.grace
    if end.verdict is GO:
        assert len(end.accepted) >= quorum.minimum
    else:
        assert end.accepted == []
        stop = NEVER if quorum.deadline is None else quorum.deadline + quorum.grace
        assert sum(delay <= stop for delay in delays if delay < NEVER) < quorum.minimum


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"invite": 0}, "invite"),
        ({"invite": -3}, "invite"),
        ({"invite": 2.0}, "invite"),
        ({"invite": True}, "invite"),
        ({"invite": 4, "minimum": 5}, "minimum must be at most invite"),
        ({"invite": 4, "minimum": 0}, "minimum"),
        ({"invite": 4, "enough": 5}, "enough"),
        ({"invite": 4, "enough": 0}, "enough"),
        ({"invite": 4, "enough": 2, "minimum": 3}, "minimum must be at most enough"),
        ({"grace": 1.0}, "grace"),
        ({"deadline": -1.0}, "deadline"),
        ({"deadline": 0.0}, "deadline"),
        ({"deadline": math.nan}, "deadline"),
        ({"deadline": math.inf}, "deadline"),
        ({"deadline": 1.0, "grace": -0.5}, "grace"),
        ({"deadline": 1.0, "grace": math.nan}, "grace"),
        ({"deadline": 1.0, "grace": math.inf}, "grace"),
        ({"deadline": 1e308}, "deadline"),
    ],
)
def test_bad_quorums_are_refused(arguments, said):
    with pytest.raises(BadInput, match=said):
        Quorum(**arguments)


def test_the_edges_of_a_good_quorum_are_not():
    assert Quorum(invite=4, enough=4, minimum=4).wanted == 4
    assert Quorum(invite=4, enough=1, minimum=1).wanted == 1
    assert Quorum(invite=1, deadline=1e-3, grace=0.0).wanted == 1


# --- fleets -------------------------------------------------------------------------------------------


def ask(fleet, seeds, round, phase, clients, now=0.0):
    """Delays of the same clients in every lane."""
    seeds = torch.as_tensor(seeds)
    cohort = torch.as_tensor(clients).expand(len(seeds), -1)
    delays = fleet.delays(seeds, round, phase, cohort, [now] * len(seeds))
    assert delays.shape == cohort.shape
    assert delays.dtype == torch.float64
    assert (delays > 0).all()
    return delays


def test_everybody_answers_after_one_second():
    assert (ask(Everybody(), range(4), 3, 1, range(9)) == 1).all()


@pytest.mark.parametrize(("invited", "values"), [(8, range(5, 9)), (16, range(9, 17))])
def test_paper_lets_more_than_half_answer_evenly(invited, values):
    answered = ask(Paper(), range(8000), 4, 0, range(invited)).isfinite().sum(1).tolist()
    assert sorted(set(answered)) == list(values)
    counts = Counter(answered)
    assert abs(even([counts[value] for value in values])) < 4
    rounds = [ask(Paper(), [5], t, 0, range(invited)).isfinite().sum().item() for t in range(400)]
    assert sorted(set(rounds)) == list(values)  # one seed sees them all, over its rounds
    counts = Counter(rounds)
    assert abs(even([counts[value] for value in values])) < 4


def test_paper_draws_s_t_once_a_round_but_other_clients_in_each_phase():
    one, two = (ask(Paper(), range(4000), 4, phase, range(8)).isfinite() for phase in (0, 1))
    assert torch.equal(one.sum(1), two.sum(1))
    # Given S_t, the two sets are independent: a client that is in one is in the other S_t times in 8.
    share = one.sum(1) / 8
    both = (one & two).sum().item()
    assert abs(both - (8 * share**2).sum().item()) < 4 * math.sqrt(4000 * 8 * 0.25)
    some = one.sum(1) < 8
    assert (one[some] == two[some]).all(1).to(torch.float64).mean() < 0.1


def test_paper_picks_its_responders_evenly():
    delays = ask(Paper(), range(6000), 2, 1, [3, 1, 40, 17, 5, 6, 9, 30])
    answered = delays.isfinite()
    assert set(delays[answered].tolist()) == {1.0}
    for s_t in range(5, 8):
        # A sample without replacement: its chi-square is that of independent picks times (8 - S_t) / 7.
        counts = answered[answered.sum(1) == s_t].sum(0).tolist()
        expected = sum(counts) / 8
        statistic = sum((n - expected) ** 2 / expected for n in counts) * 7 / (8 - s_t)
        assert 0.5 < statistic < 26  # seven degrees of freedom, one in a thousand each way


def test_paper_counts_from_its_least_part():
    assert ask(Paper(least=1.0), range(300), 0, 0, range(8)).isfinite().all()
    answered = ask(Paper(least=0.0), range(600), 0, 0, range(4)).isfinite().sum(1).tolist()
    assert sorted(set(answered)) == [1, 2, 3, 4]


def test_paper_does_not_mind_the_order_of_the_invitations_nor_other_lanes():
    clients = torch.tensor([7, 2, 9, 4, 0, 5])
    together = ask(Paper(), [4, 11, 3], 2, 0, clients)
    for lane, seed in enumerate([4, 11, 3]):
        assert torch.equal(ask(Paper(), [seed], 2, 0, clients)[0], together[lane])
        assert torch.equal(ask(Paper(), [seed], 2, 0, clients.flip(0))[0].flip(0), together[lane])


def test_dropout_at_one_rate():
    delays = ask(Dropout(0.3), range(5000), 1, 0, range(6))
    lost = delays.isinf()
    assert set(delays[~lost].tolist()) == {1.0}
    assert_rate(lost.sum().item(), lost.numel(), 0.3)
    for place in range(6):
        assert_rate(lost[:, place].sum().item(), 5000, 0.3)
    assert_rate((lost[:, 0] & lost[:, 1]).sum().item(), 5000, 0.09)  # one by one, not all at once
    assert ask(Dropout(1.0), range(500), 1, 0, range(6)).isinf().all()
    assert ask(Dropout(0.0), range(500), 1, 0, range(6)).isfinite().all()


def test_dropout_is_drawn_anew_in_every_round_and_phase():
    patterns = [
        ask(Dropout(0.5), [3], t, phase, range(64)).isinf()[0] for t in range(40) for phase in range(2)
    ]
    assert len({tuple(pattern.tolist()) for pattern in patterns}) == 80
    for client in range(64):
        times = sum(pattern[client].item() for pattern in patterns)
        assert 80 * 0.25 < times < 80 * 0.75


def test_dropout_with_a_rate_for_each_client():
    rates = (0.0, 1.0, 0.1, 0.5, 0.9)
    cohort = [4, 0, 3, 1, 2, 3]  # rates belong to clients, not to places
    lost = ask(Dropout(rates), range(5000), 1, 0, cohort).isinf()
    for place, client in enumerate(cohort):
        hits = lost[:, place].sum().item()
        if rates[client] in (0, 1):
            assert hits == 5000 * rates[client]
        else:
            assert_rate(hits, 5000, rates[client])


def test_rates_that_do_not_fit_are_refused():
    Dropout((0.1, 0.2)).check(2)
    Dropout(0.1).check(2)
    with pytest.raises(BadInput, match="each of the 3 clients, got 2"):
        Dropout((0.1, 0.2)).check(3)
    with pytest.raises(BadInput, match="clients"):
        make_study(Quadratic(clients=9), CDMAONE(0.1, 0.1), fleet=Dropout((0.1, 0.2)))
    for rate in (-0.1, 1.1, math.nan, (0.5, 2.0)):
        with pytest.raises(BadInput, match="rate"):
            Dropout(rate)


def test_slow_devices_stay_slow_for_a_run():
    fleet = Latency(median=8.0, spread=0.0, slow=0.3, slowdown=4.0)
    first = ask(fleet, range(40), 0, 0, range(300))
    assert set(first.flatten().tolist()) == {8.0, 32.0}
    for t, phase in [(0, 1), (1, 0), (7, 1), (1000, 0)]:
        assert torch.equal(ask(fleet, range(40), t, phase, range(300)), first)
    slow = first == 32
    assert_rate(slow.sum().item(), slow.numel(), 0.3)
    assert len({tuple(lane) for lane in slow.tolist()}) == 40  # which ones they are differs from run to run
    assert (ask(replace(fleet, slow=1.0), range(9), 0, 0, range(50)) == 32).all()
    assert (ask(replace(fleet, slow=0.0), range(9), 0, 0, range(50)) == 8).all()


def test_which_devices_are_slow_can_be_said_client_by_client():
    fleet = Latency(median=8.0, spread=0.0, slow=[1.0, 0.0, 1.0, 0.0], slowdown=4.0)
    assert ask(fleet, range(3), 5, 1, range(4)).tolist() == [[32.0, 8.0, 32.0, 8.0]] * 3
    fleet.check(4)
    with pytest.raises(BadInput, match="slow must be one number or one for each of the 5 clients, got 4"):
        fleet.check(5)


def test_a_fast_device_without_spread_takes_the_median():
    assert (ask(Latency(median=0.1, spread=0.0, slow=0.0), range(3), 0, 0, range(9)) == 0.1).all()


def test_delays_are_log_normal_about_their_class():
    fleet = Latency(median=10.0, spread=0.7, slow=0.4, slowdown=3.0)
    clients = range(200)
    median = ask(replace(fleet, spread=0.0), range(100), 0, 0, clients)
    logs = torch.log(ask(fleet, range(100), 5, 1, clients) / median)
    for of_class in (logs[median == 10], logs[median == 30]):
        count = len(of_class)
        assert count > 5000
        assert abs(of_class.mean()) < 4 * 0.7 / math.sqrt(count)
        assert abs(of_class.median()) < 4 * 0.7 * 1.2533 / math.sqrt(count)
        assert abs(of_class.std() / 0.7 - 1) < 4 / math.sqrt(2 * count)
        z = of_class / 0.7
        assert abs((z**3).mean()) < 4 * math.sqrt(15 / count)
        assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / count)
    again = torch.log(ask(fleet, range(100), 6, 1, clients) / median)
    together = torch.corrcoef(torch.stack([logs.flatten(), again.flatten()]))[0, 1]
    assert abs(together) < 4 / math.sqrt(logs.numel())  # a delay is drawn anew in every round


def test_latency_drops_out_apart_from_delay_and_device():
    fleet = Latency(spread=0.5, slow=0.5, dropout=0.2)
    without = ask(replace(fleet, dropout=0.0), range(200), 3, 0, range(100))
    delays = ask(fleet, range(200), 3, 0, range(100))
    lost = delays.isinf()
    assert_rate(lost.sum().item(), lost.numel(), 0.2)
    assert torch.equal(delays[~lost], without[~lost])
    slow = ask(replace(fleet, dropout=0.0, spread=0.0), range(200), 3, 0, range(100)) > 10
    assert_rate(lost[slow].sum().item(), slow.sum().item(), 0.2)
    long = without > without.median()
    assert_rate(lost[long].sum().item(), long.sum().item(), 0.2)


@pytest.mark.parametrize(
    ("make", "arguments", "said"),
    [
        (Paper, {"least": -0.1}, "least"),
        (Paper, {"least": 1.5}, "least"),
        (Paper, {"least": math.nan}, "least"),
        (Latency, {"median": 0.0}, "median"),
        (Latency, {"median": math.nan}, "median"),
        (Latency, {"spread": -1.0}, "spread"),
        (Latency, {"spread": math.inf}, "spread"),
        (Latency, {"spread": 700.0}, "spread"),
        (Latency, {"median": 1e308}, "median"),
        (Latency, {"slow": 1.1}, "slow"),
        (Latency, {"slowdown": -2.0}, "slowdown"),
        (Latency, {"dropout": math.nan}, "dropout"),
    ],
)
def test_bad_fleets_are_refused(make, arguments, said):
    with pytest.raises(BadInput, match=f"{said} must be"):
        make(**arguments)


# --- traces -------------------------------------------------------------------------------------------


def write(path, *lines):
    path.write_text("\n".join(["client,start,end", *lines, ""]))
    return str(path)


@pytest.fixture
def trace(tmp_path):
    """Client 0 from 10 to 20 and from 40 to 43, client 2 from 30 to 60, client 1 never."""
    return Trace(write(tmp_path / "trace.csv", "0,10,20", "2,30,60", "0,40,43"), seconds=4.0)


def test_reading_sorts_and_joins_spans(tmp_path):
    path = write(tmp_path / "t.csv", "3,5,6", "0,7,9", "0,1,2", "", "0,2,4.5", "0, 8 ,12", "3,1,9", "0,13,14")
    expected = {3: [(1, 9)], 0: [(1, 4.5), (7, 12), (13, 14)]}
    assert read_trace(tmp_path / "t.csv")[0] == expected
    assert Trace(path).period == 14


def test_spaces_and_windows_line_ends_are_read(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"client, start, end\r\n1,0,2\r\n")
    assert read_trace(tmp_path / "t.csv")[0] == {1: [(0, 2)]}


@pytest.mark.parametrize(
    "line",
    [
        "x,1,2",
        "1.5,1,2",
        "-1,1,2",
        "0,1",
        "0,1,2,3",
        "0,2,1",
        "0,1,1",
        "0,-1,1",
        "0,nan,1",
        "0,1,inf",
        "0,,1",
        "0;1;2",
    ],
)
def test_malformed_lines_are_named_by_number(tmp_path, line):
    write(tmp_path / "t.csv", "0,1,2", "", line, "0,3,4")
    with pytest.raises(BadInput, match="line 4") as refused:
        read_trace(tmp_path / "t.csv")
    assert line in str(refused.value)
    assert str(tmp_path / "t.csv") in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "first line"),
        (b"0,1,2\n", "first line"),
        (b"client,begin,end\n0,1,2\n", "first line"),
        (b"client,start,end\n", "no client"),
        (b"client,start,end\n\n\n", "no client"),
        (bytes(range(256)), "not a CSV text file"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "not a CSV text file"),
        (b"\x00\x01\x02\x00", "t.csv"),
        (b"client,start,end\n0,1,\xff\n", "not a CSV text file"),
    ],
)
def test_files_that_are_no_trace_are_refused(tmp_path, content, said):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(BadInput, match=said):
        Trace(str(tmp_path / "t.csv"))


def test_a_trace_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"missing\.csv: No such file"):
        Trace(str(tmp_path / "missing.csv"))
    with pytest.raises(BadInput, match="directory"):
        Trace(str(tmp_path))


def test_a_trace_of_strangers_and_bad_seconds_are_refused(trace):
    trace.check(3)
    with pytest.raises(BadInput, match="client 2 is not among the 2 clients"):
        trace.check(2)
    for seconds in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(BadInput, match="seconds"):
            Trace(trace.path, seconds=seconds)


@pytest.mark.parametrize(
    ("client", "now", "delay"),
    [
        (0, 0.0, 14.0),  # waits until it is reachable
        (0, 10.0, 4.0),
        (0, 12.5, 4.0),
        (0, 16.0, 4.0),  # just long enough
        (0, 16.5, 57.5),  # not long enough; neither is 40 to 43; so from 10 in the next lap
        (0, 41.0, 33.0),
        (2, 0.0, 34.0),
        (2, 56.0, 4.0),
        (2, 57.0, 37.0),  # the last span of a lap does not go on in the next one
        (2, 60.0, 34.0),  # which begins when the last span ends
        (0, 60.0, 14.0),
        (0, 6016.0, 4.0),
        (0, 6016.5, 57.5),
        (1, 0.0, NEVER),
        (1, 1e6, NEVER),
        (99, 3.0, NEVER),
    ],
)
def test_a_client_answers_when_it_is_reachable_for_long_enough(trace, client, now, delay):
    assert trace.delay(client, now) == delay


def test_a_client_never_reachable_for_long_enough_never_answers(trace):
    impatient = Trace(trace.path, seconds=3.0)
    assert impatient.delay(0, 20.0) == 23.0
    long = Trace(trace.path, seconds=10.5)
    assert long.delay(0, 0.0) == NEVER
    assert long.delay(2, 0.0) == 40.5


def test_delays_use_each_lanes_own_clock(trace):
    cohort = torch.tensor([[0, 1, 2], [2, 0, 1]])
    delays = trace.delays(torch.tensor([0, 1]), 0, 0, cohort, [0.0, 16.5])
    assert delays.tolist() == [[14.0, NEVER, 34.0], [17.5, 57.5, NEVER]]


def first_answer(spans, seconds, now):
    """The same by trying every quarter of a second. All times are whole quarters."""
    period = max(end for of_client in spans.values() for _, end in of_client)

    def delay(client):
        laps = int(now // period) + 3
        own = [(s + lap * period, e + lap * period) for lap in range(laps) for s, e in spans.get(client, [])]

        def reachable(quarter):  # throughout the quarter that begins now
            return any(start <= quarter and quarter + 0.25 <= end for start, end in own)

        begin = now
        while begin < laps * period:
            quarters = [begin + number / 4 for number in range(int(seconds * 4))]
            if all(reachable(quarter) for quarter in quarters):
                return begin + seconds - now
            begin += 0.25
        return NEVER

    return delay


def quarters(least, most):
    return st.integers(4 * least, 4 * most).map(lambda number: number / 4)


@st.composite
def traces(draw, earliest):
    lines = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(earliest, 30), st.integers(1, 12)),
            min_size=1,
            max_size=6,
        )
    )
    return [(client, start / 4, (start + length) / 4) for client, start, length in lines]


def make_trace(folder, lines, seconds):
    return Trace(write(folder / "t.csv", *[f"{i},{start},{end}" for i, start, end in lines]), seconds=seconds)


@relaxed
@given(traces(earliest=1), quarters(0, 25), st.integers(1, 12).map(lambda number: number / 4))
def test_a_trace_is_what_trying_every_moment_finds(tmp_path_factory, lines, now, seconds):
    trace = make_trace(tmp_path_factory.mktemp("trace"), lines, seconds)
    spans = {}
    for client, start, end in lines:
        spans.setdefault(client, []).append((start, end))
    expected = first_answer(spans, seconds, now)
    for client in range(4):
        assert trace.delay(client, now) == expected(client)


def test_a_client_reachable_before_and_after_the_trace_begins_again_stays_reachable(tmp_path):
    """Touching spans are joined; the end of the trace touches its beginning."""
    always = make_trace(tmp_path, [(0, 0, 10)], seconds=3.0)
    assert [always.delay(0, now) for now in (0.0, 6.5, 7.5, 9.75, 10.0)] == [3.0] * 5
    over_the_seam = make_trace(tmp_path, [(0, 0, 2), (0, 8, 10)], seconds=3.0)
    assert over_the_seam.delay(0, 8.0) == 3.0


# --- the same delays, whoever else is invited ---------------------------------------------------------

CLIENTS = 12


@pytest.mark.parametrize("kind", ["everybody", "dropout", "rates", "latency", "trace"])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_delay_depends_neither_on_the_cohort_nor_on_the_lanes(tmp_path_factory, kind, data):
    fleet = {
        "everybody": Everybody,
        "dropout": lambda: Dropout(0.5),
        "rates": lambda: Dropout(tuple(i / CLIENTS for i in range(CLIENTS))),
        "latency": lambda: Latency(dropout=0.3),
        "trace": lambda: make_trace(
            tmp_path_factory.mktemp("trace"), [(i, i % 4, 2 * i % 7 + 5) for i in range(9)], seconds=2.0
        ),
    }[kind]()
    count = data.draw(st.integers(1, CLIENTS))
    lane = st.lists(st.integers(0, CLIENTS - 1), min_size=count, max_size=count, unique=True)
    seeds = data.draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True))
    cohorts = [data.draw(lane) for _ in seeds]
    now = [data.draw(st.floats(0, 50)) for _ in seeds]
    t, phase = data.draw(st.integers(0, 1000)), data.draw(st.integers(0, 1))
    delays = fleet.delays(torch.tensor(seeds), t, phase, torch.tensor(cohorts), now)
    for seed, cohort, clock, found in zip(seeds, cohorts, now, delays.tolist(), strict=True):
        for client, delay in zip(cohort, found, strict=True):
            alone = fleet.delays(torch.tensor([seed]), t, phase, torch.tensor([[client]]), [clock])
            assert alone.tolist() == [[delay]]


# --- invitations --------------------------------------------------------------------------------------


@relaxed
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True), st.booleans(), st.data())
def test_invited_clients_are_different_and_each_lane_invites_by_itself(seeds, by_weight, data):
    clients = data.draw(st.integers(2, 40))
    weights = None
    able = set(range(clients))
    if by_weight:
        weights = torch.tensor([float(i % 3) for i in range(clients)], dtype=torch.float64)
        able = {i for i in range(clients) if i % 3}
    count = data.draw(st.integers(1, len(able)))
    invited = invite(torch.tensor(seeds), 6, 1, clients, count, weights)
    assert invited.shape == (len(seeds), count)
    assert invited.dtype == torch.int64
    for seed, lane in zip(seeds, invited, strict=True):
        assert len(set(lane.tolist())) == count
        assert set(lane.tolist()) <= able
        assert torch.equal(invite(torch.tensor([seed]), 6, 1, clients, count, weights)[0], lane)


@pytest.mark.parametrize("weights", [None, torch.ones(50, dtype=torch.float64)])
def test_invitations_differ_over_seeds_rounds_and_phases(weights):
    cohorts = [
        tuple(sorted(lane))
        for t in range(30)
        for phase in range(2)
        for lane in invite(torch.arange(4), t, phase, 50, 8, weights).tolist()
    ]
    assert len(set(cohorts)) == len(cohorts)
    counts = Counter(i for cohort in cohorts for i in cohort)
    assert abs(even([counts[i] for i in range(50)])) < 4


def test_invitations_follow_the_weights():
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64)
    invited = invite(torch.arange(20_000), 0, 0, 4, 1, weights).flatten()
    counts = invited.bincount(minlength=4).tolist()
    assert counts[0] == 0
    assert abs(deviation(counts[1:], [2500, 5000, 12_500])) < 4


# --- a whole simulation: cohorts, S_t -----------------------------------------------------------------


class Listening:
    """A fleet that remembers whom it was asked about."""

    def __init__(self, fleet):
        self.fleet, self.heard = fleet, {}

    def check(self, clients):
        self.fleet.check(clients)

    def delays(self, seeds, round, phase, clients, now):
        delays = self.fleet.delays(seeds, round, phase, clients, now)
        self.heard[round, phase] = clients.tolist(), delays.isfinite().tolist()
        return delays


def listen(cohorts, weights=None):
    fleet = Listening(Paper())
    problem = Quadratic(clients=30, samples=4, dim_x=2, dim_y=2)
    quorum = Quorum(invite=6)
    simulate(
        problem,
        CDMAONE(0.01, 0.01, K=2),
        rounds=12,
        seeds=(0, 1),
        quorum=quorum,
        fleet=fleet,
        cohorts=cohorts,
        weights=weights,
    )
    assert sorted(fleet.heard) == [(t, phase) for t in range(12) for phase in range(2)]
    return fleet.heard


def test_both_phases_invite_the_same_clients_or_others():
    invited, independent = listen("invited"), listen("independent")
    for t in range(12):
        assert invited[t, 0][0] == invited[t, 1][0]
        for lane in range(2):
            assert set(independent[t, 0][0][lane]) != set(independent[t, 1][0][lane])
        assert invited[t, 0] == independent[t, 0]
    assert len({str(invited[t, 0][0]) for t in range(12)}) == 12
    # Even of the same clients, others answer in the second phase.
    assert sum(invited[t, 0][1] != invited[t, 1][1] for t in range(12)) > 6


def test_simulate_invites_by_weight():
    heard = listen("independent", weights=[1.0] * 8 + [0.0] * 22)
    assert {i for clients, _ in heard.values() for lane in clients for i in lane} == set(range(8))


def test_as_many_answers_are_used_as_the_paper_draws_in_both_phases():
    study = make_study(
        Quadratic(clients=20, samples=3, dim_x=2, dim_y=2), CDMAONE(0.01, 0.01, K=2), seeds=(0, 1, 2)
    )
    lanes, seen = begin(study), set()
    for t in range(15):
        before = lanes
        lanes, events = play(study, lanes, t)
        assert events == []
        for lane in range(3):
            new = lanes.posted[lane] - before.posted[lane]
            assert new[Posted("down", 0)] == new[Posted("down", 1)] == 8
            assert new[Posted("up", 0)] == new[Posted("up", 1)]
            assert new[Posted("late", 0)] == new[Posted("late", 1)] == 0
            seen.add(new[Posted("up", 0)])
    assert seen == {5, 6, 7, 8}
    assert lanes.clock == [30.0] * 3


# --- abandoned rounds ---------------------------------------------------------------------------------


class Silent:
    """Everybody answers after one second, but in these (round, phase, lane) only the first few."""

    def __init__(self, *silent, answers=0):
        self.silent, self.answers = silent, answers

    def check(self, clients):
        pass

    def delays(self, seeds, round, phase, clients, now):
        delays = torch.ones(clients.shape, dtype=torch.float64)
        for lane in range(len(seeds)):
            if (round, phase, lane) in self.silent:
                delays[lane, self.answers :] = NEVER
        return delays


class Counted(NamedTuple):
    z: Pair
    first: Pair


@dataclass(frozen=True)
class TwoPhases:
    """Both phases change the server, and clients keep something of the first one."""

    eta: StepSize

    def init(self, z):
        return Counted(z, 0 * z)

    def remember(self, z):
        return 0 * z

    def send(self, server):
        return {"z": server.z}

    def look(self, client, z: Parameters):
        g = client.full_grad(z)
        return Reply({"g": g}, keep=client.kept + g)

    def note(self, server, turn, g: Parameters):
        return Counted(server.z - self.eta * g, g)

    def move(self, client, z: Parameters):
        end = client.walk(lambda w, xi: w - self.eta * client.grad(w, xi), z)
        return Reply({"z": end}, keep=client.kept + (end - z))

    def average(self, server, turn, z: Parameters):
        return server._replace(z=z)

    def phases(self):
        return (
            Phase("look", self.send, self.look, self.note),
            Phase("move", self.send, self.move, self.average, steps=2),
        )


PROBLEM = Quadratic(clients=7, samples=(2, 5), dim_x=3, dim_y=2)
ALGORITHMS = {
    "codasca": CODASCA(eta_l=0.05, eta_g=0.9, theta=0.1, K_0=2, K=2),  # a stage lasts a round: t matters
    "cdma-ada": CDMAADA(c_eta=0.1, c_gamma=0.1, K=2),
    "two phases": TwoPhases(eta=0.1),
}
QUORUMS = {
    "no deadline": (Quorum(invite=4, minimum=2), 0.0),
    "deadline": (Quorum(invite=4, minimum=2, deadline=9.0), 9.0),
    "grace": (Quorum(invite=4, minimum=2, deadline=9.0, grace=3.0), 12.0),
}


def study_of(algorithm, fleet, quorum, seeds=(0, 1)):
    return make_study(PROBLEM, algorithm, seeds=seeds, fleet=fleet, quorum=quorum, batch=2)


def still(lanes):
    """A copy: `play` changes the clients' memory in place."""
    return replace(lanes, memory=lanes.memory and tree_map(torch.clone, lanes.memory))


def same_tensors(one, other):
    leaves = list(zip(tree_leaves(one), tree_leaves(other), strict=True))
    return all(torch.equal(a, b) for a, b in leaves) and bool(leaves)


def assert_same_but_for_the_clock(lanes, before):
    assert same_tensors(lanes.server, before.server)
    assert (lanes.memory is None) == (before.memory is None)
    assert lanes.memory is None or same_tensors(lanes.memory, before.memory)
    assert lanes.completed == before.completed
    assert lanes.alive == before.alive


CASES = [
    (name, phase, rule, answers)
    for name, phases in [("codasca", 1), ("cdma-ada", 2), ("two phases", 2)]
    for phase in range(phases)
    for rule, answers in [("no deadline", 0), ("deadline", 0), ("grace", 1)]
]


@pytest.mark.parametrize(("name", "phase", "rule", "answers"), CASES)
def test_an_abandoned_round_moves_only_the_clock_and_the_messages(name, phase, rule, answers):
    quorum, waited = QUORUMS[rule]
    fleet = Silent((1, phase, 0), (1, phase, 1), answers=answers)
    study = study_of(ALGORITHMS[name], fleet, quorum)
    lanes, events = play(study, begin(study), 0)
    assert events == []
    assert lanes.completed == [1, 1]
    before = still(lanes)
    if before.memory is not None:
        assert any(bool(value.any()) for value in before.memory)  # there is something to lose

    lanes, events = play(study, lanes, 1)
    assert_same_but_for_the_clock(lanes, before)
    assert lanes.completed == [1, 1]
    assert lanes.alive == [True, True]
    phase_name = study.algorithm.phases()[phase].name
    assert [(event.lane, event.round, event.what) for event in events] == [
        (0, 1, "abandoned"),
        (1, 1, "abandoned"),
    ]
    assert all(event.detail == f"{phase_name}: {answers} answers, the minimum is 2" for event in events)
    for lane in range(2):
        assert lanes.clock[lane] - before.clock[lane] == phase * 1.0 + waited
        expected = Counter({Posted("down", phase): 4, Posted("late", phase): answers})
        if phase == 1:
            expected += Counter({Posted("down", 0): 4, Posted("up", 0): 4})
        assert lanes.posted[lane] - before.posted[lane] == +expected

    # The next round goes on as if the abandoned one had not been: also t is the same.
    everybody = study_of(ALGORITHMS[name], Everybody(), quorum)
    lanes, events = play(study, lanes, 2)
    expected, _ = play(everybody, before, 2)
    assert events == []
    assert_same_but_for_the_clock(lanes, expected)
    assert lanes.completed == [2, 2]
    assert not same_tensors(lanes.server.z, begin(study).server.z)


@pytest.mark.parametrize(("name", "phase"), sorted({case[:2] for case in CASES}))
def test_a_lane_abandons_by_itself(name, phase):
    quorum = Quorum(invite=4)
    study = study_of(ALGORITHMS[name], Silent((1, phase, 1)), quorum, seeds=(0, 1, 2))
    untroubled = study_of(ALGORITHMS[name], Everybody(), quorum, seeds=(0, 1, 2))
    lanes, _ = play(study, begin(study), 0)
    before = still(lanes)
    lanes, events = play(study, lanes, 1)
    expected, _ = play(untroubled, still(before), 1)
    assert [(event.lane, event.what) for event in events] == [(1, "abandoned")]
    assert lanes.completed == [2, 1, 2]
    assert lanes.alive == [True] * 3
    for lane, other in enumerate([expected, before, expected]):

        def of(state, lane=lane):
            return [leaf[lane] for leaf in tree_leaves((state.server, state.memory or ()))]

        assert all(torch.equal(a, b) for a, b in zip(of(lanes), of(other), strict=True))


def test_a_simulation_reports_abandoned_rounds_and_goes_on():
    fleet = Silent((1, 1, 0), (3, 0, 0), (3, 0, 1))
    outcome = simulate(
        PROBLEM,
        CDMAONE(0.05, 0.05, K=2),
        rounds=5,
        evaluate_every=1,
        seeds=(0, 1),
        quorum=Quorum(invite=4, deadline=7.0),
        fleet=fleet,
    )
    assert [(event.lane, event.round, event.what) for event in outcome.events] == [
        (0, 1, "abandoned"),
        (0, 3, "abandoned"),
        (1, 3, "abandoned"),
    ]
    assert [event.detail.split(":")[0] for event in outcome.events] == ["update", "collect", "collect"]
    assert outcome.alive == [True, True]
    by_round = {(row.lane, row.round): row for row in outcome.rows}
    for lane, abandoned in [(0, {1, 3}), (1, {3})]:
        for t in range(5):
            stood = by_round[lane, t].metrics == by_round[lane, t + 1].metrics
            assert stood == (t in abandoned)
    assert [by_round[lane, 5].time_simulated for lane in range(2)] == [2 * 3 + 8.0 + 7.0, 2 * 4 + 7.0]


def test_a_run_in_which_nobody_ever_answers_ends_where_it_began():
    fleet = Silent(*[(t, 0, 0) for t in range(6)])
    algorithm = CODASCA(eta_l=0.1, K=2)
    with pytest.warns(Notice, match="nothing was learnt"):
        outcome = simulate(PROBLEM, algorithm, rounds=6, quorum=Quorum(invite=4), fleet=fleet)
    assert same_tensors(outcome.z[0], PROBLEM.init(0))
    assert len(outcome.events) == 6
    assert outcome.alive == [True]
    assert {row.floats_up for row in outcome.rows} == {0}
    assert outcome.rows[-1].floats_down > 0


class Slow:
    """The first client invited answers after a second, the others long after every deadline."""

    def check(self, clients):
        pass

    def delays(self, seeds, round, phase, clients, now):
        delays = torch.full(clients.shape, 100.0, dtype=torch.float64)
        delays[:, 0] = 1.0
        return delays


def test_an_abandoned_round_is_told_by_the_answers_that_were_there():
    quorum = Quorum(invite=4, minimum=3, deadline=10.0)
    study = study_of(CODASCA(eta_l=0.1, K=2), Slow(), quorum)
    lanes, events = play(study, begin(study), 0)
    assert lanes.clock == [10.0, 10.0]
    assert [event.detail for event in events] == ["update: 1 answers, the minimum is 3"] * 2


class Explosive:
    """A problem whose field has no bound."""

    metrics = {"x": Metric("low", rows="none")}  # noqa: RUF012
    federation = Federation({"one": torch.ones(4, 1, dtype=torch.float64)}, torch.ones(4, dtype=torch.int64))

    def init(self, seed):
        return Pair(torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))

    def field(self, z, xi):
        return z * math.inf

    def evaluate(self, z):
        return {"x": z.x.item()}


def test_a_lane_that_abandons_what_would_have_diverged_lives_on():
    """Phase one leaves no finite point, phase two is abandoned: the lane keeps its state, and its life."""
    study = make_study(Explosive(), TwoPhases(eta=0.1), fleet=Silent((0, 1, 0)), quorum=Quorum(invite=2))
    before = begin(study)
    lanes, events = play(study, still(before), 0)
    assert [event.what for event in events] == ["abandoned"]
    assert_same_but_for_the_clock(lanes, before)


# --- what clients keep --------------------------------------------------------------------------------


class Tally(TwoPhases):
    """Clients count their visits."""

    def look(self, client, z: Parameters):
        return Reply({"g": 0 * z}, keep=Pair(client.kept.x + 1, client.kept.y + 1))

    def move(self, client, z: Parameters):
        return Reply({"z": z}, keep=Pair(client.kept.x + 1, client.kept.y + 1))


@pytest.fixture(scope="module")
def tallied():
    """Each lane's tally after one round, and how often each client was visited."""
    fleet = Listening(Everybody())
    study = study_of(Tally(eta=0.1), fleet, Quorum(invite=4))
    lanes, _ = play(study, begin(study), 0)
    visited = [Counter(i for phase in range(2) for i in fleet.heard[0, phase][0][lane]) for lane in range(2)]
    assert {count for lane in visited for count in lane.values()} == {1, 2}
    tally = lanes.memory.x[:, :, 0].tolist()
    return [(tally[lane][i], visited[lane][i]) for lane in range(2) for i in range(7)]


def test_a_client_remembers_the_phase_it_was_in(tallied):
    assert all(tally == visits for tally, visits in tallied if visits < 2)


def test_a_client_remembers_both_phases_of_a_round(tallied):
    """What a client keeps is for its next visit, also when that is in the next phase of the same round."""
    assert all(tally == visits for tally, visits in tallied)
