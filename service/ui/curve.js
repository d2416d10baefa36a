// Draws loss and dev score of a training by step.

import { h, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 110;
const EDGE = 6;
const DEV = { stsb_dev: "Dev score (STS-B)", search_dev: "Dev score (search)" };

/** Returns up to two charts. curve: { loss, dev, dev_name } with points [step, value]. */
export function curves({ loss = [], dev = [], dev_name: name = "" } = {}) {
  const lines = [["Loss", loss], [DEV[name] ?? name, dev]].filter(([, points]) => points.length > 1);
  if (!lines.length) return "";
  return h("div", { class: "curves" }, lines.map(([title, points]) => drawn(title, points)));
}

function drawn(title, points) {
  const values = points.map(([, value]) => value);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const [first, last] = [points[0], points.at(-1)];
  const x = (step) => EDGE + ((step - first[0]) / (last[0] - first[0])) * (WIDTH - 2 * EDGE);
  const y = (value) => HEIGHT - EDGE - ((value - least) / (most - least || 1)) * (HEIGHT - 2 * EDGE);
  const path = points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const sentence = `${title} from ${first[1].toFixed(3)} at step ${first[0]} to ${last[1].toFixed(3)} at step ${last[0]}`;
  return h("figure", {},
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": sentence, class: "curve", preserveAspectRatio: "none" },
      svg("line", { x1: EDGE, x2: WIDTH - EDGE, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "base" }),
      svg("path", { d: path })),
    h("figcaption", { class: "note" }, `${sentence}.${[least, most].every((value) => value === first[1] || value === last[1]) ? "" : ` Least ${least.toFixed(3)}, most ${most.toFixed(3)}.`}`));
}
