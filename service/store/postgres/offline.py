"""Reads a database for `check` and `check --data`, without a service. Changes nothing."""

import orjson
import psycopg

from models.messages import amount
from service.errors import CommandError
from service.store.filters.names import NameFaults, count_unreachable
from service.store.postgres import documents, schema
from service.store.postgres.connection import PARAMETERS, Connection, Raw, reason, unreadable
from service.store.postgres.schema import SCHEMA_VERSION
from service.store.sql.connection import fetch_value, unfinished_copy
from service.store.sql.records import count_without_checksums
from service.store.values import DEFAULT_COLLECTION

_ROWS = 1000  # Rows that are read at a time.


def look(url: str) -> str:
    """Describes the content of a database, or the reason why no service can start with it."""
    try:
        with Raw.connect(url, **PARAMETERS) as raw:
            connection = Connection(raw)
            if fetch_value(connection, "SELECT to_regclass(?)", schema.SCHEMA_TABLE) is None:
                return "none yet"
            found = schema.problem(raw) or unfinished_copy(connection, "The database")
            return found or amount(documents.count_all(connection), "document")
    except psycopg.ProgrammingError:  # The error may quote the URL with its password.
        return "the database cannot be asked: check the URL of SIMILE_DATABASE"
    except psycopg.Error as error:
        return f"the database cannot be used: {reason(error)}"


def examine(url: str, shown: int) -> tuple[int, int, list[str], NameFaults]:
    """Counts documents, and checks their checksums and the names in their metadata.

    Args:
        url: The database, as postgresql://…
        shown: Maximum number of examples of documents with names that no filter can express.

    Returns:
        The number of documents, the number of documents without checksums, the ids of damaged documents, and
        the documents with such names.

    Raises:
        CommandError: The database cannot be read, or has another schema.
    """
    try:
        with Raw.connect(url, **PARAMETERS) as raw:
            connection = Connection(raw)
            connection.execute("SET default_transaction_read_only = on")
            version = fetch_value(connection, "SELECT version FROM simile_schema") or 0
            if version != SCHEMA_VERSION:
                raise CommandError(
                    f"The database has schema {version}, and this version knows {SCHEMA_VERSION}. Start the "
                    "service once, or use the version that wrote it."
                )
            count, unknown = documents.count_all(connection), count_without_checksums(connection)
            damaged = documents.damaged_documents(connection)
            with raw.transaction(), raw.cursor("documents") as cursor:
                cursor.itersize = _ROWS
                cursor.execute(
                    "SELECT CASE collection WHEN %s THEN id ELSE collection || '/' || id END, metadata::text "
                    "FROM documents ORDER BY revision",
                    (DEFAULT_COLLECTION,),
                )
                # The text of a jsonb has white space.
                rows = ((id, orjson.dumps(orjson.loads(metadata))) for id, metadata in cursor)
                return count, unknown, damaged, count_unreachable(rows, shown)
    except psycopg.Error as error:
        raise unreadable(error) from None
