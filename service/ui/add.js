// The form for pasting and uploading documents.

import { post, within } from "./api.js";
import { foreign, h } from "./dom.js";
import { take } from "./files.js";
import { session } from "./session.js";

/** Returns the form. Calls `then` after something was stored. */
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
  const files = h("input", { id: "add-files", type: "file", multiple: true, accept: ".jsonl,.ndjson,.json,.csv,.tsv,.tab,.txt,.md,.gz", onchange: () => takeAll([...files.files]) });
  const takeAll = async (chosen) => {
    for (const file of chosen) await take(file, said, signal);
    files.value = "";
    document.dispatchEvent(new Event("changed"));
    then();
  };
  const dropped = (event) => { event.preventDefault(); takeAll([...event.dataTransfer.files]); };
  return h("div", { class: "card add", ondragover: (event) => event.preventDefault(), ondrop: dropped },
    h("form", { onsubmit: paste },
      h("h2", {}, "Paste a text"),
      h("label", { for: "add-title" }, "Title (may be empty)"), title,
      h("label", { for: "add-text" }, "Text"), text,
      h("button", { class: "primary" }, "Store")),
    h("div", {},
      h("h2", {}, "Upload files"),
      h("label", { for: "add-files" }, "JSON lines, CSV, TSV or text; drop them here, or choose"), files,
      h("p", { class: "note" }, "You see the first rows, and choose the columns, before anything is stored. A row with an existing id replaces that document."),
      said));
}
