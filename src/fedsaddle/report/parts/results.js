// --- the table ---

const STANDINGS = {best: "best", level: "not told apart from the best mean", behind: "behind", untested: "not tested", "": "\u2013"};
const pText = p => p === null ? "no test" : p < .0001 ? "p < 0.0001" : `p = ${+p.toPrecision(2)}`;
function against(row) {
  if (!row.against) return ["\u2013"];
  const {difference, rival, seeds, corrected, unequal} = row.against;
  return [(difference > 0 ? "+" : "") + number(difference), make("span", {class: "soft below"}, `${pText(corrected)}, n = ${seeds}`),
    make("span", {class: "soft below"}, `to ${rival}`), unequal ? make("span", {class: "bad below"}, unequal) : null];  // it may be long
}
function drawTable() {
  const {found, name, better, chance, answer, real} = metric(), some = test => found.some(test), ranked = better !== "neither";
  const columns = [
    {title: "algorithm", value: row => row.label},
    {title: "seeds", value: row => row.final ? row.final.seeds : 0, show: row => [`${row.final ? row.final.seeds : 0} of ${row.seeds}`]},
    data.runs.some(run => run.unfinished) && {title: "rounds", value: row => row.reached, show: row => [`${row.reached} of ${row.rounds}`]},
    ofSpread(`final ${name}`, row => row.final),
    {title: "median", value: row => row.median, show: row => [row.median === null ? "\u2013" : number(row.median)]},
    ofSpread("last 5 evaluations", row => row.last),
    ranked && ofSpread("best on the way*", row => row.best),
    ofSpread("area", row => row.area),
    ranked && some(row => row.against) && {title: "less the best other", words: true, value: row => row.against && row.against.difference, show: against,
      save: {names: ["difference", "rival", "common seeds", "p", "p by Holm", "unequal"],
             of: ({against: a}) => a ? [a.difference, a.rival, a.seeds, a.p, a.corrected, a.unequal] : ["", "", "", "", "", ""]}},
    ranked && some(row => row.standing) && {title: "standing", words: true, value: row => row.standing, show: row => [row === found[0] && row.standing === "level" ? "best mean, not told apart from all"
        : row.standing === "untested" && row.against && row.against.unequal ? "not judged, unequal chances" : STANDINGS[row.standing]]},
    some(row => row.dead.number) && {title: "dead seeds", words: true, value: row => row.dead.number,
      show: ({dead}) => [`${dead.number} of ${dead.of}`, make("span", {class: "soft below"}, `${Math.round(100 * dead.low)} to ${Math.round(100 * dead.high)} % of all`)],
      save: {names: ["dead seeds", "low", "high"], of: ({dead}) => [dead.number, dead.low, dead.high]}},
    {title: "diverged", value: row => row.diverged, bad: row => row.diverged},
    chance !== null && {title: "collapsed", value: row => row.collapsed, bad: row => row.collapsed},
  ].filter(Boolean);
  const rows = fillTable("table", columns, found, row => row.standing);
  $("table-tools").replaceChildren(...tools(`${name}-results`, null, rows));
  $("notes").replaceChildren(...notes(metric()).filter(Boolean).map(note => make("li", {}, note)));
  const lost = found.reduce((sum, row) => sum + row.diverged + (row.collapsed || 0), 0);
  $("answer").replaceChildren(answer.replace(/e-(?=\d)/g, "e\u2212"), lost ? ` ${plural(lost, "seed")} diverged${chance === null ? "" : " or collapsed"}.` : "",
    real.length ? ` Real rows have ${real.map(value => number(value)).join(" or ")} by the same judge.` : "",
    data.sweeps.length && ranked ? " The settings were chosen on these very seeds, so every value here is optimistic." : "");
}
function notes({found, name, better, chance, ratios}) {
  const ranked = better !== "neither", tested = found.some(row => row.against && row.against.corrected !== null);
  const seeds = Math.min(...found.filter(row => row.against).map(row => row.against.seeds));
  return [
    `A value and its spread, here and everywhere on this page: mean \u00b1 standard deviation (n \u2212 1) over the seeds that did not diverge.`,
    ranked ? `${name} is better ${better}. The best final mean comes first; who lost seeds comes after all who lost none.`
      : `${name} is a value of the game, better neither high nor low: the algorithms stand in the order of the experiment, and none is compared.`,
    `Last 5 evaluations: their mean, seed by seed, for one evaluation may be a lucky or an unlucky one.`,
    found.some(row => row.dead.number) ? "Dead seeds diverged or collapsed; below, Wilson\u2019s 95 % interval for the part of all seeds that would. An outcome with two modes is told by how many died and by the median, not by a mean: where a seed collapsed, no test of means is made." : null,
    ranked ? "* The best value that each seed had on the way, picked by the very metric that is reported: optimistic." : null,
    `Area: the mean of ${name} from 0 to ${amount(data.budget)} floats sent up, the most that every seed here has sent.`,
    tested ? `Less the best other: the final value minus that of the best other algorithm, seed by seed. p is of a two-sided paired t-test${ratios ? " of their logarithms, for they lie over decades" : ""}, corrected by Holm\u2019s rule for all pairs of this table. Below 0.05 the two are told apart; \u201cbest\u201d is only who is told apart from all others.` : null,
    tested && seeds < data.few ? `With fewer than ${data.few} seeds, p rests on the assumption that differences are normal, which so few cannot show.` : null,
    ranked && !tested && found.length > 1 ? "No two algorithms could be tested against each other: nobody is called best." : null,
    found.some(row => row.against && row.against.unequal) ? "Where two did not have the same rounds, floats or settings, that is said, and neither is called better." : null,
    found.some(row => row.diverged) ? "Diverged: seeds whose parameters or metrics were no longer finite. They are in the curves up to their cross, and not in final, best and area." : null,
    chance === null ? null : `Collapsed: seeds that ended with ${name} no better than ${number(chance)}, which guessing gives or nearly gives. They stay in every mean.`,
  ];
}

