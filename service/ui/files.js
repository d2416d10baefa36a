// Imports files. The service parses them, first for a preview and then for the import.

import { get, post, upload, within } from "./api.js";
import { foreign, h, say, select } from "./dom.js";
import { session } from "./session.js";

export const SHOWN_BYTES = 1 << 20; // bytes sent for the preview, the limit of the service
const SHOWN_ERRORS = 20;
const FORMATS = [["csv", "a table (CSV)"], ["tsv", "a table (TSV)"], ["jsonl", "JSON lines"], ["text", "a document on each line"], ["file", "one document"]];
const SEPARATORS = [[",", "commas"], [";", "semicolons"], ["\t", "tabs"], ["|", "vertical bars"]];
export const ENCODINGS = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "iso-8859-1", "iso-8859-15", "cp1250", "cp1251", "mac-roman", "cp850", "shift_jis", "gb18030", "big5", "euc_kr"];
const TYPES = { number: "Number", decimal_comma: "Number, decimal comma", date: "Date", date_dmy: "Date, day first", date_mdy: "Date, month first" };

/** Previews a file, imports it as the user chooses, and reports the result, all inside `said`. */
export async function take(file, said, signal) {
  const place = h("div", { class: "upload" });
  said.append(place);
  try {
    const choices = await chosen(file, place, signal);
    place.replaceChildren();
    if (choices) await store(file, choices, place, signal);
  } catch (error) {
    if (signal?.aborted) return;
    place.replaceChildren(foreign("p", { class: "problem" }, error.message.startsWith(file.name) ? error.message : `${file.name}: ${error.message}`));
  }
}

/** Asks how to read a file. Resolves to the parameters of the import, or null if cancelled. */
async function chosen(file, place, signal) {
  let asked = {};
  for (;;) {
    const query = new URLSearchParams({ name: file.name, whole: file.size <= SHOWN_BYTES, ...asked });
    const found = await post(`files/preview?${query}`, file.slice(0, SHOWN_BYTES), { signal });
    const answer = await new Promise((resolve) => { place.replaceChildren(form(file, found, resolve)); place.querySelector("button").focus(); });
    if (!answer || answer.store) return answer && answer.store;
    asked = answer.read;
  }
}

function form(file, found, resolve) {
  const read = { format: found.format, encoding: found.encoding, ...(found.delimiter ? { delimiter: found.delimiter } : {}) };
  const again = (changed) => resolve({ read: { ...read, ...changed } });
  const roles = found.columns.map((name) => roleOf(name, found));
  const html = h("input", { type: "checkbox", id: "strip-html" });
  const problem = h("p", { class: "problem", role: "alert" });
  const submit = (event) => {
    event.preventDefault();
    const wrong = mistakeIn(found, roles);
    problem.textContent = wrong;
    if (!wrong) resolve({ store: { name: file.name, ...read, ...partsOf(found, roles), ...(html.checked ? { html: "strip" } : {}) } });
  };
  return h("form", { onsubmit: submit, class: "preview" },
    h("h3", {}, foreign("span", {}, file.name)),
    found.certain ? "" : h("p", { class: "reason" }, "The encoding of the file is uncertain. It looks like ", h("b", {}, found.encoding), found.sample ? [": ", foreign("q", {}, found.sample)] : "", ". Is that right?"),
    h("div", { class: "row" },
      choice("Read as", FORMATS, found.format, (format) => resolve({ read: { format, encoding: found.encoding } })),
      choice("Encoding", withOwn(ENCODINGS, found.encoding), found.encoding, (encoding) => again({ encoding })),
      found.delimiter ? choice("Cells are separated by", withOwn(SEPARATORS, found.delimiter), found.delimiter, (delimiter) => again({ delimiter })) : ""),
    found.columns.length ? table(found, roles) : h("ol", {}, found.rows.map((cells) => foreign("li", { class: "text" }, cells[0]))),
    found.problems.length ? h("ul", { class: "plain refused" }, found.problems.map((one) => foreign("li", { class: "problem" }, one))) : "",
    h("p", {}, html, " ", h("label", { for: "strip-html", class: "inline" }, found.html ? "Remove HTML tags (the text has some)" : "Remove HTML tags")),
    problem,
    h("div", { class: "row" },
      h("button", { class: "primary" }, "Upload"),
      h("button", { type: "button", onclick: () => resolve(null) }, "Cancel")));
}

function choice(label, options, value, onchange) {
  return h("span", { class: "row" }, h("span", { class: "note" }, label), select(label, options, value, onchange));
}

