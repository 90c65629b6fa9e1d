// --- the state of the page: what is selected, who is switched off, and where the chart is looked at ---

const AXES = {floats_up: "floats sent up", bytes_up: "bytes sent up, 4 a float", round: "rounds", time_simulated: "simulated seconds",
              spent: "seconds on the wall\u2019s clock, all seeds"};
const off = new Set(data.series ? data.series.filter(series => series.off).map(series => series.label) : []);
let zoom = null;    // {x: [from, to], y: [from, to] or null}, in the units of the axes
let front = null;   // the label of the curve that is brought to the front
let view = null;    // how the chart was last drawn, for the pointer

const colour = index => `var(--c${index % 10})`;
const dashes = index => index < 10 ? "none" : index < 20 ? "7 4" : "2 3";
const metric = () => data.metrics.find(one => one.name === $("metric").value) || data.metrics[0];
const axis = () => $("axis").value;
const along = axes => axis() === "bytes_up" ? axes.floats_up.map(floats => 4 * floats) : axes[axis()];
const laneAxes = (series, lane) => ({...series.axes, ...lane.axes});
const seedsAt = (curve, i) => curve.seeds.length > 1 ? curve.seeds[i] : curve.seeds[0];
const shown = () => data.series.map((series, index) => ({series, index, curve: series.curves[metric().name]}))
  .filter(one => one.curve && !off.has(one.series.label) && along(one.series.axes));
const SCALES = {linear: name => name, log: name => `${name}, logarithmic`, error: name => `1 \u2212 ${name}, logarithmic`};
const scaleName = () => SCALES[$("scale").value](metric().name);

function chooseScale(keep) {
  const {scale, positive, share} = metric();
  const able = ["linear", ...(positive ? ["log"] : []), ...(share ? ["error"] : [])];
  $("scale").replaceChildren(...able.map(value => make("option", {value}, SCALES[value](metric().name))));
  $("scale").value = able.includes(keep) ? keep : scale;
}

// --- ticks ---

function niceTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(by => by * power).find(step => step >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step && ticks.length < 50; k++) ticks.push(+(k * step).toPrecision(12));
  return ticks;
}
function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / count)), decades = Array.from({length: Math.floor((last - first) / every) + 1}, (_, i) => first + i * every);
  const able = (every > 1 ? [[1]] : [[1, 2, 5], [1, 3], [1]]).map(steps => decades.flatMap(k => steps.map(times => +`${times}e${k}`)).filter(tick => tick >= low * .999 && tick <= high * 1.001));
  const inside = able.find(ticks => ticks.length <= 1.5 * count) || able.at(-1);  // the most for which there is room
  return inside.length > 1 ? inside : niceTicks(low, high, count);
}

// --- what is drawn: values turned into heights ---

function heights() {  // what a value is drawn as within the frame, and beyond it, and back; and the lowest that a logarithmic axis has a place for
  const scale = $("scale").value, lines = shown(), top = metric().top;
  const turned = scale === "error" ? v => 1 - v : v => v;
  const values = lines.flatMap(({series, curve}) => [...curve.mean, ...($("each").checked ? series.lanes.flatMap(lane => lane.values[metric().name] || []) : [])]).map(turned);
  const positive = values.filter(v => v > 0), floor = positive.length ? Math.min(...positive) / 2 : 1e-3;
  const kept = v => top === null ? v : Math.min(v, top);
  if (scale === "linear") return {value: kept, whole: v => v, scale: v => v, back: v => v, floor: null, zeros: false};
  const zeros = [...values, ...lines.flatMap(one => edges(one).flat().map(turned))].some(v => v <= 0);
  const whole = v => Math.max(turned(v), floor);
  return {value: v => whole(kept(v)), whole, scale: Math.log10, back: v => 10 ** v, floor, zeros};
}
function edges({series, curve}) {  // of the band: one standard deviation to each side, but no further than the seeds go
  if (!curve.edges) curve.edges = curve.mean.map((mean, i) => {
    const own = series.lanes.map(lane => lane.values[metric().name]).filter(values => values && i < values.length).map(values => values[i]);
    const [low, high] = own.length ? extent([own]) : [-Infinity, Infinity];
    return [Math.min(mean, Math.max(low, mean - curve.std[i])), Math.max(mean, Math.min(high, mean + curve.std[i]))];
  });
  return curve.edges;
}

