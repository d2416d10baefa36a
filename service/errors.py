"""Every refusal, with its status and its name.

    400 Empty         409 Conflict     424 Backend       503 Unhealthy
    401 Unauthorized  413 TooLarge     429 Overloaded    504 Timeout
    403 Forbidden     415 MediaType    429 RateLimited   507 Storage
    404 NotFound      422 Validation   500 Internal
    405 MethodNotAllowed               422 Tokenizer

A refusal is raised anywhere and answered in one place (middleware.py), in the body of the family that the
path belongs to: TEI and our own routes, OpenAI's `/v1`, Cohere's `/v2`.
"""

import errno
import math
import os
import re
import sqlite3
from collections.abc import Mapping
from typing import ClassVar

from models.errors import FULL_ERRORS


class StartupError(Exception):
    """The service cannot start. The message says why and what to do."""


class Unusable(ValueError):
    """A file that a setting names cannot be used. The message says why, and repeats nothing of the file."""


class CommandError(Exception):
    """A command did not do what it was asked to.

    The message says what is wrong, what was done all the same, and what to do.
    """


class ServiceError(Exception):
    """A refusal that a client sees. The message says what is wrong and what to do."""

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "Internal"

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        """`param`: the field that is wrong, where one is: a client of OpenAI's API is told its name."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        if retry_after_seconds is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after_seconds)))


class Empty(ServiceError):
    status, error_type = 400, "Empty"


class Unauthorized(ServiceError):
    """No key, or none that is known."""

    status, error_type = 401, "Unauthorized"


class Forbidden(ServiceError):
    """The key's role does not allow this, or the page's origin does not."""

    status, error_type = 403, "Forbidden"


class NotFound(ServiceError):
    status, error_type = 404, "NotFound"


class MethodNotAllowed(ServiceError):
    status, error_type = 405, "MethodNotAllowed"


class Conflict(ServiceError):
    status, error_type = 409, "Conflict"


class TooLarge(ServiceError):
    status, error_type = 413, "TooLarge"


class MediaType(ServiceError):
    status, error_type = 415, "MediaType"


class Validation(ServiceError):
    status, error_type = 422, "Validation"


class Tokenizer(ServiceError):
    """The tokenizer failed on a text."""

    status, error_type = 422, "Tokenizer"


class Backend(ServiceError):
    """The model failed on this input, or gave a vector that is not finite."""

    status, error_type = 424, "Backend"


class Hung(Backend):
    """A candidate's forward pass did not end in time; its thread may never come back."""


class Malformed(Validation):
    """The request is not HTTP, or its headers contradict each other."""

    status = 400


class Misdirected(Forbidden):
    """The request names a host that the service does not answer to."""

    status = 421


class HeadTooLarge(TooLarge):
    """The request's first line and headers."""

    status = 431


class Overloaded(ServiceError):
    status, error_type = 429, "Overloaded"


class RateLimited(ServiceError):
    """The key has spent what it may use in a minute; others are served."""

    status, error_type = 429, "RateLimited"


class Internal(ServiceError):
    status, error_type = 500, "Internal"


class Unhealthy(ServiceError):
    """Not able to answer now: starting, rebuilding, stopping, or a model that fails."""

    status, error_type = 503, "Unhealthy"


class Timeout(ServiceError):
    status, error_type = 504, "Timeout"


class Storage(ServiceError):
    """The disk is full, read-only or failing. Nothing of the request was stored."""

    status, error_type = 507, "Storage"


def error_types() -> list[str]:
    """Every name that a refusal can have; a narrower kind has the name of what it narrows."""
    return sorted(kind.error_type for kind in ServiceError.__subclasses__())


# SQLite's words for a table or a column that another process has removed.
_LACKS = re.compile(r"no such (table|column)|has no column named")
_NO_JSON = "malformed JSON"  # SQLite's words for metadata that a filter cannot read
# SQLite's primary result codes that speak of the machine and not of our SQL.
DAMAGED_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DESCRIPTOR_ERRORS = {errno.EMFILE, errno.ENFILE}


def machine_error(error: BaseException) -> ServiceError | None:
    """The refusal for what the machine denies: room, rights, file descriptors; None for anything else.

    Storage (507) for a disk that is full, read-only or failing and for a damaged store, Unhealthy (503)
    where file descriptors ran out, or a table is missing.
    """
    if isinstance(error, sqlite3.Error):
        return _sqlite_error(error)
    if not isinstance(error, OSError):
        return None
    if error.errno in _DESCRIPTOR_ERRORS:
        return _no_descriptors()
    if error.errno in FULL_ERRORS:
        return _full()
    if error.errno == errno.EROFS:
        return _read_only(error)
    return _failing(error) if error.errno == errno.EIO else None


def _sqlite_error(error: sqlite3.Error) -> ServiceError | None:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in DAMAGED_CODES or _NO_JSON in str(error):
        return _damaged(error)
    if code == sqlite3.SQLITE_FULL:
        return _full()
    if code == sqlite3.SQLITE_READONLY:
        return _read_only(error)
    if code == sqlite3.SQLITE_ERROR and _LACKS.search(str(error)):
        return Unhealthy(
            f"The document store cannot answer this: {error}. GET /ready says what it lacks.",
            retry_after_seconds=5,
        )
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}:
        return _no_descriptors() if _descriptors_are_out() else _failing(error)
    return None


def _descriptors_are_out() -> bool:
    """SQLite does not say why a file could not be opened; one more file tells."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in _DESCRIPTOR_ERRORS
    return False


def _damaged(error: sqlite3.Error) -> Storage:
    if _NO_JSON in str(error):
        return Storage(
            "The metadata of a document is damaged, so no filter can be answered that reads it. "
            "`python -m service check --data` names the document: send it again, or delete it."
        )
    return Storage(
        f"The document store is damaged ({error}). `python -m service check --data` says what is wrong; "
        "restore a backup (docs/OPERATIONS.md)."
    )


def _full() -> Storage:
    return Storage("The disk is full. Nothing of this was stored. Free some room, then send again.")


def _read_only(error: Exception) -> Storage:
    return Storage(f"The disk is read-only ({error}). Make it writable, then send again.")


def _failing(error: Exception) -> Storage:
    return Storage(f"The disk fails, or is full ({error}). Look at the data directory, then send again.")


def _no_descriptors() -> Unhealthy:
    return Unhealthy(
        "The service has no file descriptor left. Close connections, or raise the limit (ulimit -n, "
        "LimitNOFILE=), then send again.",
        retry_after_seconds=1,
    )


def unwritable(target: object, error: OSError, left: str) -> str:
    """The sentence for a file or a folder that a command cannot write. left: what is there now."""
    advice = " Free some room, or name another place." if error.errno in FULL_ERRORS else ""
    return f"{target} cannot be written ({error.strerror or error}). {left}{advice}"


def release_frames(error: BaseException) -> None:
    """Cut `error`, and every error that led to it, off from the frames they passed through.

    Such a frame holds the request's body, and often the future that holds the error: a cycle that waits for
    the garbage collector, which millions of plain numbers never trigger.
    """
    left: list[BaseException] = [error]
    while left:
        link = left.pop()
        left += [before for before in (link.__cause__, link.__context__) if before is not None]
        link.__traceback__ = link.__cause__ = link.__context__ = None
