"""The names in a database's metadata, for `check --data`, while services run on it or not."""

import orjson
import psycopg

from service.store.filters.names import NameFaults, count_unreachable
from service.store.postgres.connection import PARAMETERS, Raw
from service.store.postgres.errors import unreadable
from service.store.values import DEFAULT_COLLECTION

_ROWS = 1000  # read at a time


def find_name_faults(url: str, shown: int) -> NameFaults:
    """Looks through the metadata of all documents at one moment.

    Args:
        url: The database, as postgresql://…
        shown: Examples to keep, at most.

    Returns:
        The documents with names that no filter could name.

    Raises:
        CommandError: The database cannot be read, or no service has used it.

    """
    try:
        with (
            Raw.connect(url, **PARAMETERS) as raw,
            raw.transaction(),
            raw.cursor("documents") as cursor,
        ):
            cursor.itersize = _ROWS
            cursor.execute(
                "SELECT CASE collection WHEN %s THEN id ELSE collection || '/' || id END, metadata::text "
                "FROM documents ORDER BY revision",
                (DEFAULT_COLLECTION,),
            )
            # jsonb is written with white space.
            return count_unreachable(
                ((id, orjson.dumps(orjson.loads(metadata))) for id, metadata in cursor), shown
            )
    except psycopg.Error as error:
        raise unreadable(error) from None
