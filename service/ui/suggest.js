// Suggestions below a search box: an ARIA combobox with a list.

import { get, within } from "./api.js";
import { foreign, h } from "./dom.js";
import { session } from "./session.js";

const REST = 80; // milliseconds without a key press before suggestions are asked for
const SHOWN = 6;
const LONGEST = 256; // characters that the service completes
const KINDS = { title: "title", query: "searched by others" };

/**
 * Makes `box` a combobox. Returns an element with the box and the list, and `close`.
 *
 * filter: Returns the filter of the search, because no suggestion may come from other documents.
 * onpick: Called after a suggestion was put into the box.
 */
export function suggesting(box, { filter, onpick, signal }) {
  const list = h("ul", { id: "suggestions", role: "listbox", class: "plain suggestions", "aria-label": "Suggestions", hidden: true });
  let asking = new AbortController();
  let resting;
  let active = -1;

  const close = () => {
    clearTimeout(resting);
    asking.abort();
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
    activate(-1);
  };
  signal.addEventListener("abort", close);

  function activate(at) {
    active = at;
    [...list.children].forEach((option, place) => option.setAttribute("aria-selected", String(place === at)));
    if (at < 0) box.removeAttribute("aria-activedescendant");
    else box.setAttribute("aria-activedescendant", list.children[at].id);
  }

  function pick(text) {
    close();
    box.value = text;
    onpick();
  }

  async function ask() {
    asking.abort();
    asking = new AbortController();
    const { signal: current } = asking;
    const typed = box.value;
    if (!typed.trim() || typed.length > LONGEST) return close();
    const { suggestions } = await get(within(session.collection, "suggest"), { q: typed, k: SHOWN, filter: filter() }, { signal: current }).catch(() => ({ suggestions: [] }));
    if (current.aborted) return;
    const other = suggestions.filter(({ text }) => text !== typed.trim());
    list.replaceChildren(...other.map(({ text, kind }, at) => h("li", {
      id: `suggestion-${at}`, role: "option", onmousedown: (event) => event.preventDefault(), onclick: () => pick(text), // The box keeps the focus.
      onmousemove: () => activate(at), // Unlike mouseenter, not when a list appears under a pointer that rests.
    }, foreign("span", {}, ...completed(text, typed)), KINDS[kind] ? h("span", { class: "note" }, KINDS[kind]) : "")));
    list.hidden = !other.length;
    box.setAttribute("aria-expanded", String(!list.hidden));
    activate(-1);
  }

  const keys = {
    ArrowDown: () => (list.hidden ? ask() : activate((active + 2) % (list.children.length + 1) - 1)),
    ArrowUp: () => !list.hidden && activate((active < 0 ? list.children.length : active) - 1),
    Enter: () => (active >= 0 ? list.children[active].click() : close()),
    Escape: close,
  };
  box.addEventListener("keydown", (event) => {
    if (event.isComposing || !keys[event.key]) return;
    if (event.key.startsWith("Arrow") || (event.key === "Escape" && !list.hidden) || (event.key === "Enter" && active >= 0)) event.preventDefault();
    keys[event.key]();
  });
  box.addEventListener("input", () => { clearTimeout(resting); resting = setTimeout(ask, REST); });
  box.addEventListener("blur", close);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) box.setAttribute(name, value);
  return { element: h("div", { class: "combobox" }, box, list), close };
}

/** Returns a suggestion with what it adds in bold. */
function completed(text, typed) {
  const begun = typed.trimStart();
  return text.toLowerCase().startsWith(begun.toLowerCase()) ? [text.slice(0, begun.length), h("b", {}, text.slice(begun.length))] : [text];
}
