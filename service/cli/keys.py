"""`simile keys add NAME --role ROLE | list | remove NAME`: edits the keys file.

`add` creates a key, prints it once, and stores only a hash of the key. Each change replaces the file in one
step. Only the owner can read the file, and a lock file prevents simultaneous changes. A running service reads
the changed file with the next request, but at most once a second.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from models.files.fsync import replaced
from models.messages import format_table
from service.auth.audit import audit
from service.auth.key_scope import LIMITS, ScopeError, parse_scope
from service.auth.keys import NAME, TRUSTED, UNTRUSTED, Key, KeysError, Role, parse, read_keys
from service.settings import PREFIX, keys_file

SHOWN = "sk-simile-"  # This prefix identifies a key that leaked.


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `keys`."""
    file = argparse.ArgumentParser(add_help=False)
    file.add_argument(
        "--file", type=Path, default=keys_file(), help=f"the keys file (default: {PREFIX}API_KEYS_FILE)"
    )
    commands = parser.add_subparsers(dest="change", required=True, metavar="COMMAND")
    add = commands.add_parser("add", parents=[file], help="create a key and print it once")
    add.add_argument("name", type=_name)
    add.add_argument("--role", required=True, choices=[role.value for role in Role])
    for name in ("requests", "tokens"):
        about = "0: no limit (default: the setting)"
        add.add_argument(f"--{name}-per-minute", type=int, metavar="N", help=about)
    add.set_defaults(trust="")
    group = add.add_mutually_exclusive_group()
    for trust, does in ((TRUSTED, "learns from (default without --filter)"), (UNTRUSTED, "ignores")):
        about = f"its events and judgments, which a retraining {does}"
        group.add_argument(f"--{trust}", dest="trust", action="store_const", const=trust, help=about)
    scope = add.add_argument_group("tenants", "the key sees nothing else (docs/ACCESS.md)")
    scope.add_argument(
        "--collections", metavar="NAME,PREFIX*", help="its collections: names, and prefixes that end with *"
    )
    scope.add_argument(
        "--filter", metavar="JSON", help='its documents: {"tenant":"acme"}, which is added to what it stores'
    )
    for limit in LIMITS:
        flag, noun = f"--{limit.replace('_', '-')}", limit.removeprefix("max_")
        scope.add_argument(flag, type=int, metavar="N", help=f"the {noun} that it may hold")
    listing = commands.add_parser("list", parents=[file], help="names, roles, limits, trust and scopes")
    listing.add_argument("--json", action="store_true", help="for programs")
    commands.add_parser("remove", parents=[file], help="the key stops working").add_argument("name")


def _name(given: str) -> str:
    if not NAME.fullmatch(given):
        raise argparse.ArgumentTypeError(
            "1 to 64 letters, digits and . _ @ -, a letter or digit first; a name, not a key"
        )
    return given


def run(arguments: argparse.Namespace) -> str:
    """Runs the command and returns the text to print.

    Raises:
        KeysError: No keys file is named, it is missing or invalid, it cannot be written, or the change is not
            allowed. Nothing was changed.

    """
    if arguments.file is None:
        raise KeysError(f"Name the keys file: --file FILE, or {PREFIX}API_KEYS_FILE.")
    file: Path = arguments.file.resolve()  # Resolved, so that a link to the file stays a link.
    try:
        if arguments.change == "list":
            keys = read_keys(file)
            return json.dumps(listed(keys), indent=2) if arguments.json else table(keys)
        with _locked(file):
            if arguments.change == "remove":
                return remove(file, arguments.name)
            limits = (arguments.requests_per_minute, arguments.tokens_per_minute)
            scope = _read_scope(arguments)
            return add(file, arguments.name, Role(arguments.role), limits, arguments.trust, scope)
    except KeysError as error:
        raise KeysError(f"{file}: {error}") from error
    except OSError as error:
        raise KeysError(f"{file} cannot be changed ({error.strerror}).") from error


