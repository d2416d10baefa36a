// The card of a hit, for search, comparison and judging.

import { foreign, h, iconButton, say } from "./dom.js";
import { explanation } from "./explain.js";
import { nameable } from "./filter.js";
import { judge } from "./judgements.js";
import { session } from "./session.js";
import { excerpt, headlineOf, indicesOf, pieces, scalars } from "./text.js";

const SHOWN = 240; // characters of a text without a snippet
const WHOLE = 20_000; // characters of a whole text

/**
 * Returns a card.
 *
 * hit: A hit of /search. With `highlight` it has marks and a snippet, with `explain` a button for the reasons.
 * query: Thumbs judge it. "" means none.
 * heading: Element name of the title.
 * own: id -> relevant (judgements.js).
 * onfilter: Called with a field and a value.
 * notes: More elements below the text.
 */
export function hitCard({ hit, rank, query, own, heading = "h3", onfilter = null, notes = [], onjudged = () => {} }) {
  const { headline, length } = headlineOf(hit);
  const { title = [], text: marks = [] } = hit.highlights ?? {};
  const pairs = indicesOf(hit.text ?? "", marks);
  const shown = hit.title ? marked(headline, 0, headline.length, indicesOf(headline, title)) : [marked(hit.text ?? "", 0, length, pairs), headline.slice(length)];
  const address = `#/document?${new URLSearchParams({ id: hit.id, ...(hit.passage?.end ? { passage: `${hit.passage.start}-${hit.passage.end}` } : {}) })}`;
  const [text, whole] = textOf(hit, length, pairs);
  const [why, reasons] = explanation(hit);
  return h("li", { class: "card hit", "data-id": hit.id },
    h("span", { class: "rank", "aria-label": `Rank ${rank}` }, String(rank)),
    h("div", { class: "body" },
      h(heading, { class: "title" }, foreign("a", { href: address }, shown)),
      text,
      h("p", { class: "meta" },
        foreign("span", { class: "id" }, hit.id),
        hit.score === undefined ? "" : h("span", { class: "score" }, `score ${hit.score.toFixed(3)}`),
        ...notes, why, whole),
      reasons,
      onfilter ? chips(hit.metadata ?? {}, onfilter) : ""),
    query && session.may("write") ? thumbs(query, hit.id, own, onjudged) : "");
}

const marked = (text, start, end, pairs) => pieces(text, start, end, pairs).map(([piece, is]) => (is ? h("mark", {}, piece) : piece));

/** Returns the snippet of a text, or what follows the first `length` characters, and a button for the whole text. */
function textOf({ text = "", snippet }, length, pairs) {
  const first = length + text.slice(length).search(/\S|$/);
  let [[start, end]] = indicesOf(text, [[snippet?.start ?? 0, snippet?.end ?? 0]]);
  start = Math.max(start, first);
  if (start >= end) [start, end] = [first, first + excerpt(text.slice(first), SHOWN).replace(/ …$/, "").length];
  if (start >= end) return ["", ""];
  const place = foreign("p", { class: "text" });
  const draw = (from, until) => place.replaceChildren(from > length + 1 ? "… " : "", ...marked(text, from, until, pairs), until < text.length ? " …" : "");
  const toggle = () => {
    const open = button.ariaExpanded !== "true";
    button.ariaExpanded = String(open);
    if (open) draw(first, Math.min(text.length, WHOLE));
    else draw(start, end);
  };
  const button = h("button", { type: "button", class: "link", "aria-expanded": "false", onclick: toggle }, "whole text");
  draw(start, end);
  return [place, start > first || end < text.trimEnd().length ? button : ""];
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
