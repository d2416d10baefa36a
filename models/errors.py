"""Errors of the models package. Each message states the problem and what to do.

ModelError
├── ModelUnavailable   a model that is not on this machine, or cannot be fetched
├── FormUnavailable    a precision that this machine cannot compute
├── Unsupported        a source folder that cannot be published
├── ProofFailed        a built version that computes wrong vectors; it is not published
├── Damaged            a published folder that must not be served
├── Unreadable         a published folder that cannot be read now, but may be intact
├── DamagedRequest     a damaged reranker.json
├── UnknownVersion     a version that is not in the store
├── WrongKind          a reranker where an encoder is needed, or the reverse
├── DeviceUnavailable  a device that is missing or cannot be used
├── DeviceMemory       a single row that does not fit into the device's memory
├── InUse              a version that is needed, and therefore not pruned
└── BadInput           a text or a row of ids that cannot be encoded
    ├── BadText        invalid Unicode, or half a million characters with few tokens
    ├── BadTokens      ids that the model's tokenizer never returns
    └── TooLong        more tokens than the model takes, without truncation
"""

from __future__ import annotations

import errno
import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from models.version import DISTRIBUTION, VERSION

FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}  # The disk or the quota is full.


class ModelError(Exception):
    """Base class of the package's errors. Each message is one line."""


def denied(error: OSError, place: object) -> str:
    """Returns a message for an OSError, with the file's name or else `place`, and advice for a full disk."""
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


class WrongKind(ModelError):
    def __init__(self, version: str, kind: str) -> None:
        """Builds the message for a version of the wrong `kind`, "encoder" or "reranker"."""
        is_reranker = (
            f"{version} is a reranker, which scores pairs of texts and has no vectors. Name an encoder here. "
            f"`simile models activate {version}` serves the reranker beside it."
        )
        is_encoder = (
            f"{version} is an encoder, which has vectors and cannot score pairs of texts. Name a reranker "
            "here; `simile models list` shows the kind of each version."
        )
        super().__init__(is_reranker if kind == "reranker" else is_encoder)
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


class DamagedRequest(ModelError):
    def __init__(self, file: Path) -> None:
        super().__init__(
            f"The request for a reranker is damaged ({file}). `simile models activate RERANKER` writes it "
            "again; `simile models deactivate` requests none."
        )


class InUse(ModelError):
    def __init__(self, version: str, use: str) -> None:
        super().__init__(f"Version {version} is not deleted: it is {use}.")


class DeviceUnavailable(ModelError):
    pass


class DeviceMemory(ModelError):
    def __init__(self, length: int) -> None:
        super().__init__(
            f"A single row of {length} tokens does not fit into the device's memory. Raise "
            "SIMILE_GPU_MEM_MB, or stop other programs on the device."
        )


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


def not_installed(error: ModuleNotFoundError, extra: str = "cpu") -> str:
    """Returns the message for a program whose packages are not installed.

    Args:
        error: The failed import.
        extra: The extra that the program needs.

    Raises:
        ModuleNotFoundError: `error` itself, if the missing module belongs to Simile.
    """
    package = (error.name or "").partition(".")[0]
    if package in {"", "simile", "service", "models", "training"}:
        raise error
    return (
        f"Simile needs {package}, which is not installed for {sys.executable}. Install all it needs: "
        f"{install_command(extra)}"
    )


def install_command(extra: str) -> str:
    """Returns a command that adds an extra to this environment, from any working directory.

    The command installs from the origin of this Simile: the sources, the wheel or address that pip recorded,
    or else the package index.
    """
    python, sources = shlex.quote(sys.executable), Path(__file__).parents[1]
    if (sources / "pyproject.toml").is_file():
        pins, wanted = shlex.quote(str(sources / "constraints.txt")), shlex.quote(f"{sources}[{extra}]")
        return f"{python} -m pip install -c {pins} -e {wanted}"
    try:
        noted = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return f"in a checkout of Simile, {python} -m pip install -c constraints.txt '.[{extra}]'"
    wanted = f" @ {_address(json.loads(noted))}" if noted else f"=={VERSION}"
    return f"{python} -m pip install {shlex.quote(f'{DISTRIBUTION}[{extra}]{wanted}')}"


def _address(noted: dict[str, Any]) -> str:
    """Returns the address in a direct_url.json, as pip accepts it."""
    url, repository = str(noted["url"]), noted.get("vcs_info")
    return url if repository is None else f"{repository['vcs']}+{url}@{repository['commit_id']}"