function span(lines, {value, scale, back}, bounds) {  // the lowest and the highest of what is drawn between two places
  const seen = [];
  const look = (xs, ys) => ys.forEach((y, i) => {
    if (!bounds || xs[i] >= bounds[0] && xs[i] <= bounds[1]) seen.push(value(y));
    else if (i + 1 < ys.length && xs[i] < bounds[0] && xs[i + 1] > bounds[0] || i && xs[i] > bounds[1] && xs[i - 1] < bounds[1]) {
      const next = xs[i] < bounds[0] ? i + 1 : i - 1, part = ((xs[i] < bounds[0] ? bounds[0] : bounds[1]) - xs[i]) / (xs[next] - xs[i]);
      seen.push(back(scale(value(y)) * (1 - part) + scale(value(ys[next])) * part));  // where the line crosses the edge
    }
  });
  for (const {series, curve} of lines) {
    for (const side of [0, 1]) look(along(series.axes), edges({series, curve}).map(edge => edge[side]));
    if ($("each").checked) for (const lane of series.lanes) look(along(laneAxes(series, lane)), lane.values[metric().name] || []);
  }
  return seen.length ? extent([seen]) : [1, 2];
}

function drawChart() {
  const svg = $("chart"), width = svg.clientWidth || 600, height = Math.round(Math.min(460, Math.max(280, width * .5)));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", `${scaleName()} against ${AXES[axis()]}; the same values are in curves.csv`);
  svg.replaceChildren();
  $("tip").hidden = true;
  $("unzoom").hidden = !zoom;
  view = null;
  const lines = shown();
  if (!lines.length) {
    svg.append(shape("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, "every algorithm is switched off"));
    return;
  }
  const drawn = heights(), {scale, back, value, whole} = drawn;
  let [left, right] = zoom ? zoom.x : extent(lines.map(one => along(one.series.axes)));
  let [low, high] = zoom && zoom.y || span(lines, drawn, zoom && zoom.x);
  if (left === right) right = left + 1;
  if (low === high) [low, high] = drawn.floor ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const air = zoom && zoom.y ? 0 : (scale(high) - scale(low)) * .04, [bottom, top] = [scale(low) - air, scale(high) + air];
  const box = {left: 62, right: width - 14, top: 26, bottom: height - 42};
  svg.append(shape("text", {x: 4, y: 14}, scaleName()));
  const x = v => box.left + (v - left) / (right - left) * (box.right - box.left);
  const rise = h => box.bottom - (scale(h) - bottom) / (top - bottom) * (box.bottom - box.top);
  const y = v => rise(value(v)), beyond = v => Math.max(-1e5, rise(whole(v)));  // a line leaves the frame as steeply as it is
  const unturned = h => $("scale").value === "error" ? 1 - h : h;
  grid(svg, box, {left, right, x, ticks: (drawn.floor ? logTicks : niceTicks)(back(bottom), back(top), 6), y: h => y(unturned(h)), width, height, name: AXES[axis()]});
  const part = [box.left, box.top, box.right - box.left, box.bottom - box.top];  // a picture in the picture: what is outside is cut off
  const inside = shape("svg", {id: "inside", class: lines.length > 4 ? "many" : "", x: part[0], y: part[1], width: part[2], height: part[3], viewBox: part.join(" ")});
  for (const one of lines) inside.append(lineOf(one, x, beyond, y));
  svg.append(inside, shape("g", {id: "guide"}), shape("rect", {id: "chosen", class: "chosen", hidden: ""}));
  const places = [...new Set(lines.flatMap(one => along(one.series.axes)))].filter(v => v >= left && v <= right).sort((a, b) => a - b);
  view = {lines, x, y, box, width, height, places, place: null, left, right, unturned,
          at: px => left + (px - box.left) / (box.right - box.left) * (right - left),
          level: py => back(bottom + (box.bottom - py) / (box.bottom - box.top) * (top - bottom))};
  bring(front);
  read(lines, drawn);
}
function grid(svg, box, {left, right, x, ticks, y, width, height, name}) {
  for (const tick of ticks)
    svg.append(shape("line", {class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick)}),
               shape("text", {x: box.left - 8, y: y(tick) + 4, "text-anchor": "end"}, number(tick)));
  for (const tick of niceTicks(left, right, Math.max(3, Math.min(9, width / 90))))
    svg.append(shape("line", {class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom}),
               shape("text", {x: x(tick), y: box.bottom + 18, "text-anchor": "middle"}, amount(tick)));
  svg.append(shape("text", {x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle"}, name));
}
function lineOf({series, curve, index}, x, y, within) {  // a curve with its band, its seeds and its crosses
  const xs = along(series.axes), name = metric().name;
  const at = (xs, ys) => xs.slice(0, ys.length).map((v, i) => `${x(v).toFixed(1)},${y(ys[i]).toFixed(1)}`);
  const band = edges({series, curve});
  const group = shape("g", {class: "line"}, shape("path", {class: "band", fill: colour(index),
    d: `M${at(xs, band.map(edge => edge[1])).join("L")}L${at(xs, band.map(edge => edge[0])).reverse().join("L")}Z`}));
  group.dataset.label = series.label;
  if ($("each").checked)
    for (const lane of series.lanes.filter(lane => lane.values[name]))
      group.append(shape("path", {class: "seed", stroke: colour(index), d: `M${at(along(laneAxes(series, lane)), lane.values[name]).join("L")}`}));
  group.append(shape("path", {class: "mean", stroke: colour(index), "stroke-dasharray": dashes(index), d: `M${at(xs, curve.mean).join("L")}`}));
  for (const end of series.diverged.filter(end => end.values && name in end.values && along(end.axes))) {
    const [h, v] = [x(along(end.axes)[0]), within(end.values[name])];
    group.append(shape("path", {class: "cross", stroke: colour(index), d: `M${h - 5},${v - 5}l10,10m0,-10l-10,10`}));
  }
  return group;
}
function read(lines, drawn) {  // what this chart shows, and nothing that it does not
  const name = metric().name, top = metric().top, many = lines.some(({curve}) => curve.seeds.some(seeds => seeds > 1));
  const beyond = top !== null && lines.filter(one => edges(one).some(edge => edge[1] > top)).map(one => one.series.label);
  $("reading").textContent = [
    many ? "A line is the mean over the seeds, its band one standard deviation to each side, but no further than the seeds go." : "A line is one seed.",
    lines.some(({series}) => series.diverged.some(end => end.values)) ? "A cross marks where a seed diverged." : "",
    drawn.zeros && $("scale").value === "error" ? `Where ${name} is 1 or more, a line or a band ends at the bottom: an error of 0 has no place on a logarithmic axis.` : "",
    beyond && beyond.length ? `The chart ends at ${number(top)}, three times the highest start; ${beyond.join(", ")} ${beyond.length === 1 ? "goes" : "go"} beyond that.` : "",
    "Drag over a part to look closer, or scroll once the chart is clicked on; a double click shows all again. Point at it, or use the arrow keys, for values; the names under it switch algorithms off and on.",
  ].filter(Boolean).join(" ");
}

// --- pointing ---

function nearest(sorted, value) {
  let best = 0;
  for (let i = 1; i < sorted.length; i++) if (Math.abs(sorted[i] - value) < Math.abs(sorted[best] - value)) best = i;
  return best;
}
function bring(label, lines = $("inside")) {  // a curve to the front, in the chart and in the legend; null: all alike
  if (lines === $("inside")) front = label;
  if (!lines) return;
  let found = null;
  for (const group of lines.children) {
    group.classList.toggle("front", group.dataset.label === label);
    if (group.dataset.label === label) found = group;
  }
  lines.classList.toggle("faded", Boolean(found));
  if (found && found !== lines.lastChild) lines.append(found);
}
function pointAt(place) {  // show every algorithm's values at one of the places on the axis
  view.place = place;
  const value = view.places[place], guide = $("guide"), tip = $("tip"), px = view.x(value);
  if (value === undefined) return;
  guide.replaceChildren(shape("line", {x1: px, x2: px, y1: view.box.top, y2: view.box.bottom}));
  const rows = [];
  for (const {series, curve, index} of view.lines) {
    const xs = along(series.axes), i = nearest(xs, value), gap = xs.length > 1 ? (xs.at(-1) - xs[0]) / (xs.length - 1) : 0;
    if (Math.abs(xs[i] - value) > gap) continue;  // it ended before
    guide.append(shape("circle", {cx: view.x(xs[i]), cy: view.y(curve.mean[i]), r: 3.5, fill: colour(index)}));
    rows.push({series, index, mean: curve.mean[i], std: seedsAt(curve, i) > 1 ? curve.std[i] : null, seeds: seedsAt(curve, i)});
  }
  rows.sort((a, b) => metric().better === "neither" ? a.index - b.index : metric().better === "high" ? b.mean - a.mean : a.mean - b.mean);
  tip.replaceChildren(make("div", {class: "soft"}, `${amount(value)} ${AXES[axis()]}`), make("table", {}, rows.map(row =>
    make("tr", {}, make("td", {}, swatch(row.index)), make("td", {}, row.series.label), make("td", {}, spread(row)),
      make("td", {class: "soft"}, plural(row.seeds, "seed"))))));
  tip.hidden = false;
  const right = px + 14 + tip.offsetWidth <= view.width ? px + 14 : px - 14 - tip.offsetWidth;
  tip.style.left = `${Math.max(4, right)}px`;
}
function leave() {
  $("tip").hidden = true;
  $("guide")?.replaceChildren();
  bring(null);
}
function place(event) {
  const box = $("chart").getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
function follow(event) {
  if (!view) return;
  const [px, py] = place(event);
  pointAt(nearest(view.places, view.at(px)));
  let near = null, least = 24;  // pixels
  for (const {series, curve} of view.lines) {
    const xs = along(series.axes), i = nearest(xs, view.at(px)), away = Math.abs(view.y(curve.mean[i]) - py);
    if (away < least) [least, near] = [away, series.label];
  }
  if (near !== front) bring(near);
}

// --- looking closer: drag, scroll, or + and -; a double click or 0 shows all ---

let dragged = null;  // where a drag began
function clamp(px, py) {
  return [Math.min(view.box.right, Math.max(view.box.left, px)), Math.min(view.box.bottom, Math.max(view.box.top, py))];
}
function drag(event) {
  const [px, py] = clamp(...place(event)), [x, y] = dragged, flat = Math.abs(py - y) < 12;
  const box = {x: Math.min(px, x), width: Math.abs(px - x), y: flat ? view.box.top : Math.min(py, y), height: flat ? view.box.bottom - view.box.top : Math.abs(py - y)};
  const chosen = $("chosen");
  for (const [name, value] of Object.entries(box)) chosen.setAttribute(name, value);
  chosen.toggleAttribute("hidden", box.width < 8);
  return {...box, flat};
}
function setZoom(next) {
  zoom = next;
  drawChart();
}
function magnify(times, px) {  // about a place; the heights follow what is left to see
  const [whole, end] = extent(view.lines.map(one => along(one.series.axes))), at = view.at(px);
  const left = Math.max(whole, at - (at - view.left) / times), right = Math.min(end, at + (view.right - at) / times);
  setZoom(left <= whole && right >= end ? null : {x: [left, right], y: null});
}
$("chart").addEventListener("pointerdown", event => {
  if (!view) return;
  if (event.pointerType === "mouse" && event.button === 0) {
    dragged = clamp(...place(event));
    $("chart").setPointerCapture(event.pointerId);
  } else follow(event);
});
$("chart").addEventListener("pointermove", event => { if (dragged && view) drag(event); else follow(event); });
$("chart").addEventListener("pointerup", event => {
  if (!dragged || !view) return;
  const box = drag(event);
  dragged = null;
  $("chosen").toggleAttribute("hidden", true);
  if (box.width < 8) return;
  setZoom({x: [view.at(box.x), view.at(box.x + box.width)], y: box.flat ? null : [view.level(box.y + box.height), view.level(box.y)]});
});
$("chart").addEventListener("pointercancel", () => { dragged = null; });
$("chart").addEventListener("dblclick", () => setZoom(null));
$("chart").addEventListener("wheel", event => {  // the page scrolls on, unless the chart has been clicked on
  if (!view || !(event.ctrlKey || event.metaKey || document.activeElement === $("chart"))) return;
  event.preventDefault();
  magnify(event.deltaY < 0 ? 1.25 : .8, clamp(...place(event))[0]);
}, {passive: false});
$("chart").addEventListener("pointerleave", event => { if (event.pointerType === "mouse" && !dragged) leave(); });
$("chart").addEventListener("blur", leave);
$("chart").addEventListener("keydown", event => {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], times = {"+": 1.5, "=": 1.5, "-": 1 / 1.5}[event.key];
  if (event.key === "Escape") leave();
  if (event.key === "0") setZoom(null);
  if (times && view) magnify(times, view.place === null ? (view.box.left + view.box.right) / 2 : view.x(view.places[view.place]));
  if (!step || !view) return;
  event.preventDefault();
  const start = view.place ?? (step > 0 ? -1 : view.places.length);
  pointAt(Math.min(view.places.length - 1, Math.max(0, start + step)));
});
$("unzoom").addEventListener("click", () => setZoom(null));

// --- the legend ---

function swatch(index) {
  const mark = make("span", {class: "swatch"});
  mark.style.borderTopColor = colour(index);
  mark.style.borderTopStyle = ["solid", "dashed", "dotted"][Math.min(2, Math.floor(index / 10))];
  return mark;
}
function drawLegend() {
  $("legend").replaceChildren(...data.series.map((series, index) => {
    const lost = series.diverged.length ? make("span", {class: "soft"}, `${series.diverged.length} diverged`) : null;
    const button = make("button", {type: "button", "aria-pressed": !off.has(series.label)}, swatch(index), series.label, lost);
    button.addEventListener("click", () => {
      if (!off.delete(series.label)) off.add(series.label);
      button.setAttribute("aria-pressed", !off.has(series.label));
      drawChart();
      drawReach();
    });
    for (const [kind, label] of [["pointerenter", series.label], ["focus", series.label], ["pointerleave", null], ["blur", null]])
      button.addEventListener(kind, () => bring(label));
    return button;
  }));
}
function curveRows() {  // what the chart shows, as a table
  const rows = [["algorithm", "seed", ...Object.keys(AXES), metric().name, "std", "seeds"]], name = metric().name;
  const place = (axes, i) => Object.keys(AXES).map(key => key === "bytes_up" ? 4 * axes.floats_up[i] : axes[key] && axes[key][i]);
  for (const {series, curve} of shown()) {
    curve.mean.forEach((mean, i) => rows.push([series.label, "mean", ...place(series.axes, i), mean, seedsAt(curve, i) > 1 ? curve.std[i] : "", seedsAt(curve, i)]));
    if ($("each").checked) for (const lane of series.lanes)
      (lane.values[name] || []).forEach((value, i) => rows.push([series.label, lane.seed, ...place(laneAxes(series, lane), i), value, "", 1]));
  }
  return rows;
}
