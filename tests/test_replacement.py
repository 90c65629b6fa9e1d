"""Cohorts drawn with replacement, as in the theorems: who is drawn twice is asked once and counts twice."""

from collections import Counter

import pytest
import torch

import fedsaddle as fs
import test_by_hand
from fedsaddle.app.replay import replay_run
from fedsaddle.border.build import load
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.fleet import invite
from fedsaddle.history import Rules, Told, line, read_history
from test_by_hand import BATCH, N, Waves
from test_engine import assert_same, run
from test_replay import run as run_folder
from zoo import ALGORITHMS, NEWER

AGAIN = fs.Quorum(invite=8, replacement=True)
FEW = fs.Quadratic(clients=10, samples=1, noise=0.0, start_seed=0)
FORGET = {name: rule for name, rule in (ALGORITHMS | NEWER).items() if not hasattr(rule, "remember")}


def test_every_invitation_goes_to_a_client_that_is_drawn_anew():
    seeds = torch.arange(20_000)
    drawn = invite(seeds, 3, 0, 5, 2, replacement=True)
    pairs = Counter(map(tuple, drawn.tolist()))
    assert len(pairs) == 25
    assert all(abs(count - 800) < 5 * 800**0.5 for count in pairs.values())
    assert torch.equal(drawn, invite(seeds, 3, 0, 5, 7, replacement=True)[:, :2])


@pytest.mark.parametrize(
    ("rule", "by_hand"), [(fs.CDMAONE, test_by_hand.cdma_one), (fs.CDMANC, test_by_hand.cdma_nc)]
)
def test_the_mean_is_over_the_draws(rule, by_hand, monkeypatch):
    """The rules written by hand, whose cohorts name a client as often as it was drawn."""

    def cohort(seed, t, phase):
        return invite(torch.tensor([seed]), t, phase, N, 4, replacement=True)[0].tolist()

    monkeypatch.setattr(test_by_hand, "cohort", cohort)
    quorum, told = fs.Quorum(invite=4, replacement=True), []
    study = fs.make_study(
        Waves(), rule(eta=0.05, gamma=0.1, K=2), seeds=[3], quorum=quorum, fleet=fs.Everybody(), batch=BATCH
    )
    lanes = begin(study)
    start = points(lanes.server)[0]
    for round, z in enumerate(by_hand(*start, 3, 0.05, 0.1, 2)):
        lanes, _ = play(study, lanes, round, told)
        torch.testing.assert_close(tuple(points(lanes.server)[0]), z)
    for one in told:
        drawn = Counter(cohort(3, one.round, one.phase))
        assert one.gathering.invited == list(drawn)
        assert one.gathering.times == {client: times for client, times in drawn.items() if times > 1}
    assert any(one.gathering.times for one in told)


def test_the_variance_is_that_of_independent_draws():
    """Without replacement it is (N - S)/(N - 1) of that: with N = 10 and S = 8, 0.222."""
    rule, found = fs.ParallelSGDA(eta=1.0, gamma=1.0), {}
    for again in (False, True):
        quorum = fs.Quorum(invite=8, replacement=again)
        study = fs.make_study(FEW, rule, seeds=range(2000), quorum=quorum, fleet=fs.Everybody(), batch=1)
        lanes, _ = play(study, begin(study), 0)
        found[again] = float(lanes.server.z.x.var(0).sum())
    assert found[False] / found[True] == pytest.approx(2 / 9, rel=0.06)


@pytest.mark.parametrize("name", FORGET)
def test_vectorised_equals_loop(name):
    settings = {"problem": FEW, "fleet": fs.Paper(), "quorum": AGAIN}
    loop = run(FORGET[name], executor=fs.Loop(), **settings)
    assert min(loop.completed) == 3
    assert_same(run(FORGET[name], **settings), loop)


@pytest.mark.parametrize("cohorts", ["invited", "answered"])
def test_a_second_cohort_counts_as_the_first_was_drawn(cohorts):
    told = []
    study = fs.make_study(FEW, ALGORITHMS["cdma-one"], quorum=AGAIN, fleet=fs.Everybody(), cohorts=cohorts)
    play(study, begin(study), 0, told)
    assert told[0].gathering.times == told[1].gathering.times != {}


