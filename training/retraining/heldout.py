"""Split documents into three parts: `judge` for the gate, `dev` for choosing settings, and `train`.

    hash of the id ─▶ judge ─▶ without near copies of each other
                  ├▶ dev: for choosing the best step and the best weights
                  └▶ train ─▶ without near copies of other documents

The part depends only on a hash of the id. So each run holds out the same documents, even if new documents
arrive. A near copy of a document is in no part, because a model that was trained on the copy has also seen
the document. A document that answers a judged query is moved to the part of the query (sides.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from training.mining.dedupe import near_duplicates
from training.retraining.documents import Document

Part = Literal["train", "dev", "judge"]
TRAIN: Part = "train"
DEV: Part = "dev"
JUDGE: Part = "judge"
DEV_SHARE = 0.1  # share of dev among the documents that are not held out; chosen by us


class Split(NamedTuple):
    train: tuple[Document, ...]
    held: tuple[Document, ...]  # held-out documents
    copies: Mapping[str, str]  # id of a near copy, which is in no part, to the id of its original
    dev: tuple[Document, ...] = ()

    def moved(self, parts: Mapping[str, Part]) -> Split:
        """Returns the split with documents moved to other parts, and each part sorted by id.

        Args:
            parts: New part of a document by id. Documents that are not in `parts` stay in their part.

        """
        sides = ((TRAIN, self.train), (DEV, self.dev), (JUDGE, self.held))
        now = {document.id: part for part, documents in sides for document in documents}
        ordered = sorted((*self.train, *self.dev, *self.held), key=lambda document: document.id)
        return _split(ordered, {**now, **parts}, self.copies)


def place(id: str) -> float:
    """Returns a hash of an id as a number in [0, 1), which is the same in every run."""
    digest = hashlib.sha256(b"held out\0" + id.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose_part(at: float, share: float) -> Part:
    """Returns the part of a document.

    Args:
        at: Hash of the id, 0 to 1, from `place`.
        share: Share of all documents that judge, 0 to 1.

    """
    if at < share:
        return JUDGE
    return DEV if at < share + DEV_SHARE * (1 - share) else TRAIN


def hold_out(documents: Sequence[Document], share: float) -> Split:
    """Splits documents. About `share` of them, 0 to 1, are in the part judge. Parts keep the given order."""
    parts = {document.id: choose_part(place(document.id), share) for document in documents}
    train, held, _, dev = _split(documents, parts, {})
    every = [*held, *dev, *train]
    found = near_duplicates([document.whole for document in held])
    # Near copies that judge are also compared with the others, because a copy of a copy is a copy.
    found += near_duplicates([document.whole for document in every], keep=len(held))
    stands = {every[each.place].id: every[each.first].id for each in found}
    copies = {id: stands.get(first, first) for id, first in stands.items()}
    return _split([document for document in documents if document.id not in copies], parts, copies)


def _split(documents: Sequence[Document], parts: Mapping[str, Part], copies: Mapping[str, str]) -> Split:
    train, held, dev = (
        tuple(document for document in documents if parts[document.id] == part)
        for part in (TRAIN, JUDGE, DEV)
    )
    return Split(train, held, copies, dev)
