"""Reads the keys file, at the start and after each change. Start reading at `KeysFile`.

    name:role:sha256-of-key[:requests_per_minute[:tokens_per_minute[:trust[:scope]]]]

Each line describes one key. Empty lines and lines that begin with # are ignored. If a limit is missing, the
setting applies. The limit 0 means no limit. `trust` is `trusted` or `untrusted`, and says whether retraining
learns from the events and judgments of the key. If it is missing, a key is trusted unless its scope has a
filter. `scope` is JSON (key_scope.py), and the rest of the line. The file contains only hashes of keys.
Error messages give the number of a line and never quote the line, because a line may contain a key by
mistake.
"""

import logging
import re
import stat
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from models.messages import amount
from service.auth.audit import audit
from service.auth.key_scope import KeyScope, ScopeError, parse_scope

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # longest time until a change of the file is noticed
MAX_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")  # suits metric labels and the audit log
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_LIMIT = re.compile(r"[0-9]{1,12}")
_FIELDS = "name:role:sha256-of-key[:requests_per_minute[:tokens_per_minute[:trust[:scope]]]]"
TRUSTED, UNTRUSTED = "trusted", "untrusted"


class Role(StrEnum):
    """The role that a key has, and that a route needs. Each role includes the roles before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    @property
    def allows(self) -> frozenset["Role"]:
        roles = list(Role)
        return frozenset(roles[: roles.index(self) + 1])


@dataclass(frozen=True, slots=True)
class Key:
    """An API key, as described by a line of the keys file.

    If a limit is None, the setting applies. 0 means no limit.
    """

    name: str
    role: Role
    digest: bytes = field(repr=False)  # SHA-256 of the key
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    trusted: bool = True  # Retraining learns from the key's events and judgments.
    scope: KeyScope | None = None  # Without one, the key sees everything.


class KeysError(ValueError):
    """Raised if the keys file cannot be used. The message says why, and never quotes a line."""


def parse(text: str, *, may_be_empty: bool = False) -> list[Key]:
    """Parses the text of a keys file.

    Raises:
        KeysError: A line is invalid, two lines have the same name or hash, or the file has no key although
            `may_be_empty` is False.

    """
    keys: list[Key] = []
    names: dict[str, int] = {}
    digests: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        given = line.strip()
        if not given or given.startswith("#"):
            continue
        try:
            key = _key(given)
        except KeysError as error:
            raise KeysError(f"line {number}: {error}") from None
        lines = {"name": names.setdefault(key.name, number), "hash": digests.setdefault(key.digest, number)}
        for field_name, first in lines.items():
            if first != number:
                raise KeysError(f"line {number}: its {field_name} is also on line {first}. Keep one of them.")
        keys.append(key)
    if not keys and not may_be_empty:
        raise KeysError("it holds no key. `simile keys add NAME --role ROLE` makes one.")
    return keys


def _key(line: str) -> Key:
    fields = [part.strip() for part in line.split(":", 6)]
    if len(fields) < 3:
        raise KeysError(f"it has {amount(len(fields), 'field')}; write {_FIELDS}.")
    name, role, digest, *limits = fields[:5]
    trust, scope = [*fields[5:], "", ""][:2]
    if not NAME.fullmatch(name):
        raise KeysError("the name must be 1 to 64 letters, digits and . _ @ -, a letter or digit first.")
    if role not in list(Role):
        raise KeysError(f"the role must be one of {', '.join(Role)}.")
    if not _HASH.fullmatch(digest):
        raise KeysError(
            "the third field must be the key's SHA-256, 64 hexadecimal digits. Never write a key itself; "
            "`simile keys add` makes the line."
        )
    if not all(limit == "" or _LIMIT.fullmatch(limit) for limit in limits):
        raise KeysError("a limit must be a whole number per minute, 0 for none, or empty for the setting's.")
    if trust not in {"", TRUSTED, UNTRUSTED}:
        raise KeysError(f"the sixth field must be {TRUSTED}, {UNTRUSTED}, or empty.")
    requests, tokens = [int(limit) if limit else None for limit in (*limits, "", "")][:2]
    bounds = _parse_scope(scope, role) if scope else None
    # Judgments of a tenant must not train or rank what others search, unless the operator says so.
    trusted = trust == TRUSTED or (trust == "" and not (bounds and bounds.filter))
    return Key(name, Role(role), bytes.fromhex(digest), requests, tokens, trusted, bounds)


def _parse_scope(text: str, role: str) -> KeyScope:
    if role == Role.ADMIN:
        raise KeysError("a key of role admin sees everything, so it cannot have a scope. Use read or write.")
    try:
        return parse_scope(text)
    except ScopeError as error:
        raise KeysError(str(error)) from None


def read_keys(file: Path) -> list[Key]:
    """Reads and parses the keys file.

    Raises:
        KeysError: The file cannot be read, a line is invalid, or the file has no key.

    """
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise KeysError("it is not a regular file. The service must be able to read it again.")
        if found.st_size > MAX_BYTES:
            raise KeysError(f"it has {found.st_size} bytes; a keys file has at most {MAX_BYTES}.")
        return parse(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise KeysError(
            f"it cannot be read ({error.strerror}). Name a file that this process may read; "
            "`simile keys add NAME --role ROLE` makes one."
        ) from error
    except UnicodeDecodeError:
        raise KeysError("it is not UTF-8 text.") from None


def _state(file: Path) -> tuple[int, ...] | None:
    """Returns a tuple that differs after every change of the file, or None if the file is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


class KeysFile:
    """The keys file. `keys` contains the keys of the last successful read.

    Raises:
        KeysError: The first read fails.

    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = _state(file)  # Taken before reading, so a change in between is noticed later.
        self._look_at = time.monotonic() + LOOK_SECONDS
        self.keys = read_keys(file)

    def changed(self) -> bool:
        """Reads the file again if it has changed. Returns whether `keys` changed.

        The file is checked at most every LOOK_SECONDS. If the file is invalid, the old keys stay in use, and
        an error is logged once.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        seen = _state(self._file)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            keys = read_keys(self._file)
        except KeysError as error:
            log.error("%s cannot be used, and the keys stay as they were: %s", self._file, error)  # noqa: TRY400
            return False
        _audit_changes(self.keys, keys)
        self.keys = keys
        return True


def _audit_changes(before: list[Key], after: list[Key]) -> None:
    old, new = ({key.name: key for key in keys} for keys in (before, after))
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            audit("key-removed", name=name)
        elif old.get(name) != new[name]:
            audit("key-changed" if name in old else "key-added", name=name, role=new[name].role)
