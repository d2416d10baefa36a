// The card of a hit, for search, comparison and judging.

import { foreign, h, iconButton, say, toggle } from "./dom.js";
import { explanation } from "./explain.js";
import { nameable } from "./filter.js";
import { judge } from "./judgements.js";
import { session } from "./session.js";
import { indicesOf, pieces, scalars } from "./text.js";

const SHOWN = 240; // characters of a text without a snippet
const WHOLE = 20_000; // characters of a whole text

/**
 * Returns a card.
 *
 * hit: A hit of /search. With `highlight` it has marks and a snippet, with `explain` a button for the reasons.
 * query, searchId: Thumbs judge the query, in the search with this id. "" means none.
 * heading: Element name of the title. Without a title, the snippet is the heading.
 * own: id -> relevant (judgements.js).
 * onfilter: Called with a field and a value.
 * unshown: Fields whose values are not shown.
 * notes: More elements below the text.
 */
export function hitCard({ hit, rank, query, searchId, own, heading = "h3", onfilter = null, unshown = [], notes = [], onjudged = () => {} }) {
  const { title = "", text = "", highlights, passage } = hit;
  const pairs = indicesOf(text, highlights?.text ?? []);
  const [start, end] = snippetOf(hit);
  const snippet = [start > 0 ? "… " : "", marked(text, start, end, pairs), end < text.trimEnd().length ? "\u00a0…" : ""];
  const address = `#/document?${new URLSearchParams({ id: hit.id, ...(passage?.end ? { passage: `${passage.start}-${passage.end}` } : {}) })}`;
  const place = foreign("p", { class: "text", hidden: !title }, title && snippet);
  const whole = () => { place.replaceChildren(...marked(text, 0, WHOLE, pairs), text.length > WHOLE ? " …" : ""); place.hidden = false; };
  const fold = () => { place.replaceChildren(...title ? snippet.flat() : []); place.hidden = !title; };
  const [why, reasons] = explanation(hit);
  return h("li", { class: "card hit", "data-id": hit.id },
    h("span", { class: "rank", "aria-label": `Rank ${rank}` }, String(rank)),
    h("div", { class: "body" },
      h(heading, { class: title ? "title" : "title untitled" },
        foreign("a", { href: address }, title ? marked(title, 0, title.length, indicesOf(title, highlights?.title ?? [])) : text ? snippet : hit.id)),
      place,
      h("p", { class: "meta" },
        foreign("span", { class: "id" }, hit.id),
        hit.score === undefined ? "" : h("span", { class: "score" }, `score ${hit.score.toFixed(3)}`),
        start > 0 || end < text.trimEnd().length ? toggle("whole text", whole, fold) : "", why, ...notes),
      reasons,
      onfilter ? chips(hit.metadata ?? {}, onfilter, unshown) : ""),
    query && session.may("write") ? thumbs({ query, id: hit.id, search_id: searchId }, own, onjudged) : "");
}

const marked = (text, start, end, pairs) => pieces(text, start, end, pairs).map(([piece, is]) => (is ? h("mark", {}, piece) : piece));

/** Returns the start and end of the part of a text that is shown: the snippet, or the beginning. */
function snippetOf({ text = "", snippet }) {
  if (snippet) return indicesOf(text, [[snippet.start, snippet.end]])[0];
  return [0, text.length <= SHOWN ? text.length : text.slice(0, SHOWN).replace(/\s+\S{0,30}$/, "").length];
}

/** Returns a button for each scalar value of the metadata, which filters by it. */
function chips(metadata, onfilter, unshown) {
  const values = scalars(metadata).filter(([field]) => nameable(field) && !unshown.includes(field));
  if (!values.length) return "";
  return h("p", { class: "chips" }, values.slice(0, 8).map(([field, value]) =>
    foreign("button", { type: "button", class: "chip", title: "Filter by this", onclick: () => onfilter(field, value) },
      h("span", {}, `${field} `), String(value).slice(0, 60))));
}

function thumbs({ id, ...search }, own, onjudged) {
  const buttons = [[true, "up", "Relevant"], [false, "down", "Not relevant"]].map(([relevant, picture, label]) => {
    const press = async () => {
      const wanted = own.get(id) === relevant ? null : relevant;
      try {
        await judge({ ...search, id, relevant: wanted });
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
