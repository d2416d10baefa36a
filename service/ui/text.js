// Formats parts of documents, numbers and times.

const LONGEST_HEADLINE = 110;

/** Returns the title of a document, or the start of its text. `length` is the number of characters of the text in it. */
export function headlineOf({ title, text = "" }) {
  if (title) return { headline: title, length: 0 };
  const sentence = text.slice(0, LONGEST_HEADLINE + 1).match(/^[^\n]*?[.!?](?=\s)|^[^\n]+/)?.[0] ?? text;
  if (sentence.length <= LONGEST_HEADLINE) return { headline: sentence, length: sentence.length };
  const cut = sentence.slice(0, LONGEST_HEADLINE).replace(/\s+\S*$/, "");
  return { headline: `${cut} …`, length: cut.length };
}

/** Returns the scalar values of metadata, including those in lists: [field, value]. */
export function scalars(metadata) {
  return Object.entries(metadata).flatMap(([field, value]) => [value].flat().filter((one) => one !== null && typeof one !== "object").map((one) => [field, one]));
}

/** Returns about `length` characters of a text, up to the end of a word, with dots if it is shortened. */
export function excerpt(text, length) {
  return text.length <= length ? text : `${text.slice(0, length).replace(/\s+\S{0,30}$/, "")} …`;
}

/** Converts ascending pairs of code points, as the API counts, to indices of a string, which counts UTF-16 units. */
export function indicesOf(text, pairs) {
  if (!/[\ud800-\udfff]/.test(text)) return pairs;
  let index = 0;
  let passed = 0;
  const at = (point) => {
    for (; passed < point && index < text.length; passed += 1) index += text.codePointAt(index) > 0xffff ? 2 : 1;
    return index;
  };
  return pairs.map(([start, end]) => [at(start), at(end)]);
}

/** Splits a part of `text` into pieces: [piece, whether one of `pairs`, ascending indices, has it]. */
export function pieces(text, start, end, pairs) {
  const inside = pairs.map(([from, to]) => [Math.max(from, start), Math.min(to, end)]).filter(([from, to]) => from < to);
  const found = [];
  let last = start;
  for (const [from, to] of inside) {
    found.push([text.slice(last, from), false], [text.slice(from, to), true]);
    last = to;
  }
  return [...found, [text.slice(last, end), false]].filter(([piece]) => piece);
}

/** Returns the shell command that retrains for the service at `address`. `keyed`: it has API keys. */
export function retrainCommand(address, { models_dir: models }, keyed) {
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  return `${keyed ? "SIMILE_SERVICE_KEY=KEY " : ""}simile retrain --from-service ${quoted(address.replace(/\/$/, ""))} --models-dir ${quoted(models)}`;
}

export const count = (number, noun) => `${number.toLocaleString("en")} ${number === 1 ? noun : `${noun.replace(/y$/, "ie").replace(/ch$/, "che")}s`}`;

export const percent = (share) => `${Math.round(100 * share)} %`;

export function bytes(number) {
  if (!Number.isFinite(number)) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(number, 1)) / 10)));
  return `${(number / 1024 ** at).toPrecision(3)} ${units[at]}`;
}

/** Formats a duration, such as 3 min. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "unknown";
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Formats a time in the user's time zone, such as "today 17:32" or "21 Nov 2026, 17:32". */
export function moment(iso) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return "at an unknown time";
  const day = ["yesterday", "today", "tomorrow"][1 + Math.round((new Date(date).setHours(0, 0, 0, 0) - new Date().setHours(0, 0, 0, 0)) / 86_400_000)];
  return day ? `${day} ${date.toLocaleTimeString("en-GB", { timeStyle: "short" })}` : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/** Returns the short name of a version, such as "v3 · triples · today 17:32": its place by age, its recipe or source, and its time. */
export function nameOf(version, models) {
  const [, year, month, day, hour, minute, second, origin] = version.match(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)-(.+)-[0-9a-f]{8}$/) ?? [];
  if (!origin) return version;
  const number = models.some((one) => one.version === version) ? `v${models.filter((one) => one.version <= version).length} · ` : "";
  return `${number}${origin} · ${moment(`${year}-${month}-${day}T${hour}:${minute}:${second}Z`)}`;
}
