// The form for the API key.

import { key } from "./api.js";
import { h } from "./dom.js";

/** Shows the form in `main`. Calls `then` after a key was entered. */
export function askForKey(main, then) {
  const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const refused = key.get() !== null;
  key.forget();
  const problem = h("p", { class: "problem", role: "alert", hidden: !refused }, "This key is not known here. Check it, or ask for a new one.");
  const use = (event) => {
    event.preventDefault();
    const given = field.value.trim();
    if (/[^ -~]/.test(given)) { // not allowed in a header
      problem.textContent = "A key contains only ASCII letters, digits and signs. Copy it again.";
      problem.hidden = false;
      return;
    }
    key.set(given);
    then();
  };
  const form = h("form", { class: "card narrow", onsubmit: use },
    h("h2", {}, "This service needs a key"),
    problem,
    h("label", { for: "key" }, "Key"),
    field,
    h("p", { class: "note" }, "It is kept until this tab is closed, and sent only to this service. An operator creates one with ",
      h("code", {}, "simile keys add NAME --role read"), "."),
    h("button", { class: "primary" }, "Use this key"));
  main.replaceChildren(h("h1", { class: "unseen" }, "Key"), form);
  field.focus();
}
