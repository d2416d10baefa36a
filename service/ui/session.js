// Whose key is in use, and the collection that is looked at; both last as long as the tab.

import { get } from "./api.js";

const COLLECTION = "simile-collection";
const ROLES = ["read", "write", "admin"];

export const session = {
  known: false,
  name: null, // of the key; null on a service without keys
  role: "read",
  version: "",

  async load() {
    if (this.known) return;
    Object.assign(this, await get("me"), { known: true });
  },

  forget() {
    Object.assign(this, { known: false, name: null, role: "read" });
  },

  /** True when the key's role includes `role`. */
  may(role) {
    return ROLES.indexOf(this.role) >= ROLES.indexOf(role);
  },

  get collection() {
    return sessionStorage.getItem(COLLECTION) ?? "default";
  },

  set collection(name) {
    sessionStorage.setItem(COLLECTION, name);
  },
};
