"""Lock of a data directory: one owner; the kernel drops it when the process ends, however it ends."""

import fcntl
import os
import shutil
from pathlib import Path

from service.errors import StartupError

ASIDE = ".restoring"  # a restore in the making, in the data directory


class DataDirLock:
    """Holds `DATA_DIR/lock`; the file names the owner's process for whoever comes second.

    A restore works as the owner, so what a new owner finds of one is of a restore that was killed: it goes.

    Raises:
        StartupError: another process owns the directory, or it cannot be written.

    """

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / "lock"
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartupError(
                f"{data_dir} cannot be used: {error.strerror}. Set SIMILE_DATA_DIR."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._file, 32).decode().strip() or "unknown"
            os.close(self._file)
            raise StartupError(
                f"{data_dir} is in use by process {owner}. One service owns a data directory: stop that one, "
                "or start this one with another SIMILE_DATA_DIR."
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        shutil.rmtree(data_dir / ASIDE, ignore_errors=True)

    def release(self) -> None:
        os.close(self._file)
