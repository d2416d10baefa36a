// The report of a promotion gate: the verdict, its certainty, and all scores.

import { text } from "./api.js";
import { curves } from "./curve.js";
import { foreign, h, later, prose, svg } from "./dom.js";
import { session } from "./session.js";
import { count, moment } from "./text.js";

const WIDTH = 640;
const ROW = 34;
const LEFT = 10;
const SHOWN = 100; // queries that are shown with both answers

/** Returns elements for a report of `GET /models/{version}/report`. */
export function report({ headline, reasons = [], summary = [], gains = [], rows = [], changed = {}, curve = {}, meta = {}, candidate = {}, active = {} }, version) {
  const warnings = meta.corpus_report?.warnings ?? [];
  const [first = "", ...others] = summary;
  return [
    first ? foreign("p", { class: "lead" }, first) : "",
    h("p", {}, headline ?? ""),
    h("ul", {}, [...reasons, ...others].map((sentence) => foreign("li", {}, prose(sentence)))),
    gains.length ? forest(gains, changed.sides) : "",
    meta.date ? foreign("p", { class: "note" }, `Measured ${moment(meta.date)}; recipe ${meta.recipe ?? "unknown"}, ${count(meta.texts ?? 0, "row")}, against ${meta.active?.version ? session.nameOf(meta.active.version) : "the active version"}.`) : "",
    curves(curve),
    ...["gained", "lost"].filter((word) => changed[word]?.length).map((word) => h("details", {}, h("summary", {}, `Queries that ${word} most`), answered(`Queries that ${word} most`, changed[word], changed.sides))),
    changed.gained && !changed.sides ? later("Both answers to each query", () => everyAnswer(version)) : "",
    warnings.length ? h("details", {}, h("summary", {}, "Warnings about the texts"), h("ul", {}, warnings.map((warning) => foreign("li", {}, prose(warning))))) : "",
    rows.length ? figures(rows) : "",
    candidate.geometry ? geometry(candidate.geometry, active.geometry ?? {}) : "",
  ];
}

export const points = (value) => `${value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`;

export const gainInWords = ({ title, difference, low, high }) => `${title}: ${points(difference)} points, between ${points(low)} and ${points(high)}`;

/** Draws the interval of the second side minus the first for each measure, in points. */
function forest(gains, [before, after] = ["active version", "candidate"]) {
  const most = Math.max(0.01, ...gains.flatMap(({ low, high }) => [Math.abs(low), Math.abs(high)])) * 1.1;
  const x = (value) => LEFT + ((value + most) / (2 * most)) * (WIDTH - 2 * LEFT);
  const height = gains.length * ROW + 28;
  const sentence = gains.map(gainInWords).join(". ");
  const lines = gains.flatMap(({ title, difference, low, high, shown }, at) => {
    const y = at * ROW + 24;
    const kind = shown ? "better" : high < 0 ? "worse" : "open";
    return [
      svg("line", { x1: x(0), x2: x(0), y1: y - 3, y2: y + 11, class: "zero" }), // below the label
      svg("text", { x: LEFT, y: y - 8, class: "label" }, `${title}: ${points(difference)} (${points(low)} to ${points(high)})`),
      svg("line", { x1: x(low), x2: x(high), y1: y + 4, y2: y + 4, class: `interval ${kind}` }),
      svg("circle", { cx: x(difference), cy: y + 4, r: 4, class: `middle ${kind}` }),
    ];
  });
  return h("figure", { tabindex: "0", "aria-label": "Intervals" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": sentence, class: "forest" },
      svg("text", { x: x(0), y: height - 4, class: "axis" }, "the same"),
      lines),
    h("figcaption", { class: "note" }, `The ${after} minus the ${before}, in points. A gain is shown when its whole line is right of the middle.`));
}

/** Returns a row for each query with the hits of both sides and the rank of the first correct hit, correct hits in bold. */
function answered(name, rows, sides = ["Active version", "Candidate"]) {
  return scrolling(name, ["Query", "Rank", "Points", ...sides], rows.map(({ query, difference, ranks = [], relevant, active, candidate }) => {
    const hits = (found) => h("ol", {}, found.map(({ id, rank, text }) => foreign("li", { value: rank, class: relevant.includes(id) ? "right" : "" }, text || id)));
    return [foreign("a", { href: `#/compare?${new URLSearchParams({ q: query })}` }, query), ranks.map((rank) => rank ?? "none").join("\u00a0→\u00a0"), `${difference > 0 ? "+" : ""}${(100 * difference).toFixed(0)}`, hits(active), hits(candidate)];
  }));
}

/** Returns both answers to each judged query. */
async function everyAnswer(version) {
  const lines = (await text(`models/${encodeURIComponent(version)}/report/answers.jsonl`)).split("\n").filter(Boolean);
  const shown = lines.slice(0, SHOWN).map((line) => JSON.parse(line));
  return [h("p", { class: "note" }, `${count(lines.length, "query")}, the largest change first${lines.length > SHOWN ? `; ${SHOWN} are shown` : ""}. Right answers are bold.`),
    answered("Both answers to each query", shown)];
}

const figure = (value) => (typeof value === "number" ? value.toFixed(Math.abs(value) < 10 ? 4 : 1) : "none");

function figures(rows) {
  return h("details", {}, h("summary", {}, "Every figure"),
    scrolling("Every figure", ["", "Measure", "Active version", "Candidate", "Difference", "Verdict"], rows.map((row) =>
      [row.title, row.measure, figure(row.active), figure(row.candidate), figure(row.difference), row.passed ? "passed" : "refused"])));
}

/** Returns the geometry of vectors of a public data set, with the names of the report. */
function geometry({ pairs, sentences, ...candidate }, active) {
  const names = Object.keys(candidate).filter((name) => name !== "directions" && typeof candidate[name] === "number");
  return h("details", {}, h("summary", {}, "Geometry"),
    h("p", { class: "note" }, `Of ${count(pairs, "pair")} and ${count(sentences, "sentence")} of STS-B. Of alignment and uniformity, lower is better.`),
    scrolling("Geometry", ["Measure", "Active version", "Candidate"], names.map((name) => [name.replaceAll("_", " "), figure(active[name]), figure(candidate[name])])));
}

/** Wraps a wide table in a box that keys can scroll. */
function scrolling(name, header, rows) {
  return h("div", { class: "scrolling", tabindex: "0", role: "region", "aria-label": name }, h("table", {},
    h("thead", {}, h("tr", {}, header.map((cell) => h("th", { scope: "col" }, cell)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
}
