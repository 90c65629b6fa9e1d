"""The board: what is tried, what a budget buys, who is told apart, and all of it once, in very little."""

import csv
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

import chromium
import fedsaddle as fs
from fedsaddle.algorithms import ALGORITHMS, Entry
from fedsaddle.app.board import Draw, Pick, board, entered, how_far
from fedsaddle.app.jobs import hands_beside
from fedsaddle.app.run import Silent, Way
from fedsaddle.board import costs
from fedsaddle.board.matches import Match, labels_of, misfit
from fedsaddle.board.published import (
    LEFT_OUT,
    PUBLISHED,
    Ranges,
    StepRanges,
    grid_of,
    shipped_entrants,
    submitted,
)
from fedsaddle.board.scores import reached_by, worth_of
from fedsaddle.board.standings import Contestant, Standings, ranked, verdict_on
from fedsaddle.board.tasks import BOARD_FLEETS, QUICK_BOARD, WHOLE_BOARD
from fedsaddle.border.files import shipped
from fedsaddle.cli.board import _command
from fedsaddle.exits import INTERRUPTED
from fedsaddle.metric import Metric
from fedsaddle.report.reading import Evaluation, Lane, Series
from fedsaddle.simulate import hyperparameters
from fedsaddle.sweep import Span, check_grid, settings

ROOT = Path(__file__).parent.parent
LOW, HIGH = Metric("low", rows="none"), Metric("high", rows="test", chance=0.6)
ENTRANTS = {one.label: one for one in shipped_entrants()[0]}
STEPS = StepRanges((0.01, 0.1), (0.2, 0.4), (0.5, 0.6), "here")
TASK = replace(
    QUICK_BOARD.tasks["quadratic-10"], name="little", rounds=3, every=1, problem={"clients": 20, "samples": 4}
)
TINY = replace(QUICK_BOARD, name="tiny", tasks={"little": TASK}, settings=3, fleets=("paper",))


# --- what is tried ---------------------------------------------------------------------------------------


def test_every_algorithm_is_entered_or_there_is_a_reason():
    found, out = shipped_entrants()
    assert {one.label for one in found} | set(out) == set(ALGORITHMS) | set(LEFT_OUT)
    assert "no ranges are declared for it" not in out.values()
    assert set(PUBLISHED) <= set(ALGORITHMS)
    assert all(one.ranges.source for one in found)


@pytest.mark.parametrize("form", [WHOLE_BOARD, QUICK_BOARD], ids=["whole", "quick"])
def test_every_grid_is_one_of_a_sweep_with_as_many_settings(form):
    for task in form.tasks.values():
        assert task.base in shipped()
        assert not task.by.startswith("test")
        for one in ENTRANTS.values():
            choices = check_grid(one.label, grid_of(one, task.steps), hyperparameters(one.entry.rule))
            assert any(isinstance(choice, Span) for choice in choices.values()), one.label
            assert len(settings(choices, form.tries(task), 0, 1)) == form.tries(task)


def test_a_step_size_has_its_players_range_and_the_rest_its_own():
    grid = grid_of(ENTRANTS["cdma-ada"], STEPS)
    assert grid["c_eta"] == {"low": 0.01, "high": 0.1, "log": True}
    assert grid["c_gamma"]["high"] == 0.4
    assert grid["rho"] == [0.0, 0.2, 1 / 3]
    assert "K" not in grid
    grid = grid_of(ENTRANTS["catalyst-scaffold-s"], STEPS)
    assert (grid["eta_l"]["low"], grid["eta_g"]) == (0.5, "eta_l")
    assert grid_of(ENTRANTS["sagda"], STEPS)["gamma_g"] == {"low": 1.0, "high": 2.0, "log": True}


def test_settings_are_drawn_log_uniformly():
    span = Span(0.001, 1.0, log=True)
    drawn = [one["eta"] for one in settings({"eta": span}, 400, 0, 1)]
    assert 0.001 <= min(drawn) < 0.002 < 0.6 < max(drawn) <= 1.0
    assert 160 < sum(value < 0.001**0.5 for value in drawn) < 240


