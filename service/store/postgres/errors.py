"""Faults of the database, as refusals."""

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from service.errors import ServiceError, Storage, Unhealthy, Validation

# A serialization failure, a deadlock, a row that another one has just made: it is tried again.
AGAIN_CODES = {"40001", "40P01", "23505"}
_NUL = "has the character U+0000, which PostgreSQL cannot store. Leave it out."
_AWAY = "The database cannot be reached. What was being written may have been stored; send again."
_BUSY = "The database was too busy with other writes. Send again."
# By code, or by the class that a code begins with.
_REFUSALS: dict[str, tuple[type[ServiceError], str, float | None]] = {
    "22P05": (Validation, f"Metadata {_NUL}", None),
    "40001": (Unhealthy, _BUSY, 1),
    "40P01": (Unhealthy, _BUSY, 1),
    "23505": (Unhealthy, _BUSY, 1),
    "57014": (Unhealthy, "The database took too long. Send again later.", 2),
    "25006": (Unhealthy, "The database takes no writes: it is a standby. Send again later.", 2),
    "53300": (Unhealthy, "The database has no connection left. Send again later.", 1),
    "53": (Storage, "The database has no room left. Free some, then send again.", None),
    "08": (Unhealthy, _AWAY, 2),  # the connection broke
    "57": (Unhealthy, _AWAY, 2),  # the server starts, stops or fails over
}


class Again(Exception):
    """Another transaction was in the way; this one is tried again."""


def refusal(error: Exception) -> ServiceError | None:
    """The refusal for what the database or the network denied; None for an error of another kind."""
    if isinstance(error, PoolTimeout | PoolClosed):
        return Unhealthy("No connection to the database is free. Send again later.", retry_after_seconds=1)
    if isinstance(error, Again):
        return Unhealthy(_BUSY, retry_after_seconds=1)
    if isinstance(error, psycopg.DataError) and "NUL" in str(error):
        return Validation(f"A text {_NUL}")
    if not isinstance(error, psycopg.Error):
        return None
    code = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
    kind, message, seconds = _REFUSALS.get(code) or _REFUSALS.get(code[:2]) or (None, "", None)
    return None if kind is None else kind(message, retry_after_seconds=seconds)
