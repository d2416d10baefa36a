// The model versions by time, with their state, its reason, and possible actions.

import { addressOf, get, key, post } from "../api.js";
import { curves } from "../curve.js";
import { confirmed, facts, foreign, h, later, prose, say, versionName } from "../dom.js";
import { gainInWords, report } from "../report.js";
import { session } from "../session.js";
import { count, duration, moment, percent, retrainCommand } from "../text.js";

const EVERY = 2_000;
const SILENT = 600_000; // milliseconds without news of a retraining before the page says so
const KEEP = 3600; // seconds
const REPORTED = 10; // newest versions whose gain is loaded at once
// Phases of a retraining by their names. It scores the active version first, and the candidate last.
const PHASES = [/^beginning/, /^reading the documents/, /^(scoring|searching)/, /^training/, /^(reading the model|exporting|writing)/, /^verifying/, /^(calibrating|leaving)/, /^(scoring|searching)/, /^timing/];
const RESULTS = { // by the outcome of a retraining
  published: "A better version was published.", refused: "No candidate was better, so nothing changed.", "nothing to learn": "There was nothing new to learn.",
  busy: "Another retraining was running.", stopped: "It was stopped, and the next run continues it.", failed: "It failed, and nothing changed.",
};
const STATES = {
  active: ["active", "It answers all searches."],
  building: ["being built", "It embeds all documents in the background."],
  ready: ["ready", "It is complete, and every write updates it."],
  refused: ["refused", "The gate rejected it."],
  retired: ["retired", "It was active before."],
  failed: ["failed", "It could not be loaded."],
  candidate: ["published", "It was never activated."],
};
const RERANKER_STATES = {
  ...STATES,
  active: ["active reranker", "It orders the best hits of searches again."],
  building: ["reranker being opened", "It is opened next to the active version."],
  retired: ["retired reranker", "It was the active reranker before."],
  failed: ["failed reranker", "It could not be opened."],
  candidate: ["published reranker", "It is not in use."],
};

