"""Rows kept beside the documents to find them: words (fulltext.py), declared fields (field_index.py).

Words are in a table per collection, made and dropped with the collection.

It changes in the transaction of its document, so it is always equal to the store. What it was made by is
noted; where that has changed, it is made anew at the next start.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

import orjson

from models.search.content import Content
from models.search.terms import RULES
from service.store.sql.connection import fact, note
from service.store.sqlite import checksums, field_index, fulltext
from service.store.sqlite.documents import number_of
from service.store.sqlite.schema import starting

log = logging.getLogger(__name__)

LEXICAL_RULES = "lexical rules"  # the fact that names what the words were cut by
INDEXED_FIELDS = "indexed fields"  # the fact that lists them, as JSON
FIELD_RULES = "field rules"  # the fact that names what their values were made by
STEP_DOCUMENTS = 10_000
SAY_SECONDS = 5.0


def add(connection: sqlite3.Connection, revision: int) -> None:
    """A document was stored under `revision`."""
    number, whole = _placed(connection, revision)
    fulltext.add(connection, number, revision, whole)
    field_index.add(connection, _declared(connection), (revision, revision))


def remove(connection: sqlite3.Connection, revision: int) -> None:
    """The document of `revision` is about to be deleted, and is still there.

    The words of a damaged one cannot be computed again, so they stay: FTS5 fails in each search that meets a
    row of which it has lost a part. They lead to no document, and the next start indexes all texts again.
    """
    if checksums.is_damaged(connection, revision):
        note(connection, LEXICAL_RULES, "")
        field_index.remove_any(connection, _declared(connection), revision)
        return
    number, whole = _placed(connection, revision)
    fulltext.remove(connection, number, revision, whole)
    field_index.remove(connection, _declared(connection), revision)


def add_collection(connection: sqlite3.Connection, name: str) -> None:
    """Make the collection `name`, which is not there."""
    number = connection.execute("INSERT INTO collections (name) VALUES (?)", (name,)).lastrowid
    assert number is not None  # noqa: S101  an INSERT always has one
    fulltext.make(connection, number)


def remove_collection(connection: sqlite3.Connection, name: str) -> None:
    """Remove the collection `name`, which has no document any more."""
    number = number_of(connection, name)
    if number is not None:
        connection.execute("DELETE FROM collections WHERE number = ?", (number,))
        fulltext.drop(connection, number)


def optimize(connection: sqlite3.Connection) -> None:
    """Merge the tables of words, so that words of deleted documents go."""
    for number in fulltext.numbers(connection):
        fulltext.optimize(connection, number)


def unequal(connection: sqlite3.Connection) -> list[str]:
    """Differences from the documents, in words; none when all is as it should be."""
    found = []
    there = fulltext.numbers(connection)
    if left := there - {number for number, _ in _collections(connection)}:
        found.append(f"{len(left)} tables of words belong to no collection")
    anew = fact(connection, LEXICAL_RULES) != RULES  # a damaged document was deleted
    for number, name in _collections(connection) if not anew else ():
        if number not in there:
            found.append(f"no document of the collection {name!r} can be found by its words")
            continue
        documents = "SELECT revision FROM documents WHERE collection = ?1"
        words = f"SELECT id FROM {fulltext.table(number)}_docsize"
        for what, one, other in (
            ("documents cannot be", documents, words),
            ("deleted documents are", words, documents),
        ):
            sql = f"SELECT count(*) FROM ({one} EXCEPT {other})"
            [count] = connection.execute(sql, (name,)).fetchone()
            if count:
                found.append(f"{count} {what} found by their words in the collection {name!r}")
    # Values that older rules made are made again by the next start.
    declared = _declared(connection) if fact(connection, FIELD_RULES) == field_index.RULES else []
    differing = {name: field_index.differing(connection, name) for name in declared}
    found += [
        f"{count} values of the field {name!r} are looked up wrongly"
        for name, count in differing.items()
        if count
    ]
    return found


def bring_up_to_date(connection: sqlite3.Connection, declared: Sequence[str] = ()) -> None:
    """Make anew what was made by other rules, in one transaction; blocks as long as that takes.

    declared: the fields that filters are to look up.

    Raises:
        StartupError: the disk fails.

    """
    with starting("The document store"), connection:
        connection.execute("BEGIN IMMEDIATE")
        there, wanted = fulltext.numbers(connection), {number for number, _ in _collections(connection)}
        for number in there - wanted:
            fulltext.drop(connection, number)
        if wanted - there or fact(connection, LEXICAL_RULES) != RULES:
            for number in there & wanted:
                fulltext.clear(connection, number)
            for number in wanted - there:
                fulltext.make(connection, number)
            _each_step(connection, "words", lambda first, last: _add_words(connection, first, last))
            note(connection, LEXICAL_RULES, RULES)
        if fact(connection, FIELD_RULES) != field_index.RULES:
            connection.execute("DELETE FROM fields")
            note(connection, INDEXED_FIELDS, "[]")
            note(connection, FIELD_RULES, field_index.RULES)
        before = _declared(connection)
        for name in {*before} - {*declared}:
            field_index.forget(connection, name)
        new = sorted({*declared} - {*before})
        if new:
            words = f"fields {', '.join(new)}"
            _each_step(connection, words, lambda first, last: field_index.add(connection, new, (first, last)))
        if {*before} != {*declared}:
            note(connection, INDEXED_FIELDS, orjson.dumps(sorted({*declared})).decode())


def _each_step(connection: sqlite3.Connection, noun: str, add: Callable[[int, int], None]) -> None:
    """Call `add` with the first and the last revision of each few documents; say how far it is."""
    [total] = connection.execute("SELECT count(*) FROM documents").fetchone()
    done, first, said = 0, 0, time.monotonic()
    while done < total:
        step = "SELECT revision FROM documents WHERE revision >= ? ORDER BY revision LIMIT ?"
        [last, count] = connection.execute(
            f"SELECT max(revision), count(*) FROM ({step})", (first, STEP_DOCUMENTS)
        ).fetchone()
        add(first, last)
        done, first = done + count, last + 1
        if time.monotonic() - said > SAY_SECONDS or done == total:
            said = time.monotonic()
            log.info("Indexing the %s of the documents: %d of %d are done", noun, done, total)


def _add_words(connection: sqlite3.Connection, first: int, last: int) -> None:
    rows = connection.execute(
        "SELECT number, revision, text, title FROM documents JOIN collections ON name = collection "
        "WHERE revision BETWEEN ? AND ?",
        (first, last),
    )
    for number, revision, text, title in rows:
        fulltext.add(connection, number, revision, Content(text, title).whole)


def _declared(connection: sqlite3.Connection) -> list[str]:
    """The fields that are looked up, as the store has them."""
    listed: list[str] = orjson.loads(fact(connection, INDEXED_FIELDS) or "[]")
    return listed


def _collections(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    """Number and name of each."""
    return connection.execute("SELECT number, name FROM collections ORDER BY number").fetchall()


def _placed(connection: sqlite3.Connection, revision: int) -> tuple[int, str]:
    """The number of the collection that holds a document, and the document's title and text in one."""
    [number, text, title] = connection.execute(
        "SELECT number, text, title FROM documents JOIN collections ON name = collection WHERE revision = ?",
        (revision,),
    ).fetchone()
    return int(number), Content(text, title).whole
