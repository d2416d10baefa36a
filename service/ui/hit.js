// The card of a hit, for search and comparison.

import { foreign, h, iconButton, say } from "./dom.js";
import { nameable } from "./filter.js";
import { judge } from "./judgements.js";
import { session } from "./session.js";
import { excerpt, headlineOf, marked, placeOf, scalars } from "./text.js";

const SHOWN = 320; // characters of a text that are shown

/**
 * Returns a card.
 *
 * hit: A hit of /search.
 * query: Its words are marked, and thumbs judge it. "" means none.
 * heading: Element name of the title.
 * own: id -> relevant (judgements.js).
 * score: Length of the bar, from 0 to 1. null draws no bar.
 * onfilter: Called with a field and a value.
 * notes: More elements below the text.
 */
export function hitCard({ hit, rank, query, words, own, heading = "h3", score = null, onfilter = null, notes = [], onjudged = () => {} }) {
  const { headline, rest } = headlineOf(hit);
  const address = `#/document?${new URLSearchParams({ id: hit.id, ...(hit.passage?.end ? { passage: `${hit.passage.start}-${hit.passage.end}` } : {}) })}`;
  return h("li", { class: "card hit", "data-id": hit.id },
    h("span", { class: "rank", "aria-label": `Rank ${rank}` }, String(rank)),
    h("div", { class: "body" },
      h(heading, { class: "title" }, foreign("a", { href: address }, inWords(headline, words))),
      hit.text === undefined ? "" : textOf(hit, rest, words),
      h("p", { class: "meta" },
        score === null ? "" : bar(score),
        hit.score === undefined ? "" : h("span", { class: "score" }, hit.score.toFixed(3)),
        foreign("span", { class: "id" }, hit.id),
        ...notes),
      onfilter ? chips(hit.metadata ?? {}, onfilter) : ""),
    query && session.may("write") ? thumbs(query, hit.id, own, onjudged) : "");
}

// What a feature of the second stage (models/search/features.py) says about a hit: "It …".
const REASONS = {
  dense: "is close in meaning", second: "has several passages close in meaning", bm25: "has rare words of the query",
  hybrid: "is good by meaning and by keywords", feedback: "resembles the best hits", cover: "has many words of the query",
  bigram: "has words of the query side by side", title_cover: "has a title that the query repeats", length: "has a length that answers often have", hub: "is close to what is often asked", proximity: "has words of the query close together",
  maxsim: "has words close in meaning to each word of the query", maxsim_rare: "has words close in meaning to the words that tell hits apart", maxsim_doc: "has several words close in meaning to the query",
  memory_best: "was judged relevant for this or a similar query", memory_sum: "was judged relevant for several similar queries", trees: "has several signs of an answer at once", reranker: "is an answer by the reranker",
};

/** Returns the reasons for a hit's place as a sentence, the strongest first, or "" without an explanation. */
export function reasons({ features, contributions }) {
  if (!contributions) return "";
  const against = features.memory_not > 0 ? ["was judged not relevant for this or a similar query"] : [];
  const strongest = Object.entries(contributions).filter(([name, part]) => part > 0 && REASONS[name]).sort(([, a], [, b]) => b - a);
  const said = [...against, ...strongest.slice(0, 2).map(([name]) => REASONS[name])];
  return said.length ? `It ${said.join(", and ")}.` : "";
}

/** Returns the passage that matched. A short one gets some text around it. */
function textOf(hit, rest, words) {
  if (!hit.passage?.end) return foreign("p", { class: "text" }, inWords(excerpt(rest, SHOWN), words));
  const start = placeOf(hit.text, hit.passage.start);
  const end = placeOf(hit.text, hit.passage.end);
  const from = Math.max(0, start - Math.max(0, SHOWN - (end - start)) / 2) | 0;
  const until = Math.max(Math.min(end, start + SHOWN), from + SHOWN);
  return foreign("p", { class: "text" },
    from > 0 ? "… " : "", hit.text.slice(from, start),
    h("mark", { class: "passage", title: "The passage that matched" }, inWords(hit.text.slice(start, Math.min(end, until)), words)),
    hit.text.slice(end, Math.max(end, until)), until < hit.text.length ? " …" : "");
}

function inWords(text, words) {
  return marked(text, words).map(([piece, is]) => (is ? h("mark", {}, piece) : piece));
}

function bar(share) {
  const meter = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
  meter.firstChild.style.width = `${Math.max(2, Math.min(100, 100 * share))}%`;
  return meter;
}

/** Returns a button for each scalar value of the metadata, which filters by it. */
function chips(metadata, onfilter) {
  const values = scalars(metadata).filter(([field]) => nameable(field));
  if (!values.length) return "";
  return h("p", { class: "chips" }, values.slice(0, 8).map(([field, value]) =>
    foreign("button", { type: "button", class: "chip", title: "Filter by this", onclick: () => onfilter(field, value) },
      h("span", {}, `${field} `), String(value).slice(0, 60))));
}

function thumbs(query, id, own, onjudged) {
  const buttons = [[true, "up", "Relevant"], [false, "down", "Not relevant"]].map(([relevant, picture, label]) => {
    const press = async () => {
      const wanted = own.get(id) === relevant ? null : relevant;
      try {
        await judge(query, id, wanted);
        if (wanted === null) own.delete(id);
        else own.set(id, wanted);
        say(wanted === null ? "Judgment removed." : `Stored: ${label.toLowerCase()}.`);
      } catch (error) {
        say(error.message);
        box.append(h("span", { class: "problem" }, error.message));
      }
      draw();
      onjudged();
    };
    return [relevant, iconButton(picture, label, { onclick: press, class: `icon thumb ${picture}` })];
  });
  const draw = () => buttons.forEach(([relevant, button]) => button.setAttribute("aria-pressed", String(own.get(id) === relevant)));
  draw();
  const box = h("div", { class: "thumbs", role: "group", "aria-label": "Is this an answer?" }, buttons.map(([, button]) => button));
  return box;
}
