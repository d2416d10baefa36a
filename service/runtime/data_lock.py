"""Lock that allows only one process to use a data directory. The kernel releases it when the process ends."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from service.errors import StartupError

ASIDE = ".restoring"  # folder of an unfinished restore, in the data directory


class InUse(StartupError):
    """Raised if another process owns the data directory."""


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Holds a lock on the file `DATA_DIR/lock`, which contains the process id of the owner.

    The command `restore` also takes this lock. The owner of the lock can therefore delete the files of a
    restore that was killed.

    Raises:
        InUse: Another process owns the directory.
        StartupError: The directory cannot be written.

    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        file = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartupError(f"{data_dir} cannot be used: {error.strerror}. Set SIMILE_DATA_DIR.") from error
    with os.fdopen(file, "r+b"):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 32).decode().strip() or "unknown"
            raise InUse(
                f"{data_dir} is in use by process {owner}. One service owns a data directory: stop process "
                f"{owner}, or start this service with another SIMILE_DATA_DIR."
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        shutil.rmtree(data_dir / ASIDE, ignore_errors=True)
        yield
