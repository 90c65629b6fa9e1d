"""How far a run is, and how long it will still take."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedsaddle.cli import progress, tables


class Clock:
    """A clock on the wall that a test moves."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def plan_of(*names, rounds=600, seeds=5):
    """As much of a plan as progress looks at."""
    return SimpleNamespace(
        rounds=rounds, by="", studies={name: SimpleNamespace(seeds=range(seeds)) for name in names}
    )


def stop_at(round, rows=()):
    return SimpleNamespace(round=round, rows=rows, events=[], lanes=SimpleNamespace(alive=[1, 1, 1, 1, 0]))


ROWS = [SimpleNamespace(metrics={"stationarity": 0.000123456}, floats_up=1234567)] * 4


@pytest.mark.parametrize("others", [[], ["codasca", "cdma-ada"]])
def test_the_progress_lines_fit_into_80_columns(monkeypatch, others):
    screen = Console(width=80, force_terminal=True, file=io.StringIO(), color_system=None)
    clock, longest = Clock(monkeypatch), "catalyst-scaffold-s"
    shown = progress.bars(screen)
    bars = progress.Bars(plan_of(longest, *others), dict.fromkeys([longest, *others], 0), shown)
    bars.begin(longest, 0)
    for round in range(31):
        bars.stop(longest, stop_at(round, ROWS if round in (0, 30) else ()))
        clock.now += 1 / 20
    screen.print(shown.get_renderable())
    *whole, line = screen.file.getvalue().splitlines()
    assert re.fullmatch(rf"{longest}  30/600 20/s 00:28 stationarity 0.0001235 up 1.23M 4/5 alive *", line)
    if others:
        (total,) = whole
        assert re.fullmatch(r"algorithms +0/3 +about 90 s left *", total)
    else:
        assert not whole


def test_a_narrow_terminal_keeps_the_algorithm_and_the_round(monkeypatch):
    screen = Console(width=40, force_terminal=True, file=io.StringIO(), color_system=None)
    clock, longest = Clock(monkeypatch), "catalyst-scaffold-s"
    shown = progress.bars(screen)
    bars = progress.Bars(plan_of(longest, rounds=10_000), {longest: 0}, shown)
    bars.begin(longest, 0)
    for round in range(31):
        bars.stop(longest, stop_at(round, ROWS if round in (0, 30) else ()))
        clock.now += 1 / 20
    screen.print(shown.get_renderable())
    assert re.fullmatch(rf"{longest}  +30/10000 \S+ *\n", screen.file.getvalue())


def test_a_narrow_terminal_keeps_the_numbers():
    label = "catalyst-scaffold-s"
    found = [
        SimpleNamespace(
            label=label,
            final={0: 0.0001234, 1: 0.0005678},
            seeds=2,
            floats_up={0: 1.0},
            seconds={},
            abandoned=3,
        )
    ]
    run = SimpleNamespace(judged_by="stationarity", spent={label: 1.0}, real={})
    screen = Console(width=40, file=io.StringIO())
    screen.print(tables._run_table(SimpleNamespace(run=run, found=found), 40))
    text = screen.file.getvalue()
    assert "0.0003456 \u00b1 0.00031" in text
    assert "2/2" in text
    assert "\u2026" not in text
    assert max(map(len, text.splitlines())) <= 40
    family = SimpleNamespace(
        by="stationarity",
        name=label,
        tried=[1],
        diverged=0,
        dropped=0,
        told=lambda: "eta 0.1, gamma 0.2",
        value_of=lambda metric: 0.0001234,
    )
    screen.print(tables._sweep_table(SimpleNamespace(run=run, families=[family]), narrow=True))
    assert "0.0001234" in screen.file.getvalue()
    assert "\u2026" not in screen.file.getvalue()


def test_the_time_left_does_not_extrapolate_the_warm_up(monkeypatch):
    clock = Clock(monkeypatch)
    pace = progress.Pace(plan_of("one", "other", rounds=100), {"one": 0, "other": 0})
    pace.begin("one", 0)
    for round in range(1, 41):
        clock.now += 3.0 if round < 10 else 0.1  # while phases are recorded
        pace.stop(round)
        if round == 3:
            assert pace.of_run() is None  # too early to say
    assert pace.speed == pytest.approx(10)
    assert pace.of_study() == pytest.approx(6)
    # The other has a warm-up of its own.
    assert pace.of_run() == pytest.approx(6 + (27 + 9.1), abs=1e-6)


