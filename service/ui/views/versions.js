// The model versions by time, with their state, its reason, and possible actions.

import { addressOf, call, get, key } from "../api.js";
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

  const info = await get("info", {}, { signal });
  const command = retrainCommand(addressOf("").href, info, key.get());

  async function draw() {
    const { active, models, reranker, schedule: state } = await get("models", {}, { signal });
    session.models = models;
    const { progress = null, ...rest } = state ?? {};
    hand.replaceChildren(progress ? running(progress) : "");
    const made = madeBy(state?.last_run, models);
    if (told !== (told = JSON.stringify([rest, made]))) schedule.replaceChildren(...scheduleOf(state, hand, command, retrainButton(state), made ? h("button", { type: "button", onclick: () => openReport(made) }, "Read its report") : ""));
    drawRollback(models, active, reranker);
    const testing = models.find((model) => model.live_test?.ended === null);
    trouble.replaceChildren(reranker.reason ? foreign("p", { class: "problem" }, reranker.reason) : "");
    models.sort((a, b) => (b.created ?? b.version).localeCompare(a.created ?? a.version));
    for (const model of models) {
      const drawn = JSON.stringify([{ ...model, live_test: null }, testing?.version]);
      const before = cards.get(model.version);
      before?.reported.test.replaceChildren(...testOf(model));
      if (before?.drawn === drawn) continue;
      const element = before?.element ?? h("li", { class: "card version-card" });
      const reported = drawVersion(element, model, active, models, testing);
      if (!before) list.append(element);
      cards.set(model.version, { element, drawn, reported });
    }
    for (const [version, { element }] of cards) {
      if (!models.some((model) => model.version === version)) { element.remove(); cards.delete(version); }
    }
  }

  /** Returns a button that makes a change after a question and draws the new state, or "" for other roles. */
  function action(label, path, question, explanation, agree, kind = null) {
    return session.may("admin") && h("button", { type: "button", class: kind, onclick: () => change(path, question, explanation, agree).then(draw) }, `${label} …`);
  }

  function retrainButton(state) {
    return state?.trainer && !["running", "requested"].includes(state.state) && action("Retrain", "retraining", "Retrain now?",
      "The trainer learns from the judgments, clicks and texts of now. A new version becomes active only if it is better. A ranking takes seconds to minutes, a model up to hours.", "Retrain", "primary");
  }

  function openReport(version) {
    const { element, reported } = cards.get(version);
    reported.details.open = true;
    element.scrollIntoView();
  }

  function drawRollback(models, active, { previous }) {
    const back = models.some(({ state, kind }) => state === "retired" && kind !== "reranker");
    if (buttons.dataset.shown === (buttons.dataset.shown = `${back} ${previous}`)) return;
    buttons.replaceChildren(...[previous && action("Roll back the reranker", "models/rollback?kind=reranker", "Go back to the previous reranker?",
      `${session.nameOf(previous)} orders the best hits of searches again. The active version stays.`, "Roll back", "danger"), back && action("Roll back", "models/rollback", "Go back to the previous version?",
      `The version before ${session.nameOf(active)} answers searches again, with its own vectors. ${session.nameOf(active)} is not used again until you activate it.`, "Roll back", "danger")].filter(Boolean));
  }

  function drawVersion(element, model, active, models, testing) {
    const reranks = model.kind === "reranker";
    const [word, meaning] = (reranks ? RERANKER_STATES : STATES)[model.state];
    const building = model.state === "building" && model.total;
    const reported = cards.get(model.version)?.reported ?? reportOf(model, models.indexOf(model) < REPORTED);
    const parent = models.find(({ version }) => version === model.parent);
    element.replaceChildren(
      h("div", { class: "row between" },
        h("h2", {}, h("span", { class: `pill ${model.state}` }, word), versionName(model.version, session.nameOf(model.version))),
        h("div", { class: "row" }, model.version !== active && !reranks && [comparing(model), testOn(model, testing)], model.version !== active && activation(model))),
      h("p", { class: "note" },
        meaning, parent ? ` Trained from ${session.nameOf(parent.version)}.` : "",
        reported.row),
      reported.test,
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
    return !["building", "failed"].includes(model.state) && action("Open to compare", `${pathOf(model)}/keep?seconds=${KEEP}`, "Open this version to compare?",
      `${session.nameOf(model.version)} is opened next to the active version for ${duration(KEEP)}. It embeds missing documents in the background and needs memory. This does not activate it.`, "Open");
  }

  /** Returns a button that starts or stops a live test of the version. One test runs at a time. */
  function testOn(model, testing) {
    const name = session.nameOf(model.version);
    if (testing) return testing === model && action("Stop test", `${pathOf(model)}/test`, "Stop the live test?", `Searches show hits of the active version alone again. ${name} is not activated, and its results so far are kept.`, "Stop", "danger");
    return info.live_test > 0 && !["building", "failed"].includes(model.state) && action("Start test", `${pathOf(model)}/test`, "Start a live test?",
      `${percent(info.live_test)} of the searches show hits of ${name} and of the active version in turn. Clicks decide: it becomes active if it wins. Otherwise the active version stays.`, "Start");
  }

  function activation({ version, kind, state, canary }) {
    const path = `${pathOf({ version })}/activate`;
    const refused = state === "refused" ? " The gate rejected it. Activating it overrules the gate." : "";
    if (kind === "reranker" && state === "active") return action("Deactivate", "models/deactivate", "Deactivate the reranker?", "Searches are no longer reranked. The active version stays. Roll back the reranker to use it again.", "Deactivate");
    if (kind === "reranker") return state !== "building" && action("Activate", path, "Activate this reranker?", `${session.nameOf(version)} orders the best hits of searches again, when it is open. It replaces the active reranker. The active version stays.${refused}`, "Activate");
    const known = canary ? ` ${percent(canary.overlap_at_10)} of first pages stay the same.` : " The change of first pages is measured before this version becomes active.";
    return state !== "building" && action("Activate", path, "Activate this version?", `${session.nameOf(version)} embeds missing documents in the background, then model and index change at once. Requests are answered meanwhile.${known}${refused}`, "Activate");
  }

  await draw();
  const timer = setInterval(() => document.hidden || draw().catch(() => {}), EVERY);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** Returns the state of the version's live test. */
const testOf = ({ live_test: test }) => (test ? [h("b", {}, test.ended ? `Live test, ended ${moment(test.ended)}: ` : `Live test since ${moment(test.started)}: `), test.says] : []);

/** Returns recipe and gain of a version, the state of its live test, and its report after it is opened. */
function reportOf(model, atOnce) {
  const ask = () => get(`${pathOf(model)}/report`);
  const row = foreign("span", {});
  const tell = ({ gains: [gain] = [], summary: [first] = [], meta: { recipe } = {} }) =>
    row.replaceChildren(recipe ? ` Recipe ${recipe}.` : "", recipe === "ranking" ? ` ${first}` : gain ? ` ${gainInWords(gain)}.` : "");
  if (model.gate === "on" && atOnce) ask().then(tell, () => {}); // Opening the report shows the error.
  return { row, test: foreign("p", {}, testOf(model)), details: later("The gate's report", async () => report(await ask(), model.version)) };
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

const pathOf = ({ version }) => `models/${encodeURIComponent(version)}`;

async function change(path, question, explanation, agree) {
  if (!(await confirmed(question, explanation, agree))) return;
  try {
    await call(agree === "Stop" ? "DELETE" : "POST", path);
    say("Done.");
  } catch (error) {
    await confirmed("The service rejected this", prose(error.message), "Understood");
  }
  document.dispatchEvent(new Event("changed"));
}
