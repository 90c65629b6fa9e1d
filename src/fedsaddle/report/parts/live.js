// --- live: new values are asked for, and drawn without losing what was chosen ---

let tag = "";
async function refresh() {
  let rest = 1500;  // milliseconds
  try {
    const answer = await fetch("data", {headers: tag ? {"If-None-Match": tag} : {}, cache: "no-store"});
    if (answer.status === 200) {
      tag = answer.headers.get("ETag") || "";
      const next = await answer.json(), known = new Set((data.series || []).map(series => series.label));
      for (const series of next.series || []) if (series.off && !known.has(series.label)) off.add(series.label);
      data = next;
      drawAll();
    }
    const ended = !data.waiting && data.runs.every(run => !run.unfinished);
    $("live").textContent = data.trouble || (data.waiting ? "Waiting for the first evaluation \u2026" : ended ? "The run has come to its end." : `Live; as of ${data.made.slice(-12)}.`);
  } catch {
    rest = 10000;
    $("live").textContent = "Nobody serves this page any more; it shows what was last known.";
  }
  setTimeout(refresh, rest);
}
$("live").hidden = false;
refresh();
