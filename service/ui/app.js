// The frame of the page: navigation, the current key, and a banner if the service does not answer.
//
// A view is a module with `show(main, place)`, which fills `main` and stops when `place.signal` is aborted.
// `place.params` are the parameters of the address #/view?name=value. `place.keep` changes them without
// drawing the view again, and `place.go` draws it.

import { get, key, Refused } from "./api.js";
import { h, say, select } from "./dom.js";
import { forget as forgetJudgements } from "./judgements.js";
import { askForKey } from "./key.js";
import { session } from "./session.js";
import { count } from "./text.js";

const VIEWS = {
  search: "Search",
  compare: "Compare",
  judge: "Judge",
  documents: "Documents",
  map: "Map",
  versions: "Versions",
  health: "Health",
};
const WITHIN = { document: "documents" }; // the menu entry of views without their own
const STATUS_EVERY = 10_000;
const RETRY_EVERY = 2_000;

const main = document.getElementById("main");
const banner = document.getElementById("banner");
let leaving = new AbortController();

/** Draws the view of the current address. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { view, params } = address();
  const shown = WITHIN[view] ?? view;
  drawViews(shown);
  document.title = `${VIEWS[shown]} · Simile`;
  const { signal } = leaving;
  try {
    await session.load();
    const { show: draw } = await import(`./views/${view}.js`);
    if (signal.aborted) return;
    main.replaceChildren(h("h1", { class: "unseen" }, VIEWS[shown]));
    await draw(main, { params, signal, go, keep: (changed) => history.replaceState(null, "", hash(view, changed)) });
  } catch (error) {
    if (!signal.aborted) tell(error);
  }
}

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const known = Object.hasOwn(VIEWS, path) || Object.hasOwn(WITHIN, path);
  return { view: known ? path : "search", params: new URLSearchParams(query) };
}

function hash(view, params) {
  const kept = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(kept).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Opens a view. */
function go(view, params = {}) {
  const next = hash(view, params);
  if (location.hash === next) show();
  else location.hash = next;
}

function tell(error) {
  if (!(error instanceof Refused)) console.error(error);
  if (error.status === 401) return;
  main.append(h("p", { class: "problem", role: "alert" }, error instanceof Refused ? error.message : "This view failed. The browser's console shows the error."));
}

function drawViews(shown) {
  const links = Object.entries(VIEWS).map(([view, title]) =>
    h("a", { href: `#/${view}`, "aria-current": view === shown ? "page" : null }, title));
  document.getElementById("views").replaceChildren(...links);
}

/** Updates the header: documents, version, collection and key. */
async function drawStatus() {
  const [{ active, models }, { collections }] = await Promise.all([get("models"), get("collections")]);
  session.models = models;
  const total = collections.find(({ name }) => name === session.collection)?.documents ?? 0;
  const names = [...new Set([...(session.scope ? [] : ["default"]), session.collection, ...collections.map(({ name }) => name)])];
  const choose = (name) => { session.collection = name; forgetJudgements(); show(); drawStatus(); };
  const status = document.getElementById("status");
  if (status.contains(document.activeElement)) return;
  status.replaceChildren(
    h("span", { class: "dot", "aria-hidden": "true" }),
    h("span", {}, count(total, "document")),
    names.length > 1 ? select("Collection", names, session.collection, choose) : "",
    h("a", { href: "#/versions", class: "version", title: `The active version: ${active}` }, session.nameOf(active)),
    session.name ? h("button", { type: "button", class: "quiet", onclick: leave }, `${session.name} (${session.role}): forget key`) : "");
}

function leave() {
  key.forget();
  session.forget();
  forgetJudgements();
  show();
}

/** Shows a banner and retries while the service does not answer, then draws the view again. */
let waiting = false;
async function waitUntilReached() {
  if (waiting) return;
  waiting = true;
  banner.textContent = "The service does not answer. This page tries again every two seconds.";
  banner.hidden = false;
  do {
    await new Promise((resolve) => setTimeout(resolve, RETRY_EVERY));
  } while (!(await fetch(new URL("../health", import.meta.url)).catch(() => null)));
  banner.hidden = true;
  waiting = false;
  say("The service answers again.");
  refresh();
  show();
}

function refresh() {
  if (!document.hidden && !waiting && session.known) drawStatus().catch(() => {});
}

document.addEventListener("unreachable", waitUntilReached);
document.addEventListener("changed", refresh); // A view stored or deleted something.
document.addEventListener("key-needed", () => {
  session.forget();
  leaving.abort();
  askForKey(main, () => { refresh(); show(); });
});
window.addEventListener("unhandledrejection", (event) => { // Errors of event handlers.
  if (event.reason?.name !== "AbortError" && !(event.reason instanceof Refused)) return;
  event.preventDefault();
  if (event.reason instanceof Refused) tell(event.reason);
});
window.addEventListener("hashchange", () => { show(); window.scrollTo(0, 0); main.focus({ preventScroll: true }); });
setInterval(refresh, STATUS_EVERY);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
await show();
refresh();
