// --- the board: filters, who wins where, and one table with its picture ---

const FILTERS = {task: data.tasks, fleet: data.fleets, kind: data.kinds};
let selected = 0;  // of data.tables

const chosen = () => data.tables.filter(one => Object.keys(FILTERS).every(key => !$(key).value || $(key).value === one[key]));
const follows = label => Boolean($("follow").value) && label === $("follow").value;
const ranks = row => row.low === row.high ? `${row.low}` : `${row.low} to ${row.high}`;
const pValue = p => p === null ? "no test" : p < .0001 ? "p < 0.0001" : `p = ${+p.toPrecision(2)}`;
const between = (low, high, told = number) => low === null || high === null ? "" : `${told(low)} to ${told(high)}`;

function fillSelect(id, entries, all) {
  $(id).replaceChildren(make("option", {value: ""}, all), ...entries.map(([value, title]) => make("option", {value}, title)));
}

// --- who wins ---

function shortly(table) {
  if (table.won) return [make("b", {}, table.rows[0].label), " wins"];
  if (!table.rows.length) return ["no setting survived"];
  const leading = table.leading.length ? table.leading : [table.rows[0].label];
  return ["undecided: ", leading.slice(0, 4).join(", "), leading.length > 4 ? ` and ${leading.length - 4} more` : ""];
}
function ahead(table) {  // of the next, if it is told
  const first = table.rows[0];
  if (!table.won || !first.effect) return "";
  const [effect, low, high] = first.effect.map(value => table.ratios ? Math.exp(value) : value);
  return table.ratios ? `${number(effect, 3)} times (${between(low, high, v => number(v, 3))})` : `${number(effect, 3)} (${between(low, high, v => number(v, 3))})`;
}
function followed(table) {
  const row = table.rows.find(one => follows(one.label));
  return row ? ranks(row) : table.lost.some(follows) ? "no setting survived" : "\u2013";
}
function drawWinners() {
  const tables = chosen();
  if (!tables.includes(data.tables[selected])) selected = Math.max(0, data.tables.indexOf(tables[0]));
  const columns = [
    {title: "task", value: table => table.task},
    {title: "fleet", value: table => table.fleet},
    {title: "at", value: table => data.kinds[table.kind]},
    {title: "who wins", words: true, value: table => table.verdict, show: shortly},
    {title: "ahead of the next by", words: true, value: ahead},
    $("follow").value && {title: `rank of ${$("follow").value}`, value: followed},
  ].filter(Boolean);
  const rows = fillTable("winners", columns, tables, table => table === data.tables[selected] ? "best" : "");
  [...$("winners").tBodies[0].rows].forEach(line => {
    const open = () => { selected = data.tables.indexOf(byLine(line, tables)); drawWinners(); drawOne(); };
    line.tabIndex = 0;
    line.addEventListener("click", open);
    line.addEventListener("keydown", event => { if (event.key === "Enter") { open(); $("one-title").scrollIntoView(); } });
  });
  $("winners-tools").replaceChildren(...tools("winners", null, rows));
}
function byLine(line, tables) {  // which table a line is of, however it is sorted
  const [task, fleet, kind] = [...line.cells].map(cell => cell.textContent);
  return tables.find(one => one.task === task && one.fleet === fleet && data.kinds[one.kind] === kind);
}

// --- one table ---

