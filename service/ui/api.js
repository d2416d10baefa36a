// The page's client. It uses only the public API.

export const ROOT = new URL("..", import.meta.url);
const KEY = "simile-key";

/** An error answer of the service. Status 0 means that the service cannot be reached. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The API key of this tab. It is sent in a header, never in a cookie or a URL. */
export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/**
 * Sends a request and resolves to the answer's JSON.
 *
 * query: Parameters. Those that are null or "" are omitted.
 * body: Sent as JSON. A string is sent as NDJSON, and a Blob unchanged.
 * version: The model version that must answer.
 * signal: Aborts the request.
 */
export async function call(method, path, { query = {}, body, version, signal } = {}) {
  const answer = await fetched(method, path, { query, body, version, signal });
  return answer.json();
}

/** Like `get`, but preserves integers above 2^53, which JavaScript would round. */
export async function getExactly(path, query, options) {
  return parsedExactly(await (await fetched("GET", path, { ...options, query })).text());
}

export function parsedExactly(content) {
  return JSON.parse(content, (_, value, context) =>
    (Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source ? JSON.rawJSON(context.source) : value));
}

export const get = (path, query, options) => call("GET", path, { ...options, query });
export const post = (path, body, options) => call("POST", path, { ...options, body });
export const put = (path, body) => call("PUT", path, { body });
export const remove = (path, query) => call("DELETE", path, { query });

/** Resolves to the answer as text, for example metrics. */
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

/** Sends a file unchanged, and calls `progress` with the bytes sent. Resolves to the answer's JSON. */
export function upload(path, file, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not report upload progress
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

/** Returns the URL of a route. Parameters that are null or "" are omitted. */
export function addressOf(path, query = {}) {
  const address = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") address.searchParams.set(name, value);
  }
  return address;
}

/** Returns the path of a route in a collection. */
export function within(collection, path) {
  return collection === "default" ? path : `collections/${encodeURIComponent(collection)}/${path}`;
}
