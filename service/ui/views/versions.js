// The versions of the model in the order of time: what became of each, why, and what may be done about it.

import { get, post } from "../api.js";
import { confirmed, foreign, h, say } from "../dom.js";
import { report } from "../report.js";
import { session } from "../session.js";
import { count, duration, moment, percent } from "../text.js";

const EVERY = 2_000;
const STATES = {
  active: ["live", "It answers every search."],
  building: ["being built", "Every document is being embedded by it, in the background."],
  ready: ["ready", "It is built, and follows every write."],
  refused: ["refused", "The gate did not let it through."],
  retired: ["retired", "It answered before."],
  failed: ["failed", "It could not be served."],
  candidate: ["published", "It was never asked to answer."],
};

export async function show(main, { signal }) {
  const schedule = h("section", { class: "card", "aria-label": "Schedule" });
  const list = h("ol", { class: "timeline" });
  const cards = new Map(); // version -> { element, drawn }
  const buttons = h("div", { class: "row end" });
  main.append(schedule, buttons, list);

  async function draw() {
    const { active, models, schedule: state } = await get("models", {}, { signal });
    schedule.replaceChildren(...scheduleOf(state));
    drawRollback(models, active);
    models.sort((a, b) => (b.created ?? b.version).localeCompare(a.created ?? a.version));
    for (const model of models) {
      const drawn = JSON.stringify(model);
      const before = cards.get(model.version);
      if (before?.drawn === drawn) continue;
      const element = before?.element ?? h("li", { class: "card version-card" });
      drawVersion(element, model, active, models);
      if (!before) list.append(element);
      cards.set(model.version, { element, drawn });
    }
    for (const [version, { element }] of cards) {
      if (!models.some((model) => model.version === version)) { element.remove(); cards.delete(version); }
    }
  }

  function drawRollback(models, active) {
    const back = session.may("admin") && models.some(({ state }) => state === "retired");
    if (back === Boolean(buttons.firstChild)) return;
    buttons.replaceChildren(back ? h("button", { type: "button", class: "danger", onclick: () => rollBack(active).then(draw) }, "Roll back …") : "");
  }

  function drawVersion(element, model, active, models) {
    const [word, meaning] = STATES[model.state];
    const building = model.state === "building" && model.total;
    const opened = element.querySelector("details[open]");
    const details = opened ?? h("details", { ontoggle: () => openReport(details, model.version) }, h("summary", {}, "The gate's report"), h("div", { class: "report" }));
    const parent = models.find(({ version }) => version === model.parent);
    element.replaceChildren(
      h("div", { class: "row between" },
        h("h2", {}, h("span", { class: `pill ${model.state}` }, word), foreign("span", { class: "version" }, model.version)),
        session.may("admin") && model.version !== active && !["building", "ready"].includes(model.state)
          ? h("button", { type: "button", onclick: () => activate(model).then(draw) }, "Activate …") : ""),
      h("p", { class: "note" },
        model.created ? `Published ${moment(model.created)}. ` : "", meaning,
        parent ? h("span", {}, ` Trained from ${parent.version}.`) : ""),
      model.reason ? foreign("p", { class: model.state === "refused" ? "reason" : "problem" }, `${model.reason}`) : "",
      building ? progressOf(model) : "",
      model.canary ? h("p", {}, overlapOf(model.canary)) : "",
      scoresOf(model.scores),
      model.gate ? details : "");
  }

  async function repeat() {
    while (!signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, EVERY));
      if (!document.hidden && !signal.aborted) await draw().catch(() => {});
    }
  }

  await draw();
  repeat();
}

function scheduleOf(state) {
  if (!state) return [h("p", {}, "No schedule of retrainings runs here. By hand: ", h("code", {}, "python -m training retrain --from-service ADDRESS"), ".")];
  const last = state.last_run;
  return [
    foreign("p", { class: "lead" }, state.says),
    last ? foreign("p", { class: "note" }, `Last run: ${last.outcome ?? "unknown"}, ${moment(last.ended)}${last.reason ? `: ${last.reason}` : ""}.`) : "",
    state.next_run ? h("p", { class: "note" }, `Next run: ${moment(state.next_run)}.`) : "",
  ];
}

function progressOf({ done, total, eta_seconds: eta }) {
  return h("p", {},
    h("progress", { max: total, value: done, "aria-label": "Documents embedded" }),
    ` ${done.toLocaleString("en")} of ${count(total, "document")}${eta === null ? "" : `, about ${duration(eta)} left`}`);
}

function overlapOf({ queries, overlap_at_10: overlap }) {
  return `${percent(overlap)} of its first ten hits were those of the version then live (${count(queries, "canary query").replace("querys", "queries")}).`;
}

function scoresOf(scores) {
  const rows = flat(scores).slice(0, 12);
  if (!rows.length) return "";
  return h("details", {}, h("summary", {}, "Scores"), h("table", { class: "facts" }, h("tbody", {}, rows.map(([name, value]) =>
    h("tr", {}, foreign("th", { scope: "row" }, name), h("td", { class: "number" }, value.toFixed(4)))))));
}

/** Numbers of nested objects by the path to them. */
function flat(scores, path = "") {
  return Object.entries(scores).flatMap(([name, value]) => {
    const whole = path ? `${path}.${name}` : name;
    if (typeof value === "number") return [[whole, value]];
    return value !== null && typeof value === "object" ? flat(value, whole) : [];
  });
}

async function openReport(details, version) {
  const place = details.lastElementChild;
  if (!details.open || place.firstChild) return;
  try {
    place.append(...report(await get(`models/${encodeURIComponent(version)}/report`)));
  } catch (error) {
    place.append(h("p", { class: "note" }, error.message));
  }
}

async function activate(model) {
  const known = model.canary ? ` ${percent(model.canary.overlap_at_10)} of first pages stay the same.` : " How many first pages change is measured before it goes live.";
  const refused = model.state === "refused" ? " The gate refused it; going on overrules the gate." : "";
  await change(`models/${encodeURIComponent(model.version)}/activate`, "Make this version live?",
    `${model.version} embeds what it lacks in the background, then model and index change at once. Requests go on meanwhile.${known}${refused}`, "Activate");
}

async function rollBack(active) {
  await change("models/rollback", "Go back to the version before?", `Searches are answered by the version before ${active} again, with its own vectors. ${active} is not chosen again unless somebody activates it.`, "Roll back");
}

async function change(path, question, explanation, agree) {
  if (!(await confirmed(question, explanation, agree))) return;
  try {
    const { wanted } = await post(path, undefined);
    say(`${wanted} is wanted now.`);
  } catch (error) {
    await confirmed("That was refused", error.message, "Understood");
  }
  document.dispatchEvent(new Event("changed"));
}