def test_who_does_not_fit_says_why():
    def match(name, fleet="paper"):
        return Match(TASK, fleet, ENTRANTS[name], TINY, Path())

    assert "every client" in misfit(match("proxskip-vip"))
    assert misfit(match("proxskip-vip", "everybody")) == misfit(match("cdma-ada")) == ""
    only = ENTRANTS["cdma-ada"]._replace(ranges=Ranges("here", problems=("groups",)))
    assert misfit(Match(TASK, "paper", only, TINY, Path())) == "is for groups, not for quadratic"


# --- what a budget buys ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem():
    return fs.Quadratic(clients=40)


def terms(problem, name, fleet="everybody"):
    one, setting = ENTRANTS[name], {key: 0.1 for key in grid_of(ENTRANTS[name], STEPS) if key != "K_0"}
    own = costs.round_of(problem, one, setting, 10)
    return costs.terms_of(replace(TASK, rounds=100, every=10), BOARD_FLEETS[fleet], problem, one, own)


@pytest.mark.parametrize(
    ("name", "invite", "phases", "rounds"),
    [
        ("cdma-ada", 8, 2, 110),
        ("cdma-nc", 16, 1, 220),  # half the trips: twice the rounds to have as many
        ("parallel-sgda", 16, 1, 220),
        ("codasca", 8, 1, 220),  # two vectors in one trip
        ("fednest", 8, 4, 110),  # half a vector in each of four
        ("server-eg", 8, 2, 110),
        ("proxskip-vip", 40, 1, 220),
    ],
)
def test_all_send_the_same_floats_and_play_until_every_budget_is_used(problem, name, invite, phases, rounds):
    found = terms(problem, name)
    assert (found.invite, found.phases, found.rounds) == (invite, phases, rounds)
    assert found.budgets == {"floats": 100 * 8 * 2 * 20, "trips": 200, "time": 200}


def test_a_fleet_is_asked_how_many_answer_and_how_long_it_takes(problem):
    from fedsaddle.fleet import Latency, Paper

    paper = costs.expected(Paper(), 8, 40)
    assert (6.0 < paper.answers < 7.0, paper.seconds) == (True, 1.0)
    eight, sixteen = (costs.expected(Latency(dropout=0.1), count, 40) for count in (8, 16))
    assert 7.0 < eight.answers < 7.4
    assert eight.seconds < sixteen.seconds  # who waits for more waits longer
    latency = terms(problem, "cdma-nc", "latency")
    assert latency.budgets["time"] == pytest.approx(200 * eight.seconds)


def lane(seed, values, diverged="", step=10):
    points = [
        Evaluation(n, 100 * n, 2.0 * n, {"m": value})
        for n, value in zip(range(0, step * len(values), step), values, strict=True)
    ]
    return Lane(seed, points, {}, diverged)


TERMS = costs.Terms(8, 30, 2, {"floats": 2000.0, "trips": 60.0, "time": 80.0})


def test_a_seed_is_judged_by_the_last_quarter_of_a_budget():
    one = lane(0, [8.0, 6.0, 2.0, 2.0])
    # 2,000 floats are 20 rounds; from round 15 the line goes from 4 to 2.
    assert reached_by(one, "m", LOW, "floats", TERMS) == (pytest.approx(3.0), 1.0, False)
    assert reached_by(one, "m", LOW, "trips", TERMS).value == pytest.approx(2.0)  # rounds 22.5 to 30
    late = reached_by(one, "m", LOW, "time", TERMS)
    assert (late.value, late.part) == (pytest.approx(2.0), 0.75)  # as far as it came
    assert reached_by(replace(one, diverged="round 3"), "m", LOW, "floats", TERMS).failed
    assert reached_by(lane(0, [0.5, 0.5, 0.5]), "m", HIGH, "floats", TERMS).failed  # collapsed


def test_a_setting_that_loses_a_seed_comes_after_all_that_lose_none():
    def series(*lanes):
        return Series("s", list(lanes), len(lanes), 30, 0, {"m": LOW})

    safe = series(lane(0, [9.0, 9.0, 9.0]), lane(1, [9.0, 9.0, 9.0]))
    risky = series(lane(0, [1.0, 1.0, 1.0]), lane(1, [1.0, 1.0, 1.0], "round 2"))
    gone = series(*(lane(seed, [1.0], "round 2") for seed in (0, 1)))
    found = [worth_of(one, "m", "floats", TERMS, True) for one in (safe, risky, gone)]
    assert found == sorted(found)
    assert [one.usable for one in found] == [True, True, False]
    assert found[0].cost == pytest.approx(9.0)


