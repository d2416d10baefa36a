"""What is kept beside the documents so that they are found: words (lexical.py), declared fields (fields.py).

It changes in the transaction of its document, so it is always equal to the store. What it was made by is
noted; where that has changed, it is made anew at the next start.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

import orjson

from service import fields, lexical
from service.documents import fact
from service.errors import machine_error
from service.settings import StartupError

log = logging.getLogger(__name__)

LEXICAL_RULES = "lexical rules"  # the fact that names what the words were cut by
INDEXED_FIELDS = "indexed fields"  # the fact that lists them, as JSON
STEP_DOCUMENTS = 10_000
SAY_SECONDS = 5.0


def add(connection: sqlite3.Connection, revision: int) -> None:
    """A document was stored under `revision`."""
    lexical.add(connection, revision, _text(connection, revision))
    fields.add(connection, _declared(connection), (revision, revision))


def remove(connection: sqlite3.Connection, revision: int) -> None:
    """The document of `revision` is about to be deleted, and is still there."""
    lexical.remove(connection, revision, _text(connection, revision))
    fields.remove(connection, _declared(connection), revision)


def unequal(connection: sqlite3.Connection) -> list[str]:
    """What is not as the documents say, in words; nothing when all is as it should be."""
    documents, words = "SELECT revision FROM documents", "SELECT id FROM lexical_docsize"
    found = []
    for what, one, other in (
        ("documents cannot be", documents, words),
        ("deleted documents are", words, documents),
    ):
        [count] = connection.execute(f"SELECT count(*) FROM ({one} EXCEPT {other})").fetchone()
        if count:
            found.append(f"{count} {what} found by their words")
    differing = {name: fields.differing(connection, name) for name in _declared(connection)}
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
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _bring_up_to_date(connection, declared)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        problem = machine_error(error)
        raise StartupError(problem.message if problem else f"The document store: {error}") from error


def _bring_up_to_date(connection: sqlite3.Connection, declared: Sequence[str]) -> None:
    if fact(connection, LEXICAL_RULES) != lexical.RULES:
        lexical.clear(connection)
        _each_step(connection, "words", lambda first, last: _add_words(connection, first, last))
        _note(connection, LEXICAL_RULES, lexical.RULES)
    before = _declared(connection)
    for name in {*before} - {*declared}:
        fields.forget(connection, name)
    new = sorted({*declared} - {*before})
    if new:
        words = f"fields {', '.join(new)}"
        _each_step(connection, words, lambda first, last: fields.add(connection, new, (first, last)))
    if {*before} != {*declared}:
        _note(connection, INDEXED_FIELDS, orjson.dumps(sorted({*declared})).decode())


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
        "SELECT revision, text FROM documents WHERE revision BETWEEN ? AND ?", (first, last)
    )
    for revision, text in rows:
        lexical.add(connection, revision, text)


def _declared(connection: sqlite3.Connection) -> list[str]:
    """The fields that are looked up, as the store has them."""
    listed: list[str] = orjson.loads(fact(connection, INDEXED_FIELDS) or "[]")
    return listed


def _note(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))


def _text(connection: sqlite3.Connection, revision: int) -> str:
    [text] = connection.execute("SELECT text FROM documents WHERE revision = ?", (revision,)).fetchone()
    return str(text)
