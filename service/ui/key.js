// The question for a key, where the service has keys.

import { key } from "./api.js";
import { h } from "./dom.js";

/** Ask for a key in `main`; `then` runs once one was given. */
export function askForKey(main, then) {
  const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const refused = key.get() !== null;
  key.forget();
  const form = h("form", { class: "card narrow", onsubmit: (event) => { event.preventDefault(); key.set(field.value.trim()); then(); } },
    h("h2", {}, "This service needs a key"),
    refused ? h("p", { class: "problem", role: "alert" }, "This key is not known here. Check it, or ask for a new one.") : "",
    h("label", { for: "key" }, "Key"),
    field,
    h("p", { class: "note" }, "It is kept until this tab is closed, and sent to this service alone. An operator makes one with ",
      h("code", {}, "python -m service keys add NAME read"), "."),
    h("button", { class: "primary" }, "Use this key"));
  main.replaceChildren(h("h1", { class: "unseen" }, "Key"), form);
  field.focus();
}
