"""How exhibits are drawn, beside what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from fedsaddle.paper.drawing import Curves, draw_panel, draw_panels, draw_samples
from fedsaddle.paper.evidence import Evidence, reach, setting_of
from fedsaddle.paper.hall import SETTINGS, Exhibit, Hall
from fedsaddle.paper.trials import (
    COHORTS,
    CONTESTS,
    PANELS,
    TWO_PHASES,
    Contest,
    data_of,
    memory_of,
    missing,
    panel_trial,
    spots_of,
    winners_of,
)
from fedsaddle.report.markdown import number, table
from fedsaddle.report.paired import Interval, mean_interval, share_interval
from fedsaddle.report.reading import Lane, Series
from fedsaddle.report.spent import spent_on
from fedsaddle.report.statistics import short_count
from fedsaddle.report.sweeps import families_of, setting_shown

# --- contests --------------------------------------------------------------------------------------------


def results(hall: Hall, contest: Contest, settings: str) -> Iterator[str]:
    """How every algorithm ended, and on the whole way: one table."""
    first, beside = contest.metrics
    rows: list[list[object]] = []
    for cohorts in contest.cohorts:
        found = hall.evidence(contest.name, cohorts, settings)
        if found is None:
            continue
        measures = {name: found.values(first, name) for name in ("final", "best", "floats", "time")}
        other, dead, cost = found.values(beside, "final"), found.dead(first), found.metric(first).cost
        for label, own in measures["final"].items():
            rule = str(found.series[label].setting.get("algorithm", label))
            if not own or (cohorts != COHORTS[0] and rule not in TWO_PHASES):
                continue
            values = list(own.values())
            low, high = mean_interval(values)
            share = share_interval(dead[label], len(values))
            rows.append(
                [
                    label,
                    cohorts if rule in TWO_PHASES else "any",
                    number(fmean(values)),
                    f"{number(low)} to {number(high)}",
                    number(median(values)),
                    number(max(values, key=cost)),
                    number(fmean(measures["best"][label].values())),
                    f"{dead[label]} of {len(values)} ({share.low:.0%} to {share.high:.0%})",
                    number(fmean(measures["floats"][label].values())),
                    number(fmean(measures["time"][label].values())),
                    number(fmean(other[label].values())),
                ]
            )
    if not rows:
        yield f"{data_of(contest, hall.form)}, {settings} settings: not run yet."
        yield ""
        return
    yield f"{data_of(contest, hall.form)}, {settings} settings, `{first}`:"
    yield ""
    yield from table(
        [
            *("algorithm", "cohorts", "mean at the end", "95 %", "median", "worst seed", "best on the way"),
            *("dead seeds", "mean at equal floats", "mean at equal time", f"`{beside}`"),
        ],
        rows,
    )


def unavailable(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    for name in exhibit.contests:
        if why := missing(CONTESTS[name], hall.form):
            yield f"**{CONTESTS[name].data} was not run**: {why}."
            yield ""


def _series(hall: Hall, contest: str, settings: str, prefix: str = "") -> list[Series]:
    found = hall.evidence(contest, COHORTS[0], settings)
    return [] if found is None else [one for label, one in found.series.items() if label.startswith(prefix)]


def _drawn(exhibit: Exhibit, hall: Hall, settings: str, rows: Sequence[Sequence[Curves]]) -> Iterator[str]:
    if not any(one.series for row in rows for one in row):
        return
    path = hall.picture(f"{exhibit.name}-{settings}")
    draw_panels(rows, path)
    yield f"![{exhibit.title}, {settings} settings]({path.name})"
    yield ""


def curves(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    """Training rows above, test rows below, a column for each contest; of GANs one row."""
    yield from unavailable(exhibit, hall)
    for settings in SETTINGS:
        rows: list[list[Curves]] = []
        gan = CONTESTS[exhibit.contests[0]].kind == "gan"
        for place in (0,) if gan else (1, 0):
            own: list[Curves] = []
            for name in exhibit.contests:
                contest = CONTESTS[name]
                about = data_of(contest, hall.form)
                title = about if gan else f"{about}, {'test' if place == 0 else 'training'} rows"
                own.append(Curves(title, _series(hall, name, settings), contest.metrics[place]))
            rows.append(own)
        yield from _drawn(exhibit, hall, settings, rows)
        for name in exhibit.contests:
            yield from results(hall, CONTESTS[name], settings)


def local_steps(*panels: tuple[str, str]) -> Callable[[Exhibit, Hall], Iterator[str]]:
    """Curves of one algorithm with several K: a panel for each contest and algorithm."""

    def body(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
        for settings in SETTINGS:
            many: list[Curves] = [
                Curves(
                    f"{family}, {data_of(CONTESTS[name], hall.form)}",
                    _series(hall, name, settings, f"{family}-k"),
                    CONTESTS[name].metrics[0],
                )
                for name, family in panels
            ]
            yield from _drawn(exhibit, hall, settings, [many[at : at + 2] for at in range(0, len(many), 2)])
            for name in exhibit.contests:
                yield from results(hall, CONTESTS[name], settings)

    return body


def samples(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    yield from unavailable(exhibit, hall)
    for settings in SETTINGS:
        shown = {
            one.label: one.pictures.last
            for name in exhibit.contests
            for one in _series(hall, name, settings)
            if one.pictures
        }
        if shown:
            path = hall.picture(f"{exhibit.name}-{settings}")
            draw_samples(shown, path)
            yield f"![{exhibit.title}, {settings} settings, the first seed]({path.name})"
            yield ""
        elif not missing(CONTESTS[exhibit.contests[0]], hall.form):
            yield f"{settings} settings: not run yet."
            yield ""


# --- tables ----------------------------------------------------------------------------------------------

# The paper's Table 2: Inception Scores on MNIST and Fashion-MNIST, FID on CelebA.
TABLE_2 = {
    "cdma-ada": (8.50, 8.75, 35.84),
    "cdma-one": (8.34, 8.57, 37.55),
    "cdma-nc": (8.31, 7.58, 44.71),
    "codasca": (7.85, 8.18, 38.33),
    "coda-plus": (8.33, 8.23, 47.61),
    "catalyst-scaffold-s": (8.13, 8.38, 39.37),
    "local-sgda-plus": (8.29, 7.61, 79.24),
    "extra-step": (7.50, 7.61, 59.81),
    "parallel-sgda": (6.08, 5.74, 222.65),
}


def best_scores(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    """Ours beside the paper's."""
    yield from unavailable(exhibit, hall)
    header, columns = ["algorithm"], []
    for place, name in enumerate(exhibit.contests):
        contest = CONTESTS[name]
        header.append(f"{contest.data}: the paper")
        columns.append({label: number(row[place]) for label, row in TABLE_2.items()})
        for settings in SETTINGS:
            header.append(f"{data_of(contest, hall.form)}: {settings}")
            found = hall.evidence(name, COHORTS[0], settings)
            best = found.values(contest.metrics[0], "best") if found else {}
            columns.append({label: _with_interval(list(own.values())) for label, own in best.items() if own})
    rows = [[label, *(column.get(label, "not run") for column in columns)] for label in TABLE_2]
    yield "The best score on the way, mean over the seeds and its 95 % interval:"
    yield ""
    yield from table(header, rows)


