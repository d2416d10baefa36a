// Blind comparison: columns in random order without names, counts of the preferred side, and a sign test.

import { h } from "./dom.js";
import { session } from "./session.js";

/** Returns the two-sided p-value of `more` out of `number` preferences for one side. */
export function signTest(more, number) {
  let sum = 0;
  let ways = 1; // `number` choose `at`
  for (let at = number; at >= more; at -= 1) {
    sum += ways;
    ways *= at / (number - at + 1);
  }
  return Math.min(1, (2 * sum) / 2 ** number);
}

export class Blind {
  on = false;
  #orders = new Map(); // query -> names of the columns, left to right
  #preferred = new Map(); // query -> "a", "b" or "neither"

  order(query) {
    if (!this.on) return ["a", "b"];
    if (!this.#orders.has(query)) this.#orders.set(query, Math.random() < 0.5 ? ["a", "b"] : ["b", "a"]);
    return this.#orders.get(query);
  }

  /** Returns the question which column is better, or the result. Calls `then` after an answer. */
  question({ q, a, amode, b, bmode }, then) {
    const order = this.#orders.get(q);
    const answer = this.#preferred.get(q);
    const prefer = (which) => { this.#preferred.set(q, which); then(); };
    if (answer === undefined) {
      return h("div", { class: "card verdict row center" },
        h("span", {}, "Which is better?"),
        h("button", { type: "button", onclick: () => prefer(order[0]) }, "First"),
        h("button", { type: "button", onclick: () => prefer("neither") }, "Neither"),
        h("button", { type: "button", onclick: () => prefer(order[1]) }, "Second"));
    }
    const names = { a: `A (${session.nameOf(a)}, ${amode || "automatic"})`, b: `B (${session.nameOf(b)}, ${bmode || "automatic"})` };
    return h("div", { class: "card verdict", role: "status" },
      h("p", {}, `The first was ${names[order[0]]}, the second ${names[order[1]]}. ${answer === "neither" ? "You preferred neither." : `You preferred ${answer.toUpperCase()}.`}`),
      h("p", { class: "note" }, this.#tally()));
  }

  #tally() {
    const votes = [...this.#preferred.values()];
    const [a, b] = ["a", "b"].map((name) => votes.filter((vote) => vote === name).length);
    const chance = signTest(Math.max(a, b), a + b);
    const certain = a + b === 0 ? "" : chance < 0.05 ? ` By chance alone this would happen ${(100 * chance).toFixed(1)} times in 100.` : " This may still be chance.";
    return `So far: A ${a}, B ${b}, neither ${votes.length - a - b}.${certain}`;
  }
}
