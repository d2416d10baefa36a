// Edits the synonyms of a collection as lines: a group of phrases, or "phrase => what it also finds".

import { get, put } from "./api.js";
import { h, later, prose } from "./dom.js";
import { session } from "./session.js";

const list = (text) => text.split(",").map((phrase) => phrase.trim()).filter(Boolean);
const ARROW = "=>";

function parse(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  const [one_way, groups] = [true, false].map((directed) => lines.filter((line) => line.includes(ARROW) === directed));
  return { groups: groups.map(list), one_way: one_way.map((line) => line.split(ARROW)).map(([from, ...to]) => ({ from: from.trim(), to: list(to.join(ARROW)) })) };
}

const format = ({ groups, one_way }) => [...groups.map((group) => group.join(", ")), ...one_way.map(({ from, to }) => `${from} ${ARROW} ${to.join(", ")}`)].join("\n");

/** Returns a section that loads the synonyms when it is opened, or "" for keys that may not write. */
export const synonyms = () => (session.may("write") ? later("Synonyms", editor) : "");

async function editor() {
  const path = `collections/${encodeURIComponent(session.collection)}/synonyms`;
  let { version, ...stored } = await get(path);
  if (JSON.stringify(parse(format(stored))) !== JSON.stringify(stored)) return [h("p", { class: "note" }, "Some phrases have a comma or an arrow, which lines cannot show. Use `PUT /collections/{name}/synonyms`.")];
  const field = h("textarea", { id: "synonyms", rows: "6", dir: "auto", value: format(stored) });
  const said = h("p", { class: "note", role: "status" });
  const store = async (event) => {
    event.preventDefault();
    try {
      ({ version } = await put(path, { ...parse(field.value), version }));
      said.textContent = `Stored as version ${version}. Keyword and hybrid search use it from now on.`;
    } catch (error) {
      said.replaceChildren(...prose(error.message));
    }
  };
  return [h("form", { onsubmit: store },
    h("label", { for: "synonyms" }, "One entry a line: ", h("code", {}, "car, automobile"), " find each other; ", h("code", {}, "tv => television, flat screen"), " works one way."),
    field, h("p", { class: "row" }, h("button", {}, "Store synonyms"), said))];
}
