"""Writes the last known state of the store to DATA_DIR/last-known.json, to detect lost data.

Start reading at `refuse_loss`. SQLite may open an empty, truncated or older file without an error. So when
the service starts, it compares the operation number in the database with this file. The file is written at
the start, at the end, and once a minute after writes.
"""

import contextlib
import json
import logging
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from models.files.bounded import read_json
from models.files.fsync import replace_text
from models.messages import amount
from service.errors import DAMAGED_CODES, StartupError, machine_error
from service.observability import outages
from service.store.sqlite.documents import count_all, sequence
from service.store.sqlite.schema import BUSY_SECONDS, DATABASE, harden

log = logging.getLogger(__name__)

FILE = "last-known.json"
SECONDS = 60.0
_MAX_BYTES = 1 << 16
_RESTORE = "Restore a backup: simile restore --force FOLDER."


def refuse_loss(data_dir: Path) -> None:
    """Compares the database with the last known state. The directory's owner calls this before any write.

    Raises:
        StartupError: The database is missing, empty, damaged or older than the last known state.
    """
    path, known = data_dir / DATABASE, _read(data_dir)
    if known is None:
        return
    before = (
        f"On {known['at']} it held {amount(known['documents'], 'document')} and was at operation "
        f"{known['sequence']}."
    )
    accept = f"To continue without the lost data, remove {data_dir / FILE} and start again."
    if not path.exists():
        if known["sequence"]:
            raise StartupError(
                f"{path} is missing. {before} Put it back, or restore a backup: simile restore "
                f"FOLDER. {accept}"
            )
        return
    try:
        with contextlib.closing(_connected(path)) as connection:
            found = _sequence(connection)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED_CODES:
            raise StartupError(
                f"{path} is damaged ({error}). {before} {_RESTORE} `check --data` lists the faults."
            ) from error
        return  # Opening it later reports other errors.
    if found < known["sequence"]:
        now = f"is at operation {found}" if found else "holds nothing"
        raise StartupError(f"{path} {now}. {before} {_RESTORE} {accept}")


def note(data_dir: Path) -> None:
    """Writes the state of the store if it has changed. Disk errors are only logged."""
    try:
        with contextlib.closing(_connected(data_dir / DATABASE)) as connection:
            now, known = _sequence(connection), _read(data_dir)
            if known is not None and known["sequence"] == now:
                return
            at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            found = {"sequence": now, "documents": count_all(connection), "at": at}
        replace_text(data_dir / FILE, json.dumps(found) + "\n")
    except (OSError, sqlite3.Error) as error:
        fault = machine_error(error)
        outages.warn(log, f"{FILE} could not be written: {fault.message if fault else error}")


def _connected(path: Path) -> sqlite3.Connection:
    """Opens the database read-only, as the write-ahead log may be all that is left and must not change."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, uri=True)
    harden(connection)
    return connection


def _sequence(connection: sqlite3.Connection) -> int:
    """Returns the number of the last operation, or 0 for a database without tables."""
    made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'operations'").fetchone()
    return 0 if made is None else sequence(connection)


def _read(data_dir: Path) -> dict[str, Any] | None:
    """Returns the content of last-known.json, or None if the file cannot be read."""
    try:
        found = read_json(data_dir / FILE, _MAX_BYTES)
        sequence, documents = int(found["sequence"]), int(found["documents"])
        return {"sequence": sequence, "documents": documents, "at": str(found["at"])[:40]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError) as error:
        log.warning("%s is not used: %s", data_dir / FILE, error)
        return None
