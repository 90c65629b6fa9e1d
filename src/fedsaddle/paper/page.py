"""All exhibits and all claims as one page of Markdown, with the pictures beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fedsaddle.paper.claims import CLAIMS, UNDECIDED, Claim, Ruling, Unmeasured, rule_on
from fedsaddle.paper.exhibits import EXHIBITS
from fedsaddle.paper.forms import FULL
from fedsaddle.paper.hall import SETTINGS, Exhibit, Hall, hall_of
from fedsaddle.paper.pace import estimates_of
from fedsaddle.paper.trials import COHORTS, CONTESTS, Contest, data_of, missing
from fedsaddle.report.markdown import all_named, duration, number, table
from fedsaddle.report.spent import NOTHING_SPENT, Spent, spent_on
from fedsaddle.runs import write_atomically


class Judgement(NamedTuple):
    """A claim on one dataset, with one kind of settings, under one rule of cohorts."""

    claim: Claim
    contest: str
    data: str
    settings: str
    cohorts: str
    ruling: Ruling  # by the paper's own measure
    beside: str  # the verdict by the metric that is told beside it
    floats: str  # by the whole way, at equal floats
    time: str  # the same at equal simulated time
    spent: Spent

    @property
    def primary(self) -> bool:
        """Whether it is asked as the paper does: tuned settings, an independent second cohort."""
        return self.settings == SETTINGS[0] and self.cohorts == COHORTS[0]

    def same(self, other: Judgement) -> bool:
        return self.claim is other.claim and self.contest == other.contest


def judged(hall: Hall) -> list[Judgement]:
    """Every claim, wherever it is made. What was not run is undecided, and says so."""
    found: list[Judgement] = []
    for contest in CONTESTS.values():
        claims = [claim for claim in CLAIMS if contest.name in claim.contests]
        for settings, cohorts in product(SETTINGS, contest.cohorts) if claims else ():
            found += _judged(hall, claims, contest, settings, cohorts)
    found = [
        one
        for one in found
        if (one.claim.on_cohorts or one.cohorts == COHORTS[0])
        and (one.claim.on_settings or one.settings == SETTINGS[0])
    ]
    order = {id(claim): place for place, claim in enumerate(CLAIMS)}
    return sorted(found, key=lambda one: order[id(one.claim)])


def _judged(
    hall: Hall, claims: list[Claim], contest: Contest, settings: str, cohorts: str
) -> list[Judgement]:
    evidence, data = hall.evidence(contest.name, cohorts, settings), data_of(contest, hall.form)
    if evidence is None:
        why = missing(contest, hall.form) or "not run yet"
        empty = ("", "", "", NOTHING_SPENT)
        return [
            Judgement(claim, contest.name, data, settings, cohorts, _unheard(claim, why), *empty)
            for claim in claims
        ]
    first, beside = contest.metrics
    columns = [
        rule_on(claims, evidence, metric, measure)
        for metric, measure in (
            (first, contest.measure),
            (beside, "final"),
            (first, "floats"),
            (first, "time"),
        )
    ]
    return [
        Judgement(
            claim,
            contest.name,
            data,
            settings,
            cohorts,
            main,
            a.verdict,
            b.verdict,
            c.verdict,
            evidence.spent,
        )
        for claim, main, a, b, c in zip(claims, *columns, strict=True)
    ]


def _unheard(claim: Claim, why: str) -> Ruling:
    """Of a claim without evidence."""
    return Ruling(UNDECIDED, claim.rule.why if isinstance(claim.rule, Unmeasured) else why)


def tally(rows: Sequence[Judgement]) -> str:
    counts = Counter(one.ruling.verdict for one in rows)
    return ", ".join(f"{counts[word]} {word}" for word in ("confirmed", "contradicted", "undecided"))


def write_page(hall: Hall, path: Path, command: str) -> str:
    """Write the page and its pictures. To what became of the claims, in a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = judged(hall)
    write_atomically(path, "\n".join(_page(hall, rows, command)).encode())
    return tally([one for one in rows if one.primary])


def whole_cost(hall: Hall) -> Spent:
    """Of all trials that have come to their end."""
    found = NOTHING_SPENT
    for name in hall.trials:
        if run := hall.run(name):
            found += spent_on(run)
    return found


_IN_LITTLE = """# The paper in little: how its page looks, not what it says

**Everything below is on scikit-learn's digits, with small networks, few rounds, few seeds and few settings.**
It shows that every exhibit is made and every claim is judged. About the paper's data it says nothing.
"""
_WHOLE = "# The paper, figure by figure and claim by claim\n"
_DONE = """Each algorithm tried {budget} settings with {tuning} seeds, chosen by rows that neither
clients nor the test have; a setting that lost a seed comes after all that lost none. The winners, and the
published settings, then ran with {seeds} fresh seeds. docs/reproduce.md says how it is
done and judged.
"""
_JUDGED = """The verdict is by the paper's own measure: at the end (the mean of the last fifth of the
rounds), on test rows; of GANs, best on the way. An effect above 0 is the way the paper says,
in units of the metric, over pairs of the same seed: their mean, or their median where one of
the two lost seeds. The interval is of that pair alone; p is corrected for all pairs of its
table (Holm). Here the settings are tuned and the second cohort is independent, as in the
paper; "elsewhere" has what came out with the published settings and other cohorts.
"""
_BESIDE = """Every claim with every kind of settings and cohorts. Beside the verdict are those by another
metric (training rows; of GANs, the Frechet distance), and by the mean on the way, at equal
floats and at equal simulated time, where two phases cost two latencies.
"""
_SITTINGS = """At full length, on one H200. Exhibits share trials, so the minutes of single ones do not add
up; the last line is all of it. `--minutes 9` ends a sitting cleanly, `--resume` begins the next one;
folders of trials can be copied from machine to machine. docs/reproduce.md says what the minutes are
computed from. Figure 8, Table 6 and CelebA's column of Table 2 need a person's own copy of CelebA.
"""
_CLAIM = ("claim", "where", "data")
_DECIDED = ("verdict", "effect", "95 %", "p", "decided by", "seeds")
_COST = ("commit", "seconds")


