// Prometheus text as numbers, and the last minutes of it.

import { text } from "./api.js";

const EVERY = 3_000;
const KEPT = 15 * 60_000;

/** Samples by name: [{ labels, value }]. */
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

/** A moment of the metrics. */
export class Moment {
  constructor(at, samples) {
    this.at = at; // milliseconds
    this.samples = samples;
  }

  /** The sum over all samples whose labels pass. */
  sum(name, pass = () => true) {
    return (this.samples.get(name) ?? []).filter(({ labels }) => pass(labels)).reduce((sum, { value }) => sum + value, 0);
  }

  /** The one sample of that name; NaN where there is none. */
  value(name, pass = () => true) {
    return (this.samples.get(name) ?? []).find(({ labels }) => pass(labels))?.value ?? NaN;
  }

  /** How often per second a counter rose since `before`. A counter that began anew counts from 0. */
  rate(before, name, pass) {
    const rise = this.sum(name, pass) - before.sum(name, pass);
    return Math.max(0, rise) / ((this.at - before.at) / 1000);
  }

  /** A quantile of what a histogram took in since `before`, as histogram_quantile has it; NaN for nothing. */
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

/** The moments of the last quarter of an hour; they go on being collected while the tab shows another view. */
export const history = {
  moments: [],
  listeners: new Set(),
  started: false,

  /** Call `listener` after each moment until `signal` is aborted. */
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
        // The frame says that the service is away; the drawing has a gap then.
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  },
};
