// Compares the answers of two versions, or of two modes of one version.

import { get, post, within } from "../api.js";
import { foreign, h, prose, say, select } from "../dom.js";
import { hitCard } from "../hit.js";
import { judged } from "../judgements.js";
import { recent } from "../recent.js";
import { session } from "../session.js";
import { count, headlineOf, percent } from "../text.js";
import { MODES } from "./search.js";
import { Blind } from "../blind.js";

const K = 10;
const MOST_QUERIES = 100;

export async function show(main, { params, signal, keep }) {
  const { active, models } = await get("models", {}, { signal });
  const versions = models.filter(({ loaded, kind }) => loaded && kind !== "reranker").sort((one, two) => (two.version === active) - (one.version === active));
  const other = versions.find(({ version }) => version !== active)?.version;
  const asked = {
    q: params.get("q") ?? "",
    a: params.get("a") ?? active, amode: params.get("amode") ?? (other ? "" : "dense"),
    b: versions.some(({ version }) => version === params.get("b")) ? params.get("b") : other ?? active, bmode: params.get("bmode") ?? (other ? "" : "hybrid"),
  };
  const blind = new Blind();
  const columns = h("div", { class: "columns" });
  const summary = h("p", { class: "note", role: "status" });
  const differing = h("div");
  let queries = []; // queries for the button "Next query"
  let running = new AbortController();
  signal.addEventListener("abort", () => running.abort());

  const side = (name) => [
    select(`Version ${name.toUpperCase()}`, versions.map((one) => [one.version, `${session.nameOf(one.version)} · ${one.state}`]), asked[name], (value) => { asked[name] = value; compare(); }),
    select(`Mode ${name.toUpperCase()}`, MODES.slice(1), asked[`${name}mode`], (value) => { asked[`${name}mode`] = value; compare(); }),
  ];
  const box = h("input", { type: "search", class: "big", value: asked.q, dir: "auto", autocomplete: "off", "aria-label": "Query", placeholder: "A query for both sides" });
  const sides = h("div", { class: "columns sides" },
    h("fieldset", { class: "row a" }, h("legend", {}, "A"), side("a")),
    h("fieldset", { class: "row b" }, h("legend", {}, "B"), side("b")));
  const hide = h("input", { type: "checkbox", id: "blind", onchange: () => { blind.on = hide.checked; compare(); } });
  main.append(
    h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); ask(box.value); } }, box, h("button", { class: "primary" }, "Search both"), h("button", { type: "button", onclick: next }, "Next query")),
    sides,
    versions.length > 1 ? "" : h("p", { class: "note" }, "Only the active version is loaded, so its modes are compared. Other versions are available while they are ready, after a swap for SIMILE_GRACE_SECONDS, or after an admin opens them: ", h("a", { href: "#/versions" }, "Versions"), "."),
    h("div", { class: "row between" }, summary,
      h("div", { class: "row blind" }, hide, h("label", { for: "blind" }, "Blind: shuffle the sides, hide their names"))),
    columns,
    h("section", {}, h("h2", {}, "Where the two differ most"), h("p", { class: "note" }, "Compares the answers to your judged and recent queries and to starts of documents. Those with the fewest common hits come first."),
      h("button", { type: "button", onclick: (event) => findDiffering(event.target) }, "Find queries that differ"), differing));
  if (asked.q) await compare();
  else box.focus();

  function ask(query) {
    asked.q = box.value = query;
    main.scrollIntoView();
    return compare();
  }

  /** Opens the next query: by difference after a comparison, otherwise the next in the list. */
  async function next() {
    if (!queries.length) queries = await queriesToTry();
    if (queries.length) await ask(queries[(queries.indexOf(asked.q) + 1) % queries.length]);
    else summary.textContent = "No next query: type one, or store documents first.";
  }

  function answer(name, current) {
    return get(within(session.collection, "search"), { q: asked.q, k: K, mode: asked[`${name}mode`], highlight: true }, { version: asked[name], signal: current }).catch((error) => {
      if (current.aborted) throw error;
      return { error, hits: [] };
    });
  }

  async function compare() {
    keep(asked);
    sides.hidden = blind.on;
    if (!asked.q.trim()) return;
    running.abort();
    running = new AbortController();
    const { signal: current } = running;
    try {
      const [a, b, own] = await Promise.all([answer("a", current), answer("b", current), judged()]);
      recent.add(asked.q);
      draw({ a, b }, own.get(asked.q) ?? new Map());
    } catch (error) {
      if (!current.aborted) summary.replaceChildren(...prose(error.message));
    }
  }

  function draw(found, own) {
    const common = found.a.hits.filter(({ id }) => found.b.hits.some((hit) => hit.id === id)).length;
    const most = Math.max(found.a.hits.length, found.b.hits.length);
    summary.textContent = most ? `${common} of ${most} answers are the same.` : "";
    const order = blind.order(asked.q);
    columns.replaceChildren(...order.map((name, place) => column(name, place, found, own)));
    if (blind.on) columns.append(blind.question(asked, () => compare()));
  }

  function column(name, place, found, own) {
    const { error, hits, took_ms: took, mode } = found[name];
    const others = new Map(found[name === "a" ? "b" : "a"].hits.map((hit, at) => [hit.id, at]));
    const shown = blind.on ? (place === 0 ? "First" : "Second") : name.toUpperCase();
    return h("section", { class: `column ${blind.on ? "" : name}`, "aria-label": `Answers ${shown}` },
      h("h2", {}, h("b", {}, shown), blind.on || error ? "" : ` ${MODES.find(([own]) => own === mode)[1]} · ${took.toFixed(0)} ms`),
      error ? h("p", { class: "problem" }, error.message) : "",
      h("ol", { class: "hits" }, hits.map((hit, at) => {
        const card = hitCard({ hit, rank: at + 1, query: asked.q, own, notes: [moved(at, others.get(hit.id))], onjudged: () => compare() });
        if (!others.has(hit.id)) card.classList.add("only");
        return card;
      })));
  }

  async function findDiffering(button) {
    button.disabled = true;
    try {
      const rows = await overlaps(asked);
      queries = rows.map(({ query }) => query);
      differing.replaceChildren(h("ol", { class: "differing" }, rows.map(({ query, share }) =>
        h("li", {}, foreign("button", { type: "button", class: "quiet", onclick: () => ask(query) }, query), h("span", { class: "note" }, `${percent(share)} in common`)))));
      say(`${count(rows.length, "query")} compared.`);
    } finally {
      button.disabled = false;
    }
  }
}