function drawOne() {
  const table = data.tables[selected];
  if (!table) return;
  $("one-title").textContent = `${table.task}, ${table.fleet}, ${data.kinds[table.kind]}`;
  $("one-about").textContent = `${data.tasks[table.task]}; ${data.fleets[table.fleet]}. ${table.metric}${table.better ? `, ${table.better} is better` : ""}.`;
  $("verdict").textContent = `${table.verdict}.`;
  drawDots(table);
  const unit = {floats: "floats up", trips: "round trips", time: "simulated s"};
  const columns = [
    {title: "algorithm", value: row => row.label, show: row => [follows(row.label) ? make("b", {}, row.label) : row.label]},
    {title: "rank", value: row => row.low + row.high / 1000, show: row => [ranks(row)], save: {names: ["rank from", "rank to"], of: row => [row.low, row.high]}},
    {title: table.metric, value: row => row.value, show: row => row.value === null ? ["\u2013"] : [number(row.value), make("span", {class: "soft below"}, between(...row.interval))],
      save: {names: [table.metric, "low", "high"], of: row => [row.value, ...row.interval]}},
    {title: "failed seeds", value: row => row.failed, show: row => [`${row.failed} of ${row.seeds}`], bad: row => row.failed},
    {title: table.ratios ? "times from the first" : "from the first", words: true, value: row => row.effect && row.effect[0], show: row => against(row, table),
      save: {names: ["effect", "effect low", "effect high", "rival", "p by Holm"], of: row => [...(row.effect || ["", "", ""]), row.rival, row.p]}},
    ...Object.keys(unit).map(kind => ({title: unit[kind], value: row => row.spent[kind], show: row => [row.spent[kind] ? amount(row.spent[kind]) : "\u2013"]})),
    {title: "setting", words: true, value: row => row.setting},
  ];
  const rows = fillTable("standings", columns, table.rows, row => row.low === row.high && row.high === 1 ? "best" : "");
  $("standings-tools").replaceChildren(...tools(`${table.task}-${table.fleet}-${table.kind}`, null, rows));
  $("one-lost").textContent = [table.lost.length ? `No setting survived tuning: ${table.lost.join(", ")}.` : "",
    table.open.length ? `Not played yet: ${table.open.join(", ")}.` : ""].join(" ");
}
function against(row, table) {
  if (!row.effect || row.effect[0] === null) return ["\u2013"];
  const told = value => table.ratios ? `${number(Math.exp(value), 3)}` : number(value, 3), [effect, low, high] = row.effect;
  return [told(effect), make("span", {class: "soft below"}, `${between(low, high, told)}, ${row.by}, ${pValue(row.p)}`),
    row === table.rows[0] ? make("span", {class: "soft below"}, `ahead of ${row.rival}`) : null];
}
function drawDots(table) {  // a mean and its interval for each, the best above
  const rows = table.rows.filter(row => row.value !== null), svg = $("dots");
  const width = Math.max(280, svg.clientWidth || 800), small = width < 560, left = small ? 128 : 190, line = 22, height = rows.length * line + 46;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", `${table.metric} of each algorithm with its 95 % interval`);
  if (!rows.length) { svg.replaceChildren(); return; }
  const scale = table.ratios ? Math.log10 : v => v, ends = row => [row.value, ...row.interval.filter(v => v !== null && (!table.ratios || v > 0))];
  // One that is far behind, or is not known well, would press all else together: its line is cut.
  const [least, most] = extent(rows.slice(0, Math.ceil(rows.length * .75)).map(ends));
  let [low, high] = [scale(least), scale(most)];
  if (high - low < 1e-12) [low, high] = [low - .5, high + .5];
  const room = .06 * (high - low);
  low -= room; high += room;
  const place = value => left + Math.max(-.01, Math.min(1.01, (scale(value) - low) / (high - low))) * (width - left - 16);
  const ticks = table.ratios ? decades(low, high) : plain(low, high, small ? 3 : 6);
  const parts = ticks.map(tick => shape("g", {}, shape("line", {x1: place(tick), x2: place(tick), y1: 4, y2: height - 38, class: "grid"}),
    shape("text", {x: place(tick), y: height - 22, "text-anchor": "middle"}, number(tick, 3))));
  rows.forEach((row, i) => {
    const y = 16 + i * line, front = follows(row.label), ink = `var(--c${row.low === 1 ? 0 : 7})`, far = scale(row.value) > high || scale(row.value) < low;
    const [from, to] = row.interval, own = from === null || to === null ? null : shape("line", {x1: place(from), x2: place(to), y1: y, y2: y, stroke: ink, "stroke-width": front ? 4 : 2});
    parts.push(shape("g", {}, shape("title", {}, `${row.label}: ${number(row.value)} (${between(...row.interval)}), rank ${ranks(row)}`),
      shape("text", {x: left - 10, y: y + 4, "text-anchor": "end", ...(front ? {"font-weight": 700} : {})}, row.label), own,
      far ? shape("text", {x: place(row.value), y: y + 4, "text-anchor": scale(row.value) > high ? "end" : "start"}, scale(row.value) > high ? `${number(row.value, 3)} \u25b8` : `\u25c2 ${number(row.value, 3)}`)
        : shape("circle", {cx: place(row.value), cy: y, r: front ? 6 : 4, fill: ink})));
  });
  parts.push(shape("text", {x: left + (width - left) / 2, y: height - 4, "text-anchor": "middle"}, `${table.metric}${table.ratios ? ", logarithmic" : ""}`));
  svg.replaceChildren(...parts);
  $("dots-tools").replaceChildren(...tools(`${table.task}-${table.fleet}-${table.kind}`, () => svg, null));
}
function plain(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map(by => by * power).find(own => own >= rough), ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) ticks.push(+(k * step).toPrecision(12));
  return ticks;
}
function decades(low, high) {  // given as logarithms
  const by = high - low < 1.2 ? [1, 1.5, 2, 3, 5, 7] : high - low < 3 ? [1, 3] : [1], ticks = [];
  for (let k = Math.floor(low); k <= high; k++) for (const times of by) if (Math.log10(times) + k >= low && Math.log10(times) + k <= high) ticks.push(+`${times}e${k}`);
  return ticks.length > 2 ? ticks : plain(10 ** low, 10 ** high, 4);
}