def test_one_setting_that_is_best_for_several_budgets_runs_once():
    a, b = (Series(name, [], 0, 0, 0, {}) for name in "ab")
    assert labels_of({"floats": a, "trips": b, "time": b}) == {"floats": a, "trips-time": b}


# --- who is told apart -----------------------------------------------------------------------------------


NOISE = [0.01, -0.02, 0.015, -0.005, 0.0, 0.02, -0.01, 0.005]


def contestant(label, values, failed=()):
    seeds = {seed: costs_reached(value, seed in failed) for seed, value in enumerate(values)}
    return Contestant(label, seeds, "", {})


def costs_reached(value, failed):
    from fedsaddle.board.scores import Reached

    return Reached(math.nan if failed else value, 1.0, failed)


def around(value, turn=0):
    return [value * (1 + one) for one in NOISE[turn:] + NOISE[:turn]]


def table(*contestants, ratios=False, metric=LOW):
    rows = ranked(contestants, metric, ratios)
    return Standings("little", "paper", "floats", "m", metric.better, ratios, rows, [], [])


def test_ranks_are_what_the_tests_leave_open():
    found = table(
        contestant("c", around(2.0, 3)), contestant("a", around(1.0)), contestant("b", around(1.001, 1)),
        contestant("d", around(4.0, 2)),
    )  # fmt: skip
    ranks = {row.label: (row.low, row.high) for row in found.rows}
    assert ranks == {"a": (1, 2), "b": (1, 2), "c": (3, 3), "d": (4, 4)}
    assert not found.won
    assert verdict_on(found).startswith("undecided: a has the best mean; not behind it for certain: b")


def test_only_who_is_ahead_of_all_has_won_and_by_how_much_is_said():
    found = table(contestant("a", around(1.0)), contestant("b", around(2.0, 2)), ratios=True)
    assert found.won
    told = verdict_on(found)
    times = float(re.search(r"\*\*a wins\*\*, ([\d.]+) times \(.* lower than b", told)[1])
    assert times == pytest.approx(2.0, abs=0.02)
    best = table(contestant("a", around(0.7)), contestant("b", around(0.9, 2)), metric=HIGH)
    assert best.rows[0].label == "b"
    assert "wins**, 0.2 (" in verdict_on(best)
    assert "among the 2 that have played" in verdict_on(replace(best, open=["c"]))


def test_few_seeds_decide_nothing():
    found = table(contestant("a", [1.0, 1.01, 1.02, 1.0]), contestant("b", [9.0, 9.01, 9.02, 9.0]))
    assert verdict_on(found).startswith("undecided (4 seeds: too few to tell)")
    assert [(row.low, row.high) for row in found.rows] == [(1, 2), (1, 2)]


def test_all_pairs_of_a_table_are_corrected_together():
    a, b = around(1.0), [value * 0.985 for value in around(1.0, 1)]
    alone = table(contestant("a", a), contestant("b", b))
    assert alone.rows[0].p < 0.6
    many = [contestant(f"r{n}", around(1.0, n)) for n in range(2, 7)]
    with_many = table(contestant("a", a), contestant("b", b), *many)
    both = {row.label: row for row in with_many.rows}
    assert both["a"].p is None or both["a"].p >= alone.rows[1].p


def test_seeds_that_fail_count_as_the_worst_and_then_signs_decide():
    found = table(contestant("a", around(1.0) * 2, failed=(0, 1, 2, 3, 4)), contestant("b", around(2.0) * 2))
    by = {row.label: row for row in found.rows}
    assert by["a"].failed == 5
    assert (by["a"].low, by["a"].high) == (1, 2)  # 11 of 16 say nothing
    assert by["a"].behind.by == "median"
    assert by["a"].value == pytest.approx(1.0, rel=0.02)  # of those that are left
    all_gone = table(contestant("a", around(1.0), failed=range(8)), contestant("b", around(2.0)))
    assert all_gone.rows[-1].label == "a"
    assert math.isnan(all_gone.rows[-1].value)


# --- all of it, in very little ---------------------------------------------------------------------------


