// --- how it was made ---

const isTable = value => value !== null && typeof value === "object" && !Array.isArray(value);
const list = pairs => make("dl", {}, ...pairs.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, told(value))]));
const card = (title, pairs) => make("div", {class: "card"}, make("h4", {}, title), list(pairs));
const WORDS = {fedsaddle: "FedSaddle", torch: "PyTorch", python: "Python", memory_gib: "memory, GiB", gpu: "GPU"};

function settings(algorithms) {  // a row for each algorithm, a column for each hyperparameter
  const keys = [...new Set(Object.values(algorithms).flatMap(table => isTable(table) ? Object.keys(table) : []))];
  const cell = (table, key) => make("td", {}, isTable(table) && key in table ? told(table[key]) : "");
  return make("div", {class: "scroll tall", tabindex: 0}, make("table", {},
    make("thead", {}, make("tr", {}, ...["name", ...keys].map(key => make("th", {scope: "col"}, key)))),
    make("tbody", {}, ...Object.entries(algorithms).map(([label, table]) =>
      make("tr", {}, make("th", {scope: "row", title: label}, label), ...keys.map(key => cell(table, key)))))));
}
function drawRuns() {
  $("runs").replaceChildren(...data.runs.flatMap(run => {
    const entries = Object.entries(run.experiment).filter(([key]) => !["name", "description", "algorithms"].includes(key));
    const tables = entries.filter(([, value]) => isTable(value) && Object.keys(value).length), plain = entries.filter(([, value]) => !isTable(value));
    const places = run.environment.map((entry, count) => card(run.environment.length > 1 ? `start ${count + 1}` : "where",
      Object.entries(entry).flatMap(([key, value]) => key === "seconds" && isTable(value)
        ? Object.entries(value).map(([label, seconds]) => [`${label} took`, `${seconds} s`]) : [[WORDS[key] || key, value]])));
    return [
      data.runs.length > 1 ? make("h3", {}, `${run.experiment.name} (${run.folder})`) : null,
      make("p", {}, ...(run.again ? ["Run it again: ", make("code", {}, run.again)] : ["A simulation without a folder; outcome.save(\u2026) makes one."])),
      make("div", {class: "cards"}, ...(places.length ? places : [card("where", [["machine", "not recorded"]])])),
      make("details", {}, make("summary", {}, "every key of the experiment, with its value"),
        make("div", {class: "cards"}, card("experiment", plain), ...tables.map(([key, value]) => card(key, Object.entries(value))))),
      make("details", {}, make("summary", {}, "every hyperparameter of the algorithms"), settings(run.experiment.algorithms)),
    ].filter(Boolean);
  }));
}


// --- the sweep: a heat map for each algorithm ---