/** Returns how far a hit is above or below its rank in the other column. */
function moved(at, there) {
  if (there === undefined || there === at) return h("span", { class: "moved" }, there === at ? "same place" : "only here");
  return h("span", { class: `moved ${there > at ? "higher" : "lower"}` }, `${there > at ? "▲" : "▼"} ${Math.abs(there - at)}`);
}

/** Returns judged and recent queries, and starts of documents, like the service's canary queries. */
async function queriesToTry() {
  const own = [...(await judged()).keys()];
  const { documents } = await get(within(session.collection, "documents"), { limit: MOST_QUERIES });
  const beginnings = documents.map((one) => headlineOf(one).headline.replace(/ …$/, "")).filter((text) => text.length > 3);
  return [...new Set([...own, ...recent.all(), ...beginnings])].slice(0, MOST_QUERIES);
}

/** Returns queries with their share of common hits, lowest first. */
async function overlaps(asked) {
  const queries = await queriesToTry();
  if (!queries.length) return [];
  const [a, b] = await Promise.all(["a", "b"].map((name) =>
    post(within(session.collection, "search"), { queries, k: K, mode: asked[`${name}mode`] || undefined, fields: [] }, { version: asked[name] })));
  const shared = (at) => {
    const ids = new Set(a.results[at].map(({ id }) => id));
    return b.results[at].filter(({ id }) => ids.has(id)).length / Math.max(ids.size, b.results[at].length, 1);
  };
  return queries.map((query, at) => ({ query, share: shared(at) })).sort((one, two) => one.share - two.share);
}
