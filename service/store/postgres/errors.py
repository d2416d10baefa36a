"""Faults of the database, as refusals."""

import contextlib
import logging
from collections.abc import Iterator

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from service.errors import CommandError, ServiceError, Storage, Timeout, Unhealthy, Validation
from service.observability import outages
from service.store.postgres.connection import NoAnswer

log = logging.getLogger(__name__)

# A serialization failure, a deadlock, a row that another one has just made: it is tried again.
AGAIN_CODES = {"40001", "40P01", "23505"}
_NUL = "has the character U+0000, which PostgreSQL cannot store. Leave it out."
_AWAY = "The database cannot be reached. Send again later."
_NOT_AS_NEEDED = "The database cannot answer this: {}. GET /ready says what it lacks, if it does."
_SYNTAX_ERROR = "42601"  # a defect of ours
UNSURE = "The database went away at the last moment: what was sent may be stored or not. Send it again."
_BUSY = "The database was too busy with other writes. Send again."
# By code, or by the class that a code begins with.
_REFUSALS: dict[str, tuple[type[ServiceError], str, float | None]] = {
    "22P05": (Validation, f"Metadata {_NUL}", None),
    "40001": (Unhealthy, _BUSY, 1),
    "40P01": (Unhealthy, _BUSY, 1),
    "23505": (Unhealthy, _BUSY, 1),
    "57014": (Timeout, "The database took longer than SIMILE_HANG_SECONDS. Send again later.", 2),
    "55P03": (Unhealthy, _BUSY, 1),
    "25006": (Unhealthy, "The database takes no writes: it is a standby. Send again later.", 2),
    "53300": (Unhealthy, "The database has no connection left. Send again later.", 1),
    "53100": (Storage, "The database's disk is full. Free some room, then send again.", None),
    "53": (Unhealthy, "The database lacks memory or another resource. Send again later.", 2),
    "08": (Unhealthy, _AWAY, 2),  # the connection broke
    "57": (Unhealthy, _AWAY, 2),  # the server starts, stops or fails over
    "42": (Unhealthy, _NOT_AS_NEEDED, 5),  # a table, column, index or right is missing
    "3F": (Unhealthy, _NOT_AS_NEEDED, 5),  # the schema is missing
    "58": (Unhealthy, _NOT_AS_NEEDED, 5),  # a file is missing
    "XX": (Unhealthy, _NOT_AS_NEEDED, 5),  # damaged, or a table that another session has just dropped
}


class Again(Exception):
    """Another transaction was in the way; this one is tried again."""


def is_lost(error: Exception) -> bool:
    """True when a connection broke, or its server is going away."""
    waited = NoAnswer | PoolTimeout | PoolClosed  # to try again would take as long again
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, waited):
        return False
    code = error.sqlstate
    return code is None or code[:2] == "08" or code in {"57P01", "57P02", "57P03", "25P03", "25006"}


def refusal(error: Exception) -> ServiceError | None:
    """The refusal for what the database or the network denied; None for an error of another kind."""
    if isinstance(error, PoolTimeout | PoolClosed):
        return Unhealthy(
            "No connection to the database is free, or it cannot be reached. Send again later.",
            retry_after_seconds=1,
        )
    if isinstance(error, NoAnswer):
        return Unhealthy("The database does not answer. Send again later.", retry_after_seconds=2)
    if isinstance(error, Again):
        return Unhealthy(_BUSY, retry_after_seconds=1)
    if isinstance(error, psycopg.DataError) and "NUL" in str(error):
        return Validation(f"A text {_NUL}")
    if not isinstance(error, psycopg.Error):
        return None
    code = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
    found = None if code == _SYNTAX_ERROR else _REFUSALS.get(code) or _REFUSALS.get(code[:2])
    return found and found[0](found[1].format(_first_line(error)), retry_after_seconds=found[2])


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Log what the database denies in the block as `what`, and raise its refusal."""
    try:
        yield
    except Exception as error:
        fault = refusal(error)
        if fault is None:
            raise
        if not isinstance(fault, Validation):  # that is the client's mistake
            outages.warn(log, f"{what}: {reason(error)}")
        raise fault from error


def unreadable(error: psycopg.Error) -> CommandError:
    """For a command that only reads. To be raised `from None`: a wrong URL is quoted, password and all."""
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return CommandError("The database cannot be asked: check the URL of SIMILE_DATABASE.")
    return CommandError(f"The database of SIMILE_DATABASE cannot be read ({reason(error)}).")


def reason(error: Exception) -> str:
    """An error's first line: what follows may quote a statement and what was sent with it."""
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
