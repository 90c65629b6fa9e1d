// --- small figures: each with its values as CSV and itself as SVG ---

function panel(title, svg, rows, entries, ...more) {  // the entries of its key: a colour and what it stands for
  const saved = tools(title.toLowerCase(), svg && (() => svg), rows, () => entries);
  return make("figure", {}, make("figcaption", {class: "small"}, title), svg, make("div", {class: "tools"}, saved), entries.length ? key(entries, svg) : null, ...more);
}
function frameOf(width, height, label) {
  return shape("svg", {class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
}
function key(entries, svg) {  // which colour is whose; pointed at, it brings its lines to the front
  return make("p", {class: "small"}, entries.map(([index, label]) => {
    const entry = make("span", {class: "key"}, swatch(index), ` ${label} \u2003`), lines = svg.querySelector(".lines");
    for (const [kind, front] of [["pointerenter", label], ["pointerleave", null]]) entry.addEventListener(kind, () => bring(front, lines));
    return entry;
  }));
}
const lineBy = (one, d) => {  // a line of an algorithm's
  const group = shape("g", {class: "line"}, ...d.map(path => shape("path", {class: "mean thin", stroke: colour(one.series), "stroke-dasharray": dashes(one.series), d: path})));
  group.dataset.label = ownLabel(one);
  return group;
};
const ownLabel = one => data.series[one.series].label;

function drawLines(detail) {  // such as ROC curves: all algorithms in one figure; and its corner, where they hide there
  const [xs, ys] = [0, 1].map(place => extent(detail.own.flatMap(one => one.lines.map(line => line.xy[place]))));
  const at = (range, part) => range[0] + part * (range[1] - range[0]);
  const hides = detail.own.every(one => one.lines.every(({xy}) => xy[1][Math.max(0, xy[0].findLastIndex(a => a <= at(xs, .1)))] >= at(ys, .9)));
  return [lineFigure(detail, null), ...(hides ? [lineFigure(detail, [[xs[0], at(xs, .1)], [at(ys, .9), ys[1]]])] : [])];
}
function lineFigure(detail, near) {
  const [W, H] = [420, 400], [h, v] = detail.columns, box = {left: 56, right: W - 12, top: 8, bottom: H - 42};
  const points = detail.own.flatMap(one => one.lines.map(line => line.xy));
  let [left, right] = extent(points.map(xy => xy[0])), [low, high] = extent(points.map(xy => xy[1]));
  if (near) [[left, right], [low, high]] = near;
  if (left === right) right = left + 1;
  if (low === high) high = low + 1;
  const x = a => box.left + (a - left) / (right - left) * (box.right - box.left), y = a => box.bottom - (a - low) / (high - low) * (box.bottom - box.top);
  const svg = frameOf(W, H, `${detail.title}: ${v} over ${h}`);
  grid(svg, box, {left, right, x, ticks: niceTicks(low, high, 5), y, width: W, height: H, name: h});
  svg.append(shape("text", {x: 14, y: H / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${H / 2})`}, v));
  if (left === 0 && right === 1 && low === 0 && high === 1) svg.append(shape("line", {class: "diagonal", x1: x(0), y1: y(0), x2: x(1), y2: y(1)}));
  const part = [box.left, box.top, box.right - box.left, box.bottom - box.top];
  const inside = shape("svg", {class: "lines", x: part[0], y: part[1] - 2, width: part[2], height: part[3] + 2, viewBox: `${part[0]} ${part[1] - 2} ${part[2]} ${part[3] + 2}`});
  svg.append(inside);
  for (const one of detail.own)
    inside.append(lineBy(one, one.lines.map(({xy: [xs, ys]}) => `M${xs.map((a, i) => `${x(a).toFixed(1)},${y(ys[i]).toFixed(1)}`).join("L")}`)));
  const rows = () => [["algorithm", "seed", h, v], ...detail.own.flatMap(one => one.lines.flatMap(line => line.xy[0].map((a, i) => [ownLabel(one), line.seed, a, line.xy[1][i]])))];
  return panel(near ? `${detail.title}: the corner` : detail.title, svg, rows, detail.own.map(one => [one.series, ownLabel(one)]), make("p", {class: "small soft"}, "A line for each seed."));
}
function drawHistograms(detail) {  // a figure for each algorithm; each group's counts as parts of that group
  return detail.own.map(one => {
    const [W, H] = [420, 210], box = {left: 56, right: W - 12, top: 8, bottom: H - 42}, groups = detail.columns.slice(2);
    const left = one.low[0], right = one.high.at(-1), parts = one.counts.map(counts => { const all = counts.reduce((a, b) => a + b, 0) || 1; return counts.map(n => n / all); });
    const high = Math.max(...parts.flat(), 1e-9), x = a => box.left + (a - left) / (right - left) * (box.right - box.left), y = a => box.bottom - a / high * (box.bottom - box.top);
    const svg = frameOf(W, H, `${detail.title} of ${ownLabel(one)}`);
    grid(svg, box, {left, right, x, ticks: niceTicks(0, high, 4), y, width: W, height: H, name: "score"});
    parts.forEach((part, g) => svg.append(shape("path", {fill: colour(g), "fill-opacity": .35, stroke: colour(g),
      d: `M${x(one.low[0])},${y(0)}` + part.map((a, i) => `L${x(one.low[i]).toFixed(1)},${y(a).toFixed(1)}L${x(one.high[i]).toFixed(1)},${y(a).toFixed(1)}`).join("") + `L${x(right)},${y(0)}Z`})));
    const rows = () => [["algorithm", ...detail.columns], ...one.low.map((a, i) => [ownLabel(one), a, one.high[i], ...one.counts.map(counts => counts[i])])];
    return panel(`${detail.title}: ${ownLabel(one)}`, svg, rows, groups.map((name, g) => [g, name]),
      make("p", {class: "small soft"}, `Heights are parts of each group\u2019s rows, ${plural(one.seeds, "seed")} together.`));
  });
}
function drawBars(detail) {  // a figure for each column; for each name, a bar of every algorithm
  const names = detail.own[0].names, some = detail.own.filter(one => one.names.join() === names.join());
  return detail.columns.slice(1).map((column, c) => {
    const W = 420, step = Math.max(14, 6 + 7 * some.length), left = 20 + 7 * Math.min(14, Math.max(...names.map(name => name.length))), H = 30 + names.length * (step + 6);
    const high = Math.max(...some.flatMap(one => one.values[c].mean.map((m, i) => m + one.values[c].std[i])), 1e-9), low = Math.min(0, ...some.flatMap(one => one.values[c].mean));
    const x = a => left + (a - low) / (high - low) * (W - left - 14), svg = frameOf(W, H, `${column} by ${detail.columns[0]}`);
    for (const tick of niceTicks(low, high, 4)) svg.append(shape("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: H - 22}), shape("text", {x: x(tick), y: H - 6, "text-anchor": "middle"}, number(tick)));
    names.forEach((name, i) => {
      const top = 6 + i * (step + 6), thick = Math.min(14, step / some.length - 1);
      svg.append(shape("text", {x: left - 8, y: top + step / 2 + 4, "text-anchor": "end"}, name.length > 14 ? `${name.slice(0, 13)}\u2026` : name));
      some.forEach((one, k) => {
        const {mean, std} = one.values[c], y = top + k * (step / some.length);
        svg.append(shape("rect", {x: x(Math.min(0, mean[i])), y, width: Math.abs(x(mean[i]) - x(0)), height: thick, fill: colour(one.series)},
            shape("title", {}, `${ownLabel(one)}, ${detail.columns[0]} ${name}: ${number(mean[i])}${one.seeds > 1 ? ` \u00b1 ${number(std[i], 2)}` : ""}`)),
          one.seeds > 1 ? shape("line", {class: "axis", x1: x(Math.max(low, mean[i] - std[i])), x2: x(mean[i] + std[i]), y1: y + thick / 2, y2: y + thick / 2}) : null);
      });
    });
    const rows = () => [["algorithm", detail.columns[0], column, "std"], ...some.flatMap(one => names.map((name, i) => [ownLabel(one), name, one.values[c].mean[i], one.values[c].std[i]]))];
    return panel(`${detail.title}: ${column}`, svg, rows, some.map(one => [one.series, ownLabel(one)]));
  });
}
function drawClients(detail) {  // sorted from the worst served to the best; and the worst by name
  const column = detail.columns[1], worstFirst = detail.better === "low" ? -1 : 1;
  const sorted = detail.own.map(one => ({one, order: one.values[0].mean.map((value, i) => ({value, name: one.names[i]})).sort((a, b) => worstFirst * (a.value - b.value))}));
  const [W, H] = [420, 300], box = {left: 56, right: W - 12, top: 8, bottom: H - 42}, n = Math.max(...sorted.map(({order}) => order.length));
  let [low, high] = extent(sorted.map(({order}) => order.map(client => client.value)));
  if (low === high) [low, high] = [low - .5, high + .5];
  const x = i => box.left + (n > 1 ? i / (n - 1) : .5) * (box.right - box.left), y = a => box.bottom - (a - low) / (high - low) * (box.bottom - box.top);
  const svg = frameOf(W, H, `${column} of the clients, from the worst served to the best`);
  grid(svg, box, {left: 1, right: Math.max(2, n), x: i => x(i - 1), ticks: niceTicks(low, high, 5), y, width: W, height: H, name: "clients, from the worst served to the best"});
  svg.append(shape("g", {class: "lines"}, sorted.map(({one, order}) => lineBy(one, [`M${order.map((client, i) => `${x(i).toFixed(1)},${y(client.value).toFixed(1)}`).join("L")}`]))));
  const rows = () => [["algorithm", ...detail.columns.slice(0, 2)], ...sorted.flatMap(({one, order}) => order.map(client => [ownLabel(one), client.name, client.value]))];
  const table = make("div", {class: "scroll", tabindex: 0}, make("table", {class: "wrap"}, make("thead", {}, make("tr", {}, ["algorithm", "worst served", "their mean", "all clients"].map(title => make("th", {scope: "col"}, title)))),
    make("tbody", {}, sorted.map(({one, order}) => {
      const worst = order.slice(0, Math.max(1, Math.ceil(order.length / 10)));
      return make("tr", {}, make("th", {scope: "row"}, ownLabel(one)), make("td", {}, worst.slice(0, 4).map(client => client.name).join(", ") + (worst.length > 4 ? " \u2026" : "")),
        make("td", {}, number(spreadOf(worst.map(client => client.value)).mean)), make("td", {}, spread(spreadOf(order.map(client => client.value)))));
    }))));
  return [panel(`${detail.title}: ${column}`, svg, rows, detail.own.map(one => [one.series, ownLabel(one)])),
    make("div", {}, table, make("p", {class: "small soft"}, `Each client by its mean over the seeds. Worst served: the tenth of the clients with the ${detail.better === "low" ? "highest" : "lowest"} ${column}; the spread is over clients.`))];
}
const DRAWN = {line: drawLines, histogram: drawHistograms, bars: drawBars, clients: drawClients};
function drawDetails() {
  $("ends").hidden = !data.details.length;
  $("details").replaceChildren(...data.details.flatMap(detail => [make("h3", {}, detail.title), make("div", {class: "panels"}, DRAWN[detail.kind](detail))]));
}

// --- traffic by kind ---

const wideOf = () => Math.max(320, Math.min(860, $("main").clientWidth));  // on a phone narrow, and its words as large

function drawTraffic() {
  const able = data.series.filter(series => !series.off && series.traffic.length), place = flow => `${flow.direction} ${flow.kind}`;
  const kinds = [...new Set(able.flatMap(series => series.traffic.map(place)))].sort().reverse();  // up before down
  if (!able.length || !kinds.length) return $("traffic").replaceChildren();
  const W = wideOf(), left = 20 + 7.3 * Math.min(26, Math.max(...able.map(series => series.label.length))), H = 34 + 24 * able.length;
  const sums = able.map(series => kinds.map(kind => series.traffic.filter(flow => place(flow) === kind).reduce((sum, flow) => sum + flow.floats, 0)));
  const high = Math.max(...sums.map(some => some.reduce((a, b) => a + b, 0)), 1), x = a => left + a / high * (W - left - 20), svg = frameOf(W, H, "floats by direction and kind");
  svg.style.maxWidth = "64rem";
  for (const tick of niceTicks(0, high, W / 140)) svg.append(shape("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: H - 24}), shape("text", {x: x(tick), y: H - 8, "text-anchor": "middle"}, amount(tick)));
  able.forEach((series, i) => {
    let at = 0;
    svg.append(shape("text", {x: left - 8, y: 4 + 24 * i + 15, "text-anchor": "end"}, series.label.length > 26 ? `${series.label.slice(0, 25)}\u2026` : series.label));
    sums[i].forEach((floats, k) => {
      svg.append(shape("rect", {x: x(at), y: 6 + 24 * i, width: Math.max(0, x(at + floats) - x(at)), height: 15, fill: colour(k)}, shape("title", {}, `${series.label}: ${amount(floats)} floats ${kinds[k]}`)));
      at += floats;
    });
  });
  const rows = () => [["algorithm", "direction", "variable", "kind", "floats, mean over seeds"], ...able.flatMap(series => series.traffic.map(flow => [series.label, flow.direction, flow.variable, flow.kind, flow.floats]))];
  $("traffic").replaceChildren(panel("Traffic by direction and kind: floats, mean over the seeds", svg, rows, kinds.map((kind, k) => [k, kind])));
}

// --- what went wrong ---

function drawTimeline() {
  const able = data.series.map((series, index) => ({series, index})).filter(({series}) => series.timeline.parts.length || series.timeline.others.length);
  if (!able.length) return $("timeline").replaceChildren();
  const W = wideOf(), left = 20 + 7.3 * Math.min(26, Math.max(...able.map(({series}) => series.label.length))), H = 44 + 24 * able.length;
  const last = Math.max(...able.map(({series}) => series.timeline.rounds), 1), x = a => left + a / last * (W - left - 20), svg = frameOf(W, H, "when rounds were abandoned and seeds diverged or collapsed");
  svg.style.maxWidth = "64rem";
  for (const tick of niceTicks(0, last, W / 110)) svg.append(shape("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: H - 36}), shape("text", {x: x(tick), y: H - 22, "text-anchor": "middle"}, amount(tick)));
  svg.append(shape("text", {x: (left + W) / 2, y: H - 5, "text-anchor": "middle"}, "rounds"));
  able.forEach(({series, index}, i) => {
    const {parts, others, rounds} = series.timeline, top = 6 + 24 * i, wide = rounds / Math.max(1, parts.length);
    svg.append(shape("text", {x: left - 8, y: top + 13, "text-anchor": "end"}, series.label.length > 26 ? `${series.label.slice(0, 25)}\u2026` : series.label));
    parts.forEach((part, k) => { if (part) svg.append(shape("rect", {x: x(k * wide), y: top + 16 * (1 - Math.max(.15, part)), width: Math.max(1, x((k + 1) * wide) - x(k * wide) - .5), height: 16 * Math.max(.15, part), fill: colour(index)},
      shape("title", {}, `${series.label}, rounds ${Math.ceil(k * wide)} to ${Math.ceil((k + 1) * wide) - 1}: ${Math.round(part * 100)} % abandoned`))); });
    for (const one of others) svg.append(shape("path", {class: "cross", stroke: colour(index), d: one.what === "diverged" ? `M${x(one.round) - 4},${top + 4}l8,8m0,-8l-8,8` : one.what === "collapsed" ? `M${x(one.round) - 5},${top + 4}l5,8l5,-8z` : `M${x(one.round)},${top}v16`},
      shape("title", {}, `${series.label}, seed ${one.seed}, round ${one.round}: ${one.what}`)));
  });
  const rows = () => [["algorithm", "seed", "round", "what", "part of the rounds from there on"], ...able.flatMap(({series: {label, timeline: {parts, others, rounds}}}) => [
    ...parts.map((part, k) => [label, "", Math.ceil(k * rounds / parts.length), "abandoned", part]), ...others.map(one => [label, one.seed, one.round, one.what, ""])])];
  $("timeline").replaceChildren(panel("Over the rounds: bars are the part of rounds that were abandoned, over all seeds; a cross is a seed that diverged, a triangle one that collapsed, a stroke something else", svg, rows, able.map(({series, index}) => [index, series.label])));
}
function drawEvents() {
  const lines = data.series.flatMap(series => [
    ...series.diverged.map(end => `${series.label}, seed ${end.seed} diverged in ${end.told}`),
    ...series.collapsed.map(end => `${series.label}, seed ${end.seed} collapsed in ${end.told}`),
    series.abandoned ? `${series.label}: ${plural(series.abandoned, "round")} abandoned, over all seeds` : null,
    ...series.trouble.map(told => `${series.label}: ${told}`)]).filter(Boolean);
  $("events").replaceChildren(lines.length ? make("ul", {class: "small"}, lines.map(line => make("li", {}, line)))
    : make("p", {}, "Nothing: no seed was seen to diverge or to collapse, and no round was abandoned."));
}
