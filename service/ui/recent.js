// The latest queries of this tab. They leave it only as searches.

const RECENT = "simile-recent";
const KEPT = 20;

export const recent = {
  all: () => JSON.parse(sessionStorage.getItem(RECENT) ?? "[]"),

  /** A query that goes on from the last one replaces it: it was searched for while it was typed. */
  add(query) {
    const others = recent.all().filter((other) => other !== query && !query.startsWith(other));
    sessionStorage.setItem(RECENT, JSON.stringify([query, ...others].slice(0, KEPT)));
  },
};
