"""The interface of a connection to either store, and the table `facts` of single values."""

from collections.abc import Iterable, Iterator, Sequence
from secrets import token_hex
from typing import Any, Protocol

_VISITOR_SECRET = "visitor secret"  # noqa: S105  the name of the fact
_SECRET_BYTES = 32
# The fact that marks an unfinished `copy`: the version and the form of its vectors. Services and backups
# reject a marked store.
COPYING = "copy under way"
# The fact that the vector index of this generation was dropped for a load, and is built again at its end.
UNINDEXED = "vector index dropped"
LEXICAL_RULES = "lexical rules"  # The fact with the rules by which the stored terms were computed.
START_OVER = "--start-over"
NONE_THERE = f"The target holds no unfinished copy, so {START_OVER} does not empty it."


class Rows(Protocol):
    """The rows that a statement returns."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Interface of a connection to either store. Parameters replace the question marks in `sql`."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Rows: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...


def fetch_value(connection: Connection, sql: str, *parameters: object) -> Any:
    """Returns the first column of the first row, or None without a row."""
    row = connection.execute(sql, parameters).fetchone()
    return None if row is None else row[0]


def fetch_column(connection: Connection, sql: str, *parameters: object) -> list[Any]:
    """Returns the first column of all rows."""
    return [row[0] for row in connection.execute(sql, parameters)]


def fact(connection: Connection, name: str) -> str | None:
    found: str | None = fetch_value(connection, "SELECT value FROM facts WHERE name = ?", name)
    return found


def note(connection: Connection, name: str, value: str) -> None:
    connection.execute(
        "INSERT INTO facts (name, value) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def visitor_secret(connection: Connection) -> str:
    """Returns the secret for hashing the ids of visitors (auth/access.py). The first call creates it."""
    sql = "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
    connection.execute(sql, (_VISITOR_SECRET, token_hex(_SECRET_BYTES)))
    secret = fact(connection, _VISITOR_SECRET)
    assert secret is not None  # noqa: S101
    return secret


def unfinished_copy(connection: Connection, store: str) -> str | None:
    """Returns a sentence if a copy into the store has not ended, so that no service may use the store.

    Returns None if no copy is unfinished.

    Args:
        connection: A connection to the store.
        store: The name of the store in the sentence.
    """
    copied = fact(connection, COPYING)
    if copied is None:
        return None
    return (
        f"{store} holds an unfinished copy of {copied.partition(' ')[0]}, so documents may be missing. Run "
        f"the same `simile copy` again to finish it, or with {START_OVER} to begin again."
    )
