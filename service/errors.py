"""The errors that clients receive, each with a status code and a name.

    400 Empty         409 Conflict     424 Backend       503 Unhealthy
    401 Unauthorized  413 TooLarge     429 Overloaded    504 Timeout
    403 Forbidden     415 MediaType    429 RateLimited   507 Storage
    404 NotFound      422 Validation   500 Internal
    405 MethodNotAllowed               422 Tokenizer

Any code may raise a `ServiceError`. http/middleware.py turns it into an answer. http/error_responses.py
chooses the format that clients of TEI, OpenAI (`/v1`) or Cohere (`/v2`) expect.
"""

import errno
import math
import os
import re
import sqlite3
import tempfile
from collections.abc import Mapping
from typing import ClassVar

from models.errors import FULL_ERRORS


class StartupError(Exception):
    """Raised if the service cannot start. The message contains the reason and advice."""


class Unusable(ValueError):
    """Raised if a file that a setting names cannot be used.

    The message says why, and never quotes the file.
    """


class CommandError(Exception):
    """Raised if a command failed. The message contains the reason, the work done so far, and advice."""

    exit_status: ClassVar[int] = 1


class Stopped(CommandError):
    """Raised if Ctrl-C ended a command. The message contains the work done so far."""


class ServiceError(Exception):
    """Base class of the errors that a client receives. The message contains the reason and advice.

    Args:
        retry_after_seconds: Value of the header Retry-After, rounded up to whole seconds. None: no header.
        headers: Further headers of the answer.
        param: Name of the wrong field, for OpenAI's error format.

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
    """The role of the API key, or the origin of the web page, does not allow the request."""

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
    """The model failed on an input, or returned a vector that is not finite."""

    status, error_type = 424, "Backend"


class Hung(Backend):
    """A candidate's forward pass did not end in time. The thread that runs it may never return."""


class Malformed(Validation):
    """The request is not valid HTTP, or contains headers that contradict each other."""

    status = 400


class Misdirected(Forbidden):
    """The request names a host that is not allowed."""

    status = 421


class HeadTooLarge(TooLarge):
    """The request line and the headers are too large in total."""

    status = 431


class Overloaded(ServiceError):
    status, error_type = 429, "Overloaded"


class RateLimited(ServiceError):
    """The API key has used its requests or tokens for this minute. Other keys are still served."""

    status, error_type = 429, "RateLimited"


class Internal(ServiceError):
    status, error_type = 500, "Internal"


class Unhealthy(ServiceError):
    """The service cannot answer now: it is starting, rebuilding or stopping, or the model fails."""

    status, error_type = 503, "Unhealthy"


class Timeout(ServiceError):
    status, error_type = 504, "Timeout"


class Storage(ServiceError):
    """The disk is full, read-only or failing, stored data is damaged, or a version needs more memory."""

    status, error_type = 507, "Storage"


def error_types() -> list[str]:
    """Returns the sorted names of all errors. A subclass such as `Hung` has the name of its parent."""
    return sorted(kind.error_type for kind in ServiceError.__subclasses__())


# SQLite's messages for a table or a column that another process has removed.
_MISSING_SCHEMA = re.compile(r"no such (table|column)|has no column named")
_NOT_JSON = "malformed JSON"  # SQLite's message for metadata that a filter cannot read
# SQLite's primary result codes for a damaged file.
DAMAGED_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DESCRIPTOR_ERRORS = {errno.EMFILE, errno.ENFILE}


def machine_error(error: BaseException) -> ServiceError | None:
    """Returns the error answer for a problem of the machine, such as a full disk or a damaged store.

    Returns:
        `Storage` (507) if the disk is full, read-only or failing, or if the store or its metadata is damaged.
        `Unhealthy` (503) if file descriptors ran out, or if a table or column is missing. None for any other
        exception, including missing permissions.

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
            "`simile check --data` names the document. Send it again, or delete it."
        )
    if code in DAMAGED_CODES:
        return Storage(
            f"The document store is damaged ({error}). `simile check --data` says what is wrong; "
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
    """Returns whether file descriptors ran out.

    Opens a file to find out, because SQLite does not report it.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in _DESCRIPTOR_ERRORS
    return False


def temporary_fault() -> str:
    """Returns a sentence that says why temporary files cannot be written, or an empty string."""
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(4096))
    except OSError as error:
        reason = error.strerror or str(error)
        place = "" if reason.startswith("No usable") else f"{tempfile.gettempdir()} cannot be written: "
        return f"{place}{reason}. Set TMPDIR to a folder for temporary files, such as the data directory."
    return ""


def _full() -> Storage:
    message = "The disk is full. Nothing of this was stored. Free some room, then send again."
    return Storage(f"{message} {temporary_fault()}".rstrip())


def _read_only(error: Exception) -> Storage:
    return Storage(f"The disk is read-only ({error}). Make it writable, then send again.")


def _failing(error: Exception) -> Storage:
    where = temporary_fault() or "Look at the data directory, then send again."
    return Storage(f"The disk fails, or is full ({error}). {where}")


def _no_descriptors() -> Unhealthy:
    return Unhealthy(
        "The service has no file descriptor left. Close connections, or raise the limit (ulimit -n, "
        "LimitNOFILE=), then send again.",
        retry_after_seconds=1,
    )


def unwritable(target: object, error: OSError, left: str) -> str:
    """Returns the error message for a file that a command cannot write.

    Args:
        target: The file or folder.
        error: The exception of the write.
        left: Sentence that says what the failed command left behind.

    """
    advice = " Free some room, or name another place." if error.errno in FULL_ERRORS else ""
    return f"{target} cannot be written ({error.strerror or error}). {left}{advice}"


def release_frames(error: BaseException) -> None:
    """Removes the tracebacks of `error` and of all its causes, and the links to the causes.

    The frames in a traceback keep the request's body in memory, often in a reference cycle. Large bodies
    create too few objects to trigger the garbage collector.
    """
    left: list[BaseException] = [error]
    while left:
        link = left.pop()
        left += [before for before in (link.__cause__, link.__context__) if before is not None]
        link.__traceback__ = link.__cause__ = link.__context__ = None