export async function show(main, { signal }) {
  const schedule = h("section", { class: "card", "aria-label": "Retraining" });
  const hand = h("div"); // the running retraining, which is updated without closing other parts
  let told = "";
  const list = h("ol", { class: "timeline" });
  const cards = new Map(); // version -> { element, drawn, reported }
  const buttons = h("div", { class: "row end" });
  const trouble = h("div"); // why the wanted reranker is not active
  main.append(schedule, trouble, buttons, list);

  const command = retrainCommand(addressOf("").href, await get("info", {}, { signal }), key.get());

  async function draw() {
    const { active, models, reranker, schedule: state } = await get("models", {}, { signal });
    session.models = models;
    const { progress = null, ...rest } = state ?? {};
    hand.replaceChildren(progress ? running(progress) : "");
    const made = madeBy(state?.last_run, models);
    if (told !== (told = JSON.stringify([rest, made]))) schedule.replaceChildren(...scheduleOf(state, hand, command, retrainButton(state), made ? h("button", { type: "button", onclick: () => openReport(made) }, "Read its report") : ""));
    drawRollback(models, active, reranker);
    trouble.replaceChildren(reranker.reason ? foreign("p", { class: "problem" }, reranker.reason) : "");
    models.sort((a, b) => (b.created ?? b.version).localeCompare(a.created ?? a.version));
    for (const model of models) {
      const drawn = JSON.stringify(model);
      const before = cards.get(model.version);
      if (before?.drawn === drawn) continue;
      const element = before?.element ?? h("li", { class: "card version-card" });
      const reported = drawVersion(element, model, active, models);
      if (!before) list.append(element);
      cards.set(model.version, { element, drawn, reported });
    }
    for (const [version, { element }] of cards) {
      if (!models.some((model) => model.version === version)) { element.remove(); cards.delete(version); }
    }
  }

  function retrainButton(state) {
    if (!session.may("admin") || !state?.trainer || ["running", "requested"].includes(state.state)) return "";
    return h("button", { type: "button", class: "primary", onclick: () => change("retraining", "Retrain now?",
      "The trainer learns from the judgments, clicks and texts of now. A new version becomes active only if it is better. A ranking takes seconds to minutes, a model up to hours.", "Retrain").then(draw) }, "Retrain …");
  }

  function openReport(version) {
    const { element, reported } = cards.get(version);
    reported.details.open = true;
    element.scrollIntoView();
  }

  function drawRollback(models, active, { previous }) {
    const back = session.may("admin") && models.some(({ state, kind }) => state === "retired" && kind !== "reranker");
    const other = session.may("admin") && previous;
    if (buttons.dataset.shown === (buttons.dataset.shown = `${back} ${other}`)) return;
    buttons.replaceChildren(other ? h("button", { type: "button", class: "danger", onclick: () => change("models/rollback?kind=reranker", "Go back to the previous reranker?",
      `${session.nameOf(other)} orders the best hits of searches again. The active version stays.`, "Roll back").then(draw) }, "Roll back the reranker …") : "", back ? h("button", { type: "button", class: "danger", onclick: () => change("models/rollback", "Go back to the previous version?",
      `The version before ${session.nameOf(active)} answers searches again, with its own vectors. ${session.nameOf(active)} is not used again until you activate it.`, "Roll back").then(draw) }, "Roll back …") : "");
  }

  function drawVersion(element, model, active, models) {
    const reranks = model.kind === "reranker";
    const [word, meaning] = (reranks ? RERANKER_STATES : STATES)[model.state];
    const building = model.state === "building" && model.total;
    const reported = cards.get(model.version)?.reported ?? reportOf(model, models.indexOf(model) < REPORTED);
    const parent = models.find(({ version }) => version === model.parent);
    element.replaceChildren(
      h("div", { class: "row between" },
        h("h2", {}, h("span", { class: `pill ${model.state}` }, word), versionName(model.version, session.nameOf(model.version))),
        model.version === active || (reranks && model.state === "active") ? "" : h("div", { class: "row" }, reranks ? "" : comparing(model),
          session.may("admin") && model.state !== "building"
            ? h("button", { type: "button", onclick: () => activate(model).then(draw) }, "Activate …") : "")),
      h("p", { class: "note" },
        meaning, parent ? ` Trained from ${session.nameOf(parent.version)}.` : "",
        reported.row),
      model.reason ? foreign("p", { class: model.state === "refused" ? "reason" : "problem" }, `${model.reason}`) : "",
      building ? progressOf(model) : "",
      model.canary?.overlap_at_10 < 1 ? h("p", {}, `It changes ${percent(1 - model.canary.overlap_at_10)} of the first ten hits, against the version active when it was built (${count(model.canary.queries, "query")}).`) : "",
      scoresOf(model.scores),
      model.gate ? reported.details : "");
    return reported;
  }

  /** Returns a link to compare the version, or a button to open it for an admin. */
  function comparing(model) {
    if (model.loaded && model.state !== "building") return h("a", { class: "button", href: `#/compare?${new URLSearchParams({ b: model.version })}` }, "Compare");
    if (!session.may("admin") || ["building", "failed"].includes(model.state)) return "";
    return h("button", { type: "button", onclick: () => change(`models/${encodeURIComponent(model.version)}/keep?seconds=${KEEP}`, "Open this version to compare?",
      `${session.nameOf(model.version)} is opened next to the active version for ${duration(KEEP)}. It embeds missing documents in the background and needs memory. This does not activate it.`, "Open").then(draw) }, "Open to compare …");
  }

  await draw();
  const timer = setInterval(() => document.hidden || draw().catch(() => {}), EVERY);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** Returns recipe and gain of a version, and its report after it is opened. */
function reportOf({ version, gate }, atOnce) {
  const ask = () => get(`models/${encodeURIComponent(version)}/report`);
  const row = foreign("span", {});
  const tell = ({ gains: [gain] = [], summary: [first] = [], meta: { recipe } = {} }) =>
    row.replaceChildren(recipe ? ` Recipe ${recipe}.` : "", recipe === "ranking" ? ` ${first}` : gain ? ` ${gainInWords(gain)}.` : "");
  if (gate === "on" && atOnce) ask().then(tell, () => {}); // Opening the report shows the error.
  return { row, details: later("The gate's report", async () => report(await ask(), version)) };
}

/** Returns the version that a run published, also as refused, or undefined. */
function madeBy({ started, ended } = {}, models) {
  return models.find(({ gate, created }) => gate === "on" && created >= started && created <= ended)?.version;
}

function scheduleOf(state, hand, command, retrain, read) {
  const byHand = h("p", { class: "note" }, "By hand, on the machine with this models folder: ", h("code", {}, command));
  if (!state) return [h("h2", {}, "Retraining"), h("p", {}, "No schedule of retrainings runs here."), byHand];
  const { last_run: last, ends = [] } = state;
  const words = { running: "A retraining is running.", requested: "A retraining was requested, and begins within seconds.", waiting: `The next retraining begins ${moment(state.next_run)}.` };
  return [
    h("h2", {}, "Retraining"),
    foreign("p", { class: "lead" }, words[state.state] ?? prose(state.says)),
    hand,
    last ? h("p", {}, `The last run ended ${moment(last.ended)}. ${RESULTS[last.outcome] ?? RESULTS.failed} `, foreign("span", { class: "note" }, last.reason ?? "")) : "",
    h("div", { class: "row" }, retrain, read),
    last ? h("details", {}, h("summary", {}, `Last run: ${ended(last)}`), foreign("pre", { tabindex: "0", "aria-label": "Its output" }, last.said || "No output.")) : "",
    ends.length > 1 ? h("details", {}, h("summary", {}, "Earlier runs"), h("ul", { class: "plain" }, ends.slice(1).map((one) => foreign("li", { class: "note" }, ended(one))))) : "",
    state.state === "running" ? "" : byHand,
  ];
}

function ended({ outcome, started, ended: end, why }) {
  const seconds = (new Date(end) - new Date(started)) / 1000;
  return `${outcome ?? "unknown"}, ${moment(end)}, after ${duration(seconds)}${{ documents: ", started by new documents", request: ", requested here" }[why] ?? ""}`;
}

/** Returns the running retraining: its phase, its progress and its output so far. */
function running(progress) {
  const { doing, started, step, steps, eta_seconds: eta, updated } = progress;
  const begins = (phase) => phase.test(doing);
  const phase = 1 + (step > 0 ? PHASES.findLastIndex(begins) : PHASES.findIndex(begins));
  return h("div", {},
    foreign("p", {}, phase ? `Phase ${phase} of ${PHASES.length}: ${doing}` : `${doing[0].toUpperCase()}${doing.slice(1)}`, steps ? `, step ${step.toLocaleString("en")} of ${steps.toLocaleString("en")}` : "", eta ? `, about ${duration(eta)} left` : "", `. Since ${moment(started)}.`),
    steps ? h("progress", { max: steps, value: step, "aria-label": "Steps of the training" }) : "",
    Date.now() - new Date(updated) > SILENT ? h("p", { class: "note" }, `Its last message came ${moment(updated)}.`) : "",
    curves(progress));
}

function progressOf({ done, total, eta_seconds: eta }) {
  return h("p", {},
    h("progress", { max: total, value: done, "aria-label": "Documents embedded" }),
    ` ${done.toLocaleString("en")} of ${count(total, "document")}${eta === null ? "" : `, about ${duration(eta)} left`}`);
}

function scoresOf(scores) {
  const rows = flat(scores).slice(0, 12);
  return rows.length ? h("details", {}, h("summary", {}, "Scores"), facts(rows.map(([name, value]) => [name, value.toFixed(4)]))) : "";
}

/** Returns the numbers of nested objects by their paths. */
function flat(scores, path = "") {
  return Object.entries(scores ?? {}).flatMap(([name, value]) =>
    (typeof value === "number" ? [[path + name, value]] : typeof value === "object" ? flat(value, `${path}${name}.`) : []));
}

async function activate(model) {
  const known = model.canary ? ` ${percent(model.canary.overlap_at_10)} of first pages stay the same.` : " The change of first pages is measured before this version becomes active.";
  const refused = model.state === "refused" ? " The gate rejected it. Activating it overrules the gate." : "";
  const path = `models/${encodeURIComponent(model.version)}/activate`;
  if (model.kind === "reranker") {
    await change(path, "Activate this reranker?", `${session.nameOf(model.version)} orders the best hits of searches again, when it is open. It replaces the active reranker. The active version stays.${refused}`, "Activate");
    return;
  }
  await change(path, "Activate this version?",
    `${session.nameOf(model.version)} embeds missing documents in the background, then model and index change at once. Requests are answered meanwhile.${known}${refused}`, "Activate");
}

async function change(path, question, explanation, agree) {
  if (!(await confirmed(question, explanation, agree))) return;
  try {
    await post(path, undefined);
    say("Done.");
  } catch (error) {
    await confirmed("The service rejected this", prose(error.message), "Understood");
  }
  document.dispatchEvent(new Event("changed"));
}
