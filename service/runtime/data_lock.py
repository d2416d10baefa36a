"""Lock that allows only one process to use a data directory. The kernel releases it when the process ends."""

import fcntl
import os
import shutil
from pathlib import Path

from service.errors import StartupError

ASIDE = ".restoring"  # folder of an unfinished restore, in the data directory


class DataDirLock:
    """Lock on the file `DATA_DIR/lock`, which contains the process id of the owner.

    The command `restore` also takes this lock. The owner of the lock can therefore delete the files of a
    restore that was killed.

    Raises:
        StartupError: Another process owns the directory, or the directory cannot be written.

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
                f"{data_dir} is in use by process {owner}. One service owns a data directory: stop process "
                f"{owner}, or start this service with another SIMILE_DATA_DIR."
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        shutil.rmtree(data_dir / ASIDE, ignore_errors=True)

    def release(self) -> None:
        os.close(self._file)
