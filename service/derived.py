"""What is kept beside the documents so that they are found: their words (lexical.py).

It changes in the transaction of its document, so it is always equal to the store. What it was made by is
noted; where that has changed, it is made anew at the next start.
"""

import logging
import sqlite3
import time
from collections.abc import Callable

from service import lexical
from service.documents import count, fact
from service.errors import storage_error
from service.settings import StartupError

log = logging.getLogger(__name__)

LEXICAL_RULES = "lexical rules"  # the fact that names what the words were cut by
STEP_DOCUMENTS = 10_000
SAY_SECONDS = 5.0


def add(connection: sqlite3.Connection, revision: int) -> None:
    """A document was stored under `revision`."""
    lexical.add(connection, revision, _text(connection, revision))


def remove(connection: sqlite3.Connection, revision: int) -> None:
    """The document of `revision` is about to be deleted, and is still there."""
    lexical.remove(connection, revision, _text(connection, revision))


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make anew what was made by other rules, in one transaction; blocks as long as that takes.

    Raises:
        StartupError: the disk fails.

    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _bring_up_to_date(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        problem = storage_error(error)
        raise StartupError(problem.message if problem else f"The document store: {error}") from error


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    if fact(connection, LEXICAL_RULES) != lexical.RULES:
        lexical.clear(connection)
        _each(connection, "words", lexical.add)
        connection.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (LEXICAL_RULES, lexical.RULES)
        )


def _each(
    connection: sqlite3.Connection, noun: str, add: Callable[[sqlite3.Connection, int, str], None]
) -> None:
    """Call `add` with the revision and the text of every document; say how far it is."""
    total, done, said = count(connection), 0, time.monotonic()
    rows = connection.execute("SELECT revision, text FROM documents")
    while batch := rows.fetchmany(STEP_DOCUMENTS):
        for revision, text in batch:
            add(connection, revision, text)
        done += len(batch)
        if time.monotonic() - said > SAY_SECONDS:
            said = time.monotonic()
            log.info("Indexing the %s of %d documents: %d are done", noun, total, done)


def _text(connection: sqlite3.Connection, revision: int) -> str:
    [text] = connection.execute("SELECT text FROM documents WHERE revision = ?", (revision,)).fetchone()
    return str(text)
