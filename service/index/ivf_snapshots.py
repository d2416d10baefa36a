"""The inverted lists of a large segment on disk: a start finds them there, and need not train them again.

Kept are the centres, the ranges of the codes, and which row is in which list: some 12 bytes a row. The
vectors are the store's, and so is what is alive: rows that came since the snapshot are put into their lists,
and those that went are left out, so a snapshot of any age gives the index that the store says.

Where there is a GPU to search them on, they are put there, too (device.py).
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from service import outages
from service.errors import machine_error
from service.index.gpu import GpuThread
from service.index.ivf import Clustered, Training
from service.index.snapshots import Damaged, Origin, Snapshot, Snapshots
from service.store.ids import RowNames

log = logging.getLogger(__name__)

LISTS, ROWS, LABELS = "lists.faiss", "rows.npy", "labels.npy"


class Known(NamedTuple):
    """What was found for the rows of `names`, which rise."""

    training: Training
    names: RowNames
    labels: NDArray[np.int32]

    def labels_of(self, names: RowNames) -> NDArray[np.int32]:
        """The lists of the rows of these names, -1 for those that are not known."""
        places = np.minimum(np.searchsorted(self.names, names), len(self.names) - 1)
        found: NDArray[np.int32] = np.where(self.names[places] == names, self.labels[places], np.int32(-1))
        return found


class IvfSnapshots:
    """Those of one collection's index, of one generation."""

    def __init__(self, root: Path, origin: Origin, owner: GpuThread | None = None) -> None:
        """owner: of the GPU where they are searched."""
        self._snapshots = Snapshots(root)
        self._origin = origin
        self._owner = owner

    def place(self, base: Clustered) -> None:
        """Put it onto the GPU, if there is one; it can be searched meanwhile."""
        if self._owner is not None:
            base.place(self._owner)

    def keep(self, base: Clustered, sequence: int) -> None:
        """Place it, and write a snapshot.

        A disk that fails costs the next start some time and nobody else anything.
        """
        self.place(base)
        training = base.training
        files = {
            LISTS: lambda file: faiss.write_index(training.empty, str(file)),
            ROWS: lambda file: np.save(file, base.names, allow_pickle=False),
            LABELS: lambda file: np.save(file, base.labels, allow_pickle=False),
        }
        try:
            self._snapshots.write(self._origin, sequence, files, {"trained_on": training.rows})
        except (OSError, RuntimeError) as error:  # FAISS's way to say that the disk is full
            fault = machine_error(error)
            why = fault.message if fault else type(error).__name__
            outages.warn(log, f"The lists of the index were not kept: {why}")

    def read(self, sequence: int) -> Known | None:
        """What the newest snapshot says that is whole, and of the moment `sequence` or before."""
        return self._snapshots.newest(self._origin, lambda snapshot: self._read(snapshot, sequence))

    def _read(self, snapshot: Snapshot, sequence: int) -> Known:
        if snapshot.sequence > sequence:  # of a store that was replaced: its names mean other texts
            raise Damaged("it is of a later moment than the store")
        try:
            lists: Any = faiss.read_index(str(snapshot.folder / LISTS))
            names = np.load(snapshot.folder / ROWS, allow_pickle=False)
            labels = np.load(snapshot.folder / LABELS, allow_pickle=False)
            rows = int(snapshot.facts["trained_on"])
        except (RuntimeError, ValueError, LookupError, TypeError, MemoryError) as error:
            raise Damaged(f"it cannot be read ({type(error).__name__})") from error
        if not (
            isinstance(lists, faiss.IndexIVFScalarQuantizer)
            and (lists.d, lists.ntotal) == (self._origin.dimension, 0)
            and (names.dtype, labels.dtype) == (np.int64, np.int32)
            and names.shape == labels.shape == (names.size,)
            and names.size
            and (np.diff(names) > 0).all()
            and 0 <= labels.min() <= labels.max() < lists.nlist
        ):
            raise Damaged("it holds something else than lists")
        return Known(Training(lists, rows), names, labels)
