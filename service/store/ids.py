"""The int64 name of a row of an index: a revision of a document, and one passage of its text.

    row = revision << 16 | passage

Passage 0 is always there; a text that is short has no other.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

PASSAGE_BITS = 16
MAX_PASSAGES = 1 << PASSAGE_BITS  # of one text

Revisions: TypeAlias = NDArray[np.int64]
RowNames: TypeAlias = NDArray[np.int64]


def row_of(revision: int, passage: int = 0) -> int:
    return revision << PASSAGE_BITS | passage


def revisions_of(rows: RowNames) -> Revisions:
    return rows >> PASSAGE_BITS


def passages_of(rows: RowNames) -> NDArray[np.int64]:
    return rows & (MAX_PASSAGES - 1)
