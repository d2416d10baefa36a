// Parses Prometheus metrics and keeps the last minutes of them.

import { text } from "./api.js";

const EVERY = 3_000;
const KEPT = 15 * 60_000;

/** Returns samples by name: [{ labels, value }]. */
export function parse(exposition) {
  const found = new Map();
  for (const line of exposition.split("\n")) {
    const [, name, labelled = "", value] = line.match(/^([a-z_]+)(?:\{(.*)\})? (\S+)$/) ?? [];
    if (name === undefined) continue;
    const labels = Object.fromEntries([...labelled.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map(([, label, own]) => [label, own]));
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels, value: value === "+Inf" ? Infinity : Number(value) });
  }
  return found;
}

/** The metrics at one time. */
export class Moment {
  constructor(at, samples) {
    this.at = at; // milliseconds
    this.samples = samples;
  }

  /** Returns the sum of all samples whose labels match. */
  sum(name, pass = () => true) {
    return (this.samples.get(name) ?? []).filter(({ labels }) => pass(labels)).reduce((sum, { value }) => sum + value, 0);
  }

  /** Returns the single sample of a name, or NaN. */
  value(name, pass = () => true) {
    return (this.samples.get(name) ?? []).find(({ labels }) => pass(labels))?.value ?? NaN;
  }

  /** Returns the rate of a counter per second since `before`. After a restart it counts from 0. */
  rate(before, name, pass) {
    const rise = this.sum(name, pass) - before.sum(name, pass);
    return Math.max(0, rise) / ((this.at - before.at) / 1000);
  }

  /** Returns a quantile of a histogram's observations since `before`, like histogram_quantile, or NaN. */
  quantile(before, name, share, pass = () => true) {
    const rises = new Map();
    for (const [moment, sign] of [[this, 1], [before, -1]]) {
      for (const { labels, value } of moment.samples.get(`${name}_bucket`) ?? []) {
        const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
        if (pass(labels)) rises.set(bound, (rises.get(bound) ?? 0) + sign * value);
      }
    }
    const buckets = [...rises].sort(([a], [b]) => a - b);
    const total = buckets.at(-1)?.[1] ?? 0;
    if (!(total > 0)) return NaN;
    let [lower, below] = [0, 0];
    for (const [bound, count] of buckets) {
      if (count >= share * total) return bound === Infinity ? lower : lower + ((bound - lower) * (share * total - below)) / Math.max(1, count - below);
      [lower, below] = [bound, count];
    }
    return lower;
  }
}

/** The metrics of the last 15 minutes. Collection continues while another view is shown. */
export const history = {
  moments: [],
  listeners: new Set(),
  started: false,

  /** Calls `listener` after each update until `signal` is aborted. */
  follow(listener, signal) {
    this.listeners.add(listener);
    signal.addEventListener("abort", () => this.listeners.delete(listener));
    if (!this.started) this.collect();
    else listener();
  },

  async collect() {
    this.started = true;
    for (;;) {
      try {
        this.moments.push(new Moment(performance.now(), parse(await text("metrics"))));
        this.moments = this.moments.filter(({ at }) => at > performance.now() - KEPT);
        this.listeners.forEach((listener) => listener());
      } catch {
        // The frame shows that the service does not answer. The chart then has a gap.
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  },
};
