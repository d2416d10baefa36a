// The current key and collection of this tab.

import { get } from "./api.js";
import { nameOf } from "./text.js";

const COLLECTION = "simile-collection";
const ROLES = ["read", "write", "admin"];

export const session = {
  known: false,
  name: null, // name of the key; null if the service has no keys
  role: "read", // and scope: collections and filter of the key; null if it sees everything
  models: [], // of GET /models

  async load() {
    if (this.known) return;
    const [me, { models }] = await Promise.all([get("me"), get("models").catch(() => ({ models: [] }))]);
    Object.assign(this, me, { known: true, models, first: me.scope && (await get("collections")).collections[0]?.name }); // A scope may have prefixes alone.
  },

  nameOf(version) {
    return nameOf(version, this.models);
  },

  forget() {
    Object.assign(this, { known: false, name: null, role: "read", scope: null, first: null });
  },

  /** Returns whether the key's role includes `role`. */
  may(role) {
    return ROLES.indexOf(this.role) >= ROLES.indexOf(role);
  },

  get collection() {
    return sessionStorage.getItem(COLLECTION) ?? this.scope?.collections.find((name) => !name.endsWith("*")) ?? this.first ?? "default";
  },

  set collection(name) {
    sessionStorage.setItem(COLLECTION, name);
  },
};
