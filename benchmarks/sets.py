"""Create a set of judged queries for `benchmarks.ranking`: `python -m benchmarks.sets FOLDER`.

    wiki_pairs ─▶ simple_wiki: sentences from 1,500 articles in Simple English, each answered by the
                  introduction of the same article in the full Wikipedia

The source is in the folder that SIMILE_EVAL_DATA names. The set is in BEIR's layout. The random choice
depends only on names, so all machines get the same set. FOLDER also gets links to the existing sets, and
SIMILE_EVAL_DATA can then name FOLDER. KorSTS has no link, because the mean over similarity sets covers only
English.
"""

import gzip
import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from benchmarks.command import build_parser
from benchmarks.workloads import evaluation_folder
from models.search.content import Content
from training.methods.sources import sentences
from training.text.lines import read_records

DOCUMENTS = 1500
MIN_WORDS = 6  # words of a query
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
    write_simple(source / "wiki_pairs" / "simple_en_intro.tsv.gz", folder / "simple_wiki", DOCUMENTS)


def write_simple(source: Path, folder: Path, count: int) -> None:
    """Write a set of at most `count` articles. A query is a sentence in Simple English.

    Its answer is the introduction of the article in the full Wikipedia.
    """
    documents, queries = dict[str, Content](), dict[str, str]()
    for record in sorted(read_records(source), key=lambda record: _digest(record.fields["title"])):
        title, simple, full = (str(record.fields[name]) for name in ("title", "simple_intro", "en_intro"))
        candidates = [each for each in sentences(simple) if len(each.split()) >= MIN_WORDS]
        if candidates and len(documents) < count:
            number = len(documents)
            documents[f"article-{number}"] = Content(full, title)
            # As in BEIR, a search leaves out a document with the id of the query, so the ids must differ.
            queries[f"query-{number}"] = min(candidates, key=_digest).strip()
    folder.mkdir(exist_ok=True)
    contents = [{"_id": name, "title": each.title, "text": each.text} for name, each in documents.items()]
    _write_lines(folder / "corpus.jsonl.gz", map(json.dumps, contents))
    lines = [{"_id": name, "text": text} for name, text in queries.items()]
    _write_lines(folder / "queries.jsonl.gz", map(json.dumps, lines))
    judged = [f"{query}\t{answer}\t1" for query, answer in zip(queries, documents, strict=True)]
    _write_lines(folder / "qrels.test.tsv.gz", ["query_id\tcorpus_id\tscore", *judged])


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _digest(name: str) -> bytes:
    """Return pseudorandom bytes for a name, the same on every machine."""
    return sha256(name.encode()).digest()


if __name__ == "__main__":
    main()
