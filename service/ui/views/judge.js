// Judges the hits of queries one by one. Hits without a judgment come first.

import { get, post, within } from "../api.js";
import { foreign, h, say } from "../dom.js";
import { hitCard } from "../hit.js";
import { ENOUGH, judged } from "../judgements.js";
import { recent } from "../recent.js";
import { points } from "../report.js";
import { session } from "../session.js";
import { count } from "../text.js";

const K = 10;
const REPORTS = 20; // newest reports in which the number of queries that a gain needs is looked up

export async function show(main, { params, signal, keep }) {
  if (!session.may("write")) {
    main.append(h("p", { class: "problem" }, "Judging needs a key of role write, but this key may only read."));
    return;
  }
  const asked = { q: params.get("q") ?? "" };
  const needed = await neededQueries(signal);
  const progress = h("div", { class: "card", role: "status" });
  const queue = h("textarea", { id: "queue", rows: "3", dir: "auto", placeholder: "One query per line" });
  const pool = h("div");
  const next = h("button", { type: "button", onclick: () => begin(waiting()) }, "Next query");
  main.append(progress,
    h("details", { open: !asked.q },
      h("summary", {}, "Queries to judge"),
      h("label", { for: "queue" }, "Real queries are best: from a log, or from people who know the texts."), queue),
    h("div", { class: "row" }, next,
      h("button", { type: "button", onclick: () => download() }, "Download judgments as TSV"),
      h("label", { class: "button", for: "tsv" }, "Upload TSV"),
      h("input", { type: "file", id: "tsv", class: "unseen", accept: ".tsv,.txt", onchange: (event) => upload(event.target) })),
    pool);
  queue.value = recent.all().join("\n");
  await tell();
  if (asked.q) await begin(asked.q);

  async function tell() {
    const { queries, answered, judgements } = await get(within(session.collection, "feedback/summary"), {}, { signal });
    const left = Math.max(0, ENOUGH - answered);
    progress.replaceChildren(
      h("progress", { max: ENOUGH, value: Math.min(answered, ENOUGH), "aria-label": "Queries with a relevant document" }),
      ` ${count(judgements, "judgment")} of ${count(queries, "different query")}, ${answered} with a relevant document. `,
      left ? `A retraining can be measured with ${left} more.` : "These are enough to measure whether a retraining is better. More queries give a surer answer.",
      h("p", { class: "note" }, needed));
  }

  /** Returns the first query of the list without a judgment. */
  async function waiting() {
    const own = await judged();
    return queue.value.split("\n").map((line) => line.trim()).find((line) => line && line !== asked.q && !own.has(line)) ?? "";
  }

  async function begin(query) {
    asked.q = await query;
    keep(asked);
    if (!asked.q) {
      pool.replaceChildren(h("p", {}, "Every query of the list is judged. Add more above."));
      return;
    }
    const own = (await judged()).get(asked.q) ?? new Map();
    const found = await pooled(asked.q, signal);
    found.sort((one, other) => own.has(one.id) - own.has(other.id));
    say(`${count(found.length, "document")} to judge.`);
    pool.replaceChildren(
      foreign("h2", { class: "above" }, asked.q),
      h("p", { class: "note" }, "Dense and keyword hits of all loaded versions, in an order that reveals nothing. Hits without a judgment come first."),
      h("ol", { class: "hits" }, found.map((hit, at) => hitCard({ hit, rank: at + 1, query: asked.q, own, onjudged: tell }))));
  }

  async function download() {
    const lines = [...await judged()].flatMap(([query, own]) => [...own].map(([id, relevant]) => `${[query, id].map(flat).join("\t")}\t${Number(relevant)}\n`));
    const link = h("a", { href: URL.createObjectURL(new Blob(["query\tid\trelevant\n", ...lines])), download: "judgements.tsv" });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  async function upload(field) {
    const content = (await field.files[0].text()).replace(/^\ufeff/, "");
    const lines = content.split(/\r?\n/).map((text, at) => ({ line: at + 1, cells: text.split("\t") })).filter(({ cells }) => cells.join("") && cells.join(" ") !== "query id relevant");
    const good = lines.filter(({ cells }) => ["0", "1"].includes(cells[2]));
    const problems = lines.filter((one) => !good.includes(one)).map(({ line }) => [line, "The third column must be 1 (relevant) or 0."]);
    const feedback = good.map(({ cells: [query, id, relevant] }) => ({ query, id, relevant: relevant === "1" }));
    try {
      const { stored, refused = [] } = feedback.length ? await post(within(session.collection, "feedback"), { feedback }) : { stored: 0 };
      problems.push(...refused.map(({ index, error }) => [good[index].line, error]));
      pool.replaceChildren(h("p", { role: "status" }, `${count(stored, "judgment")} stored.`), h("ul", {}, problems.slice(0, 20).map(([line, error]) => foreign("li", { class: "problem" }, `Line ${line}: ${error}`))));
    } catch (error) {
      pool.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    }
    field.value = "";
    await tell();
  }
}

/** Describes how many judged queries a gain needs, according to the newest report that knows it, or a refused ranking. */
async function neededQueries(signal) {
  const { models } = await get("models", {}, { signal });
  const names = ["own questions as they come", `own questions as they come of ${session.collection}`];
  const gated = models.filter(({ gate }) => gate === "on").sort((a, b) => b.created.localeCompare(a.created));
  let last;
  for (const path of [...gated.slice(0, REPORTS).map(({ version }) => `models/${encodeURIComponent(version)}/report`), "retraining"]) {
    const { gains = [] } = await get(path, {}, { signal }).catch(() => ({}));
    const gain = gains.find(({ name }) => names.includes(name));
    if (gain?.shown) return `${count(gain.queries, "judged query")} were enough to see a retraining's gain of ${points(gain.difference)} points.`;
    if (gain?.enough) return `About ${count(gain.enough, "judged query")} would settle a gain of ${points(gain.difference)} points, as a retraining measured it with ${gain.queries.toLocaleString("en")}.`;
    last ??= gain;
  }
  if (!last) return "The first retraining will show how many judged queries are enough to see a gain.";
  return `The newest retraining showed no gain on ${count(last.queries, "judged query")}.${last.least === null ? "" : ` A gain of ${points(last.least)} points would have been seen.`}`;
}

const flat = (text) => text.replace(/[\t\r\n]+/g, " ");

/** Returns the first hits of all loaded versions in two modes, each document once, sorted by id. */
async function pooled(query, signal) {
  const { models } = await get("models", {}, { signal });
  const versions = models.filter(({ loaded, kind }) => loaded && kind !== "reranker").map(({ version }) => version);
  const answers = await Promise.all(versions.flatMap((version) => ["dense", "lexical"].map((mode) =>
    get(within(session.collection, "search"), { q: query, k: K, mode, highlight: true }, { version, signal }).catch(() => ({ hits: [] })))));
  const hits = new Map(answers.flatMap(({ hits: found }) => found).map((hit) => [hit.id, { ...hit, passage: undefined, score: undefined }]));
  return [...hits.values()].sort((one, other) => (one.id < other.id ? -1 : 1));
}
