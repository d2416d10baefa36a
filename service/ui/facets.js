// The counts of metadata values next to the hits. A click makes a value a condition of the filter, or removes it.

import { foreign, h, icon } from "./dom.js";
import { adding, fieldsInUse, holds, parsed, SAMPLE, without } from "./filter.js";

const FIELDS = 6;
export const LISTED = 8; // values of a field
const ALL = 100; // values of a field after "more"
const METADATA = "metadata.";

/**
 * Resolves to the fields of documents that match a filter. `counted` have "metadata." before their names: those that
 * most documents have come first, then those of few values. Texts that do not repeat, such as addresses, are left out.
 * `constant` have the same value in several documents.
 */
export async function chooseFields(filter) {
  const distinct = (values) => new Set(values).size;
  const known = (values) => distinct(values) <= Math.max(LISTED, values.length / 2);
  const ordered = (values) => values.every((value) => typeof value === "number" || /^\d{4}-\d\d-\d\d/.test(value));
  const all = [...await fieldsInUse(filter)];
  const fields = all.filter(([name, values]) => !name.includes(",") && (known(values) || ordered(values)));
  const shared = ({ length }) => Math.min(length, SAMPLE);
  fields.sort(([, one], [, other]) => shared(other) - shared(one) || distinct(one) - distinct(other));
  return { counted: fields.slice(0, FIELDS).map(([name]) => METADATA + name), constant: all.filter(([, values]) => values.length > 1 && distinct(values) === 1).map(([name]) => name) };
}

/**
 * Returns an element, and `draw`, which fills it.
 *
 * recount: Called with a field, a filter and a number of values. Resolves to the counts of that field.
 * onfilter: Called with a new filter.
 */
export function facetList(recount, onfilter) {
  const element = h("div", { class: "facets" });
  const wide = new Set();

  /**
   * Draws the counts of a search with `filter`. Resolves to whether there is anything to choose.
   *
   * A field with a condition is counted without it, because its other values are alternatives.
   */
  async function draw(counts, filter, mode) {
    const facets = await Promise.all(Object.entries(counts).map(async ([field, own]) => {
      const name = field.slice(METADATA.length);
      const condition = parsed(filter)?.[name];
      if (condition === undefined && !wide.has(name)) return [name, own];
      const inRanges = condition?.$gte !== undefined || condition?.$lt !== undefined;
      return [name, await recount(field, without(filter, name), inRanges ? LISTED : ALL)];
    }));
    const focused = element.contains(document.activeElement) && document.activeElement.dataset.value;
    const groups = facets.map(([name, facet]) => group(name, facet, filter)).filter(Boolean);
    element.replaceChildren(h("p", { class: "note" }, `Counts of ${mode === "lexical" ? "documents with a word of the query" : filter ? "documents that match the filter" : "all documents"}`), ...groups);
    if (focused) [...element.querySelectorAll("button")].find(({ dataset }) => dataset.value === focused)?.focus();
    return groups.length > 0;
  }

  function group(name, { values = [], ranges = [], other, missing }, filter) {
    const all = [
      ...ranges.map(({ from, to, count }) => [{ ...(from !== undefined && { $gte: from }), ...(to !== undefined && { $lt: to }) }, span(from, to), count]),
      ...values.map(({ value, count }) => [value, String(value), count]),
    ];
    const isConstant = values.length + ranges.length + (other > 0) + (missing > 0) < 2;
    if (isConstant && !(name in (parsed(filter) ?? {}))) return null;
    const rows = wide.has(name) ? all : all.filter(([value], at) => at < LISTED || holds(filter, name, value));
    const more = () => { wide.add(name); onfilter(filter); };
    return h("section", {},
      foreign("h2", {}, name),
      h("ul", { class: "plain" }, rows.map((row) => h("li", {}, choice(name, row, filter)))),
      (other > 0 && !ranges.length && !wide.has(name)) || rows.length < all.length ? h("button", { type: "button", class: "link", onclick: more }, "more", h("span", { class: "unseen" }, ` of ${name}`)) : "");
  }

  function choice(name, [value, label, number], filter) {
    const on = holds(filter, name, value);
    const press = () => onfilter(on ? without(filter, name, value) : adding(filter, name, value));
    return h("button", { type: "button", class: "value", "aria-pressed": String(on), "data-value": JSON.stringify([name, value]), onclick: press },
      on ? icon("check") : "", foreign("span", {}, label), h("span", { class: "number" }, number.toLocaleString("en")));
  }

  return { element, draw };
}

/** Returns a range as text. Times at midnight are days. */
function span(from, to) {
  const [first, last] = [from, to].map((edge) => String(edge).replace(/T00:00(:00)?(\.0+)?(Z|\+00:00)?$/, ""));
  if (from === undefined) return `under ${last}`;
  return to === undefined ? `from ${first}` : `${first} – ${last}`;
}
