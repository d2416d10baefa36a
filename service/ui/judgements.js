// The judgments that the user has stored. Thumbs show them and can remove them.

import { get, post, remove, within } from "./api.js";
import { session } from "./session.js";

const PAGE = 1000;
const MOST = 20_000;
export const ENOUGH = 20; // different queries that the gate needs (docs/RETRAINING.md)

let loading = null; // promise of a Map: query -> Map: id -> relevant

const owner = () => session.name ?? "-"; // the API's name for users without a key

/** Resolves to query -> id -> relevant of this user in this collection. */
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

/** Stores a judgment, or removes it if `relevant` is null. */
export async function judge({ query, id, relevant, search_id }) {
  const all = await judged();
  if (relevant === null) {
    await remove(within(session.collection, "feedback"), { query, id, key: owner() });
    all.get(query)?.delete(id);
    if (!all.get(query)?.size) all.delete(query);
  } else {
    await post(within(session.collection, "feedback"), { query, id, relevant, search_id });
    note(all, query, id, relevant);
  }
}
