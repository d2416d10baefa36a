// Files that people have, as rows: JSON lines, CSV, TSV, or a text.

import { parsedExactly } from "./api.js";

/** The rows of a file, each with its line, and the columns where the file names them. */
export async function readFile(file) {
  const content = (await file.text()).replace(/^\ufeff/, "");
  const kind = file.name.toLowerCase().split(".").pop();
  if (kind === "csv" || kind === "tsv") return tableOf(content, kind === "tsv" ? "\t" : ",");
  if (kind === "jsonl" || kind === "ndjson") return { rows: linesOf(content), columns: null };
  return { rows: [{ line: 1, value: { id: file.name, title: file.name, text: content } }], columns: null };
}

function linesOf(content) {
  return content.split("\n").flatMap((text, at) => (text.trim() ? [{ line: at + 1, value: parsedOr(text) }] : []));
}

/** A line that is no JSON goes to the service as a string, which refuses it and says so. */
function parsedOr(text) {
  try {
    return parsedExactly(text);
  } catch {
    return text;
  }
}

function tableOf(content, separator) {
  const [header, ...records] = recordsOf(content, separator);
  const columns = (header?.cells ?? []).map((name) => name.trim());
  const rows = records.map(({ line, cells }) => ({ line, value: Object.fromEntries(columns.map((name, at) => [name, cells[at] ?? ""])) }));
  return { rows, columns };
}

/** Records of RFC 4180: quotes keep separators and line breaks, two quotes are one. */
function recordsOf(content, separator) {
  const records = [];
  let cells = [];
  let cell = "";
  let quoted = false;
  let line = 1;
  let start = 1;
  const end = () => {
    cells.push(cell);
    if (cells.length > 1 || cells[0] !== "") records.push({ line: start, cells });
    cells = [];
    cell = "";
  };
  for (let at = 0; at < content.length; at += 1) {
    const character = content[at];
    if (character === "\n") line += 1;
    if (quoted) {
      if (character !== '"') cell += character;
      else if (content[at + 1] === '"') { cell += '"'; at += 1; } else quoted = false;
    } else if (character === '"' && cell === "") quoted = true;
    else if (character === separator) { cells.push(cell); cell = ""; } else if (character === "\n") { end(); start = line; } else if (character !== "\r") cell += character;
  }
  end();
  return records;
}