const withOwn = (options, value) => (options.some((one) => [one].flat()[0] === value) ? options : [value, ...options]);

/** Returns a table of the first rows, with a choice above each column. */
function table(found, roles) {
  const types = Object.entries(found.types);
  const options = (name) => [["text", "Text"], ["title", "Title"], ["id", "Id"], ["metadata", "Metadata"],
    ...types.filter(([column]) => column === name).map(([, type]) => [`=${type}`, TYPES[type]]),
    ...(found.format === "jsonl" ? [] : [["", "Leave out"]])];
  const selects = found.columns.map((name, at) => select(`Part of ${name || `column ${at + 1}`}`, options(name), roles[at], (role) => {
    // A document has only one id and one title.
    if (role === "id" || role === "title") roles.forEach((one, other) => { if (one === role) selects[other].value = roles[other] = asMetadata(found.columns[other], found.types); });
    roles[at] = role;
  }));
  return h("div", { class: "scrolling", tabindex: "0", role: "region", "aria-label": "The first rows" }, h("table", {},
    h("thead", {}, h("tr", {}, found.columns.map((name, at) => h("th", { scope: "col" }, foreign("div", {}, name || "(no name)"), selects[at])))),
    h("tbody", {}, found.rows.map((cells) => h("tr", {}, cells.map((cell) => foreign("td", {}, cell)))))));
}

/** Returns the use of a column that the preview proposes. */
export function roleOf(name, found) {
  if (found.text.includes(name)) return "text";
  if (name === found.title) return "title";
  if (name === found.id) return "id";
  return name ? asMetadata(name, found.types) : "";
}

const asMetadata = (name, types) => (Object.hasOwn(types, name) ? `=${types[name]}` : "metadata");

function mistakeIn(found, roles) {
  if (found.columns.length && !roles.includes("text")) return "Which column is the text?";
  const empty = found.columns.findIndex((name, at) => !name && roles[at]);
  return empty < 0 ? "" : `Column ${empty + 1} has no name. Leave it out, or name it in the file.`;
}

/** Returns the parameters of the import. Columns with default names are omitted, so rows may lack them. */
export function partsOf({ columns, format }, roles) {
  if (!columns.length) return format === "jsonl" ? { metadata: "*" } : {}; // the preview does not contain the whole first line
  const named = (role) => columns.filter((_, at) => roles[at] === role);
  const isMetadata = (role) => role === "metadata" || role.startsWith("=");
  const [id] = named("id");
  const [title] = named("title");
  const usual = ["id", "_id"].find((name) => columns.includes(name));
  const types = columns.flatMap((name, at) => (roles[at].startsWith("=") ? [`${name}${roles[at]}`] : []));
  return {
    text: listed(named("text")),
    ...(id === usual ? {} : { id: id ?? "" }),
    ...(title === (columns.includes("title") ? "title" : undefined) ? {} : { title: title ?? "" }),
    metadata: roles.includes("") ? listed(columns.filter((_, at) => isMetadata(roles[at]))) : "*",
    ...(types.length ? { types: listed(types) } : {}),
  };
}

/** Joins names as a row of CSV. */
const listed = (names) => names.map((name) => `"${name.replaceAll('"', '""')}"`).join(",");

async function store(file, choices, place, signal) {
  const bar = h("progress", { max: file.size || 1, value: 0, "aria-label": `Upload of ${file.name}` });
  const line = h("p", {}, foreign("span", {}, file.name), " ", bar);
  place.append(line);
  const query = new URLSearchParams(choices);
  const answer = await upload(`${within(session.collection, "files")}?${query}`, file, (sent) => { bar.value = sent; }, signal);
  bar.value = bar.max;
  line.append(` ${answer.summary}`);
  place.append(
    h("ul", { class: "plain refused" }, answer.errors.slice(0, SHOWN_ERRORS).map(({ line: first, last_line: last, error }) => foreign("li", { class: "problem" }, `Line ${first}${last > first ? ` to ${last}` : ""}: `, error))),
    h("ul", { class: "plain refused" }, answer.notes.slice(0, SHOWN_ERRORS).map(({ line: at, note }) => foreign("li", { class: "note" }, `Line ${at}: ${note}`))));
  say(`${file.name}: ${answer.summary}`);
}

/** Stores the example texts. Resolves to their number. */
export async function storeExamples(signal) {
  const { documents } = await get("examples", {}, { signal });
  const { upserted } = await post(within(session.collection, "documents"), { documents }, { signal });
  return upserted;
}