const saidOf = cell => cell.value === null ? "diverged" : number(cell.value);
function tellCell({map, by}, cell) {
  const place = [`${map.x} ${map.xs[cell.x]}`, map.y && `${map.y} ${map.ys[cell.y]}`].filter(Boolean).join(", ");
  const ends = [cell.lost && `${cell.lost} of ${plural(cell.seeds, "seed")} diverged`, cell.dropped && "dropped on the way"].filter(Boolean);
  return `${place}: ${by} ${saidOf(cell)} (${[cell.told, ...ends].join("; ")})`;
}
function heatMap(family, told) {
  const {map} = family, longest = Math.max(...map.ys.map(text => text.length));
  const left = map.y ? 26 + 6.5 * longest : 8, size = Math.min(56, 440 / map.xs.length), tall = Math.min(size, 34);
  const width = left + size * map.xs.length + 8, bottom = 8 + tall * map.ys.length, every = Math.ceil((7 * Math.max(...map.xs.map(text => text.length)) + 6) / size);
  const svg = shape("svg", {class: "map", viewBox: `0 0 ${Math.max(260, width)} ${bottom + 42}`, role: "group",
    "aria-label": `${family.by} of ${family.name} over ${map.x}${map.y ? ` and ${map.y}` : ""}; the same values are in the table below`});
  svg.style.maxWidth = `${Math.max(260, width) * 1.25}px`;
  for (const cell of map.cells) {
    const x = left + size * cell.x, y = bottom - tall * (cell.y + 1), text = tellCell(family, cell);
    const box = {x: x + 1, y: y + 1, width: size - 2, height: tall - 2}, middle = [x + size / 2, y + tall / 2];
    const group = shape("g", {tabindex: 0, role: "img", "aria-label": text}, shape("title", {}, text),
      shape("rect", {class: "hole", ...box}),
      cell.value === null ? shape("path", {class: "cross", d: `M${middle[0] - 4},${middle[1] - 4}l8,8m0,-8l-8,8`})
        : shape("rect", {class: "shade", ...box, "fill-opacity": .08 + .92 * cell.shade}),
      cell.best ? shape("rect", {class: "winner", ...box}) : null);
    for (const kind of ["pointerenter", "pointerdown", "focus"]) group.addEventListener(kind, () => { told.textContent = text; });
    svg.append(group);
  }
  map.xs.forEach((text, i) => { if (i % every === 0) svg.append(shape("text", {x: left + size * (i + .5), y: bottom + 15, "text-anchor": "middle"}, text)); });
  map.ys.forEach((text, i) => svg.append(shape("text", {x: left - 6, y: bottom - tall * (i + .5) + 4, "text-anchor": "end"}, text)));
  svg.append(shape("text", {x: left + size * map.xs.length / 2, y: bottom + 34, "text-anchor": "middle"}, map.x));
  if (map.y) svg.append(shape("text", {x: 12, y: bottom / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${bottom / 2})`}, map.y));
  return svg;
}
function mapTable({map, by}) {
  const at = new Map(map.cells.map(cell => [`${cell.x} ${cell.y}`, cell]));
  const line = (name, y) => make("tr", {}, make("th", {scope: "row"}, name),
    ...map.xs.map((_, x) => make("td", {}, at.has(`${x} ${y}`) ? saidOf(at.get(`${x} ${y}`)) : "\u2013")));
  return make("details", {class: "small"}, make("summary", {}, "as a table"), make("div", {class: "scroll", tabindex: 0}, make("table", {},
    make("thead", {}, make("tr", {}, make("th", {scope: "col"}, `${map.y || by} \\ ${map.x}`), ...map.xs.map(text => make("th", {scope: "col"}, text)))),
    make("tbody", {}, ...map.ys.map((name, y) => line(name || by, y)).reverse()))));
}
function drawSweep() {
  $("sweep").hidden = !data.sweeps.length;
  const warnings = [...new Set(data.sweeps.map(family => family.warning).filter(Boolean))];
  $("sweep-warning").hidden = !warnings.length;
  $("sweep-warning").textContent = warnings.join(" ");
  $("sweep-reading").textContent = "Each place shows the best setting there, by the mean over its seeds at the end, or where it was dropped: the darker, the better. A frame marks the one that was chosen, a cross a place where every seed diverged. A setting that loses a seed comes after all that lose none. The chosen value was picked by itself, so it is optimistic.";
  $("maps").replaceChildren(...data.sweeps.map(family => {
    const told = make("p", {class: "told", "aria-live": "polite"}, "");
    const counts = [plural(family.tried, "setting") + " tried", family.diverged && `${family.diverged} lost a seed`, family.dropped && `${family.dropped} dropped`].filter(Boolean);
    const map = family.map && heatMap(family, told);
    const cells = () => [[family.map.x, family.map.y, family.by, "setting", "seeds lost", "dropped"], ...family.map.cells.map(cell => [family.map.xs[cell.x], family.map.ys[cell.y], cell.value, cell.told, cell.lost, cell.dropped])];
    return make("figure", {}, make("figcaption", {}, make("b", {}, family.name), `: ${family.value === null ? "every setting diverged" : `${family.by} ${number(family.value)} with ${family.best}`}`,
      make("div", {class: "small soft"}, counts.join(", "))), ...(map ? [map, told, make("div", {class: "tools"}, tools(`${family.name}-map`, () => map, cells)), mapTable(family)] : []));
  }));
}


// --- samples ---

function drawPictures() {
  const able = data.series.filter(series => series.pictures), real = able.map(series => series.pictures.real).find(Boolean);
  $("gallery").hidden = !able.length;
  $("pictures").replaceChildren(
    ...(real ? [make("figure", {}, make("figcaption", {}, make("b", {}, "real pictures"), ", from the test rows"), make("img", {src: real, alt: "some real pictures"}))] : []),
    ...able.map(({label, pictures}) => make("figure", {},
      make("figcaption", {}, make("b", {}, label), `, round ${pictures.round}`),
      make("img", {src: pictures.last, alt: `samples of ${label} after round ${pictures.round}`}),
      make("figcaption", {}, "the first eight, by round"),
      make("div", {class: "rounds"}, make("ol", {}, pictures.rounds.map(round => make("li", {}, round))),
        make("img", {src: pictures.over_rounds, alt: `samples of ${label} after rounds ${pictures.rounds.join(", ")}`})))));
}
