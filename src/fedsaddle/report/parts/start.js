// --- the page ---

function drawHead() {
  const names = [...new Set(data.runs.map(run => run.experiment.name))].join(", ");
  document.title = `${names} \u2013 FedSaddle`;
  $("title").textContent = names;
  const seeds = new Set(data.runs.flatMap(run => run.experiment.seeds)).size, first = data.runs[0].experiment.description;
  $("lead").replaceChildren(...(data.runs.length === 1 && first ? [make("bdi", {}, told(first) + "."), " "] : []), `A report on ${plural(data.series.filter(series => !series.off).length, "algorithm")}${data.sweeps.length ? `, the best of ${plural(data.sweeps.reduce((sum, family) => sum + family.tried, 0), "setting")},` : ""} over ${plural(seeds, "seed")}${data.runs.length > 1 ? ` from ${data.runs.length} runs` : ""}.`);
  const open = data.runs.filter(run => run.unfinished);
  $("unfinished").hidden = !open.length;
  $("unfinished").textContent = open.map(run => `Unfinished${data.runs.length > 1 ? ` (${run.folder})` : ""}: ${run.unfinished}.`).join(" ") + " \u201cFinal\u201d is how far each has come.";
  $("footer").textContent = `Made by FedSaddle ${data.version} on ${data.made}. ${data.live ? "" : "The same numbers are in summary.csv and curves.csv beside this page."}`;
}
const moves = column => data.series.some(series => series.axes[column] && series.axes[column].some(Boolean));
function choices(id, options, first) {  // what was chosen stays chosen, if it is still there
  const before = $(id).value;
  $(id).replaceChildren(...options.map(([value, name]) => make("option", {value}, name)));
  $(id).value = options.some(([value]) => value === before) ? before : first;
}
function drawAll() {
  $("main").hidden = Boolean(data.waiting);
  if (data.waiting) {
    $("title").textContent = "Waiting";
    $("lead").textContent = data.waiting;
    return;
  }
  const scale = $("scale").value, before = $("metric").value;
  choices("metric", data.metrics.map(({name}) => [name, name]), data.metrics[0].name);
  const able = Object.keys(AXES).filter(column => column === "round" || moves(column === "bytes_up" ? "floats_up" : column));
  choices("axis", able.map(value => [value, AXES[value]]), able[0]);
  $("each").parentElement.hidden = !data.series.some(series => series.lanes.length > 1);
  chooseScale(before === $("metric").value ? scale : "");
  drawHead(); drawLegend(); drawChart(); drawMetric(); drawDetails(); drawTimeline(); drawEvents(); drawSweep(); drawPictures(); drawRuns();
  $("chart-tools").replaceChildren(...tools("curves", () => $("chart"), curveRows, () => shown().map(one => [one.index, one.series.label])));
}
function drawMetric() { drawTable(); drawReach(); drawCosts(); }
$("metric").addEventListener("change", () => { zoom = null; chooseScale(""); drawChart(); drawMetric(); });
$("axis").addEventListener("change", () => setZoom(null));
$("scale").addEventListener("change", () => { zoom = zoom && {x: zoom.x, y: null}; drawChart(); drawReach(); });
$("each").addEventListener("change", drawChart);
new ResizeObserver(() => { if (!data.waiting && (!view || view.width !== $("chart").clientWidth)) drawChart(); }).observe($("chart"));
drawAll();