// --- what it takes to reach a value ---

let wanted = {};  // by metric: what a person has typed
function levelFor({name, better}) {  // what at least half of the algorithms have at the end, with every seed
  const sign = better === "high" ? 1 : -1, gone = series => new Set(series.diverged.map(end => end.seed));
  const last = series => series.lanes.filter(lane => !gone(series).has(lane.seed)).map(lane => lane.values[name]).filter(Boolean).map(values => sign * values.at(-1));
  const ends = data.series.filter(series => !series.off && last(series).length).map(series => Math.min(...last(series))).sort((a, b) => b - a);
  if (!ends.length) return null;  // all have diverged
  const level = sign * ends[Math.floor((ends.length - 1) / 2)];
  if (better === "high" && $("scale").value === "error" && level < 1) return roundTo(1 - level, v => 1 - v, Math.ceil);
  return roundTo(level, v => v, level * sign > 0 ? Math.floor : Math.ceil);  // to the easier side
}
function roundTo(value, back, way) {
  if (!value) return back(0);
  const step = 10 ** (Math.floor(Math.log10(Math.abs(value))) - 1);
  return +back(Math.sign(value) * way(Math.abs(value) / step - (way === Math.ceil ? 1e-9 : -1e-9)) * step).toPrecision(12);
}
const REACH = {round: ["rounds", amount], floats_up: ["floats up", amount], bytes_up: ["bytes up", amount], time_simulated: ["simulated seconds", amount], spent: ["wall clock, s", amount]};
function drawReach() {
  const {name, better} = metric();
  const preset = better === "neither" ? null : levelFor(metric());
  $("reaching").hidden = preset === null;
  if ($("reaching").hidden) return;
  const level = wanted[name] ?? preset, there = v => better === "high" ? v >= level : v <= level;
  if (document.activeElement !== $("reach")) $("reach").value = level;
  $("reach-label").textContent = `${name} of at ${better === "high" ? "least" : "most"}`;
  const keys = Object.keys(REACH).filter(key => key === "bytes_up" ? moves("floats_up") : key === "round" || moves(key));
  const found = data.series.map((series, index) => ({series, index})).filter(({series}) => !off.has(series.label) && series.lanes.some(lane => lane.values[name])).map(({series, index}) => {
    const first = series.lanes.map(lane => {
      const i = (lane.values[name] || []).findIndex(there), axes = laneAxes(series, lane);
      return i < 0 ? null : {...Object.fromEntries(Object.entries(axes).map(([key, xs]) => [key, xs[i]])), bytes_up: 4 * axes.floats_up[i]};
    });
    const reached = first.filter(Boolean);
    return {label: series.label, index, seeds: series.lanes.length, reached: reached.length,
            ...Object.fromEntries(keys.map(key => [key, spreadOf(reached.map(one => one[key]).filter(v => v !== undefined))]))};
  }).sort((a, b) => (a.reached < a.seeds) - (b.reached < b.seeds) || (a.floats_up ? a.floats_up.mean : Infinity) - (b.floats_up ? b.floats_up.mean : Infinity));
  const columns = [{title: "algorithm", value: row => row.label, show: row => [swatch(row.index), ` ${row.label}`]},
    {title: "seeds that got there", value: row => row.reached, show: row => [`${row.reached} of ${row.seeds}`], bad: row => row.reached < row.seeds},
    ...keys.map(key => ofSpread(REACH[key][0], row => row[key], REACH[key][1]))];
  const rows = fillTable("reach-table", columns, found);
  $("reach-tools").replaceChildren(...tools(`${name}-reach`, null, rows));
  $("reach-reading").textContent = `The first evaluation at which a seed was there; the mean is over the seeds that got there, so where some did not it flatters.`;
}
$("reach").addEventListener("input", () => {
  const typed = $("reach").value.trim().replace(",", ".").replace("\u2212", "-"), value = Number(typed);
  $("reach").setAttribute("aria-invalid", typed !== "" && !Number.isFinite(value));
  if (typed === "") delete wanted[metric().name];
  else if (Number.isFinite(value)) wanted[metric().name] = value;
  drawReach();
});

// --- what it cost ---

function drawCosts() {
  const found = data.costs, took = {};
  for (const run of data.runs) for (const entry of run.environment)
    if (isTable(entry.seconds)) for (const [label, seconds] of Object.entries(entry.seconds)) took[label] = (took[label] || 0) + (+seconds || 0);
  const columns = [
    {title: "algorithm", value: row => row.label},
    {title: "rounds", value: row => row.reached},
    ofSpread("floats up", row => row.floats_up, amount),
    ofSpread("late floats", row => row.late, amount),
    found.some(row => row.seconds && row.seconds.mean) && ofSpread("simulated seconds", row => row.seconds, amount),
    found.some(row => row.label in took) && {title: "wall clock, s", value: row => took[row.label], show: row => [row.label in took ? amount(took[row.label]) : "\u2013"]},
    {title: "abandoned rounds", value: row => row.abandoned},
  ].filter(Boolean);
  $("costs-tools").replaceChildren(...tools("costs", null, fillTable("costs-table", columns, found)));
  $("costs-reading").textContent = "Late floats were sent up and not used, because they came too late or were refused. Abandoned rounds had too few answers and changed nothing; they are counted over all seeds. Simulated seconds are the fleet\u2019s, the wall\u2019s clock is that of the machine, for all seeds together.";
  drawTraffic();
}
