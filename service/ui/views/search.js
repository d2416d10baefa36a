// The search box, with results while the user types.

import { addressOf, get, key, within } from "../api.js";
import { foreign, h, icon, say, select } from "../dom.js";
import { filterBar } from "../filter.js";
import { hitCard, reasons } from "../hit.js";
import { judged } from "../judgements.js";
import { session } from "../session.js";
import { count } from "../text.js";
import { recent } from "../recent.js";
import { mostAsked, queries, start, toTry } from "../start.js";

const REST = 150; // milliseconds without a key press before a search starts
export const MODES = [["", "automatic"], ["hybrid", "hybrid"], ["dense", "dense (meaning)"], ["lexical", "keywords"]];

const RERANK = [["", "automatic"], ["true", "yes"], ["false", "no"]];

export async function show(main, { params, signal, go, keep }) {
  const asked = { q: params.get("q") ?? "", id: params.get("id") ?? "", mode: params.get("mode") ?? "", k: params.get("k") ?? "10", rerank: params.get("rerank") ?? "", filter: params.get("filter") ?? "" };
  const results = h("div", { "aria-busy": "false" });
  let running = new AbortController();
  let resting;

  const box = h("input", { type: "search", id: "q", class: "big", value: asked.q, placeholder: "What are you looking for?", dir: "auto", autocomplete: "off", "aria-label": "Search",
    oninput: () => { asked.q = box.value; asked.id = ""; clearTimeout(resting); resting = setTimeout(search, REST); } });
  const filter = filterBar(asked.filter, (text) => { asked.filter = text; search(); });
  signal.addEventListener("abort", () => { running.abort(); clearTimeout(resting); });

  async function search() {
    running.abort();
    running = new AbortController();
    const { signal: current } = running;
    keep(asked);
    if (!asked.q.trim() && !asked.id) {
      if (results.querySelector(".add [role=status] :is(.problem, .note)")) return; // keeps the report of an upload
      const first = await welcome();
      if (!current.aborted) results.replaceChildren(first); // a search may have begun meanwhile
      return;
    }
    results.setAttribute("aria-busy", "true");
    try {
      const query = asked.id ? { ...asked, q: "", mode: "", rerank: "" } : { ...asked, id: "", explain: ["", "hybrid"].includes(asked.mode) ? "true" : "" };
      const [found, own] = await Promise.all([get(within(session.collection, "search"), query, { signal: current }), judged()]);
      if (current.aborted) return;
      if (asked.q) recent.add(asked.q);
      draw(found, own.get(asked.q) ?? new Map());
    } catch (error) {
      if (!current.aborted) results.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
    if (!current.aborted) results.setAttribute("aria-busy", "false");
  }

  function draw({ hits, mode, took_ms: took, id, query_encoder: student, reranker, warnings = [] }, own) {
    const best = Math.max(mode === "dense" ? 1 : 0, ...hits.map(({ score }) => score));
    const words = mode === "dense" ? "" : asked.q;
    const modeName = MODES.find(([name]) => name === mode)[1];
    if (!asked.mode) modes.options[0].text = `automatic: ${modeName}`;
    say(`${count(hits.length, "hit")}.`);
    results.replaceChildren(
      h("p", { class: "note" },
        id === undefined ? "" : foreign("span", {}, `Like ${id}: `),
        hits.length ? `${count(hits.length, "hit")} in ${took.toFixed(0)} ms, ${modeName}${student ? `, query encoded by ${session.nameOf(student)}` : ""}${reranker ? `, reranked by ${reranker}` : ""}` : "Nothing was found.",
        hits.length || !asked.filter ? "" : " Remove a condition of the filter to see more."),
      ...warnings.map((warning) => h("p", { class: "note", dir: "auto" }, warning)),
      h("ol", { class: "hits" }, hits.map((hit, at) => hitCard({
        hit, rank: at + 1, query: asked.q, words, own, heading: "h2", score: hit.score / best, onfilter: filter.add,
        notes: [h("span", { class: "reasons" }, reasons(hit)), hit.search_place ? h("span", {}, `place ${hit.search_place} before reranking`) : "", h("a", { class: "like", href: `#/search?${new URLSearchParams({ id: hit.id })}` }, icon("like"), "more like this")],
      }))),
      asSnippets(asked, mode));
  }

  const modes = select("Mode", MODES, asked.mode, (mode) => { asked.mode = mode; search(); });
  main.append(
    h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); clearTimeout(resting); search(); } },
      box,
      modes,
      select("Rerank", RERANK, asked.rerank, (rerank) => { asked.rerank = rerank; search(); }),
      select("Hits", ["5", "10", "20", "50"], asked.k, (k) => { asked.k = k; search(); })),
    filter.element,
    results);
  if (!asked.id) box.focus();
  await search();

  async function welcome() {
    const { count: stored } = await get(within(session.collection, "documents/count")).catch((error) => {
      if (error.status !== 404) throw error;
      return { count: 0 }; // A collection exists after its first document.
    });
    if (!stored) return start(stored, search, signal);
    const [steps, tries, used] = await Promise.all([start(stored, search, signal), toTry(), mostAsked()]);
    return h("div", { class: "empty" },
      h("p", { class: "note" }, `${count(stored, "document")} can be searched. Results appear while you type.`),
      queries("Try one of these", tries), steps, queries("Your last searches", recent.all().map((query) => ({ query }))), used);
  }
}

/** Returns the same search for a shell and for Python. */
function asSnippets(asked, mode) {
  const query = asked.id ? { id: asked.id, k: asked.k, filter: asked.filter } : { ...asked, id: "", mode };
  const address = addressOf(within(session.collection, "search"), query);
  const header = key.get() ? ` -H "Authorization: Bearer $KEY"` : "";
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const options = [
    JSON.stringify(asked.q), `k=${Number(asked.k)}`, `mode=${JSON.stringify(mode)}`,
    asked.rerank ? `rerank=${asked.rerank === "true" ? "True" : "False"}` : "",
    asked.filter ? `filter=json.loads(${JSON.stringify(asked.filter)})` : "",
    session.collection === "default" ? "" : `collection=${JSON.stringify(session.collection)}`,
  ].filter(Boolean);
  const python = `${asked.filter ? "import json\n" : ""}from simile_client import Client\n\n` +
    `with Client(${JSON.stringify(addressOf("").href.replace(/\/$/, ""))}${key.get() ? ", key=KEY" : ""}) as client:\n    print(client.search(${options.join(", ")}))`;
  return h("details", { class: "snippets" },
    h("summary", {}, "Copy as curl or Python"),
    snippet("curl", `curl ${quoted(address.href)}${header}`),
    asked.id ? "" : snippet("Python", python));
}

function snippet(name, code) {
  const copy = async () => { await navigator.clipboard.writeText(code); say(`Copied as ${name}.`); };
  return h("div", { class: "snippet" },
    h("pre", { tabindex: "0", "aria-label": name }, code),
    navigator.clipboard ? h("button", { type: "button", onclick: copy }, `Copy ${name}`) : "");
}
