// The first steps of a new user, queries to begin with, and ways to add texts to an empty store.

import { addForm } from "./add.js";
import { addressOf, get, key, within } from "./api.js";
import { foreign, h, icon } from "./dom.js";
import { storeExamples } from "./files.js";
import { ENOUGH } from "./judgements.js";
import { recent } from "./recent.js";
import { session } from "./session.js";
import { count, headlineOf, retrainCommand } from "./text.js";

// Of the examples: two that share no word with their answer, one that keywords answer, and one that needs both.
const EXAMPLES = ["how do I get my money back", "why is it colder in winter", "exit code 137", "my plants have yellow leaves"];

/** Returns four queries: of the examples if they are stored, else the titles or beginnings of documents. */
export async function toTry() {
  const find = (filter) => get(within(session.collection, "documents"), { limit: EXAMPLES.length, filter });
  const examples = await find('{"example": true}');
  if (examples.documents.length) return EXAMPLES.map((query) => ({ query }));
  const { documents } = await find("");
  return [...new Set(documents.map((one) => headlineOf(one).headline.replace(/ …$/, "")))].map((query) => ({ query }));
}

/** Returns the most frequent queries, and those without results, which only admins may read. */
export async function mostAsked() {
  if (!session.may("admin")) return "";
  const { frequent, without_results: without } = await get(within(session.collection, "searches")).catch(() => ({ frequent: [], without_results: [] }));
  return h("div", { class: "columns" }, queries("Most frequent queries", frequent), queries("Queries without results", without));
}

/** Returns a list of links that search, or "" without queries. */
export function queries(title, found) {
  return found.length ? h("section", {}, h("h2", {}, title), h("ul", { class: "plain" }, found.map(({ query, searches }) => h("li", {},
    foreign("a", { href: `#/search?${new URLSearchParams({ q: query })}` }, query), searches ? h("span", { class: "note" }, ` ${count(searches, "search")}`) : "")))) : "";
}

/** Returns the four steps, or "" if all are done. Calls `then` after something was stored. */
export async function start(stored, then, signal) {
  const [{ answered }, { models }, info] = await Promise.all([get(within(session.collection, "feedback/summary")).catch(() => ({ answered: 0 })), get("models"), get("info")]);
  const steps = [
    [stored > 0, "Add texts", "Paste one below, upload a file, or load the examples."],
    [recent.all().length > 0, "Search", "Click a query, or type one above."],
    [answered >= ENOUGH, `Judge ${ENOUGH} queries`, h("span", {}, `So far, ${count(answered, "query")} with a relevant document. Press a thumb next to a hit, or work through a list: `, h("a", { href: "#/judge" }, "Judge"), ".")],
    [models.some(({ parent }) => parent), "Retrain", h("span", {}, "The model learns from texts and judgments: ", h("code", {}, retrainCommand(addressOf("").href, info, key.get())), ".")],
  ];
  if (steps.every(([done]) => done)) return "";
  return h("div", {},
    h("section", { class: "card" },
      h("h2", {}, stored ? "The next steps" : "Nothing is stored yet"),
      h("ol", { class: "plain steps" }, steps.map(([done, name, hint]) => h("li", { class: done ? "done" : "" },
        icon(done ? "check" : "circle"), h("span", {}, h("b", {}, name), h("span", { class: "unseen" }, done ? " (done)" : ""), done ? "" : h("span", { class: "note" }, " ", hint)))))),
    stored ? "" : adding(then, signal));
}

function adding(then, signal) {
  if (!session.may("write")) return h("p", { class: "note" }, "Your key may only read. Storing texts needs a key of role write.");
  const said = h("div", { role: "status" });
  const load = async (event) => {
    event.target.disabled = true;
    try {
      said.replaceChildren(h("p", {}, `${count(await storeExamples(signal), "document")} stored.`));
      document.dispatchEvent(new Event("changed"));
      then();
    } catch (error) {
      said.append(h("p", { class: "problem" }, error.message));
      event.target.disabled = false;
    }
  };
  return h("div", {}, h("p", { class: "row" }, h("button", { type: "button", class: "primary", onclick: load }, "Load examples"), h("span", { class: "note" }, "A few hundred short texts about support, travel and more; they can be deleted by their field ", h("code", {}, "example"), "."), said), addForm(then, signal));
}
