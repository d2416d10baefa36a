// Health and readiness of the service, and the last 15 minutes of its metrics.

import { get } from "../api.js";
import { facts, h, svg } from "../dom.js";
import { history } from "../metrics.js";
import { bytes, count, duration, percent } from "../text.js";

const WIDTH = 240;
const HEIGHT = 48;
const LEAST_SPAN = 60_000; // shortest time range of a chart in milliseconds
const STEP = 5; // samples between the two ends of a rate: 15 seconds

const refusal = ({ status }) => status >= "400" && status !== "499";
const data = ({ folder }) => folder === "data";
const answering = ({ route }) => !["/metrics", "/health", "/ready", "/me"].includes(route) && !route.startsWith("/ui");
const perSecond = (value) => (Number.isFinite(value) ? `${value.toPrecision(value < 10 ? 2 : 3)} /s` : "none yet");
const time = (value) => (Number.isFinite(value) ? duration(value) : "none lately");

// name, value from a sample (and an earlier one), format, meaning (with its alert in docs/ALERTS.md)
const TILES = [
  ["Requests", (now, before) => now.rate(before, "simile_requests_total", answering), perSecond, "Answered per second, without health checks"],
  ["Median time", (now, before) => now.quantile(before, "simile_request_seconds", 0.5, answering), time, "Half of the requests are faster, from the first byte to the last"],
  ["p99 time", (now, before) => now.quantile(before, "simile_request_seconds", 0.99, answering), time, "One request in a hundred takes longer (SimileLatencyHigh)"],
  ["Error answers", (now, before) => now.rate(before, "simile_requests_total", refusal), perSecond, "Answers of status 400 and above (SimileRefusals)"],
  ["Queue", (now) => now.sum("simile_queue_texts"), (value) => count(value, "text"), "Texts waiting to be embedded (SimileQueueSaturated)"],
  ["Wait", (now) => now.value("simile_queue_wait_seconds"), time, "Expected wait of a new request"],
  ["Embedded", (now, before) => now.rate(before, "simile_tokens_total"), (value) => `${Math.round(value).toLocaleString("en")} tokens/s`, "Tokens computed per second"],
  ["Cache", (now, before) => 1 / (1 + now.rate(before, "simile_cache_misses_total") / now.rate(before, "simile_cache_hits_total")), (value) => (Number.isFinite(value) ? percent(value) : "no requests"), "Texts that cost no forward pass"],
  ["Memory", (now) => now.value("process_resident_memory_bytes"), bytes, "Of this process (SimileMemoryNearLimit)", (now) => now.value("simile_memory_limit_bytes")],
  ["Disk", (now) => now.value("simile_disk_total_bytes", data) - now.value("simile_disk_free_bytes", data), bytes, "Used on the disk of the data (SimileDiskNearlyFull)", (now) => now.value("simile_disk_total_bytes", data)],
  ["Index lag", (now, before) => now.quantile(before, "simile_index_lag_seconds", 0.99), time, "From a commit until its documents are found (SimileIndexLag)"],
  ["Not in the index", (now) => now.value("simile_index_missing_documents"), (value) => count(value, "document"), "Stored, but not yet found by a search (SimileIndexIncomplete)"],
];

export async function show(main, { signal }) {
  const verdicts = h("div", { class: "verdicts", role: "status" });
  const tiles = TILES.map(([name, , , meaning]) => ({
    value: h("p", { class: "figure" }, "…"), drawing: h("div"), limit: h("p", { class: "note" }, meaning), name,
  }));
  const keys = h("section", { hidden: true });
  main.append(verdicts,
    h("div", { class: "tiles" }, tiles.map(({ name, value, drawing, limit }) => h("section", { class: "card tile" }, h("h2", {}, name), value, drawing, limit))),
    keys,
    h("p", { class: "note" }, "At most the last 15 minutes since this page was opened, from /metrics. A monitoring system keeps more: docs/METRICS.md and docs/ALERTS.md."));
  history.follow(() => { draw(tiles); drawKeys(keys); tell(verdicts, signal); }, signal);
}

function draw(tiles) {
  const { moments } = history;
  TILES.forEach(([name, figure, written, meaning, limitOf], at) => {
    const points = moments.slice(Math.min(STEP, moments.length - 1)).map((now, place) => [now.at, figure(now, moments[place])]);
    const latest = points.at(-1)[1];
    const limit = limitOf?.(moments.at(-1)) ?? NaN;
    const { value, drawing, limit: note } = tiles[at];
    value.textContent = moments.length > 1 || limitOf ? written(latest) : "…";
    drawing.replaceChildren(line(name, points, limit));
    if (Number.isFinite(limit)) note.textContent = `${meaning}; ${percent(latest / limit)} of ${written(limit)}`;
  });
}

/** Draws a metric over time, relative to its limit or its own maximum. */
function line(name, points, limit) {
  const known = points.filter(([, value]) => Number.isFinite(value));
  const most = Number.isFinite(limit) ? limit : Math.max(...known.map(([, value]) => value), 1e-9);
  const now = points.at(-1)[0];
  const span = Math.max(LEAST_SPAN, now - points[0][0]);
  const x = (at) => WIDTH - ((now - at) / span) * WIDTH;
  const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 6);
  const path = known.map(([at, value], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "spark", role: "img", "aria-label": `Course of ${name}`, preserveAspectRatio: "none" },
    svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "base" }),
    svg("path", { d: path }));
}

function drawKeys(place) {
  const used = history.moments.at(-1).samples.get("simile_key_requests_total") ?? [];
  place.hidden = used.length === 0;
  place.replaceChildren(h("h2", {}, "Use of the keys since the start"), facts(used.map(({ labels, value }) => [labels.key, count(value, "request")])));
}

/** Returns the answers of /health and /ready, and the progress of a build. */
async function tell(place, signal) {
  const ask = (path) => get(path, {}, { signal }).then(() => null, (error) => error.message);
  const [illness, reason] = await Promise.all([ask("health"), ask("ready")]);
  if (signal.aborted) return;
  const now = history.moments.at(-1);
  const [done, total] = [now.value("simile_build_done_documents"), now.value("simile_build_total_documents")];
  const lines = [
    [illness === null, illness ?? "Healthy: the last forward pass succeeded, and nothing hangs."],
    [reason === null, reason ?? "Ready: the service accepts new work, and the index is complete."],
    ...(total > 0 ? [[true, `A version is being built: ${done.toLocaleString("en")} of ${count(total, "document")}, ${duration(now.value("simile_build_eta_seconds"))} left.`]] : []),
  ];
  const said = lines.map(([, sentence]) => sentence).join("\n");
  if (place.dataset.said === said) return;
  place.dataset.said = said;
  place.replaceChildren(...lines.map(([good, sentence]) => h("p", { class: `card verdict-line ${good ? "good" : "bad"}` }, h("span", { class: "dot", "aria-hidden": "true" }), sentence)));
}
