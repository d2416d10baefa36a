// Documents that are pasted, or read from JSONL, CSV and text files, on their way into the store.

import { call, post, within } from "./api.js";
import { foreign, h, say, select } from "./dom.js";
import { readFile } from "./files.js";
import { session } from "./session.js";
import { count } from "./text.js";

const AT_ONCE = 200; // documents of a request: each is a step of the progress bar
const SHOWN_ERRORS = 20;

/** A form; `then` runs after something was stored. */
export function addForm(then, signal) {
  const said = h("div", { role: "status" });
  const title = h("input", { id: "add-title", dir: "auto" });
  const text = h("textarea", { id: "add-text", rows: "5", required: true, dir: "auto" });
  const paste = async (event) => {
    event.preventDefault();
    try {
      const { ids } = await post(within(session.collection, "documents"), { documents: [{ text: text.value, ...(title.value ? { title: title.value } : {}) }] });
      said.replaceChildren(h("p", {}, "Stored as ", foreign("a", { href: `#/document?${new URLSearchParams({ id: ids[0] })}` }, ids[0]), "."));
      text.value = title.value = "";
      document.dispatchEvent(new Event("changed"));
      then();
    } catch (error) {
      said.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  };
  const files = h("input", { id: "add-files", type: "file", multiple: true, accept: ".jsonl,.ndjson,.csv,.tsv,.txt,.md", onchange: () => take([...files.files]) });
  const take = async (chosen) => {
    for (const file of chosen) await upload(file, said, signal).catch((error) => said.append(h("p", { class: "problem" }, `${file.name}: ${error.message}`)));
    files.value = "";
    document.dispatchEvent(new Event("changed"));
    then();
  };
  const dropped = (event) => { event.preventDefault(); take([...event.dataTransfer.files]); };
  return h("div", { class: "card add", ondragover: (event) => event.preventDefault(), ondrop: dropped },
    h("form", { onsubmit: paste },
      h("h2", {}, "Paste a text"),
      h("label", { for: "add-title" }, "Title (may be empty)"), title,
      h("label", { for: "add-text" }, "Text"), text,
      h("button", { class: "primary" }, "Store")),
    h("div", {},
      h("h2", {}, "Upload files"),
      h("label", { for: "add-files" }, "JSON lines, CSV, TSV or text; drop them here, or choose"), files,
      h("p", { class: "note" }, "The same id again replaces a document. Other fields and columns become metadata."),
      said));
}

/** Read a file, ask which column is the text where that is open, and send it. */
async function upload(file, said, signal) {
  const { rows, columns } = await readFile(file);
  const column = columns && !columns.includes("text") ? await chosenColumn(file.name, columns, said) : "text";
  await send(file.name, rows.map(({ line, value }) => ({ line, value: documentOf(value, column) })), said, signal);
}

/** Store documents with a progress bar in `said`, and list what was refused. rows: each with its line in the file `name`. */
export async function send(name, rows, said, signal) {
  const bar = h("progress", { max: rows.length, value: 0, "aria-label": `Upload of ${name}` });
  const line = h("p", {}, foreign("span", {}, name), " ", bar);
  const refused = h("ul", { class: "plain refused" });
  said.append(line, refused);
  let stored = 0;
  let failed = 0;
  for (let start = 0; start < rows.length; start += AT_ONCE) {
    const part = rows.slice(start, start + AT_ONCE);
    const body = part.map(({ value }) => JSON.stringify(value)).join("\n");
    const answer = await call("POST", within(session.collection, "documents"), { body, signal });
    stored += answer.upserted;
    failed += answer.failed;
    for (const { line: at, error } of answer.errors) {
      if (refused.childElementCount < SHOWN_ERRORS) refused.append(foreign("li", { class: "problem" }, `Line ${part[at - 1]?.line ?? at}: ${error}`));
    }
    bar.value = start + part.length;
  }
  line.append(` ${count(stored, "document")} stored${failed ? `, ${failed} refused` : ""}.`);
  say(`${name}: ${stored} stored, ${failed} refused.`);
}

function chosenColumn(name, columns, said) {
  return new Promise((resolve) => {
    let chosen = columns[0];
    const form = h("form", { onsubmit: (event) => { event.preventDefault(); form.remove(); resolve(chosen); } },
      foreign("p", {}, `${name}: which column is the text?`),
      select("Column of the text", columns, chosen, (value) => { chosen = value; }),
      h("button", { class: "primary" }, "Upload"));
    said.append(form);
  });
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** A row of a file as a document: what is no part of one becomes metadata. A row that is none stays as it is. */
function documentOf(value, column) {
  if (!isObject(value)) return value;
  const { id, _id, title, metadata, [column]: text, ...others } = value;
  const name = id ?? _id;
  return {
    ...(name === undefined || name === null || name === "" ? {} : { id: String(name.rawJSON ?? name) }),
    ...(title ? { title } : {}),
    ...(text === undefined ? {} : { text }),
    metadata: { ...others, ...(isObject(metadata) ? metadata : metadata ? { metadata } : {}) },
  };
}
