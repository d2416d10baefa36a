// Lists stored documents by page, and adds new ones.

import { get, getExactly, remove, within } from "../api.js";
import { addForm } from "../add.js";
import { confirmed, foreign, h, prose, say } from "../dom.js";
import { filterBar } from "../filter.js";
import { session } from "../session.js";
import { count, excerpt, headlineOf } from "../text.js";
import { deleted } from "./document.js";

const PAGE = 50;

export async function show(main, { params, keep, signal }) {
  const asked = { filter: params.get("filter") ?? "" };
  const list = h("ul", { class: "plain documents" });
  const total = h("p", { class: "note", role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: () => page(more.dataset.after) }, "More");
  const filter = filterBar(asked.filter, (text) => { asked.filter = text; keep(asked); begin(); });
  const path = (rest = "") => within(session.collection, `documents${rest}`);
  const adding = h("div", { id: "adding" });

  const toggle = () => {
    if (adding.firstChild) adding.replaceChildren();
    else adding.append(addForm(begin, signal));
    add.setAttribute("aria-expanded", String(Boolean(adding.firstChild)));
  };
  const add = h("button", { type: "button", class: "primary", "aria-expanded": "false", "aria-controls": "adding", onclick: toggle }, "Add documents");
  const buttons = h("div", { class: "row end" },
    session.may("write") ? add : "",
    h("button", { type: "button", onclick: () => download(path(), asked.filter, signal) }, "Download as JSON lines"),
    session.may("write") ? h("button", { type: "button", class: "danger", onclick: removeAll }, "Delete …") : "");

  main.append(h("div", { class: "row between" }, total, buttons), adding, filter.element, list, h("p", { class: "row center" }, more));
  if (params.get("add") && session.may("write")) toggle();
  await begin();

  async function begin() {
    list.replaceChildren();
    await page("");
  }

  async function page(after) {
    try {
      const [found, { count: number }] = await Promise.all([
        get(path(), { after, limit: PAGE, filter: asked.filter }, { signal }),
        get(path("/count"), { filter: asked.filter }, { signal }),
      ]);
      total.textContent = `${count(number, "document")}${asked.filter ? ` ${number === 1 ? "matches" : "match"} the filter` : ` in ${session.collection}`}`;
      list.append(...found.documents.map(row), ...(found.warnings ?? []).map((warning) => h("li", { class: "note", dir: "auto" }, warning)));
      more.hidden = found.next === null;
      more.dataset.after = found.next ?? "";
    } catch (error) {
      if (!signal.aborted) total.replaceChildren(...prose(error.message));
    }
  }

  function row(one) {
    const { headline, length } = headlineOf(one);
    const item = h("li", { class: "card document" },
      h("div", { class: "body" },
        h("h2", { class: "title" }, foreign("a", { href: `#/document?${new URLSearchParams({ id: one.id })}` }, headline)),
        foreign("p", { class: "text" }, excerpt(one.text.slice(length).trim(), 200)),
        foreign("p", { class: "meta" }, h("span", { class: "id" }, one.id))),
      session.may("write") ? h("button", { type: "button", class: "quiet", "aria-label": `Delete ${one.id}`, onclick: async () => (await deleted(one.id)) && item.remove() }, "Delete") : "");
    return item;
  }

  async function removeAll() {
    const { count: number } = await get(path("/count"), { filter: asked.filter });
    const what = asked.filter ? `the ${count(number, "document")} that ${number === 1 ? "matches" : "match"} the filter` : `all ${count(number, "document")} of the collection ${session.collection}, with its judgments and events`;
    if (!(await confirmed(`Delete ${count(number, "document")}?`, `This deletes ${what}, for good. A backup is the only way back.`, "Delete"))) return;
    if (asked.filter) await remove(path(), { filter: asked.filter });
    else await remove(`collections/${encodeURIComponent(session.collection)}`);
    document.dispatchEvent(new Event("changed"));
    await begin();
  }
}

/** Downloads all documents that match the filter as JSON lines. */
async function download(path, filter, signal) {
  const lines = [];
  for (let after = ""; after !== null;) {
    const page = await getExactly(path, { after, limit: 1000, filter }, { signal });
    lines.push(...page.documents.map((one) => `${JSON.stringify(one)}\n`));
    after = page.next;
    say(`${count(lines.length, "document")} read.`);
  }
  const link = h("a", { href: URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" })), download: `${session.collection}.jsonl` });
  link.click();
  URL.revokeObjectURL(link.href);
}
