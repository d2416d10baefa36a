"""Which documents are kept back: they judge every candidate, and no candidate has read them.

A hash of the id decides, so that the same documents are kept back in every run, whatever was added. What
nearly repeats a document that is kept back is kept back with it: who has read the copy has read the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from training.mining.dedupe import near_duplicates

from .documents import Document


class Split(NamedTuple):
    train: tuple[Document, ...]
    held: tuple[Document, ...]
    moved: int  # of `held`: there only because they nearly repeat one that is
    dropped: int  # in neither: they nearly repeat one in `train`, and equal texts are no negatives


def place(id: str) -> float:
    """Where an id falls in [0, 1), evenly and for ever."""
    digest = hashlib.sha256(b"held out\0" + id.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def hold_out(documents: Sequence[Document], share: float) -> Split:
    """About `share` of the documents, from 0 to 1, in the order that they came in."""
    chosen = [place(document.id) < share for document in documents]
    groups: dict[int, list[int]] = {}
    for duplicate in near_duplicates([document.whole for document in documents]):
        groups.setdefault(duplicate.first, [duplicate.first]).append(duplicate.place)
    held = list(chosen)
    dropped = set()
    for group in groups.values():
        together = any(chosen[at] for at in group)
        for at in group:
            held[at] = together
        if not together:
            dropped.update(group[1:])
    return Split(
        tuple(each for at, each in enumerate(documents) if not held[at] and at not in dropped),
        tuple(each for at, each in enumerate(documents) if held[at]),
        sum(held) - sum(chosen),
        len(dropped),
    )