def _read_scope(arguments: argparse.Namespace) -> str:
    """Returns the scope in the arguments, in the format of the keys file, or an empty text.

    Raises:
        KeysError: The scope is malformed.

    """
    given: dict[str, object] = {
        name: getattr(arguments, name) for name in LIMITS if getattr(arguments, name) is not None
    }
    if arguments.collections is not None:
        given["collections"] = [name.strip() for name in arguments.collections.split(",")]
    if arguments.filter is not None:
        try:
            given["filter"] = orjson.loads(arguments.filter)
        except orjson.JSONDecodeError as error:
            raise KeysError(f'--filter is not JSON ({error}). Give it as {{"tenant":"acme"}}.') from error
    try:
        return str(parse_scope(json.dumps(given))) if given else ""
    except ScopeError as error:
        raise KeysError(str(error)) from None


def add(
    file: Path,
    name: str,
    role: Role,
    limits: tuple[int | None, int | None] = (None, None),
    trust: str = "",
    scope: str = "",
) -> str:
    """Creates a key, adds a line with its hash to `file`, and returns the key.

    Raises:
        KeysError: The name is already in the file, the file is invalid, or the role cannot have a scope.

    """
    text = file.read_text(encoding="utf-8-sig") if file.exists() else ""
    if any(key.name == name for key in parse(text, may_be_empty=True)):
        raise KeysError(f"there is a key {name!r} already. Choose another name, or remove that one first.")
    key = SHOWN + secrets.token_urlsafe(32)
    numbers = ["" if limit is None else str(limit) for limit in limits]
    line = ":".join([name, role, hashlib.sha256(key.encode()).hexdigest(), *numbers, trust, scope]).rstrip(
        ":"
    )
    changed = text + ("\n" if text and not text.endswith("\n") else "") + line + "\n"
    parse(changed)
    _replace(file, changed)
    audit("key-added", name=name, role=role)
    return key


def remove(file: Path, name: str) -> str:
    """Removes a key from `file`. All other lines stay as they are. Returns the text to print.

    Raises:
        KeysError: The name is not in the file, or is the only key in it.

    """
    names = [key.name for key in read_keys(file)]
    if name not in names:
        raise KeysError(f"there is no key {name[:64]!r}; there are {', '.join(names)}.")
    if len(names) == 1:
        raise KeysError(
            f"{name!r} is its last key. A service does not start without a key, and a running service would "
            "keep this one. Add another first."
        )
    lines = file.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    _replace(file, "".join(line for line in lines if line.partition(":")[0].strip() != name))
    audit("key-removed", name=name)
    return f"{name} is removed."


def listed(keys: list[Key]) -> list[dict[str, Any]]:
    """Returns each key without its hash.

    A limit of null means the limit in the settings, and 0 means unlimited. A key without a scope sees
    everything.
    """
    return [
        {
            "name": key.name,
            "role": key.role.value,
            "requests_per_minute": key.requests_per_minute,
            "tokens_per_minute": key.tokens_per_minute,
            "trusted": key.trusted,
            "scope": None if key.scope is None else key.scope.given,
        }
        for key in keys
    ]


def table(keys: list[Key]) -> str:
    """Formats a table of names, roles, limits and trust, and of scopes if any key has a scope.

    Hashes are not shown.
    """
    rows = [("name", "role", "requests/min", "tokens/min", "trust", "scope")]
    for key in keys:
        limits = _limit(key.requests_per_minute), _limit(key.tokens_per_minute)
        trust = TRUSTED if key.trusted else UNTRUSTED
        rows.append((key.name, key.role.value, *limits, trust, str(key.scope or "everything")))
    return format_table([row[:-1] for row in rows] if all(key.scope is None for key in keys) else rows)


def _limit(given: int | None) -> str:
    return "setting's" if given is None else str(given or "none")


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Waits until no other process is changing the keys file, and then locks it until the block ends."""
    with (file.parent / f".{file.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(file: Path, text: str) -> None:
    """Replaces the content of `file` in one step.

    The owner of the file stays the same if possible. No other user can read the file.
    """
    with replaced(file) as stream:
        os.fchmod(stream.fileno(), 0o600)  # before the file has content
        if file.exists():
            with contextlib.suppress(PermissionError):
                os.fchown(stream.fileno(), file.stat().st_uid, file.stat().st_gid)
        stream.write(text.encode())