def _with_interval(values: Sequence[float]) -> str:
    low, high = mean_interval(values)
    return f"{fmean(values):.3g} ({low:.3g} to {high:.3g})"


def chosen_settings(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    """The published settings beside those that the same number of tries chose here."""
    yield from unavailable(exhibit, hall)
    for contest in map(CONTESTS.__getitem__, exhibit.contests):
        published = contest.experiment["algorithms"]
        chosen = {cohorts: _chosen(hall, contest, cohorts, published) for cohorts in contest.cohorts}
        header = ["algorithm", "published", *(f"chosen, cohorts {cohorts}" for cohorts in contest.cohorts)]
        rows = [
            [label, _told(own, own), *(chosen[one].get(label) or _absent(label, own, one) for one in chosen)]
            for label, own in published.items()
        ]
        yield f"{data_of(contest, hall.form)}, chosen by `{contest.by}` (its mean in brackets):"
        yield ""
        yield from table(header, rows)
        if exhibit.memory:
            yield from _by_rho(hall, contest)


def _by_rho(hall: Hall, contest: Contest) -> Iterator[str]:
    """CDMA-ADA's best setting for each rho, of equally many, with fresh seeds."""
    run = hall.run(memory_of(contest.name))
    if run is None:
        yield "CDMA-ADA by rho: not run yet."
        yield ""
        return
    series = {one.label: one for one in run.series}
    found = Evidence(contest, COHORTS[0], SETTINGS[0], series, spent_on(run), hall.out)
    metric, measure = contest.metrics[0], contest.measure
    dead = found.dead(metric)
    settings = {label: one.setting for label, one in series.items()}
    rows = [
        [
            setting_shown(settings[label]["rho"]),
            _told(settings[label], settings[label]),
            _with_interval(list(own.values())),
            f"{dead[label]} of {len(own)}",
        ]
        for label, own in found.values(metric, measure).items()
        if own
    ]
    yield f"CDMA-ADA's best setting for each rho, of equally many, with fresh seeds, `{metric}`:"
    yield ""
    yield from table(["rho", "setting", "mean, 95 %", "dead seeds"], rows)


def _chosen(hall: Hall, contest: Contest, cohorts: str, published: Mapping[str, Any]) -> dict[str, str]:
    """The winner of each algorithm, in words."""
    run = hall.run(winners_of(contest.name, cohorts))
    found = {}
    for family in families_of(run) if run else ():
        value = family.value_of(family.by)
        if family.best is None or value is None:
            found[family.name] = "none survived"
        else:
            found[family.name] = f"{_told(family.best.setting, published[family.name])} ({number(value)})"
    return found


def _absent(label: str, own: Mapping[str, Any], cohorts: str) -> str:
    one_phase = str(own.get("algorithm", label)) not in TWO_PHASES
    return "the same" if one_phase and cohorts != COHORTS[0] else "not run"


def _told(setting: Mapping[str, Any], like: Mapping[str, Any]) -> str:
    """A setting in words: the keys that the published one has."""
    keys = [key for key in setting_of(like) if key in setting]
    return ", ".join(f"{key} {setting_shown(setting[key])}" for key in keys)


# Table 1, in the same letters; S clients, a condition number of kappa, K local steps, c = max(1, delta / mu).
TABLE_1 = {
    "parallel-sgda": "O(kappa^2 / eps^2 + kappa^3 / (S eps^5)), f strongly concave in y",
    "cdma-nc": "O(kappa^3 / eps^3 + kappa^4 / (S eps^4))",
    "cdma-one": "O(kappa^2 / eps^2 + kappa^4 / (S eps^4))",
    "cdma-ada": "~O(kappa^2 / eps^2 + (1 + 1/K)^1.5 kappa^3 / (S^0.5 eps^3)); with similar Hessians "
    "~O(kappa/eps^2 (kappa/K + c) + (1 + kappa/(cK))^3 c kappa^2 / (S^0.5 eps^3))",
}
EPSILONS = (1.0, 0.3, 0.1, 0.03)  # gradient norms; stationarity is their square


def rates(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    """The bounds beside what the ledger counted on a quadratic of kappa = 10."""
    run = hall.run("rates")
    series = {one.label: one.alive for one in run.series} if run else {}
    rows = [[name, bound, *_counted(series.get(name, []))] for name, bound in TABLE_1.items()]
    yield "Bounds are orders of communication. Beside them, of a quadratic with 200 unlike clients and"
    yield "kappa = 10: the floats sent up a round, and until the gradient of max_y f was first below eps, the"
    yield "median of the seeds that got there."
    yield ""
    epsilons = [f"eps {one:g}" for one in EPSILONS]
    yield from table(["algorithm", "the paper's bound", "floats a round", *epsilons], rows)


def _counted(alive: Sequence[Lane]) -> Iterator[str]:
    """The floats of a round, and those until each epsilon was reached."""
    if not alive:
        yield from ["not run", *("" for _ in EPSILONS)]
        return
    yield short_count(fmean(lane.points[-1].floats_up / lane.points[-1].round for lane in alive))
    for epsilon in EPSILONS:
        reached = [reach(lane.points, "stationarity", epsilon**2) for lane in alive]
        there = [value for value in reached if value is not None]
        count = f"{len(there)} of {len(alive)}"
        yield f"{short_count(median(there))} ({count})" if there else "not reached"


class Spotted(NamedTuple):
    """One algorithm at one place of an axis."""

    mean: float
    interval: Interval
    dead: int

    def __str__(self) -> str:
        within = f"{number(self.interval.low)} to {number(self.interval.high)}"
        return f"{number(self.mean)} ({within}), dead {self.dead}"


def along_an_axis(exhibit: Exhibit, hall: Hall) -> Iterator[str]:
    """How the winners of a contest fare along one axis."""
    panel = PANELS[exhibit.name]
    contest = CONTESTS[panel.contest]
    metric = contest.metrics[0]
    columns: dict[str, dict[str, Spotted]] = {}
    for spot in sorted(spots_of(panel, hall.form), key=lambda spot: _place(spot.label)):
        if run := hall.run(panel_trial(panel, spot)):
            series = {one.label: one for one in run.series}
            found = Evidence(contest, COHORTS[0], "tuned", series, spent_on(run), hall.out)
            dead = found.dead(metric)
            columns[spot.label] = {
                name: Spotted(fmean(own.values()), mean_interval(list(own.values())), dead[name])
                for name, own in found.values(metric, "final").items()
                if own
            }
    every = list(columns.values())
    names = [name for name in (every[0] if every else ()) if all(name in column for column in every)]
    if not names:
        yield "Not run yet."
        yield ""
        return
    path, about = hall.picture(exhibit.name), data_of(contest, hall.form)
    drawn = {name: [column[name][:2] for column in every] for name in names}
    draw_panel(panel.axis, metric, list(columns), drawn, path)
    yield f"![{exhibit.title}]({path.name})"
    yield ""
    yield f"`{metric}` at the end, settings tuned for {about}: mean, 95 % interval, dead seeds."
    yield ""
    header = ["algorithm", *(f"{panel.axis} {label}" for label in columns)]
    yield from table(header, [[name, *(column[name] for column in every)] for name in names])


def _place(label: str) -> tuple[int, float, str]:
    """Numbers by their size; of words, those with a number in their middle between the others."""
    word, _, rest = label.rpartition("-")
    try:
        return (1 if word else 0, float(rest if word else label), "")
    except ValueError:
        return (0 if label.startswith("one") else 2, 0.0, label)
