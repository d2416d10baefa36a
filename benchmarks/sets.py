"""Sets of benchmarks.recipes that the evaluation folder lacks: `python -m benchmarks.sets FOLDER`.

    scifact        ─▶ scifact_1500: every abstract that answers a query, and others up to 1,500; all queries
    wiki_pairs     ─▶ simple_wiki: a sentence of 1,500 articles in Simple English, whose answer is the
                      introduction of the same article in the full Wikipedia

Both in BEIR's layout. What is drawn depends on names alone, so everyone gets the same sets. The other sets of
the evaluation folder are linked, so that FOLDER can stand in SIMILE_EVAL_DATA. KorSTS is not, because the
mean over the similarity sets is of English. `halves` splits the queries of any set.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from benchmarks.places import arguments
from benchmarks.workloads import evaluation_folder
from training.evaluation.retrieval import Collection, load
from training.methods.crops import sentences
from training.text.lines import read_records

DOCUMENTS = 1500
_LEAST_WORDS = 6  # of a query
_NOT_LINKED = "korsts"


class Document(NamedTuple):
    title: str
    text: str


def main() -> None:
    parser = arguments("sets", __doc__)
    parser.add_argument("folder", type=Path, help="made where it is not there")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for found in sorted(evaluation_folder().resolve().iterdir()):
        if found.is_dir() and found.name != _NOT_LINKED and not (folder / found.name).exists():
            (folder / found.name).symlink_to(found)
    write_part(evaluation_folder() / "scifact", folder / f"scifact_{DOCUMENTS}", DOCUMENTS)
    write_simple(
        evaluation_folder() / "wiki_pairs" / "simple_en_intro.tsv.gz", folder / "simple_wiki", DOCUMENTS
    )


def write_part(source: Path, folder: Path, count: int) -> None:
    """Of `source` all queries, the documents that answer one, and others until there are `count`."""
    splits = [load(source, split) for split in ("train", "test")]
    relevant = splits[0].relevant | splits[1].relevant
    queries = splits[0].queries | splits[1].queries
    answers = {answer for found in relevant.values() for answer in found}
    others = sorted(splits[0].documents.keys() - answers, key=_drawn)
    kept = {*answers, *others[: max(0, count - len(answers))]}
    records = read_records(source / "corpus.jsonl.gz")
    documents = {
        name: Document(str(record.fields.get("title", "")), str(record.fields["text"]))
        for record in records
        if (name := str(record.fields["_id"])) in kept
    }
    _write(folder, documents, queries, relevant)


def write_simple(source: Path, folder: Path, count: int) -> None:
    """Of `count` articles a sentence in Simple English as the query, the full introduction as the answer."""
    documents, queries = dict[str, Document](), dict[str, str]()
    for record in sorted(read_records(source), key=lambda record: _drawn(record.fields["title"])):
        title, simple, full = (str(record.fields[name]) for name in ("title", "simple_intro", "en_intro"))
        asked = [each for each in sentences(simple) if len(each.split()) >= _LEAST_WORDS]
        if asked and len(documents) < count:
            number = len(documents)
            documents[f"article-{number}"] = Document(title, full)
            # A document with its query's name is not searched for, as in BEIR.
            queries[f"query-{number}"] = min(asked, key=_drawn).strip()
    relevant = {query: {document: 1.0} for query, document in zip(queries, documents, strict=True)}
    _write(folder, documents, queries, relevant)


def halves(collection: Collection) -> tuple[list[str], Collection]:
    """Names of the queries to learn from, and a search of the others for answers that those do not have.

    Queries that share an answer go together, unless a tenth of all hang together: then each goes its way,
    and answers that are learned from count for no other query.
    """
    group: dict[str, str] = {}

    def top(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    for query, answers in collection.relevant.items():
        for answer in answers:
            group[top(f"document {answer}")] = top(f"query {query}")
    sizes = Counter(top(f"query {query}") for query in collection.queries)

    def is_known(query: str) -> bool:
        part = top(f"query {query}")
        return number_of(part if sizes[part] < len(collection.queries) / 10 else query) % 2 == 0

    known = [query for query in collection.queries if is_known(query)]
    learned = {answer for query in known for answer in collection.relevant[query]}
    relevant = {
        query: {answer: gain for answer, gain in answers.items() if answer not in learned}
        for query, answers in collection.relevant.items()
        if not is_known(query)
    }
    relevant = {query: answers for query, answers in relevant.items() if answers}
    return known, collection._replace(
        queries={query: collection.queries[query] for query in relevant}, relevant=relevant
    )


def number_of(name: str) -> int:
    """A number that is as good as a random one, and the same on every machine."""
    return int.from_bytes(_drawn(name)[:8], "big")


def _write(
    folder: Path,
    documents: Mapping[str, Document],
    queries: Mapping[str, str],
    relevant: Mapping[str, Mapping[str, float]],
) -> None:
    folder.mkdir(exist_ok=True)
    contents = [{"_id": name, **document._asdict()} for name, document in documents.items()]
    _write_lines(folder / "corpus.jsonl.gz", map(json.dumps, contents))
    asked = [{"_id": name, "text": text} for name, text in queries.items()]
    _write_lines(folder / "queries.jsonl.gz", map(json.dumps, asked))
    judged = [
        f"{query}\t{answer}\t{gain:g}" for query, found in relevant.items() for answer, gain in found.items()
    ]
    _write_lines(folder / "qrels.test.tsv.gz", ["query_id\tcorpus_id\tscore", *judged])


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def _drawn(name: str) -> bytes:
    """Bytes whose order is as good as a random one, and the same on every machine."""
    return sha256(name.encode()).digest()


if __name__ == "__main__":
    main()
