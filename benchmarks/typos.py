"""Measure typo tolerance: `python -m benchmarks.typos SET…`.

    judged queries ─▶ random edits of a word ─▶ searches of a service with typos=false and without
                                             ─▶ nDCG@10, as a share of that of the correct queries

Each query gets EDITED variants. A variant has one edit in a random word of at least MIN_LETTERS letters that
is no function word: a letter is inserted, deleted or replaced, or two neighbors are swapped. `two edits` has
both edits in one word of at least MIN_FAR_LETTERS letters. The service runs as users run it, with its second
stage. SIMILE_EVAL_DATA names the folder of the sets.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.command import (
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.processes import Server, call
from benchmarks.workloads import evaluation_folder
from models.search.measures import judge
from models.search.spelling import MIN_FAR_LETTERS, MIN_LETTERS
from models.search.terms import FUNCTION_WORDS
from training.evaluation.retrieval import Collection, load

SETS = ("cranfield", "mlqa_en")
MODES = ("hybrid", "lexical")
EDITED = 2
SEED = 51
TOGETHER = 100  # Documents and queries of a request.
MIN_SHARE, MAX_LOSS = 95.0, 0.1  # Promises for hybrid search: percent, and points of nDCG@10.
CORRECT, ONE, TWO = "correct", "one edit", "two edits"
SETTINGS = {"SIMILE_RANK_SECONDS": "30", "SIMILE_EVENTS": "0"}  # No stage is late on a busy machine.
_WORD = re.compile("[A-Za-z]+")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Variant(NamedTuple):
    """A query to search for, and the id of the judged query."""

    id: str
    text: str


def main() -> None:
    parser = build_parser("typos", __doc__)
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keeps the documents for the next run")
    options = parser.parse_args()
    folder = evaluation_folder()
    rows: list[list[object]] = []
    verdicts: list[Verdict] = []
    with scratch_folder() as scratch, Server(options.data or scratch / "data", SETTINGS) as server:
        for name in options.sets:
            collection = load(folder / name)
            fill(server.port, name, collection)
            for mode in MODES:
                found = measure(server.port, name, collection, mode)
                rows += [[name, mode, *row] for row in found]
                verdicts += judge_rows(name, found) if mode == "hybrid" else []
    columns = [
        "set",
        "mode",
        "queries",
        "searches",
        "typos=false",
        "share",
        "typos=true",
        "share",
        "corrected",
    ]
    report("typos", {"rows": rows}, [format_table(columns, rows)], verdicts)


def judge_rows(name: str, rows: Sequence[Sequence[object]]) -> Iterator[Verdict]:
    for kind, _, off, _, on, share, _ in rows:
        if kind == CORRECT:
            yield Verdict(
                f"{name}, loss of correct queries in points", float(str(off)) - float(str(on)), MAX_LOSS
            )
        elif kind == ONE:
            yield Verdict(
                f"{name}, share with one edit in percent", float(str(share)), MIN_SHARE, at_least=True
            )


def fill(port: int, name: str, collection: Collection) -> None:
    """Store the documents of a set in a collection, unless it has them."""
    there = {each["name"]: each["documents"] for each in call(port, "GET", "/collections")["collections"]}
    if there.get(name) == len(collection.documents):
        return
    progress(f"{name}: {len(collection.documents):,} documents")
    documents = [
        {"id": id, "title": content.title, "text": content.text}
        for id, content in collection.documents.items()
    ]
    for start in range(0, len(documents), TOGETHER):
        body = {"documents": documents[start : start + TOGETHER]}
        call(port, "POST", f"/collections/{name}/documents", body)


def measure(port: int, name: str, collection: Collection, mode: str) -> list[list[object]]:
    """Return a row for each kind of query: nDCG@10 in percent and shares of the correct queries' values.

    The correct value of edited queries is the mean over the same queries.
    """
    edited = {kind: [*edit_all(collection, kind)] for kind in (ONE, TWO)}
    correct = [Variant(id, text) for id, text in collection.queries.items()]
    rows, scores = [], dict[tuple[str, bool], dict[str, float]]()
    for kind, variants in {CORRECT: correct, **edited}.items():
        figures: list[object] = []
        for typos in (False, True):
            found, corrected = score(port, name, collection, mode, variants, typos=typos)
            mean = 100 * float(np.mean(found))
            if kind == CORRECT:
                scores[kind, typos] = dict(zip([each.id for each in variants], found, strict=True))
                whole = mean
            else:
                whole = 100 * float(np.mean([scores[CORRECT, False][each.id] for each in variants]))
            figures += [f"{mean:.2f}", f"{100 * mean / whole:.1f}"]
        rows.append([kind, len(variants), *figures, corrected])
        progress(f"{name}, {mode}, {kind}: {' '.join(map(str, rows[-1][2:]))}")
    return rows


def score(
    port: int, name: str, collection: Collection, mode: str, variants: Sequence[Variant], *, typos: bool
) -> tuple[list[float], int]:
    """Return nDCG@10 of each search, and the number of queries that were corrected."""
    scores: list[float] = []
    corrected = 0
    for start in range(0, len(variants), TOGETHER):
        some = variants[start : start + TOGETHER]
        body = {"queries": [each.text for each in some], "mode": mode, "k": 11, "typos": typos, "fields": []}
        answer = call(port, "POST", f"/collections/{name}/search", body)
        assert "warnings" not in answer, answer["warnings"]
        corrected += sum(text is not None for text in answer.get("corrected_queries", ()))
        for each, hits in zip(some, answer["results"], strict=True):
            ids = [hit["id"] for hit in hits if hit["id"] != each.id][:10]
            scores.append(judge(ids, collection.relevant[each.id])["ndcg10"])
    return scores, corrected


def edit_all(collection: Collection, kind: str) -> Iterator[Variant]:
    """Yield the variants of all queries that have a long enough word."""
    random = np.random.default_rng(SEED)
    for id, text in collection.queries.items():
        variants = dict.fromkeys([text])
        for _ in range(100):
            if len(variants) <= EDITED and (variant := edit_query(text, kind, random)):
                variants[variant] = None
        yield from (Variant(id, variant) for variant in [*variants][1:])


def edit_query(text: str, kind: str, random: np.random.Generator) -> str:
    """Return a query with an edited word, or an empty text if it has no long enough word."""
    least = MIN_FAR_LETTERS if kind == TWO else MIN_LETTERS
    words = [
        word
        for word in _WORD.finditer(text)
        if len(word[0]) >= least and word[0].lower() not in FUNCTION_WORDS
    ]
    if not words:
        return ""
    word = words[int(random.integers(len(words)))]
    edited = word[0]
    for _ in range(2 if kind == TWO else 1):
        edited = edit_word(edited, random)
    return text[: word.start()] + edited + text[word.end() :]


def edit_word(word: str, random: np.random.Generator) -> str:
    """Return a word with a random edit, which changes it."""
    while True:
        at, letter = int(random.integers(len(word))), _LETTERS[int(random.integers(26))]
        edited = (
            word[:at] + letter + word[at:],
            word[:at] + word[at + 1 :],
            word[:at] + letter + word[at + 1 :],
            word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
        )[int(random.integers(4))]
        if edited != word:
            return edited


if __name__ == "__main__":
    main()