def _page(hall: Hall, rows: Sequence[Judgement], command: str) -> Iterator[str]:
    cost, form = whole_cost(hall), hall.form
    yield _IN_LITTLE if form.stand_in else _WHOLE
    yield f"Measured at commit {all_named(cost.commits)} by:"
    yield ""
    yield f"    {command}"
    yield ""
    ready = sum(hall.finished(name) for name in hall.trials)
    yield f"{ready} of {len(hall.trials)} trials have come to their end, after {duration(cost.seconds)} of"
    yield f"computing on {all_named(cost.devices)}."
    yield _DONE.format(budget=_sizes(form.budget), tuning=form.tuning_seeds, seeds=_sizes(form.seeds))
    yield "## What the paper says, and what came out"
    yield ""
    primary = [one for one in rows if one.primary]
    yield f"{tally(primary)}."
    yield ""
    yield _JUDGED
    yield from table([*_CLAIM, *_DECIDED, "elsewhere", *_COST], list(_in_short(primary, rows)))
    yield from _awaited(hall)
    for exhibit in EXHIBITS.values():
        yield from _exhibit(exhibit, hall)
    yield "## All verdicts"
    yield ""
    yield _BESIDE
    header = [*_CLAIM, "settings", "cohorts", *_DECIDED, "beside", "equal floats", "equal time", *_COST]
    heard = [one for one in rows if one.spent.seconds]
    yield from table(header, list(_at_length(heard)))
    if len(heard) < len(rows):
        yield f"{len(rows) - len(heard)} more wait for their trials."


def _awaited(hall: Hall) -> Iterator[str]:
    """What is left of the full form, and how many minutes of a GPU that is."""
    # Of a page in little, all of the full form: nothing of it is in that place.
    whole = hall_of(FULL, hall.out / FULL.name, hall.folder) if hall.form.stand_in else hall
    left = [one for one in estimates_of(whole, "cuda") if one.done < one.trials]
    if not left:
        return
    yield "## What waits for a GPU" if hall.form.stand_in else "## What is left"
    yield ""
    yield _SITTINGS
    rows = [(one, f"{max(1, one.seconds / 60):.0f}") for one in left]
    again = "--device cuda --minutes 9 --resume"
    cells = [
        [f"`fedsaddle reproduce {one.name} {again}`", one.title, one.trials - one.done, minutes]
        for one, minutes in rows
    ]
    yield from table(["command", "what", "trials left", "minutes, about"], cells)


def _sizes(by_kind: Mapping[str, int]) -> str:
    """24 (auc), 20 (robust), 9 (gan)"""
    return ", ".join(f"{count} ({kind})" for kind, count in by_kind.items())


def _in_short(primary: Sequence[Judgement], rows: Sequence[Judgement]) -> Iterator[list[object]]:
    for one in primary:
        others = [other for other in rows if other.same(one) and not other.primary]
        counts = Counter(other.ruling.verdict for other in others)
        elsewhere = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        yield [*_claimed(one), *_decided(one), elsewhere, *_spent(one)]


def _at_length(rows: Sequence[Judgement]) -> Iterator[list[object]]:
    for one in rows:
        beside = (one.beside, one.floats, one.time)
        yield [*_claimed(one), one.settings, one.cohorts, *_decided(one), *beside, *_spent(one)]


def _claimed(one: Judgement) -> list[object]:
    return [one.claim.says, one.claim.where, f"{one.contest}: {one.data}"]


def _decided(one: Judgement) -> list[object]:
    ruling = one.ruling
    effect = "" if math.isnan(ruling.effect) else f"{ruling.effect:+.3g} ({ruling.by})"
    bounded = all(map(math.isfinite, ruling.interval))
    within = f"{number(ruling.interval.low)} to {number(ruling.interval.high)}" if bounded else ""
    p = "" if ruling.p is None else f"{ruling.p:.2g}"
    return [f"**{ruling.verdict}**", effect, within, p, ruling.told, ruling.seeds or ""]


def _spent(one: Judgement) -> list[object]:
    return [all_named(one.spent.commits) if one.spent.seconds else "", f"{one.spent.seconds:.0f}"]


def _exhibit(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    yield f"## {exhibit.title}"
    yield ""
    yield f"The paper: {exhibit.says}"
    yield ""
    needed, cost = exhibit.needed(hall.trials), exhibit.spent(hall)
    ready = sum(hall.finished(trial.name) for trial in needed)
    if needed:
        where = f" on {all_named(cost.devices)} at {all_named(cost.commits)}" if ready else ""
        many = f"{ready} of {len(needed)} trials, {duration(cost.seconds)}{where}"
        yield f"Made by `fedsaddle reproduce {exhibit.name}`: {many}."
        yield ""
    yield from exhibit.body(exhibit, hall)
