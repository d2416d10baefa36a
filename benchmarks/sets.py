"""Create sets of judged queries for the other benchmarks: `python -m benchmarks.sets FOLDER`.

    scifact        ─▶ scifact_1500: all queries, every abstract that answers one, and others up to 1,500
    wiki_pairs     ─▶ simple_wiki: sentences from 1,500 articles in Simple English, each answered by the
                      introduction of the same article in the full Wikipedia

The sources are in the folder that SIMILE_EVAL_DATA names. Both new sets are in BEIR's layout. The random
choice depends only on names, so all machines get the same sets. FOLDER also gets links to the existing sets,
and SIMILE_EVAL_DATA can then name FOLDER. KorSTS has no link, because the mean over similarity sets covers
only English.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from benchmarks.command import build_parser
from benchmarks.workloads import evaluation_folder
from models.search.content import Content
from training.evaluation.retrieval import load
from training.methods.sources import sentences
from training.text.lines import read_records

DOCUMENTS = 1500
MIN_WORDS = 6  # of a query
NOT_LINKED = "korsts"


def main() -> None:
    parser = build_parser("sets", __doc__)
    parser.add_argument("folder", type=Path, help="created if missing")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    source = evaluation_folder()
    for found in sorted(source.resolve().iterdir()):
        if found.is_dir() and found.name != NOT_LINKED and not (folder / found.name).exists():
            (folder / found.name).symlink_to(found)
    write_part(source / "scifact", folder / f"scifact_{DOCUMENTS}", DOCUMENTS)
    write_simple(source / "wiki_pairs" / "simple_en_intro.tsv.gz", folder / "simple_wiki", DOCUMENTS)


def write_part(source: Path, folder: Path, count: int) -> None:
    """Write a smaller set: all queries of `source`, their answers, and other documents up to `count`."""
    splits = [load(source, split) for split in ("train", "test")]
    relevant = splits[0].relevant | splits[1].relevant
    queries = splits[0].queries | splits[1].queries
    answers = {answer for found in relevant.values() for answer in found}
    others = sorted(splits[0].documents.keys() - answers, key=_digest)
    kept = {*answers, *others[: max(0, count - len(answers))]}
    records = read_records(source / "corpus.jsonl.gz")
    documents = {
        name: Content(str(record.fields["text"]), str(record.fields.get("title", "")))
        for record in records
        if (name := str(record.fields["_id"])) in kept
    }
    _write(folder, documents, queries, relevant)


def write_simple(source: Path, folder: Path, count: int) -> None:
    """Write `count` articles: the query is a sentence in Simple English, the answer is the introduction."""
    documents, queries = dict[str, Content](), dict[str, str]()
    for record in sorted(read_records(source), key=lambda record: _digest(record.fields["title"])):
        title, simple, full = (str(record.fields[name]) for name in ("title", "simple_intro", "en_intro"))
        candidates = [each for each in sentences(simple) if len(each.split()) >= MIN_WORDS]
        if candidates and len(documents) < count:
            number = len(documents)
            documents[f"article-{number}"] = Content(full, title)
            # As in BEIR, a search leaves out the document with its query's name, so the names differ.
            queries[f"query-{number}"] = min(candidates, key=_digest).strip()
    relevant = {query: {document: 1.0} for query, document in zip(queries, documents, strict=True)}
    _write(folder, documents, queries, relevant)


def _write(
    folder: Path,
    documents: Mapping[str, Content],
    queries: Mapping[str, str],
    relevant: Mapping[str, Mapping[str, float]],
) -> None:
    folder.mkdir(exist_ok=True)
    contents = [{"_id": name, "title": each.title, "text": each.text} for name, each in documents.items()]
    _write_lines(folder / "corpus.jsonl.gz", map(json.dumps, contents))
    lines = [{"_id": name, "text": text} for name, text in queries.items()]
    _write_lines(folder / "queries.jsonl.gz", map(json.dumps, lines))
    judged = [
        f"{query}\t{answer}\t{gain:g}" for query, found in relevant.items() for answer, gain in found.items()
    ]
    _write_lines(folder / "qrels.test.tsv.gz", ["query_id\tcorpus_id\tscore", *judged])


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _digest(name: str) -> bytes:
    """Return pseudorandom bytes for a name, the same on every machine."""
    return sha256(name.encode()).digest()


if __name__ == "__main__":
    main()
