"""A database seen from outside a service, for `check` and `check --data`. Nothing is changed."""

import orjson
import psycopg

from service.errors import CommandError
from service.store.filters.names import NameFaults, count_unreachable
from service.store.postgres import checksums, documents, schema_check
from service.store.postgres.connection import PARAMETERS, Connection, Raw
from service.store.postgres.errors import reason, unreadable
from service.store.postgres.schema import MIGRATIONS, SCHEMA_VERSION
from service.store.sql.checksums import missing
from service.store.sql.connection import unfinished_copy
from service.store.values import DEFAULT_COLLECTION

_ROWS = 1000  # read at a time


def look(url: str) -> str:
    """What the database holds, or why no service can start on it."""
    try:
        with Raw.connect(url, **PARAMETERS) as raw:
            made = raw.execute("SELECT to_regclass(%s)", (schema_check.SCHEMA_TABLE,)).fetchone()
            if made == (None,):
                return "none yet"
            connection = Connection(raw)
            found = schema_check.problem(raw, MIGRATIONS) or unfinished_copy(connection, "The database")
            return found or f"{documents.count_all(connection)} documents"
    except psycopg.ProgrammingError:  # it may quote the URL, password and all
        return "the database cannot be asked: check the URL of SIMILE_DATABASE"
    except psycopg.Error as error:
        return f"the database cannot be used: {reason(error)}"


def examine(url: str) -> tuple[int, int, list[str]]:
    """Returns the numbers of documents and of those without checksums, and the ids of the damaged ones.

    Raises:
        CommandError: The database cannot be read, or is of another schema.

    """
    try:
        with Raw.connect(url, **PARAMETERS) as raw:
            connection = Connection(raw)
            connection.execute("SET default_transaction_read_only = on")
            [version] = connection.execute("SELECT version FROM simile_schema").fetchone() or (0,)
            if version != SCHEMA_VERSION:
                raise CommandError(
                    f"The database has schema {version}, and this version knows {SCHEMA_VERSION}. Start the "
                    "service once, or use the version that wrote it."
                )
            return (
                documents.count_all(connection),
                missing(connection),
                checksums.damaged_documents(connection),
            )
    except psycopg.Error as error:
        raise unreadable(error) from None


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
