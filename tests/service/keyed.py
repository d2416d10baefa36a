"""A keys file with one key of each role, and headers for requests."""

import hashlib
from pathlib import Path

KEYS = {"reader": "sk-read-me", "writer": "sk-write-me", "boss": "sk-change-me"}
ROLES = {"reader": "read", "writer": "write", "boss": "admin"}


def line(name: str, role: str, key: str, *limits: object) -> str:
    return ":".join([name, role, hashlib.sha256(key.encode()).hexdigest(), *map(str, limits)])


def keys_file(folder: Path, *more: str) -> Path:
    """Writes `folder`/keys with a key of each role and `more` lines."""
    file = folder / "keys"
    lines = [line(name, ROLES[name], key) for name, key in KEYS.items()]
    file.write_text("\n".join(["# Who may call this service", "", *lines, *more]) + "\n", encoding="utf-8")
    return file


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}
