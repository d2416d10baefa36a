// One document: its text, metadata, judgments and similar documents.

import { get, getExactly, parsedExactly, post, remove, within } from "../api.js";
import { confirmed, facts, foreign, h, prose, say } from "../dom.js";
import { hitCard } from "../hit.js";
import { judged } from "../judgements.js";
import { session } from "../session.js";
import { indicesOf } from "../text.js";

const SHOWN = 20_000; // characters of a text that are shown at first
const LIKE = 5;

export async function show(main, { params, go }) {
  const id = params.get("id");
  const { documents: [one] } = await getExactly(within(session.collection, "documents"), { id });
  if (one === undefined) {
    main.append(h("p", { class: "problem" }, "This document does not exist. It was never stored, or was deleted."));
    return;
  }
  const body = h("div", {}, textOf(one.text, params.get("passage")));
  main.append(
    h("p", {}, h("a", { href: "#/documents" }, "Documents")),
    h("article", { class: "card whole" },
      foreign("h2", {}, one.title || one.id),
      one.title ? foreign("p", { class: "meta id" }, one.id) : "",
      body,
      table(one.metadata),
      session.may("write") ? h("div", { class: "row end" },
        h("button", { type: "button", onclick: () => body.replaceChildren(editor(one, () => go("document", { id }))) }, "Edit"),
        h("button", { type: "button", class: "danger", onclick: async () => (await deleted(id)) && go("documents") }, "Delete")) : ""));
  await Promise.all([addJudgements(main, id), addLike(main, id)]);
}

function textOf(text, passage) {
  const [[start, end]] = indicesOf(text, [(passage ?? "0-0").split("-").map(Number)]);
  const all = h("div", { class: "fulltext", tabindex: "0", role: "region", "aria-label": "Text" });
  const draw = (until) => {
    const from = Math.min(start, until);
    const to = Math.min(end, until);
    const rest = text.length - until;
    all.replaceChildren(
      foreign("div", {}, text.slice(0, from), to > from ? h("mark", { class: "passage" }, text.slice(from, to)) : "", text.slice(to, until)),
      rest > 0 ? h("button", { type: "button", onclick: () => draw(text.length) }, `Show ${rest.toLocaleString("en")} characters more`) : "");
  };
  draw(Math.min(text.length, Math.max(SHOWN, end)));
  return all;
}

function table(metadata) {
  const rows = Object.entries(metadata).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]);
  return rows.length ? facts(rows, "Metadata") : "";
}

function editor(one, then) {
  const title = h("input", { id: "edit-title", value: one.title ?? "", dir: "auto" });
  const text = h("textarea", { id: "edit-text", rows: "12", dir: "auto", value: one.text });
  const metadata = h("textarea", { id: "edit-metadata", rows: "5", spellcheck: "false", value: JSON.stringify(one.metadata, null, 2) });
  const problem = h("p", { class: "problem", role: "alert" });
  const save = async (event) => {
    event.preventDefault();
    try {
      const same = text.value === one.text.replace(/\r\n?/g, "\n"); // A text field normalizes line breaks.
      const changed = { id: one.id, text: same ? one.text : text.value, metadata: parsedExactly(metadata.value), ...(title.value ? { title: title.value } : {}) };
      await post(within(session.collection, "documents"), { documents: [changed] });
      say("Stored.");
      then();
    } catch (error) {
      problem.replaceChildren(...prose(error instanceof SyntaxError ? "The metadata is not valid JSON. Correct it and store again." : error.message));
    }
  };
  return h("form", { onsubmit: save },
    h("label", { for: "edit-title" }, "Title"), title,
    h("label", { for: "edit-text" }, "Text"), text,
    h("label", { for: "edit-metadata" }, "Metadata, as JSON"), metadata,
    problem,
    h("button", { class: "primary" }, "Store"));
}

/** Deletes a document after confirmation. */
export async function deleted(id) {
  if (!(await confirmed("Delete this document?", `This deletes ${id} and its judgments for good.`, "Delete"))) return false;
  await remove(within(session.collection, `documents/${encodeURIComponent(id)}`));
  say("Deleted.");
  document.dispatchEvent(new Event("changed"));
  return true;
}

async function addJudgements(main, id) {
  const queries = [...await judged()].filter(([, own]) => own.has(id));
  if (!queries.length) return;
  main.append(h("section", {}, h("h2", {}, "Your judgments of it"), h("ul", { class: "plain" }, queries.map(([query, own]) =>
    h("li", {}, own.get(id) ? "relevant to " : "not relevant to ", foreign("a", { href: `#/search?${new URLSearchParams({ q: query })}` }, query))))));
}

async function addLike(main, id) {
  const { hits } = await get(within(session.collection, "search"), { id, k: LIKE }).catch(() => ({ hits: [] }));
  if (!hits.length) return;
  main.append(h("section", {}, h("h2", {}, "Similar documents"), h("ol", { class: "hits" }, hits.map((hit, at) =>
    hitCard({ hit, rank: at + 1, query: "", own: new Map() })))));
}
