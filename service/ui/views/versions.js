// The versions of the model in the order of time: what became of each, why, and what may be done about it.

import { addressOf, get, key, post } from "../api.js";
import { curves } from "../curve.js";
import { confirmed, facts, foreign, h, later, say } from "../dom.js";
import { gainInWords, report } from "../report.js";
import { session } from "../session.js";
import { count, duration, moment, percent, retrainCommand } from "../text.js";

const EVERY = 2_000;
const SILENT = 600_000; // milliseconds without a word of a retraining, until that is said
const KEEP = 3600; // seconds
const REPORTED = 10; // newest versions whose gain is shown before their report is opened
// Phases of a retraining, by how it tells them. It scores twice: the live version before it trains, then the candidate.
const PHASES = [/^beginning/, /^reading the documents/, /^(scoring|searching)/, /^training/, /^(reading the model|exporting|writing)/, /^proving/, /^(calibrating|leaving)/, /^(scoring|searching)/, /^timing/];
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
  const schedule = h("section", { class: "card", "aria-label": "Retraining" });
  const hand = h("div"); // the retraining in hand: drawn anew while what is open beside it stays open
  let told = "";
  const list = h("ol", { class: "timeline" });
  const cards = new Map(); // version -> { element, drawn, reported }
  const buttons = h("div", { class: "row end" });
  main.append(schedule, buttons, list);

  const command = retrainCommand(addressOf("").href, await get("info", {}, { signal }), key.get());

  async function draw() {
    const { active, models, schedule: state } = await get("models", {}, { signal });
    const { progress = null, ...rest } = state ?? {};
    hand.replaceChildren(progress ? running(progress) : "");
    if (told !== (told = JSON.stringify(rest))) schedule.replaceChildren(...scheduleOf(state, hand, command));
    drawRollback(models, active);
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

  function drawRollback(models, active) {
    const back = session.may("admin") && models.some(({ state }) => state === "retired");
    if (back === Boolean(buttons.firstChild)) return;
    buttons.replaceChildren(back ? h("button", { type: "button", class: "danger", onclick: () => change("models/rollback", "Go back to the version before?",
      `Searches are answered by the version before ${active} again, with its own vectors. ${active} is not chosen again unless somebody activates it.`, "Roll back").then(draw) }, "Roll back …") : "");
  }

  function drawVersion(element, model, active, models) {
    const [word, meaning] = STATES[model.state];
    const building = model.state === "building" && model.total;
    const reported = cards.get(model.version)?.reported ?? reportOf(model, models.indexOf(model) < REPORTED);
    const parent = models.find(({ version }) => version === model.parent);
    element.replaceChildren(
      h("div", { class: "row between" },
        h("h2", {}, h("span", { class: `pill ${model.state}` }, word), foreign("span", { class: "version" }, model.version)),
        model.version === active ? "" : h("div", { class: "row" }, comparing(model),
          session.may("admin") && model.state !== "building"
            ? h("button", { type: "button", onclick: () => activate(model).then(draw) }, "Activate …") : "")),
      h("p", { class: "note" },
        model.created ? `Published ${moment(model.created)}. ` : "", meaning,
        parent ? h("span", {}, ` Trained from ${parent.version}.`) : "",
        reported.row),
      model.reason ? foreign("p", { class: model.state === "refused" ? "reason" : "problem" }, `${model.reason}`) : "",
      building ? progressOf(model) : "",
      model.canary ? h("p", {}, `${percent(model.canary.overlap_at_10)} of its first ten hits were those of the version then live (${count(model.canary.queries, "canary query")}).`) : "",
      scoresOf(model.scores),
      model.gate ? reported.details : "");
    return reported;
  }

  /** A way to ask it beside the live one; an admin may open it for that. */
  function comparing(model) {
    if (model.loaded && model.state !== "building") return h("a", { class: "button", href: `#/compare?${new URLSearchParams({ b: model.version })}` }, "Compare");
    if (!session.may("admin") || ["building", "failed"].includes(model.state)) return "";
    return h("button", { type: "button", onclick: () => change(`models/${encodeURIComponent(model.version)}/keep?seconds=${KEEP}`, "Open this version to compare?",
      `${model.version} is opened beside the live one for ${duration(KEEP)}: it embeds what it lacks in the background and takes memory. It never goes live by this.`, "Open").then(draw) }, "Open to compare …");
  }

  await draw();
  const timer = setInterval(() => document.hidden || draw().catch(() => {}), EVERY);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** What is known of a version's making: its recipe and gain for its row, and all of the report, once opened. */
function reportOf({ version, gate }, atOnce) {
  const ask = () => get(`models/${encodeURIComponent(version)}/report`);
  const row = foreign("span", {}, ` ${gate ? "Recipe" : "From"} ${version.split("-").slice(1, -1).join("-")}.`);
  const tell = ({ gains: [gain] = [], meta: { recipe } = {} }) => row.replaceChildren(recipe ? ` Recipe ${recipe}.` : "", gain ? ` ${gainInWords(gain)}.` : "");
  if (gate === "on" && atOnce) ask().then(tell, () => {}); // opening the report says why there is none
  return { row, details: later("The gate's report", async () => report(await ask(), version)) };
}

function scheduleOf(state, hand, command) {
  const byHand = h("p", { class: "note" }, "By hand, where this models folder is: ", h("code", {}, command));
  if (!state) return [h("h2", {}, "Retraining"), h("p", {}, "No schedule of retrainings runs here."), byHand];
  const { last_run: last, ends = [] } = state;
  const words = { running: "A retraining is running.", waiting: `The next retraining begins ${moment(state.next_run)}.` };
  return [
    h("h2", {}, "Retraining"),
    foreign("p", { class: "lead" }, words[state.state] ?? state.says),
    hand,
    last ? h("details", {}, h("summary", {}, `Last run: ${ended(last)}`), foreign("pre", { tabindex: "0", "aria-label": "What it said" }, last.said || "It said nothing.")) : "",
    ends.length > 1 ? h("details", {}, h("summary", {}, "The runs before"), h("ul", { class: "plain" }, ends.slice(1).map((one) => foreign("li", { class: "note" }, ended(one))))) : "",
    state.state === "running" ? "" : byHand,
  ];
}

function ended({ outcome, started, ended: end, why }) {
  const seconds = (new Date(end) - new Date(started)) / 1000;
  return `${outcome ?? "unknown"}, ${moment(end)}, after ${duration(seconds)}${why === "documents" ? ", begun by new documents" : ""}`;
}

/** The retraining in hand: what it does, how far it is, and its lines so far. */
function running(progress) {
  const { doing, step, steps, eta_seconds: eta, updated } = progress;
  const begins = (phase) => phase.test(doing);
  const phase = 1 + (step > 0 ? PHASES.findLastIndex(begins) : PHASES.findIndex(begins));
  return h("div", {},
    foreign("p", {}, phase ? `Phase ${phase} of ${PHASES.length}: ${doing}` : `${doing[0].toUpperCase()}${doing.slice(1)}`, steps ? `, step ${step.toLocaleString("en")} of ${steps.toLocaleString("en")}` : "", eta ? `, about ${duration(eta)} left` : "", ". "),
    steps ? h("progress", { max: steps, value: step, "aria-label": "Steps of the training" }) : "",
    Date.now() - new Date(updated) > SILENT ? h("p", { class: "note" }, `It was last heard of ${moment(updated)}.`) : "",
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

/** Numbers of nested objects by the path to them. */
function flat(scores, path = "") {
  return Object.entries(scores ?? {}).flatMap(([name, value]) =>
    (typeof value === "number" ? [[path + name, value]] : typeof value === "object" ? flat(value, `${path}${name}.`) : []));
}

async function activate(model) {
  const known = model.canary ? ` ${percent(model.canary.overlap_at_10)} of first pages stay the same.` : " How many first pages change is measured before it goes live.";
  const refused = model.state === "refused" ? " The gate refused it; going on overrules the gate." : "";
  await change(`models/${encodeURIComponent(model.version)}/activate`, "Make this version live?",
    `${model.version} embeds what it lacks in the background, then model and index change at once. Requests go on meanwhile.${known}${refused}`, "Activate");
}

async function change(path, question, explanation, agree) {
  if (!(await confirmed(question, explanation, agree))) return;
  try {
    await post(path, undefined);
    say("Done.");
  } catch (error) {
    await confirmed("That was refused", error.message, "Understood");
  }
  document.dispatchEvent(new Event("changed"));
}
