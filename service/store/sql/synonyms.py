"""Stores the synonyms of collections as facts, in both stores. So backups and copies have them.

The value is JSON: `version`, `groups` and `one_way`, as `GET /collections/NAME/synonyms` answers.
"""

from typing import Any

import orjson

from service.errors import Conflict
from service.store.sql.connection import Connection, fact, note

_NAME = "synonyms/"  # Before the name of the collection.


def get_synonyms(connection: Connection, collection: str) -> str | None:
    """Returns the synonyms of a collection as JSON, as `protocol.Snapshot.get_synonyms` says."""
    return fact(connection, f"{_NAME}{collection}")


def replace_synonyms(
    connection: Connection, given: dict[str, Any], collection: str, expected: int | None = None
) -> int:
    """Replaces the synonyms of a collection, as `protocol.Documents.replace_synonyms` says."""
    stored = get_synonyms(connection, collection)
    version = orjson.loads(stored)["version"] if stored else 0
    if expected not in {None, version}:
        raise Conflict(
            f"The synonyms have version {version}, and these replace version {expected}. Get them again, or "
            "leave version out."
        )
    value = {"version": version + 1, **given}
    note(connection, f"{_NAME}{collection}", orjson.dumps(value).decode())
    return int(version + 1)


def forget_synonyms(connection: Connection, collection: str) -> None:
    connection.execute("DELETE FROM facts WHERE name = ?", (f"{_NAME}{collection}",))
