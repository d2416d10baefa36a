// The first day: four steps that tick themselves off, and a way to put texts in while there are none.

import { addForm } from "./add.js";
import { addressOf, get, key, within } from "./api.js";
import { h, icon } from "./dom.js";
import { storeExamples } from "./files.js";
import { ENOUGH } from "./judgements.js";
import { recent } from "./recent.js";
import { session } from "./session.js";
import { retrainCommand } from "./text.js";

/** What is left of the four steps, "" when nothing is. `then` runs after something was stored. */
export async function start(stored, then, signal) {
  const [{ answered }, { models }, info] = await Promise.all([get(within(session.collection, "feedback/summary")).catch(() => ({ answered: 0 })), get("models"), get("info")]);
  const steps = [
    [stored > 0, "Put texts in", "Paste one below, upload a file, or load the examples."],
    [recent.all().length > 0, "Search", "Ask a question in the box above."],
    [answered >= ENOUGH, `Judge ${ENOUGH} queries`, h("span", {}, `${answered} so far have a relevant document. Press a thumb beside a hit, or go through a list: `, h("a", { href: "#/judge" }, "Judge"), ".")],
    [models.some(({ parent }) => parent), "Retrain", h("span", {}, "The model learns from texts and judgements: ", h("code", {}, retrainCommand(addressOf("").href, info, key.get())), ".")],
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
  if (!session.may("write")) return h("p", { class: "note" }, "Your key may only read. Storing texts needs one of role write.");
  const said = h("div", { role: "status" });
  const load = async (event) => {
    event.target.disabled = true;
    try {
      said.replaceChildren(h("p", {}, `${await storeExamples(signal)} documents stored.`));
      document.dispatchEvent(new Event("changed"));
      then();
    } catch (error) {
      said.append(h("p", { class: "problem" }, error.message));
      event.target.disabled = false;
    }
  };
  return h("div", {}, h("p", { class: "row" }, h("button", { type: "button", class: "primary", onclick: load }, "Load examples"), h("span", { class: "note" }, "A few hundred short texts about support, travel and more; they can be deleted by their field ", h("code", {}, "example"), "."), said), addForm(then, signal));
}
