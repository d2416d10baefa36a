"""A look at a database from outside the service, which changes nothing."""

import psycopg

from service.store.postgres import documents, schema_check
from service.store.postgres.connection import PARAMETERS, Connection, Raw
from service.store.postgres.errors import reason
from service.store.postgres.schema import MIGRATIONS
from service.store.sql import unfinished


def look(url: str) -> str:
    """What the database holds, or why no service can start on it."""
    try:
        with Raw.connect(url, **PARAMETERS) as raw:
            made = raw.execute("SELECT to_regclass(%s)", (schema_check.SCHEMA_TABLE,)).fetchone()
            if made == (None,):
                return "none yet"
            connection = Connection(raw)
            found = schema_check.problem(raw, MIGRATIONS) or unfinished.problem(connection, "The database")
            return found or f"{documents.count_all(connection)} documents"
    except psycopg.ProgrammingError:  # it may quote the URL, password and all
        return "the database cannot be asked: check the URL of SIMILE_DATABASE"
    except psycopg.Error as error:
        return f"the database cannot be used: {reason(error)}"