def test_a_history_says_how_often_an_answer_counts(tmp_path, monkeypatch):
    folder = run_folder(
        monkeypatch, tmp_path / "run", "--algorithm=cdma-ada", "--set=quorum.replacement=true",
       
    )  # fmt: skip
    told = (folder / "history.jsonl").read_text()
    assert '"times": {"' in told
    assert all(one.exact and one.agrees for one in replay_run(folder))
    first = next(row for row in told.splitlines() if '"times"' in row and '"round": 0, "phase": 0' in row)
    rules = {"cdma-ada": Rules([AGAIN], 20, 1, 10, [0, 1, 2])}
    study = load(str(folder / "experiment.json")).studies["cdma-ada"]
    assert study.quorum.replacement
    history = read_history((first + "\n").encode(), rules)
    (seed,) = (seed for _, seed in history.lanes)
    (own,) = history.round("cdma-ada", seed, 0)
    assert own.times
    client = next(iter(own.times))
    for times, why in ((1, "counts 1 times"), (9, "counts 9 times"), ("true", "counts True times")):
        broken = first.replace(
            f'"times": {{"{client}": {own.times[client]}', f'"times": {{"{client}": {times}'
        )
        with pytest.raises(fs.BadInput, match=why):
            read_history((broken + "\n").encode(), rules)
    with pytest.raises(fs.BadInput, match="replacement is not set"):
        read_history((first + "\n").encode(), {"cdma-ada": rules["cdma-ada"]._replace(quorums=[fs.Quorum()])})
    assert line(Told("cdma-ada", seed, 0, 0, own)) == first + "\n"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"quorum": fs.Quorum(invite=4, replacement=True), "weights": [1.0] * 10}, "both say who is invited"),
        ({"quorum": fs.Quorum(invite=4, replacement=True), "strata": [0, 1] * 5}, "both say who is invited"),
        ({"quorum": fs.Quorum(invite=4, replacement=True), "checks": fs.Checks(strikes=2)}, "leave one out"),
    ],
)
def test_one_way_to_draw(more, why):
    with pytest.raises(fs.BadInput, match=why):
        fs.make_study(FEW, ALGORITHMS["cdma-nc"], **more)


def test_those_who_answered_are_asked_again_draw_by_draw():
    """Sixteen are drawn to be asked for gradients; of those draws the first four walk."""
    quorum, told = fs.Quorum(invite=4, collect=10, replacement=True), []
    study = fs.make_study(
        FEW, ALGORITHMS["cdma-one"], quorum=quorum, fleet=fs.Everybody(), cohorts="answered"
    )
    lanes = begin(study)
    for round in range(6):
        lanes, _ = play(study, lanes, round, told)
    for first, second in zip(told[::2], told[1::2], strict=True):
        seed, at = torch.tensor([first.seed]), first.round
        drawn = invite(seed, at, 0, 10, 10, replacement=True)[0].tolist()[:4]
        assert second.gathering.invited == list(dict.fromkeys(drawn))
        assert second.gathering.times == {c: n for c, n in Counter(drawn).items() if n > 1}


def test_who_is_drawn_twice_has_one_answer_under_the_papers_fleet():
    told = []
    study = fs.make_study(FEW, ALGORITHMS["cdma-nc"], seeds=range(40), quorum=AGAIN, fleet=fs.Paper())
    play(study, begin(study), 0, told)
    for one in told:
        assert not set(one.gathering.used) & set(one.gathering.lost)
        assert set(one.gathering.invited) == {*one.gathering.used, *one.gathering.lost}


@pytest.mark.parametrize(
    "other", [{"enough": 3}, {"minimum": 2}, {"partial_work": 5.0}, {"stratified": True}]
)
def test_all_that_are_drawn_are_waited_for(other):
    with pytest.raises(fs.BadInput, match="replacement waits for all"):
        fs.Quorum(invite=4, replacement=True, **other)


def test_clients_that_remember_are_refused():
    with pytest.raises(fs.BadInput, match="clients of CODASCA remember"):
        fs.make_study(FEW, ALGORITHMS["codasca"], quorum=AGAIN)
