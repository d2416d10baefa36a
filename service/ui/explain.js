// Explains the place of a hit: the terms of the query, the fusion of both rankings, and the features of the second stage.

import { foreign, h, toggle } from "./dom.js";

// What a feature (models/search/features.py) says about a hit: "It …".
const REASONS = {
  dense: "is close in meaning", second: "has several passages close in meaning", bm25: "has rare words of the query",
  hybrid: "is good by meaning and by keywords", feedback: "resembles the best hits", cover: "has many words of the query",
  bigram: "has words of the query side by side", title_cover: "has a title that the query repeats", length: "has a length that answers often have", hub: "is close to what is often asked", proximity: "has words of the query close together",
  maxsim: "has words close in meaning to each word of the query", maxsim_rare: "has words close in meaning to the words that tell hits apart", maxsim_doc: "has several words close in meaning to the query",
  memory_best: "was judged relevant for this or a similar query", memory_sum: "was judged relevant for several similar queries", trees: "has several signs of an answer at once", reranker: "is an answer by the reranker",
};
const RANKINGS = { dense: "Meaning (cosine)", lexical: "Keywords (BM25)" };

/** Returns a button, and the place that it fills with the explanation of `hit`. Without an explanation, both are "". */
export function explanation(hit) {
  if (!hit.explanation && !hit.contributions) return ["", ""];
  const place = h("div", { class: "why", hidden: true });
  const open = () => { place.hidden = false; if (!place.firstChild) place.append(...tables(hit)); };
  return [toggle("why this place?", open, () => { place.hidden = true; }), place];
}

function tables({ explanation: { terms = [], fusion } = {}, features = {}, contributions }) {
  const parts = Object.entries(contributions ?? {}).filter(([, part]) => part).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  return [
    contributions ? h("p", { class: "reasons" }, reasons(features, contributions)) : "",
    table("Words of the query", ["word", "rarity (idf)", "found in"], terms.map(({ term, from, idf, in: where }) =>
      [from ? `${term} (${from})` : term, idf?.toFixed(2) ?? "–", where.join(" and ")]), "No word of the query is in it."),
    fusion ? table("Both rankings", ["ranking", "score", "place", "weight", "share"], Object.entries(fusion).map(([name, { score, place, weight, share }]) =>
      [RANKINGS[name], score === null ? "–" : score.toFixed(3), place ?? "–", weight.toFixed(2), share.toFixed(3)])) : "",
    contributions ? table("Features", ["feature", "value", "part of the order"], parts.map(([name, part]) =>
      [name, features[name]?.toFixed(3) ?? "–", signed(part)])) : "",
  ];
}

const signed = (part) => `${part < 0 ? "−" : "+"}${Math.abs(part).toFixed(3)}`;

/** Returns the reasons for a hit's place as a sentence, the strongest first. */
function reasons(features, contributions) {
  const against = features.memory_not > 0 ? ["was judged not relevant for this or a similar query"] : [];
  const strongest = Object.entries(contributions).filter(([name, part]) => part > 0 && REASONS[name]).sort(([, a], [, b]) => b - a);
  const said = [...against, ...strongest.slice(0, 2).map(([name]) => REASONS[name])];
  return said.length ? `It ${said.join(", and ")}.` : "";
}

function table(caption, names, rows, otherwise = "") {
  if (!rows.length) return otherwise && h("p", { class: "note" }, otherwise);
  return h("table", { class: "facts" }, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(([name, ...cells]) => h("tr", {}, foreign("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, String(cell)))))));
}
