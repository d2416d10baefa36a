// Formats parts of documents, numbers and times.

const LONGEST_HEADLINE = 110;

/** Returns the title of a document, or the start of its text. `rest` is the remaining text. */
export function headlineOf({ title, text = "" }) {
  if (title) return { headline: title, rest: text };
  const sentence = text.slice(0, LONGEST_HEADLINE + 1).match(/^[^\n]*?[.!?](?=\s)|^[^\n]+/)?.[0] ?? text;
  if (sentence.length <= LONGEST_HEADLINE) return { headline: sentence, rest: text.slice(sentence.length).trim() };
  const cut = sentence.slice(0, LONGEST_HEADLINE).replace(/\s+\S*$/, "");
  return { headline: `${cut} …`, rest: `… ${text.slice(cut.length).trim()}` };
}

/** Returns the scalar values of metadata, including those in lists: [field, value]. */
export function scalars(metadata) {
  return Object.entries(metadata).flatMap(([field, value]) => [value].flat().filter((one) => one !== null && typeof one !== "object").map((one) => [field, one]));
}

/** Returns about `length` characters of a text, up to the end of a word, with dots if it is shortened. */
export function excerpt(text, length) {
  return text.length <= length ? text : `${text.slice(0, length).replace(/\s+\S{0,30}$/, "")} …`;
}

/** Returns the string index of the nth code point. The API counts code points, JavaScript UTF-16 units. */
export function placeOf(text, codePoints) {
  if (!/[\ud800-\udfff]/.test(text)) return codePoints;
  let place = 0;
  for (let passed = 0; passed < codePoints && place < text.length; passed += 1) {
    place += text.codePointAt(place) > 0xffff ? 2 : 1;
  }
  return place;
}

/** Splits `text` into pieces: [piece, whether it is a word of `query`]. */
export function marked(text, query) {
  const words = (query.match(/[\p{L}\p{M}\p{N}]{2,}/gu) ?? []).map(stem);
  if (!words.length) return [[text, false]];
  return text.split(/([\p{L}\p{M}\p{N}]+)/u).map((piece) => [piece, piece.length > 1 && words.includes(stem(piece))]);
}

/** Normalizes a word about as the service does, for marking. */
function stem(word) {
  const plain = word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/[øłđħı]/g, (letter) => "oldhi"["øłđħı".indexOf(letter)]);
  return plain.replace(/(ings?|ed|es|(?<![su])s)$/, "");
}

/** Returns the shell command that retrains for the service at `address`. `keyed`: it has API keys. */
export function retrainCommand(address, { models_dir: models }, keyed) {
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  return `${keyed ? "SIMILE_SERVICE_KEY=KEY " : ""}python -m training retrain --from-service ${quoted(address.replace(/\/$/, ""))} --models-dir ${quoted(models)}`;
}

export const count = (number, noun) => `${number.toLocaleString("en")} ${number === 1 ? noun : `${noun.replace(/y$/, "ie")}s`}`;

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

/** Formats a time in the user's time zone. */
export function moment(iso) {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "at an unknown time" : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}
