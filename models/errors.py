"""Every refusal of the models package.

ModelError
├── ModelUnavailable   not on this machine; the message names the command that fetches it
├── FormUnavailable    a form that this machine cannot compute, and what would make it possible
├── Unsupported        a source folder that cannot be published here, and what would make it possible
├── ProofFailed        what was built does not compute what it should; nothing was published
├── Damaged            a published folder that must not be served, with the reason
├── Unreadable         a published folder that cannot be read now, and may be all right
├── UnknownVersion     no such version in the store
├── NotPortable        another tool gives other vectors than a version does, or none, or none could be asked
├── DeviceUnavailable  the device that was asked for is not there, and what to install or set
├── DeviceMemory       not even one row fits into the device's memory
├── InUse              a version that is live, previous, wanted or being built: not pruned
└── BadInput           one text or one row of ids that cannot be encoded
    ├── BadText        not text: it holds half of a surrogate pair
    ├── BadTokens      ids that the model's own tokenizer could not have made
    └── TooLong        more tokens than the model takes, and the caller asked not to truncate
"""

from __future__ import annotations

import errno
import sys

FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}  # of a disk without room


class ModelError(Exception):
    """An error whose message says in one line what went wrong and what to do about it."""


def denied(error: OSError, place: object) -> str:
    """A file or a folder that the system denies, in a sentence. place: named where the error names none."""
    where = error.filename2 or error.filename or place
    advice = " Free some room, then run the same command again." if error.errno in FULL_ERRORS else ""
    return f"{where}: {error.strerror or error}.{advice}"


class ModelUnavailable(ModelError):
    pass


class FormUnavailable(ModelError):
    pass


class Unsupported(ModelError):
    pass


class ProofFailed(ModelError):
    pass


class UnknownVersion(ModelError):
    def __init__(self, version: str) -> None:
        super().__init__(f"There is no published version {version!r}.")
        self.version = version


class Damaged(ModelError):
    def __init__(self, version: str, reason: str) -> None:
        super().__init__(f"Version {version} is not served: {reason}.")
        self.version = version
        self.reason = reason


class Unreadable(ModelError):
    def __init__(self, version: str, reason: str) -> None:
        super().__init__(f"Version {version} cannot be read now: {reason}.")
        self.version = version
        self.reason = reason


class InUse(ModelError):
    def __init__(self, version: str, use: str) -> None:
        super().__init__(f"Version {version} is kept: it is {use}.")


class DeviceUnavailable(ModelError):
    pass


class DeviceMemory(ModelError):
    def __init__(self, length: int) -> None:
        super().__init__(
            f"A single row of {length} tokens does not fit into the device's memory. Raise "
            "SIMILE_GPU_MEM_MB, or end what else uses the device."
        )


class NotPortable(ModelError):
    pass


class BadInput(ModelError):
    pass


class BadText(BadInput):
    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class BadTokens(BadInput):
    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"Token {position}: {reason}")
        self.position = position
        self.reason = reason


class TooLong(BadInput):
    def __init__(self, index: int, given: int, allowed: int) -> None:
        super().__init__(f"The text has {given} tokens and the model takes {allowed}.")
        self.index = index
        self.given = given
        self.allowed = allowed


def not_installed(program: str, error: ModuleNotFoundError) -> str:
    """The last sentence of `python -m PROGRAM` where a package is missing.

    Raises:
        ModuleNotFoundError: `error` itself, if it is one of our own.

    """
    package = (error.name or "").partition(".")[0]
    if package in {"", "service", "models", "training"}:
        raise error
    return (
        f"python -m {program} needs {package}, which {sys.executable} lacks. In Simile's folder, "
        f"`make setup` installs all it needs; then run .venv/bin/python -m {program}."
    )
