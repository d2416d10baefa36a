// The service's API, and nothing else of it: whatever the page does, another client can do.

export const ROOT = new URL("..", import.meta.url);
const KEY = "simile-key";

/** A refusal in the service's own words; status 0: it was not reached. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key is kept while this tab is open. It goes into a header, never into a cookie or an address. */
export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/**
 * The answer's JSON.
 *
 * query: parameters; those that are null or "" are left out. body: sent as JSON, as NDJSON if it is a string, or as it is if it is a Blob.
 * version: the published version that is to answer. signal: aborts.
 */
export async function call(method, path, { query = {}, body, version, signal } = {}) {
  const answer = await fetched(method, path, { query, body, version, signal });
  return answer.json();
}

/** As `get`; whole numbers above 2^53, which JavaScript would round, stay as they are written. */
export async function getExactly(path, query, options) {
  return parsedExactly(await (await fetched("GET", path, { ...options, query })).text());
}

export function parsedExactly(content) {
  return JSON.parse(content, (_, value, context) =>
    (Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? JSON.rawJSON(context.source) : value));
}

export const get = (path, query, options) => call("GET", path, { ...options, query });
export const post = (path, body, options) => call("POST", path, { ...options, body });
export const remove = (path, query) => call("DELETE", path, { query });

/** The answer as text, such as metrics. */
export async function text(path, signal) {
  return (await fetched("GET", path, { signal })).text();
}

async function fetched(method, path, { query = {}, body, version, signal }) {
  const address = addressOf(path, query);
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (version) headers["x-model-version"] = version;
  if (body !== undefined) headers["content-type"] = body instanceof Blob ? "application/octet-stream" : typeof body === "string" ? "application/x-ndjson" : "application/json";
  let answer;
  try {
    const content = body === undefined || typeof body === "string" || body instanceof Blob ? body : JSON.stringify(body);
    answer = await fetch(address, { method, headers, body: content, signal, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    document.dispatchEvent(new Event("unreachable"));
    throw new Refused(0, "The service cannot be reached.");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  if (answer.status === 401) document.dispatchEvent(new Event("key-needed"));
  throw new Refused(answer.status, said.error ?? `The service answered ${answer.status}.`);
}

/** Send a file as it is; `progress` is called with the bytes that went out. Resolves to the answer's JSON. */
export function upload(path, file, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not say how far it is
    request.open("POST", addressOf(path));
    request.setRequestHeader("content-type", "application/octet-stream");
    if (key.get()) request.setRequestHeader("authorization", `Bearer ${key.get()}`);
    request.responseType = "json";
    request.upload.onprogress = (event) => progress(event.loaded);
    request.onload = () => {
      if (request.status === 200) return resolve(request.response);
      if (request.status === 401) document.dispatchEvent(new Event("key-needed"));
      return reject(new Refused(request.status, request.response?.error ?? `The service answered ${request.status}.`));
    };
    request.onerror = () => { document.dispatchEvent(new Event("unreachable")); reject(new Refused(0, "The service cannot be reached.")); };
    request.onabort = () => reject(new DOMException("Aborted", "AbortError"));
    signal?.addEventListener("abort", () => request.abort());
    request.send(file);
  });
}

/** The address of a route; parameters that are null or "" are left out. */
export function addressOf(path, query = {}) {
  const address = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") address.searchParams.set(name, value);
  }
  return address;
}

/** A route of a collection. */
export function within(collection, path) {
  return collection === "default" ? path : `collections/${encodeURIComponent(collection)}/${path}`;
}

/** The path of a document. */
export function pathOf(collection, id) {
  return within(collection, `documents/${encodeURIComponent(id)}`);
}
