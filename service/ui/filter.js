// A filter as chips and as JSON. Each condition has one field, and all are joined by AND.

import { foreign, h, iconButton, select } from "./dom.js";
import { get, within } from "./api.js";
import { session } from "./session.js";
import { count, scalars } from "./text.js";

const SAMPLE = 100; // documents that provide fields and values to choose from
const MOST_VALUES = 30;

/** Returns a bar with the filter `text` (JSON or ""). Calls `onchange` with a new filter. */
export function filterBar(text, onchange) {
  const bar = h("div", { class: "filter" });
  let current = text;

  const set = (next) => { current = next; draw(); onchange(next); };

  function draw() {
    const conditions = Object.entries(parsed(current) ?? {});
    const field = h("input", { id: "filter-json", value: current, placeholder: '{"topic": "support"}', spellcheck: "false", dir: "auto", onchange: () => set(field.value.trim()) });
    bar.replaceChildren(
      ...conditions.map(([name, value]) => h("span", { class: "chip active" },
        foreign("span", {}, inWords(name, value)),
        iconButton("close", `Remove the condition on ${name}`, { onclick: () => set(without(current, name)) }))),
      h("details", { open: parsed(current) === null }, // A mistake stays in sight.
        h("summary", {}, conditions.length ? "Edit filter" : "Filter"),
        h("div", { class: "row" }, offered, h("label", { for: "filter-json", class: "note" }, "As JSON"), field)));
  }

  const offered = h("span", { class: "row" });
  offer(offered, (name, value) => set(adding(current, name, value)));
  draw();
  return { element: bar, add: (name, value) => set(adding(current, name, value)) };
}

const OPERATORS = { $in: "is one of", $ne: "is not", $gt: ">", $gte: "≥", $lt: "<", $lte: "≤", $exists: "exists:" };

function inWords(name, value) {
  if (name === "$ids" && Array.isArray(value)) return count(value.length, "chosen document");
  if (value === null || typeof value !== "object") return `${name} = ${value}`;
  const operations = Object.entries(value);
  if (!operations.every(([operator]) => operator in OPERATORS)) return `${name} ${JSON.stringify(value)}`;
  return operations.map(([operator, operand]) => `${name} ${OPERATORS[operator]} ${[operand].flat().join(", ")}`).join(" and ");
}

/** Returns choices of fields and values of the first documents. */
async function offer(place, onchoice) {
  const { documents } = await get(within(session.collection, "documents"), { limit: SAMPLE }).catch(() => ({ documents: [] }));
  const fields = new Map();
  for (const [name, value] of documents.flatMap(({ metadata }) => scalars(metadata))) {
    if (nameable(name)) fields.set(name, (fields.get(name) ?? new Set()).add(value));
  }
  if (!fields.size) return;
  const values = h("span");
  const choose = (name) => {
    const known = name === "" ? [] : [...fields.get(name)].sort().slice(0, MOST_VALUES);
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

/** Adds a condition to the filter `text`. A second value of a field is an alternative to the first. */
export function adding(text, name, value) {
  const conditions = parsed(text) ?? {};
  const before = conditions[name];
  let next = value;
  if (before !== undefined && before !== value && typeof before !== "object") next = { $in: [before, value] };
  else if (Array.isArray(before?.$in)) next = { $in: [...new Set([...before.$in, value])] };
  return JSON.stringify({ ...conditions, [name]: next });
}

function without(text, name) {
  const { [name]: _, ...others } = parsed(text) ?? {};
  return Object.keys(others).length ? JSON.stringify(others) : "";
}
