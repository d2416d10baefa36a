"""Create sets of judged queries for benchmarks.recipes: `python -m benchmarks.sets FOLDER`.

    scifact        ─▶ scifact_1500: all queries, every abstract that answers one, and others up to 1,500
    wiki_pairs     ─▶ simple_wiki: sentences from 1,500 articles in Simple English, each answered by the
                      introduction of the same article in the full Wikipedia

The sources are in the folder that SIMILE_EVAL_DATA names. Both new sets are in BEIR's layout. The random
choice depends only on names, so all machines get the same sets. FOLDER also gets links to the existing sets,
and SIMILE_EVAL_DATA can then name FOLDER. KorSTS has no link, because the mean over similarity sets covers
only English. `split_queries` splits the queries of any set into two halves.

`judge_by_clicks` simulates clicks of users with position bias and noise, and returns the judgments that
follow from the clicks. A user looks at the hit at position k with probability 1/k. The user then clicks a
relevant hit with probability 0.8, and any other hit with probability 0.1.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from benchmarks.command import build_parser
from benchmarks.workloads import evaluation_folder
from models.search.content import Content
from training.evaluation.retrieval import Collection, load
from training.methods.sources import sentences
from training.retraining.clicks import USUAL_BIAS, Session, build_judgments
from training.retraining.config import EventsTable
from training.retraining.judgements import Judgment
from training.text.lines import read_records

DOCUMENTS = 1500
MIN_WORDS = 6  # of a query
NOT_LINKED = "korsts"

SEARCHES = 8  # of each query
VISITORS = 4
PAGE = 10  # hits that are shown
ANSWER_CLICKS, OTHER_CLICKS = 0.8, 0.1  # of the hits that a user looked at
SHIFT = 2  # maximum positions that a hit moves from one search to the next


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


def split_queries(collection: Collection) -> tuple[list[str], Collection]:
    """Split the queries of a set into a half for training and an unseen half.

    Queries that share an answer form a group, and a group stays in one half. A group with a tenth of all
    queries or more is split query by query. Answers of training queries do not count for unseen queries.

    Returns:
        The ids of the training queries, and the set with only the unseen queries.

    """
    group: dict[str, str] = {}

    def root(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    for query, answers in collection.relevant.items():
        for answer in answers:
            group[root(f"document {answer}")] = root(f"query {query}")
    sizes = Counter(root(f"query {query}") for query in collection.queries)

    def is_known(query: str) -> bool:
        part = root(f"query {query}")
        return hash_number(part if sizes[part] < len(collection.queries) / 10 else query) % 2 == 0

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


def hash_number(name: str) -> int:
    """Return a pseudorandom number for a name, the same on every machine."""
    return int.from_bytes(_digest(name)[:8], "big")


def judge_by_clicks(
    ranked: Mapping[str, Sequence[str]], relevant: Mapping[str, Mapping[str, float]], seed: int
) -> list[Judgment]:
    """Return judgments from simulated clicks on the first page of results.

    Neighboring hits swap their positions between searches, as happens when documents are added.

    Args:
        ranked: Ids of the hits of each query, best first.
        relevant: Gains of the relevant documents of each query.
        seed: Seed of the simulated users.

    """
    random = np.random.default_rng(seed)
    sessions = [*_sessions(ranked, relevant, random)]
    events = EventsTable()
    return build_judgments(sessions, USUAL_BIAS, events.least, events.visitors)


def _sessions(
    ranked: Mapping[str, Sequence[str]],
    relevant: Mapping[str, Mapping[str, float]],
    random: np.random.Generator,
) -> Iterator[Session]:
    for query, ids in ranked.items():
        for search in range(SEARCHES):
            page = list(ids[:PAGE])
            places = np.arange(len(page)) + random.uniform(0, SHIFT, len(page))
            shown = [page[at] for at in np.argsort(places)]
            positions = {id: place for place, id in enumerate(shown, start=1)}
            clicked = dict.fromkeys(clicks(shown, relevant[query], random), 1.0)
            if clicked:  # the service knows only searches with an event
                user = f"user {search % VISITORS}"
                yield Session("shop", query, user, positions, clicked, has_page=True)


def clicks(shown: Sequence[str], relevant: Mapping[str, float], random: np.random.Generator) -> Iterator[str]:
    """Yield the ids of the shown hits that a user clicks, best first."""
    for place, id in enumerate(shown, start=1):
        share = ANSWER_CLICKS if id in relevant else OTHER_CLICKS
        if random.random() < 1 / place and random.random() < share:
            yield id


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