// --- how they fare in what is chosen ---

function drawFares() {
  const tables = chosen(), labels = data.fares.map(one => one.label);
  const fares = labels.map(label => {
    const own = tables.flatMap(table => table.rows.filter(row => row.label === label).map(row => ({table, row})));
    const sum = of => own.reduce((total, one) => total + of(one), 0);
    return {label, tables: own.length, won: sum(one => one.table.won && one.table.rows[0] === one.row), leading: sum(one => one.row.low === 1),
            behind: sum(one => one.row.low > 1), failed: sum(one => one.row.failed), seeds: sum(one => one.row.seeds), lost: tables.filter(table => table.lost.includes(label)).length};
  }).filter(one => one.tables || one.lost);
  const columns = [
    {title: "algorithm", value: row => row.label, show: row => [follows(row.label) ? make("b", {}, row.label) : row.label]},
    {title: "tables", value: row => row.tables}, {title: "won", value: row => row.won}, {title: "may be first", value: row => row.leading},
    {title: "behind", value: row => row.behind}, {title: "failed seeds", value: row => row.failed, show: row => [`${row.failed} of ${row.seeds}`], bad: row => row.failed},
    {title: "no setting", value: row => row.lost, bad: row => row.lost},
    {title: "settings from", words: true, value: row => data.sources[row.label] || ""},
  ];
  $("fares-tools").replaceChildren(...tools("fares", null, fillTable("fares", columns, fares)));
}

// --- the page ---

function drawBoard() { drawWinners(); drawOne(); drawFares(); }
fillSelect("task", Object.keys(data.tasks).map(name => [name, name]), "all tasks");
fillSelect("fleet", Object.keys(data.fleets).map(name => [name, name]), "all fleets");
fillSelect("kind", Object.entries(data.kinds), "all budgets");
fillSelect("follow", data.fares.map(({label}) => [label, label]).sort(), "nobody");
$("lead").textContent = `${plural(data.fares.length, "algorithm")} on ${plural(Object.keys(data.tasks).length, "task")} and ${plural(Object.keys(data.fleets).length, "fleet")}, ${data.settings} settings each with ${plural(data.tuning, "seed")}, then ${plural(data.seeds, "fresh seed")}.`;
$("answer").textContent = `${data.told}.`;
$("little").hidden = !data.little;
$("fares-reading").textContent = "Over the tables that the filters leave: those won, those in which nobody is told ahead, those behind somebody, failed seeds, and tables for which no setting survived tuning.";
$("how").replaceChildren(...[
  `Made by: ${data.command}`,
  `At commit ${data.commits}, on ${data.devices}, in ${data.spent} of computing.`,
  "Settings are drawn from published ranges by one rule, the same number for each algorithm, and chosen by validation rows (training rows, where a task sets none aside); never by test rows. The best setting is chosen for each budget.",
  "A value is the mean of a seed over the last quarter of the budget. A seed that diverged or collapsed has failed; it counts as the worst of its table, and then medians and a test of signs decide instead of means and a t-test.",
  "All pairs of a table are corrected together by Holm\u2019s rule; below 0.05 two are told apart. A rank of \u201c2 to 5\u201d: one is told ahead, and the tests leave the rest open. With fewer than five seeds nothing is told.",
  "Blue dots may be first; grey ones are behind somebody.",
  ...data.absent.map(text => `Does not take part: ${text}.`),
].map(text => make("li", {}, text)));
$("footer").textContent = `Made by FedSaddle ${data.version} on ${data.made}. The same numbers are in the .csv beside this page.`;
for (const id of ["task", "fleet", "kind", "follow"]) $(id).addEventListener("change", drawBoard);
new ResizeObserver(() => { if (data.tables.length) drawDots(data.tables[selected]); }).observe($("dots").parentElement);
drawBoard();
