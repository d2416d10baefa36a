"""Single stored values, such as whether the example corpus was loaded."""

from secrets import token_hex

from service.store.sql.connection import Connection

_VISITOR_SECRET = "visitor secret"  # noqa: S105  the name of the fact
_SECRET_BYTES = 32


def fact(connection: Connection, name: str) -> str | None:
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def note(connection: Connection, name: str, value: str) -> None:
    connection.execute(
        "INSERT INTO facts (name, value) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def visitor_secret(connection: Connection) -> str:
    """The secret that visitors' ids are hashed with (auth/visitors.py); the first call makes it."""
    if (secret := fact(connection, _VISITOR_SECRET)) is not None:
        return secret
    connection.execute(
        "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
        (_VISITOR_SECRET, token_hex(_SECRET_BYTES)),
    )
    secret = fact(connection, _VISITOR_SECRET)  # another process may have been first
    assert secret is not None  # noqa: S101  one of the two is there
    return secret
