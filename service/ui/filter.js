// A filter as chips and as JSON. Each condition has one field, and all are joined by AND.

import { foreign, h, iconButton, select } from "./dom.js";
import { get, within } from "./api.js";
import { session } from "./session.js";
import { count, scalars } from "./text.js";

export const SAMPLE = 100; // documents that provide fields and values to choose from
const MOST_VALUES = 30;

/**
 * Returns a bar with the filter `text` (JSON or ""). Calls `onchange` with a new filter.
 *
 * choices: An element to choose conditions from. Without one, fields and values of documents are selected.
 */
export function filterBar(text, onchange, choices = null) {
  let current = text;
  const chosen = h("div", { class: "chips" });
  const offered = choices ?? h("div", { class: "row" });
  const field = h("input", { id: "filter-json", placeholder: '{"topic": "support"}', spellcheck: "false", dir: "auto", onchange: () => set(field.value.trim()) });
  const json = h("div", {}, h("label", { for: "filter-json", class: "note" }, "As JSON"), field);
  const details = h("details", {}, h("summary", {}), offered, json);
  const set = (next) => { current = next; draw(); onchange(next); };

  function draw() {
    const conditions = Object.entries(parsed(current) ?? {});
    chosen.replaceChildren(...conditions.map(([name, value]) => h("span", { class: "chip active" },
      foreign("span", {}, inWords(name, value)),
      iconButton("close", `Remove the condition on ${name}`, { onclick: () => set(without(current, name)) }))));
    chosen.hidden = !conditions.length;
    field.value = current;
    details.firstChild.textContent = conditions.length ? `Filter (${conditions.length})` : "Filter";
    if (parsed(current) === null) details.open = true; // A mistake stays in sight.
  }

  if (!choices) offer(offered, (name, value) => set(adding(current, name, value)));
  draw();
  return { element: h("div", { class: "filter" }, chosen, details), details, set, add: (name, value) => set(adding(current, name, value)) };
}

const OPERATORS = { $in: "is one of", $ne: "is not", $gt: ">", $gte: "≥", $lt: "<", $lte: "≤", $exists: "exists:" };

function inWords(name, value) {
  if (name === "$ids" && Array.isArray(value)) return count(value.length, "chosen document");
  if (value === null || typeof value !== "object") return `${name} = ${value}`;
  const operations = Object.entries(value);
  if (!operations.every(([operator]) => operator in OPERATORS)) return `${name} ${JSON.stringify(value)}`;
  return operations.map(([operator, operand]) => `${name} ${OPERATORS[operator]} ${[operand].flat().join(", ")}`).join(" and ");
}

/** Resolves to the fields of the first documents that match a filter: name -> all values. */
export async function fieldsInUse(filter = "") {
  const { documents } = await get(within(session.collection, "documents"), { limit: SAMPLE, filter }).catch(() => ({ documents: [] }));
  const fields = new Map();
  for (const [name, value] of documents.flatMap(({ metadata }) => scalars(metadata))) {
    if (nameable(name)) fields.set(name, [...fields.get(name) ?? [], value]);
  }
  return fields;
}

/** Adds choices of fields and values to `place`. */
async function offer(place, onchoice) {
  const fields = await fieldsInUse();
  if (!fields.size) return;
  const values = h("span");
  const choose = (name) => {
    const known = name === "" ? [] : [...new Set(fields.get(name))].sort().slice(0, MOST_VALUES);
    const pick = (at) => at !== "" && onchoice(name, known[at]);
    values.replaceChildren(name === "" ? "" : select("Value", [["", "value …"], ...known.map((value, at) => [String(at), String(value).slice(0, 60)])], "", pick));
  };
  place.append(select("Field", [["", "field …"], ...[...fields.keys()].sort().map((name) => [name, name])], "", choose), values);
}

/** Returns whether a filter can use a field. Old documents may have names such as "" or "a.". */
export const nameable = (name) => !name.startsWith("$") && name.split(".").every((part) => part !== "");

/** Returns the conditions of a filter, or null if it is not a JSON object. */
export function parsed(text) {
  if (!text) return {};
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** Adds a condition to the filter `text`. A second value of a field is an alternative to the first. A range replaces it. */
export function adding(text, name, value) {
  const conditions = parsed(text) ?? {};
  const before = conditions[name];
  const single = [before, value].every((one) => one === null || typeof one !== "object");
  let next = value;
  if (before !== undefined && before !== value && single) next = { $in: [before, value] };
  else if (Array.isArray(before?.$in) && !value?.$gte && !value?.$lt) next = { $in: [...new Set([...before.$in, value])] };
  return JSON.stringify({ ...conditions, [name]: next });
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Returns whether the filter `text` has `value`, alone or as an alternative, or the range `value`. */
export function holds(text, name, value) {
  const condition = parsed(text)?.[name];
  return same(condition, value) || (Array.isArray(condition?.$in) && condition.$in.some((one) => same(one, value)));
}

/** Removes a value from the condition on a field, or the whole condition. */
export function without(text, name, value) {
  const { [name]: condition, ...others } = parsed(text) ?? {};
  const left = value === undefined || !Array.isArray(condition?.$in) ? [] : condition.$in.filter((one) => !same(one, value));
  if (left.length) others[name] = left.length === 1 ? left[0] : { $in: left };
  return Object.keys(others).length ? JSON.stringify(others) : "";
}
