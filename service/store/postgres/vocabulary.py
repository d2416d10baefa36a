"""Terms near to a misspelled word in PostgreSQL, and documents that have a term. Start at `nearest_terms`.

    vocabulary (collection, term, number)   the terms of postings, as of the last fold
    term_changes.gained                     the terms of writes since then

Only one process at a time folds, so the numbers of `vocabulary` rise in the order of the commits. A process
therefore reads only later numbers, and the changes that it has not read before.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from models.search.spelling import Near, Word
from models.search.syntax import has_phrase
from models.search.terms import get_terms
from service.store.postgres import fulltext
from service.store.postgres.connection import Connection
from service.store.postgres.vectors import FilterMatches
from service.store.sql.records import unembedded
from service.store.values import MAX_COUNTED, MAX_TRIED, TRIED, Budget, Revisions
from service.store.vocabularies import Vocabularies

READ_TOGETHER = 256  # Documents that are read at a time.


def nearest_terms(
    connection: Connection, vocabularies: Vocabularies, word: Word, collection: str
) -> Iterable[Near]:
    """Returns terms near to a word, as `protocol.Snapshot.nearest_terms` says."""
    load(connection, vocabularies, collection)
    return vocabularies.get(collection).find_nearest(word)


def load(connection: Connection, vocabularies: Vocabularies, collection: str) -> None:
    """Reads terms into memory, as `protocol.Snapshot.load_vocabulary` says."""
    vocabulary = vocabularies.get(collection)
    state: object = vocabulary.state
    last, known = state if isinstance(state, tuple) else (0, [])
    # The database sends all terms as one value, because one row per term takes ten times as long.
    sql = (
        "SELECT coalesce(max(number), 0), string_agg(term, ' ') FROM vocabulary "
        "WHERE collection = ? AND number > ?"
    )
    number, listed = connection.execute(sql, (collection, last)).fetchone() or (0, None)
    changes = connection.execute(
        "SELECT number, CASE WHEN number <> ALL(?::bigint[]) THEN array_to_string(gained, ' ') END "
        "FROM term_changes WHERE collection = ?",
        (known, collection),
    ).fetchall()
    if listed or any(gained for _, gained in changes):
        texts = [listed, *(gained for _, gained in changes)]
        vocabulary.add(term for text in texts if text for term in text.split(" "))
    vocabulary.state = max(last, number), [each for each, _ in changes]


def count_documents(connection: Connection, terms: Sequence[str], collection: str) -> dict[str, int]:
    """Returns the number of documents with each term, as `protocol.Snapshot.count_documents` says."""
    found = fulltext.count_postings(connection, terms, collection)
    return {term: min(count, MAX_COUNTED) for term, count in found.items() if count}


def documents_with(
    connection: Connection, term: str, allowed: FilterMatches | None, count: int, collection: str
) -> Revisions:
    """Returns documents with a term, as `protocol.Snapshot.documents_with` says."""
    found = fulltext.read_postings(connection, [term], collection).revisions
    if allowed is None:
        return found[:count]
    if allowed.revisions is not None:
        return found[np.isin(found, allowed.revisions)][:count]
    for some in (found[:TRIED], found[TRIED : TRIED + MAX_TRIED]):
        if len(inside := np.sort(allowed.among(connection, some))):
            return inside[:count]
    return found[:0]


def documents_with_phrase(
    connection: Connection, words: Sequence[str], terms: Sequence[str], collection: str, budget: Budget
) -> Revisions:
    """Returns documents with a phrase, as `protocol.Snapshot.documents_with_phrase` says.

    Postings have no positions, so the texts of the documents with all words are cut into terms again.
    """
    needed = [*dict.fromkeys([*words, *terms])]
    postings = fulltext.read_postings(connection, needed, collection)
    revisions, counts = np.unique(postings.revisions, return_counts=True)
    found: Revisions = revisions[counts == len(needed)]
    if len(words) == 1:
        return found
    budget.take(len(found))
    kept = []
    for start in range(0, len(found), READ_TOGETHER):
        for revision, document in unembedded(
            connection, found[start : start + READ_TOGETHER].tolist()
        ).items():
            if has_phrase(get_terms(document.content.whole), words):
                kept.append(revision)
    return np.sort(np.array(kept, np.int64))
