"""The error answers of the service, each with its status and name.

    400 Empty         409 Conflict     424 Backend       503 Unhealthy
    401 Unauthorized  413 TooLarge     429 Overloaded    504 Timeout
    403 Forbidden     415 MediaType    429 RateLimited   507 Storage
    404 NotFound      422 Validation   500 Internal
    405 MethodNotAllowed               422 Tokenizer

Any code may raise a `ServiceError`. http/middleware.py turns it into an answer, and http/error_responses.py
gives it the body that clients of TEI, OpenAI (`/v1`) or Cohere (`/v2`) expect.
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
    """The service cannot start. The message has the reason and advice."""


class Unusable(ValueError):
    """A file that a setting names cannot be used. The message says why and never quotes the file."""


class CommandError(Exception):
    """A command failed. The message has the reason, the work done so far, and advice."""


class ServiceError(Exception):
    """An error that the client receives. The message has the reason and advice.

    Args:
        retry_after_seconds: Value of the Retry-After header, rounded up to whole seconds.
        param: Name of the wrong field, which OpenAI's error body reports.

    """

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
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
        if retry_after_seconds is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after_seconds)))


class Empty(ServiceError):
    status, error_type = 400, "Empty"


class Unauthorized(ServiceError):
    """The API key is missing or unknown."""

    status, error_type = 401, "Unauthorized"


class Forbidden(ServiceError):
    """The role of the key, or the origin of the page, does not allow this."""

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
    """The model failed on this input, or returned a vector that is not finite."""

    status, error_type = 424, "Backend"


class Hung(Backend):
    """A candidate's forward pass did not end in time. Its thread may never return."""


class Malformed(Validation):
    """The request is not HTTP, or its headers contradict each other."""

    status = 400


class Misdirected(Forbidden):
    """The request names a host that the service does not answer to."""

    status = 421


class HeadTooLarge(TooLarge):
    """The first line and the headers of the request are too large."""

    status = 431


class Overloaded(ServiceError):
    status, error_type = 429, "Overloaded"


class RateLimited(ServiceError):
    """The key has used its budget for this minute. Other keys are served."""

    status, error_type = 429, "RateLimited"


class Internal(ServiceError):
    status, error_type = 500, "Internal"


class Unhealthy(ServiceError):
    """The service cannot answer now: it starts, rebuilds or stops, or its model fails."""

    status, error_type = 503, "Unhealthy"


class Timeout(ServiceError):
    status, error_type = 504, "Timeout"


class Storage(ServiceError):
    """The disk is full, read-only or failing. Nothing of the request was stored."""

    status, error_type = 507, "Storage"


def error_types() -> list[str]:
    """Returns the sorted error names. A subclass of a subclass shares its parent's name."""
    return sorted(kind.error_type for kind in ServiceError.__subclasses__())


# SQLite's messages for a table or a column that another process has removed.
_MISSING_SCHEMA = re.compile(r"no such (table|column)|has no column named")
_NOT_JSON = "malformed JSON"  # SQLite's message for metadata that a filter cannot read
# SQLite's primary result codes for a damaged file.
DAMAGED_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DESCRIPTOR_ERRORS = {errno.EMFILE, errno.ENFILE}


def machine_error(error: BaseException) -> ServiceError | None:
    """Returns the answer for an error of the machine: disk, permissions or file descriptors.

    Returns:
        `Storage` (507) if the disk is full, read-only or failing, or the store is damaged. `Unhealthy` (503)
        if file descriptors ran out or a table is missing. None for any other error.

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
    if _NOT_JSON in str(error):
        return Storage(
            "The metadata of a document is damaged, so filters that read it fail. "
            "`python -m service check --data` names the document. Send it again, or delete it."
        )
    if code in DAMAGED_CODES:
        return Storage(
            f"The document store is damaged ({error}). `python -m service check --data` says what is wrong; "
            "restore a backup (docs/OPERATIONS.md)."
        )
    if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}:
        return _full() if code == sqlite3.SQLITE_FULL else _read_only(error)
    if code == sqlite3.SQLITE_ERROR and _MISSING_SCHEMA.search(str(error)):
        return Unhealthy(
            f"The document store cannot answer this: {error}. GET /ready says what it lacks.",
            retry_after_seconds=5,
        )
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}:
        return _no_descriptors() if _descriptors_are_out() else _failing(error)
    return None


def _descriptors_are_out() -> bool:
    """Opens a file to find out, because SQLite does not say why it could not open one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in _DESCRIPTOR_ERRORS
    return False


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
    """Returns the message for a target that a command cannot write. `left` describes what exists now."""
    advice = " Free some room, or name another place." if error.errno in FULL_ERRORS else ""
    return f"{target} cannot be written ({error.strerror or error}). {left}{advice}"


def release_frames(error: BaseException) -> None:
    """Removes the tracebacks of `error` and of every error that led to it.

    Their frames keep the request's body in memory, often in a reference cycle. Large bodies create too few
    objects to trigger the garbage collector.
    """
    left: list[BaseException] = [error]
    while left:
        link = left.pop()
        left += [before for before in (link.__cause__, link.__context__) if before is not None]
        link.__traceback__ = link.__cause__ = link.__context__ = None