def test_the_time_left_follows_algorithms_of_different_speed(monkeypatch):
    """Nine of them, some eight times as slow: never far off, and better with each."""
    clock, seconds = Clock(monkeypatch), [0.1, 0.8, 0.2, 0.1, 0.4, 0.3, 0.2, 0.1, 0.2]
    names = [f"a{number}" for number in range(9)]
    pace = progress.Pace(plan_of(*names, rounds=50), dict.fromkeys(names, 0))
    left, worst = 50 * sum(seconds), []
    for name, own in zip(names, seconds, strict=True):
        pace.begin(name, 0)
        off = 0.0
        for round in range(1, 51):
            clock.now += own
            left -= own
            pace.stop(round)
            if (guess := pace.of_run()) is not None:
                off = max(off, abs(guess - left))
        worst.append(off)
    assert worst[1] <= 50 * sum(seconds)
    assert max(worst[5:]) <= 30 < max(worst)
    assert pace.of_run() == 0
    assert pace.elapsed == pytest.approx(10)


def test_at_the_start_of_an_algorithm_those_before_it_tell_the_time(monkeypatch):
    clock = Clock(monkeypatch)
    pace = progress.Pace(
        plan_of("one", "two", "three", rounds=100), dict.fromkeys(["one", "two", "three"], 0)
    )
    pace.begin("one", 0)
    for round in range(1, 101):
        clock.now += 1
        pace.stop(round)
    pace.begin("two", 0)
    pace.stop(0)
    assert pace.of_run() == pytest.approx(200)


def test_a_resumed_run_reckons_with_what_is_left(monkeypatch):
    clock = Clock(monkeypatch)
    pace = progress.Pace(plan_of("one", "two", "three", rounds=100), {"two": 50, "three": 90})
    pace.begin("two", 50)
    for round in range(51, 76):
        clock.now += 1
        pace.stop(round)
    assert pace.of_run() == pytest.approx(25 + 10)
    assert pace.number["two"] == 2


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.2, "1 s"),
        (7.4, "7 s"),
        (42, "40 s"),
        (89, "90 s"),
        (170, "3 min"),
        (5000, "83 min"),
        (9000, "2.5 h"),
    ],
)
def test_times_are_told_roundly(seconds, told):
    assert progress.about(seconds) == f"about {told}"


def test_plain_lines_have_a_total_and_the_time_left(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    lines = progress.Lines(plan_of("one", "two", rounds=100), {"one": 0, "two": 0})
    lines.begin("one", 0)
    for round in range(101):
        lines.stop("one", stop_at(round, ROWS if round % 10 == 0 else ()))
        clock.now += 2
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("4/5 alive  algorithm 1/2")
    assert second.endswith("0.5 rounds/s  algorithm 1/2, about 6 min left")
    assert last.endswith("algorithm 1/2, about 3 min left")


@pytest.mark.parametrize(
    ("plan", "seconds", "told"),
    [
        (
            plan_of("one", "other", rounds=1000),
            1.0,
            "about 33 min in all; shorter: --rounds 30 or --algorithm one or --seeds 0",
        ),
        (plan_of("one", rounds=200, seeds=1), 1.0, "about 3 min in all; shorter: --rounds 60. Ctrl-C"),
        (plan_of("one", rounds=20, seeds=1), 10.0, "about 3 min in all. Ctrl-C saves it"),
        (plan_of("one", rounds=500), 0.1, ""),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_of_more_than_a_minute_says_so_once(monkeypatch, plan, seconds, told, resumed):
    clock, to = Clock(monkeypatch), io.StringIO()
    start = 1 if resumed else 0
    lines = progress.Lines(plan, dict.fromkeys(plan.studies, start), to, warns=True)
    lines.begin("one", start)
    for round in range(start, min(60, plan.rounds)):
        lines.stop("one", stop_at(round))
        clock.now += seconds
    said = [line for line in to.getvalue().splitlines() if "this will take" in line]
    assert len(said) == (1 if told and not resumed else 0)
    assert resumed or told in "".join(said)
