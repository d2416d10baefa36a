// A map of all documents, with similar documents close to each other.

import { get, within } from "../api.js";
import { foreign, h, iconButton, prose, say, select } from "../dom.js";
import { Plane } from "../plane.js";
import { handle } from "../pointer.js";
import { coloursOf } from "../palette.js";
import { session } from "../session.js";
import { count, headlineOf, moment, percent } from "../text.js";

const HITS = 20;
const LISTED = 20;
const CHARACTERISTIC = 4; // values of fields that become filters
const LONGEST = 24_000; // characters of a URL with a filter, below the limit of the service
const DWELL = 120; // milliseconds over a point before its title is loaded

export async function show(main, { params, signal, go, keep }) {
  const map = await get(within(session.collection, "map"), {}, { signal }).catch((error) => {
    if (error.status !== 404) throw error;
    main.append(h("div", { class: "card empty" }, h("h2", {}, "No map yet"), h("p", {}, prose(error.message))));
    return null;
  });
  if (map === null) return;
  const asked = { q: params.get("q") ?? "", colour: params.get("colour") ?? "" };
  const at = new Map(map.ids.map((id, index) => [id, index]));
  const canvas = h("canvas", { class: "plane", tabindex: "0", role: "img", "aria-label": `A map of ${count(map.ids.length, "document")} in ${count(map.clusters.length, "group")}. Arrow keys move it, plus and minus zoom. A list next to the map has the groups.` });
  const tip = h("div", { class: "tip", hidden: true });
  const panel = h("aside", { class: "panel", "aria-label": "Of the map" });
  const box = h("input", { type: "search", value: asked.q, dir: "auto", "aria-label": "Show the hits of a query", placeholder: "Show the hits of a query" });
  const lasso = iconButton("lasso", "Draw a line around documents", { "aria-pressed": "false", onclick: () => lasso.setAttribute("aria-pressed", String(lasso.ariaPressed !== "true")) });
  const fields = [["", "by group"], ...Object.keys(map.fields).map((name) => [name, `by ${name}`])];
  main.append(
    h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); asked.q = box.value; keep(asked); lightUp(); } },
      box, select("Color", fields, asked.colour, (name) => { asked.colour = name; keep(asked); paint(); }),
      lasso, h("button", { type: "button", onclick: () => plane.zoom(1.5), "aria-label": "Zoom in" }, "+"), h("button", { type: "button", onclick: () => plane.zoom(1 / 1.5), "aria-label": "Zoom out" }, "−"), h("button", { type: "button", onclick: () => plane.reset() }, "Whole map")),
    h("div", { class: "map" }, h("div", { class: "stage" }, canvas, tip), panel),
    h("p", { class: "note" }, `${count(map.ids.length, "document")}, mapped ${moment(map.made)} with ${session.nameOf(map.version)}. Near points are similar, but distances on a map are inexact.`));

  const { colours, palette, legend } = coloursOf(map, asked.colour);
  const plane = new Plane(canvas, { x: Uint16Array.from(map.x), y: Uint16Array.from(map.y), colours, palette });
  plane.over = (context) => { drawWords(context); drawHits(context); pointer.drawLine(context); };
  let hits = []; // [index, score]
  panel.append(groups(legend));
  const pointer = handle(plane, { signal, tip, lasso, onhover: hover, onpick: (index) => go("document", { id: map.ids[index] }), onlasso: (line) => list(plane.inside(line), "Inside the line") });
  new ResizeObserver(() => plane.reset()).observe(canvas);
  signal.addEventListener("abort", () => cancelAnimationFrame(plane.frame));
  if (map.aligned_to) main.append(await slider());
  if (asked.q) await lightUp();

  function paint() {
    const painted = coloursOf(map, asked.colour);
    plane.paint(painted.colours, painted.palette);
    plane.draw();
    panel.replaceChildren(groups(painted.legend));
  }

  /** Returns the legend, whose buttons open groups of documents. */
  function groups(legend) {
    const odd = [["Near no other document", map.strays], ["Near duplicates", [...new Set(map.copies.flat())]]].filter(([, found]) => found.length);
    return h("div", {}, h("h2", {}, asked.colour || "Groups"), h("ul", { class: "plain legend" }, legend.map(({ name, colour, members }) => {
      const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.backgroundColor = `rgb(${colour.join(" ")})`;
      return h("li", {}, foreign("button", { type: "button", class: "quiet", onclick: () => list(members(), name) }, swatch, name), h("span", { class: "note" }, members().length.toLocaleString("en")));
    })), odd.map(([name, found]) => h("button", { type: "button", class: "quiet", onclick: () => list(found, name) }, `${name} (${found.length})`)));
  }

  async function lightUp() {
    if (!asked.q.trim()) { hits = []; plane.draw(); return; }
    const found = await get(within(session.collection, "search"), { q: asked.q, k: HITS, fields: "title" }, { signal });
    hits = found.hits.filter(({ id }) => at.has(id)).map(({ id, score }) => [at.get(id), Math.max(score, 1e-6)]);
    plane.draw();
    await list(hits.map(([index]) => index), `Hits of “${asked.q}”`);
  }

  /** Draws the hits, and a star at their mean, weighted by score, for the query. */
  function drawHits(context) {
    if (!hits.length) return;
    const ink = getComputedStyle(canvas).color;
    const places = hits.map(([index]) => plane.place(index));
    const total = hits.reduce((sum, [, score]) => sum + score, 0);
    const [sx, sy] = [0, 1].map((axis) => places.reduce((sum, place, rank) => sum + (place[axis] * hits[rank][1]) / total, 0));
    Object.assign(context, { strokeStyle: ink, fillStyle: ink, lineWidth: 1, globalAlpha: 0.5 });
    context.beginPath();
    for (const [px, py] of places) { context.moveTo(sx, sy); context.lineTo(px, py); }
    context.stroke();
    context.globalAlpha = 1;
    for (const [px, py] of places) { context.beginPath(); context.arc(px, py, 5, 0, 7); context.lineWidth = 2; context.stroke(); }
    context.font = "26px sans-serif";
    context.textAlign = "center";
    context.fillText("★", sx, sy + 9);
  }

  function drawWords(context) {
    const style = getComputedStyle(canvas);
    Object.assign(context, { font: "600 13px system-ui, sans-serif", textAlign: "center", lineJoin: "round", lineWidth: 4, strokeStyle: style.backgroundColor, fillStyle: style.color, globalAlpha: 0.9 });
    const taken = [];
    for (const { x, y, words } of map.clusters) {
      const text = words.slice(0, 2).join(" · ");
      const [half, middle, py] = [context.measureText(text).width / 2 + 4, plane.left + x * plane.scale, plane.top + y * plane.scale];
      const px = Math.max(half, Math.min(canvas.clientWidth - half, middle)); // whole at an edge
      if (Math.abs(px - middle) > half) continue;
      if (taken.some(([ox, oy]) => Math.abs(ox - px) < 130 && Math.abs(oy - py) < 18)) continue;
      taken.push([px, py]);
      context.strokeText(text, px, py);
      context.fillText(text, px, py);
    }
    context.globalAlpha = 1;
  }

  let dwelling;
  function hover(index, x, y) {
    clearTimeout(dwelling);
    tip.hidden = true;
    if (index === null) return;
    dwelling = setTimeout(async () => {
      const { documents: [one] } = await get(within(session.collection, "documents"), { id: map.ids[index] }, { signal });
      tip.replaceChildren(foreign("b", {}, one ? headlineOf(one).headline : "Deleted since the map was made"), foreign("span", { class: "id" }, map.ids[index]));
      tip.style.transform = `translate(${Math.min(x + 12, canvas.clientWidth - 260)}px, ${y + 12}px)`;
      tip.hidden = false;
    }, DWELL);
  }

  async function list(indices, title) {
    say(`${title}: ${count(indices.length, "document")}.`);
    const shown = await Promise.all(indices.slice(0, LISTED).map((index) => get(within(session.collection, "documents"), { id: map.ids[index] }, { signal })));
    panel.replaceChildren(
      h("button", { type: "button", class: "quiet", onclick: paint }, "← groups"),
      foreign("h2", {}, `${title} (${indices.length.toLocaleString("en")})`),
      filters(indices),
      h("ol", {}, shown.flatMap(({ documents }) => documents).map((one) =>
        h("li", {}, foreign("a", { href: `#/document?${new URLSearchParams({ id: one.id })}` }, headlineOf(one).headline)))));
  }

  /** Returns the most characteristic values of these documents, as filters. */
  function filters(indices) {
    const found = Object.entries(map.fields).flatMap(([field, { values, of }]) => {
      const [inside, everywhere] = [indices, of.keys()].map((some) => {
        const counts = new Float64Array(values.length);
        for (const index of some) if (of[index] >= 0) counts[of[index]] += 1;
        return counts;
      });
      return values.map((value, index) => ({ field, value, share: inside[index] / indices.length, lift: (inside[index] / indices.length) / (everywhere[index] / of.length) }));
    }).filter(({ share, lift }) => share >= 0.3 && lift > 1.2).sort((one, other) => other.share * other.lift - one.share * one.lift).slice(0, CHARACTERISTIC);
    const searching = (filter) => `#/search?${new URLSearchParams({ q: asked.q, filter: JSON.stringify(filter) })}`;
    const among = searching({ $ids: indices.map((index) => map.ids[index]) });
    return h("p", { class: "chips" },
      among.length > LONGEST ? h("span", { class: "note" }, "Too many for a search among these. Draw a smaller line.") : h("a", { class: "chip", href: among }, "Search among these"),
      found.map(({ field, value, share }) => foreign("a", { class: "chip", title: "Search with this filter", href: searching({ [field]: value }) }, h("span", {}, `${field} `), `${value}: ${percent(share)}`)));
  }

  /** Switches between this map and the map of the version before, to which it is aligned. */
  async function slider() {
    const before = await get(within(session.collection, "map"), { version: map.aligned_to }, { signal }).catch(() => null);
    if (before === null) return "";
    const there = new Map(before.ids.map((id, index) => [id, index]));
    const range = h("input", { type: "range", min: 0, max: 100, value: 100, id: "between", oninput: () => {
      const share = range.value / 100;
      const between = (axis) => Uint16Array.from(map[axis], (value, index) => {
        const old = there.get(map.ids[index]);
        return old === undefined ? value : share * value + (1 - share) * before[axis][old];
      });
      plane.move(between("x"), between("y"));
    } });
    return h("p", { class: "row" }, h("label", { for: "between" }, `Before (${session.nameOf(map.aligned_to)})`), range, "after");
  }
}
