// The judgements that this caller has stored, so that thumbs show what is there and can take it back.

import { get, post, remove, within } from "./api.js";
import { session } from "./session.js";

const PAGE = 1000;
const MOST = 20_000;
export const ENOUGH = 20; // different queries from which on the gate judges by them (docs/RETRAINING.md)

let loading = null; // of Map: query -> Map: id -> relevant

const owner = () => session.name ?? "-"; // how the API names callers without a key

/** query -> id -> relevant, of this caller in this collection. */
export function judged() {
  loading ??= load().catch((error) => { forget(); throw error; });
  return loading;
}

export function forget() {
  loading = null;
}

async function load() {
  const found = new Map();
  let after = 0;
  for (let read = 0; after !== null && read < MOST; read += PAGE) {
    const page = await get(within(session.collection, "feedback"), { key: owner(), limit: PAGE, after });
    for (const { query, id, relevant } of page.feedback) note(found, query, id, relevant);
    after = page.next;
  }
  return found;
}

const note = (all, query, id, relevant) => all.set(query, (all.get(query) ?? new Map()).set(id, relevant));

/** Store a judgement, or take it back when `relevant` is null. */
export async function judge(query, id, relevant) {
  const all = await judged();
  if (relevant === null) {
    await remove(within(session.collection, "feedback"), { query, id, key: owner() });
    all.get(query)?.delete(id);
    if (!all.get(query)?.size) all.delete(query);
  } else {
    await post(within(session.collection, "feedback"), { query, id, relevant });
    note(all, query, id, relevant);
  }
}
