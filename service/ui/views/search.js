// The search box, with suggestions and results while the user types, and counts of metadata next to the hits.

import { addressOf, get, key, within } from "../api.js";
import { foreign, h, icon, say, select } from "../dom.js";
import { chooseFields, facetList, LISTED } from "../facets.js";
import { filterBar } from "../filter.js";
import { hitCard } from "../hit.js";
import { judged } from "../judgements.js";
import { session } from "../session.js";
import { count } from "../text.js";
import { recent } from "../recent.js";
import { mostAsked, queries, start, toTry } from "../start.js";
import { suggesting } from "../suggest.js";
import { synonyms } from "../synonyms.js";

const REST = 150; // milliseconds without a key press before a search starts
export const MODES = [["", "automatic"], ["hybrid", "hybrid"], ["dense", "dense (meaning)"], ["lexical", "keywords"]];
const RERANK = [["", "rerank: auto"], ["true", "rerank: yes"], ["false", "rerank: no"]];
const HITS = ["5", "10", "20", "50"].map((number) => [number, count(Number(number), "hit")]);
const SYNTAX = /(^|\s)-?(title:)?("[^"]*"|(?<=-|title:)[\p{L}\p{N}])/u; // what syntax=true reads otherwise than as text
const OF_QUERIES = { mode: "", rerank: "", typos: "", syntax: "" }; // A search by id has none of these.

