// The latest queries of this tab. They are sent only as searches.

const RECENT = "simile-recent";
const KEPT = 20;

export const recent = {
  all: () => JSON.parse(sessionStorage.getItem(RECENT) ?? "[]"),

  /** A query that extends the last one replaces it, because the page searches while the user types. */
  add(query) {
    const others = recent.all().filter((other) => other !== query && !query.startsWith(other));
    sessionStorage.setItem(RECENT, JSON.stringify([query, ...others].slice(0, KEPT)));
  },
};