class Heard(Silent):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The submission of docs/board.md, as a person has it."""
    (text,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/board.md").read_text(), flags=re.S | re.M)
    path = tmp_path_factory.mktemp("mine") / "my_rule.py"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def pick(mine):
    return Pick(algorithms=("cdma-ada", "cdma-nc"), entered=(f"{mine}:ServerMomentum",), code=(mine,))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pick):
    out = tmp_path_factory.mktemp("board")
    heard = Heard()
    done = board(pick, out=out, form=TINY, way=Way(show=heard))
    return out, done, heard


def test_the_page_tells_who_wins_and_with_what(whole):
    _, done, heard = whole
    assert done.code == 0
    text = done.page.read_text()
    assert text.startswith("# The board of the field in little")
    assert re.search(r"^Measured at commit \S+ by:\n\n    fedsaddle board$", text, flags=re.M)
    assert "| ServerMomentum | " in text
    assert text.count("- At equal ") == 3
    assert "codasca-release: the release's departure from the published rule." in text
    assert "Not played yet: cdma-one" in text
    rows = list(csv.DictReader(done.page.with_suffix(".csv").read_text().splitlines()))
    assert len(rows) == 3 * 3
    assert {row["budget"] for row in rows} == {"floats", "trips", "time"}
    floats = [float(row["floats_up"]) for row in rows if row["budget"] == "floats"]
    assert max(floats) / min(floats) < 1.001  # equal it is
    assert sum("trial" in line for line in heard.lines) == 6
    assert not [line for line in heard.lines if "no effect" in line]  # the file is another algorithm's
    assert "left" in [line for line in heard.lines if "trial" in line][-1]


def test_settings_were_chosen_on_other_seeds_from_the_declared_ranges(whole):
    out, _, _ = whole
    tuned = json.loads((out / "little/paper/ServerMomentum/tune/experiment.json").read_text())
    assert tuned["seeds"] == [1000, 1001]
    assert not tuned["sweep"]["by_test"]
    assert len(tuned["algorithms"]) == 3
    for one in tuned["algorithms"].values():
        assert 0.1 <= one["beta"] <= 0.9
        assert 0.001 <= one["eta"] <= 1.0
    played = json.loads((out / "little/paper/ServerMomentum/play/experiment.json").read_text())
    assert played["seeds"] == list(range(5))
    assert {kind for label in played["algorithms"] for kind in label.split("-")} == set(costs.BUDGETS)


def test_what_is_done_is_not_done_again(whole, pick):
    out, done, _ = whole
    again = Heard()
    more = board(pick, out=out, form=TINY, resume=True, way=Way(show=again))
    assert (again.lines, more.told) == ([], done.told)
    with pytest.raises(fs.BadInput, match="already holds some of this: go on with --resume"):
        board(pick, out=out, form=TINY)
    with pytest.raises(fs.BadInput, match="made by another experiment"):
        board(pick, out=out, form=replace(TINY, settings=2), resume=True)
    (one,) = how_far(Draw(TINY, out, pick))
    assert (one.done, one.trials, one.seconds) == (6, 6, 0)


def test_a_board_is_played_in_sittings(tmp_path):
    pick = Pick(algorithms=("cdma-nc",))
    heard = Heard()
    first = board(pick, out=tmp_path, form=TINY, minutes=1e-9, way=Way(show=heard))
    assert first.code == INTERRUPTED
    assert "go on with: fedsaddle board --resume" in heard.lines[-1]
    assert "0 of 0 tables" in first.told
    second = board(pick, out=tmp_path, form=TINY, resume=True)
    assert second.code == 0
    assert "only cdma-nc has played" in second.page.read_text()


def test_several_processes_play_what_one_would(tmp_path):
    pick = Pick(algorithms=("cdma-nc", "parallel-sgda"))
    heard = Heard()
    done = board(pick, out=tmp_path / "two", form=TINY, jobs=2, way=Way(show=heard))
    one = board(pick, out=tmp_path / "one", form=TINY)
    assert (done.code, done.told) == (0, one.told)
    every = [f"little/paper/{name}/{what}" for name in pick.algorithms for what in ("play", "tune")]
    assert sorted(trials_in(heard.lines)) == every
    for name in pick.algorithms:
        tables = [
            (folder / f"little/paper/{name}/play/rounds.csv").read_bytes() for folder in tmp_path.iterdir()
        ]
        assert tables[0] == tables[1]


def test_what_another_process_is_at_is_waited_for(tmp_path):
    pick, heard = Pick(algorithms=("cdma-nc",)), Heard()
    place = tmp_path / "little" / "paper" / "cdma-nc"
    place.mkdir(parents=True)
    other = FileLock(place / "tune.lock", thread_local=False)
    other.acquire()
    stopped = board(pick, out=tmp_path, form=TINY, way=Way(show=heard, asked=lambda: lambda: True))
    assert stopped.code == INTERRUPTED
    assert heard.lines == ["stopped, 0 of 2 trials done; go on with: fedsaddle board --resume"]
    asked = iter([lambda: False, lambda: other.release() or False])
    way = Way(show=heard, asked=lambda: next(asked, lambda: False))
    assert board(pick, out=tmp_path, form=TINY, way=way).code == 0
    assert trials_in(heard.lines[1:]) == [f"little/paper/cdma-nc/{what}" for what in ("tune", "play")]


def trials_in(lines):
    return [line.split(": ")[1].split(";")[0] for line in lines if line.startswith("trial ")]


def test_a_process_that_ends_badly_leaves_its_trials_to_the_first(tmp_path):
    heard = Heard()
    with hands_beside(3, _stop_or_fail, heard):
        pass
    assert sorted(heard.lines) == ["a process beside this one has ended: no"] * 2


def _stop_or_fail(way):
    raise fs.BadInput("no")


def test_slips_are_answered_in_a_line(tmp_path, mine):
    def told(**named):
        with pytest.raises(fs.BadInput) as error:
            board(Pick(**named), out=tmp_path, form=TINY)
        return str(error.value)

    assert "unknown task of the board 'little-1'" in told(tasks=("little-1",))
    assert "unknown fleet of the board 'latency'" in told(fleets=("latency",))
    assert "unknown algorithm of the board 'cdma'" in told(algorithms=("cdma",))
    assert "as my_rule.py:MyRule" in told(entered=("my_rule",))
    assert "--code" in told(entered=(f"{mine}:ServerMomentum",))
    assert "nobody who was named fits" in told(algorithms=("proxskip-vip",))
    plain = tmp_path / "plain.py"
    plain.write_text(mine.read_text().replace("ranges: ClassVar", "other: ClassVar"))
    assert "does not say what it may try" in told(entered=(f"{plain}:ServerMomentum",), code=(plain,))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mine.read_text().replace('{"beta"', '{"bete"'))
    assert "ranges name 'bete'" in told(entered=(f"{wrong}:ServerMomentum",), code=(wrong,))


def test_an_entrant_may_be_a_class_of_an_installed_package():
    assert entered((), ()) == []
    with pytest.raises(fs.BadInput, match="does not say what it may try"):
        submitted("x", "x", Entry(fs.CDMANC, ""))


def test_a_page_says_the_command_that_makes_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedsaddle", "board", "--resume", "--minutes", "5", "quadratic-10"])
    assert _command() == "fedsaddle board quadratic-10"


# --- in a browser ----------------------------------------------------------------------------------------


def test_the_html_page_filters_in_a_browser(whole, tmp_path):
    if not (chromium.DRIVER and chromium.BROWSER):
        pytest.skip("no chromium and chromedriver here")
    _, done, _ = whole
    assert "https://" not in done.html.read_text()
    assert "src=" not in done.html.read_text()
    browser = chromium.Chromium(tmp_path)
    try:
        browser.open(done.html)
        count = "document.querySelectorAll('#winners tbody tr').length"
        assert browser.ask(count) == 3
        browser.ask("($('kind').value = 'time', $('kind').dispatchEvent(new Event('change')))")
        assert browser.ask(count) == 1
        assert browser.ask("$('one-title').textContent") == "little, paper, equal simulated time"
        assert browser.ask("document.querySelectorAll('#standings tbody tr').length") == 3
        assert browser.ask("document.querySelectorAll('#dots circle').length") >= 2
        browser.look(width=390, height=844, dark=True)
        assert browser.ask("document.documentElement.scrollWidth") <= 390
        assert browser.console() == []
    finally:
        browser.close()
