"""Updates the rows by which documents are found: terms (fulltext.py), and field values (filters.py).

Start reading at `add` and `bring_up_to_date`. These rows change in the transaction of their document, so they
always match it. The table `facts` stores which rules they were computed by. If the rules have changed, the
service rebuilds the rows when it starts.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence

import orjson

from models.messages import amount
from models.search.content import Content
from models.search.terms import RULES
from service.store.sql.connection import LEXICAL_RULES, fact, fetch_value, note
from service.store.sqlite import documents, filters, fulltext
from service.store.sqlite.documents import get_number
from service.store.sqlite.postings import table
from service.store.sqlite.schema import starting

log = logging.getLogger(__name__)

INDEXED_FIELDS = "indexed fields"  # The fact with the declared fields, as JSON.
FIELD_RULES = "field rules"  # The fact with the rules that made the values of fields.
STEP_DOCUMENTS = 10_000
SAY_SECONDS = 5.0
# Tables of terms that are made together. After each change of the schema, every connection parses it again,
# which takes 50 ms with 1,000 collections.
SPARE_TABLES = 16


def add(connection: sqlite3.Connection, revision: int) -> None:
    """Adds the terms and field values of a stored document."""
    number, whole = _placed(connection, revision)
    fulltext.add(connection, number, revision, whole)
    filters.add_values(connection, _declared(connection), (revision, revision))


def add_many(connection: sqlite3.Connection, collection: str, terms: Mapping[int, str]) -> None:
    """Adds the terms and field values of stored documents of a collection.

    Args:
        connection: A connection to the store.
        collection: Name of the collection.
        terms: The result of `cut` for each revision, ascending. No other revisions are between them.
    """
    number = get_number(connection, collection)
    assert number is not None  # noqa: S101
    fulltext.add_many(connection, number, terms)
    if declared := _declared(connection):
        filters.add_values(connection, declared, (min(terms), max(terms)))


def remove(connection: sqlite3.Connection, revision: int) -> None:
    """Removes the terms and field values of a document that is about to be deleted.

    The terms of a damaged document cannot be computed, and removing wrong terms would damage the table. So
    these terms stay. Searches skip them, and the next start of the service rebuilds the table.
    """
    if documents.is_damaged(connection, revision):
        note(connection, LEXICAL_RULES, "")
        filters.remove_damaged_values(connection, _declared(connection), revision)
        return
    number, whole = _placed(connection, revision)
    fulltext.remove(connection, number, revision, whole)
    filters.remove_values(connection, _declared(connection), revision)


def add_collection(connection: sqlite3.Connection, name: str) -> None:
    """Creates a collection, which must not exist yet."""
    number = connection.execute("INSERT INTO collections (name) VALUES (?)", (name,)).lastrowid
    assert number is not None  # noqa: S101
    if not fulltext.has_table(connection, number):  # No spare table is left.
        for spare in range(number, number + SPARE_TABLES):
            fulltext.make(connection, spare)


def remove_collection(connection: sqlite3.Connection, name: str) -> None:
    """Removes a collection, which must have no documents."""
    number = get_number(connection, name)
    if number is not None:
        connection.execute("DELETE FROM collections WHERE number = ?", (number,))
        fulltext.drop(connection, number)


def optimize(connection: sqlite3.Connection) -> None:
    """Merges the segments of the FTS5 tables, which removes the terms of deleted documents from the file."""
    for number in fulltext.numbers(connection):
        fulltext.command(connection, number, "optimize")


def unequal(connection: sqlite3.Connection) -> list[str]:
    """Returns the differences between the documents and their terms and field values, as sentences."""
    found = []
    there = fulltext.numbers(connection)
    numbers = {number for number, _ in _collections(connection)}
    if left := {number for number in there - numbers if number < max(numbers)}:  # Others are spare.
        found.append(f"{amount(len(left), 'table of words is', 'tables of words are')} of no collection")
    outdated = fact(connection, LEXICAL_RULES) != RULES  # A damaged document was deleted.
    for number, name in _collections(connection) if not outdated else ():
        if number not in there:
            found.append(f"no document of the collection {name!r} can be found by its words")
            continue
        documents = "SELECT revision FROM documents WHERE collection = ?1"
        words = f"SELECT id FROM {table(number)}_docsize"
        for what, one, other in (
            (("document cannot be", "documents cannot be"), documents, words),
            (("deleted document is", "deleted documents are"), words, documents),
        ):
            sql = f"SELECT count(*) FROM ({one} EXCEPT {other})"
            if count := fetch_value(connection, sql, name):
                found.append(f"{amount(count, *what)} found by words in the collection {name!r}")
    # The next start rebuilds values of older rules.
    declared = _declared(connection) if fact(connection, FIELD_RULES) == filters.VALUE_RULES else []
    differing = {name: filters.count_wrong_values(connection, name) for name in declared}
    found += [
        f"{amount(count, 'value')} of the field {name!r} looked up wrongly"
        for name, count in differing.items()
        if count
    ]
    return found


def bring_up_to_date(connection: sqlite3.Connection, declared: Sequence[str] = ()) -> None:
    """Rebuilds the rows that were computed by other rules or for other fields, in one transaction. Blocks.

    Args:
        connection: A connection to the store.
        declared: The metadata fields that can be looked up.

    Raises:
        StartupError: The disk fails.
    """
    with starting("The document store"), connection:
        connection.execute("BEGIN IMMEDIATE")
        there, needed = fulltext.numbers(connection), {number for number, _ in _collections(connection)}
        for number in there - needed:
            fulltext.drop(connection, number)
        if needed - there or fact(connection, LEXICAL_RULES) != RULES:
            for number in there & needed:
                fulltext.command(connection, number, "delete-all")
            for number in needed - there:
                fulltext.make(connection, number)
            _each_step(connection, "words", lambda first, last: _add_words(connection, first, last))
            note(connection, LEXICAL_RULES, RULES)
        if fact(connection, FIELD_RULES) != filters.VALUE_RULES:
            connection.execute("DELETE FROM fields")
            note(connection, INDEXED_FIELDS, "[]")
            note(connection, FIELD_RULES, filters.VALUE_RULES)
        before = _declared(connection)
        for name in {*before} - {*declared}:
            connection.execute("DELETE FROM fields WHERE field = ?", (name,))
        new = sorted({*declared} - {*before})
        if new:
            words = f"fields {', '.join(new)}"
            _each_step(
                connection, words, lambda first, last: filters.add_values(connection, new, (first, last))
            )
        if {*before} != {*declared}:
            note(connection, INDEXED_FIELDS, orjson.dumps(sorted({*declared})).decode())


def _each_step(connection: sqlite3.Connection, noun: str, add: Callable[[int, int], None]) -> None:
    """Calls `add` with the first and last revision of each step, and logs the progress.

    Args:
        connection: A connection to the store.
        noun: Name of the rows, for the log.
        add: Adds the rows of these revisions.
    """
    total = documents.count_all(connection)
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
    """Returns the fields whose values the table `fields` has."""
    listed: list[str] = orjson.loads(fact(connection, INDEXED_FIELDS) or "[]")
    return listed


def _collections(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    """Returns the number and the name of each collection."""
    return connection.execute("SELECT number, name FROM collections ORDER BY number").fetchall()


def _placed(connection: sqlite3.Connection, revision: int) -> tuple[int, str]:
    """Returns the number of a document's collection, and the title and text of the document together."""
    sql = "SELECT number, text, title FROM documents JOIN collections ON name = collection WHERE revision = ?"
    [number, text, title] = connection.execute(sql, (revision,)).fetchone()
    return int(number), Content(text, title).whole