export async function show(main, { params, signal, keep }) {
  const given = (name, otherwise = "") => params.get(name) ?? otherwise;
  const asked = { q: given("q"), id: given("id"), mode: given("mode"), k: given("k", "10"), rerank: given("rerank"), typos: given("typos"), syntax: given("syntax"), filter: given("filter") };
  const results = h("div", { "aria-busy": "false" });
  let fields = { filter: null };
  let running = new AbortController();
  let resting;

  const typed = () => { asked.q = box.value; asked.id = asked.typos = ""; clearTimeout(resting); };
  const box = h("input", { type: "search", id: "q", class: "big", value: asked.q, placeholder: "What are you looking for?", dir: "auto", autocomplete: "off", "aria-label": "Search",
    oninput: () => { typed(); resting = setTimeout(search, REST); } });
  const suggestions = suggesting(box, { filter: () => asked.filter, onpick: () => { typed(); search(); }, signal });
  const facets = facetList(recount, (text) => filter.set(text));
  const filter = filterBar(asked.filter, (text) => { asked.filter = text; search(); }, facets.element);
  const finding = h("div", { class: "finding" }, filter.element, results);
  const wide = matchMedia("(min-width: 60rem)");
  const unfold = () => { filter.details.open = wide.matches && finding.classList.contains("faceted"); };
  wide.addEventListener("change", unfold, { signal });
  signal.addEventListener("abort", () => { running.abort(); clearTimeout(resting); });

  function query() {
    return asked.id ? { ...asked, q: "", ...OF_QUERIES } : { ...asked, id: "" };
  }

  /** Counts one field again, with another filter or more values. */
  async function recount(field, text, values) {
    const { facets: counts = {} } = await get(within(session.collection, "search"), { ...query(), k: 1, fields: "id", rerank: "false", filter: text, facets: field, facet_values: values }, { signal: running.signal });
    return counts[field] ?? { other: 0, missing: 0 };
  }

  async function search() {
    if (asked.syntax && asked.q.split('"').length % 2 === 0) return; // The second quote is not typed yet.
    running.abort();
    running = new AbortController();
    const { signal: current } = running;
    keep(asked);
    if (!asked.q.trim() && !asked.id) {
      if (results.querySelector(".add [role=status] :is(.problem, .note)")) return; // keeps the report of an upload
      const first = await welcome();
      if (current.aborted) return; // a search may have begun meanwhile
      showFacets(false);
      results.replaceChildren(first);
      return;
    }
    results.setAttribute("aria-busy", "true");
    try {
      if (fields.filter !== asked.filter) fields = { filter: asked.filter, chosen: chooseFields(asked.filter) };
      const [{ counted, constant }, own] = await Promise.all([fields.chosen, judged()]);
      const found = await get(within(session.collection, "search"), { ...query(), highlight: true, explain: true, facets: counted.join(","), facet_values: LISTED }, { signal: current });
      if (asked.q) recent.add(asked.q);
      draw(found, own.get(asked.q) ?? new Map(), constant);
      showFacets(await facets.draw(found.facets ?? {}, asked.filter, found.mode));
    } catch (error) {
      if (!current.aborted) results.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
    if (!current.aborted) results.setAttribute("aria-busy", "false");
  }

  function showFacets(any) {
    const before = finding.classList.contains("faceted");
    finding.classList.toggle("faceted", any);
    facets.element.hidden = !any;
    if (any !== before) unfold();
  }

  function draw({ hits, mode, search_id: searchId, took_ms: took, id, query_encoder: student, reranker, corrected_query: corrected, warnings = [] }, own, constant) {
    const modeName = MODES.find(([name]) => name === mode)[1];
    if (!asked.mode) modes.options[0].text = `automatic: ${modeName}`;
    say(`${count(hits.length, "hit")}.`);
    results.replaceChildren(
      h("p", { class: "note summary" },
        id === undefined ? "" : foreign("span", {}, `Like ${id}: `),
        hits.length ? `${count(hits.length, "hit")} in ${took.toFixed(0)} ms, ${modeName}${student ? `, query encoded by ${session.nameOf(student)}` : ""}${reranker ? `, reranked by ${session.nameOf(reranker)}` : ""}` : "Nothing was found.",
        hits.length || !asked.filter ? "" : " Remove a condition of the filter to see more."),
      corrected ? h("p", { class: "corrected" }, "Showing results for ", foreign("b", {}, corrected), ". ", again("typos", "false", "Search instead for ", foreign("span", {}, asked.q))) : "",
      syntaxNote(),
      ...warnings.map((warning) => h("p", { class: "note", dir: "auto" }, warning)),
      h("ol", { class: "hits" }, hits.map((hit, at) => hitCard({
        hit, rank: at + 1, query: asked.q, searchId, own, heading: "h2", onfilter: filter.add, unshown: constant,
        notes: [hit.search_place ? h("span", {}, `place ${hit.search_place} before reranking`) : "", h("a", { class: "like", href: `#/search?${new URLSearchParams({ id: hit.id })}` }, "more like this")],
      }))),
      asSnippets(asked, mode));
  }

  /** Returns a button that searches again with another option. */
  function again(name, value, ...label) {
    return h("button", { type: "button", class: "link", onclick: () => { asked[name] = value; search(); box.focus(); } }, ...label);
  }

  /** Says how quotes, minus and "title:" are read, if the query has them. */
  function syntaxNote() {
    if (asked.id || !SYNTAX.test(asked.q)) return "";
    return asked.syntax
      ? h("p", { class: "note" }, "Quotes: exactly these words. Minus: without the word. `title:` in the title. ", again("syntax", "", "Read all as plain text"))
      : h("p", { class: "note" }, "Quotes, minus and `title:` are read as plain text. ", again("syntax", "true", "Use them as conditions"));
  }

  const modes = select("Mode", MODES, asked.mode, (mode) => { asked.mode = mode; search(); });
  main.append(
    h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); clearTimeout(resting); suggestions.close(); search(); } },
      suggestions.element,
      h("div", { class: "options" },
        modes,
        select("Rerank", RERANK, asked.rerank, (rerank) => { asked.rerank = rerank; search(); }),
        select("Hits", HITS, asked.k, (k) => { asked.k = k; search(); }))),
    finding);
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
      queries("Try one of these", tries), steps, queries("Your last searches", recent.all().map((query) => ({ query }))), used, synonyms());
  }
}

/** Returns the same search for a shell and for Python. */
function asSnippets(asked, mode) {
  const address = addressOf(within(session.collection, "search"), asked.id ? { id: asked.id, k: asked.k, filter: asked.filter } : { ...asked, id: "", mode });
  const header = key.get() ? ` -H "Authorization: Bearer $KEY"` : "";
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const options = [
    JSON.stringify(asked.q), `k=${Number(asked.k)}`, `mode=${JSON.stringify(mode)}`,
    ...["rerank", "typos", "syntax"].map((name) => asked[name] && `${name}=${asked[name] === "true" ? "True" : "False"}`),
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
