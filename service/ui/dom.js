// Builds elements without HTML, so every string becomes text.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element. `on…` are listeners, true is an empty attribute, null and false are omitted. Messages (note, problem, reason) are prose. */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Returns a message in pieces, with code elements for what is between backticks. */
export const prose = (message) => message.split(/`([^`]+)`/).map((piece, at) => (at % 2 ? h("code", {}, piece) : piece));

/** Creates the short name of a version, and a button that copies its id. Without a clipboard (plain HTTP), it shows the id. */
export function versionName(version, name) {
  const copy = iconButton("copy", `Copy the id ${version}`, { class: "icon quiet", onclick: () => navigator.clipboard.writeText(version).then(() => { copy.replaceChildren(icon("check")); say("Copied."); }) });
  return h("span", {}, foreign("span", { class: "version", title: version }, name), " ", navigator.clipboard ? copy : foreign("code", { class: "id" }, version));
}

/** Creates an SVG element. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  const message = /\b(note|problem|reason)\b/.test(properties.class);
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...shown.flatMap((child) => (message && typeof child === "string" ? prose(child) : [child])));
  return element;
}

/** Creates an element with a user's text, which keeps its own writing direction. */
export function foreign(tag, properties, ...children) {
  return h(tag, { ...properties, dir: "auto", class: `foreign ${properties.class ?? ""}` }, ...children);
}

/** Creates a button with an icon. `label` is its accessible name and tooltip. */
export function iconButton(name, label, properties = {}) {
  return h("button", { type: "button", class: "icon", "aria-label": label, title: label, ...properties }, icon(name));
}

const PATHS = {
  up: "M7 11v9H4v-9h3zm3 9h7.5a2 2 0 0 0 2-1.6l1.2-6A2 2 0 0 0 18.7 10H14l.8-4.2A1.9 1.9 0 0 0 13 3.5L9.5 10v8.5z",
  down: "M17 13V4h3v9h-3zm-3-9H6.5a2 2 0 0 0-2 1.6l-1.2 6A2 2 0 0 0 5.3 14H10l-.8 4.2a1.9 1.9 0 0 0 1.8 2.3l3.5-6.5V5.5z",
  close: "M6 6l12 12M18 6L6 18",
  check: "M5 13l4 4L19 7",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  circle: "M12 5a7 7 0 1 0 .01 0z",
  like: "M10 4a6 6 0 1 1 0 12 6 6 0 0 1 0-12zm4.5 10.5L20 20M7.5 10h5M10 7.5v5",
  lasso: "M12 4c5 0 9 2.5 9 6s-4 6-9 6-9-2.5-9-6 4-6 9-6zM8 16c-2 1-2 4 0 4",
};

export function icon(name) {
  const line = { d: PATHS[name], fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-linecap": "round" };
  return svg("svg", { viewBox: "0 0 24 24", width: 18, height: 18, "aria-hidden": "true" }, svg("path", line));
}

/** Announces a text to screen readers without moving the focus. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/** Creates a select element. `options`: values, or pairs of a value and its text. */
export function select(label, options, value, onchange) {
  const element = h("select", { "aria-label": label, onchange: () => onchange(element.value) });
  for (const option of options) {
    const [own, text] = Array.isArray(option) ? option : [option, option];
    element.append(h("option", { value: own, selected: own === value }, text));
  }
  return element;
}

/** Creates a table of names and values. */
export function facts(rows, caption = "") {
  return h("table", { class: "facts" }, caption && h("caption", {}, caption), h("tbody", {}, rows.map(([name, value]) =>
    h("tr", {}, foreign("th", { scope: "row" }, name), foreign("td", {}, value)))));
}

/** Creates a button in the form of a link that calls `open` and `close` in turn. */
export function toggle(label, open, close) {
  const press = () => {
    const opens = button.ariaExpanded !== "true";
    button.ariaExpanded = String(opens);
    (opens ? open : close)();
  };
  const button = h("button", { type: "button", class: "link", "aria-expanded": "false", onclick: press }, label);
  return button;
}

/** Creates a section that `fill` fills when it is opened. `fill` resolves to elements. */
export function later(summary, fill) {
  const place = h("div", { class: "report" });
  const open = async () => {
    if (details.open && !place.firstChild) place.append(...await fill().catch((error) => [h("p", { class: "note" }, error.message)]));
  };
  const details = h("details", { ontoggle: open }, h("summary", {}, summary), place);
  return details;
}

/** Asks in a dialog. Resolves to true if the user confirms. */
export function confirmed(question, explanation, agree) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "question", onclose: () => { dialog.remove(); resolve(dialog.returnValue === "yes"); } },
      h("h2", { id: "question" }, question),
      h("p", {}, explanation),
      h("div", { class: "row end" },
        h("button", { type: "button", onclick: () => dialog.close("no") }, "Cancel"),
        h("button", { type: "button", class: "primary", onclick: () => dialog.close("yes") }, agree)));
    document.body.append(dialog);
    dialog.showModal();
  });
}
