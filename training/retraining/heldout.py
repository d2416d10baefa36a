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
DEV_SHARE = 0.1  # of what does not judge; chosen by us


class Split(NamedTuple):
    train: tuple[Document, ...]
    held: tuple[Document, ...]  # to judge
    copies: Mapping[str, str]  # id of a near copy, which is in none, to the document that stands for it
    dev: tuple[Document, ...] = ()

    def moved(self, parts: Mapping[str, Part]) -> Split:
        """Returns the split with documents moved to other parts, and each part sorted by id.

        Args:
            parts: New part of a document by id. Documents that are not in `parts` stay in their part.

        """
        now: dict[Part, list[Document]] = {TRAIN: [], DEV: [], JUDGE: []}
        for part, documents in ((TRAIN, self.train), (DEV, self.dev), (JUDGE, self.held)):
            for document in documents:
                now[parts.get(document.id, part)].append(document)
        train, dev, judge = (
            tuple(sorted(now[part], key=lambda each: each.id)) for part in (TRAIN, DEV, JUDGE)
        )
        return Split(train, judge, self.copies, dev)


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
    """Splits documents. About `share` of them, 0 to 1, judge. Each part keeps the order of `documents`."""
    parts: dict[Part, list[Document]] = {TRAIN: [], DEV: [], JUDGE: []}
    for document in documents:
        parts[choose_part(place(document.id), share)].append(document)
    held = parts[JUDGE]
    every = [*held, *parts[DEV], *parts[TRAIN]]
    found = near_duplicates([document.whole for document in held])
    # Near copies that judge are also compared with the others, because a copy of a copy is a copy.
    found += near_duplicates([document.whole for document in every], keep=len(held))
    stands = {every[each.place].id: every[each.first].id for each in found}
    copies = {id: stands.get(first, first) for id, first in stands.items()}
    train, dev, judge = (
        tuple(document for document in parts[part] if document.id not in copies)
        for part in (TRAIN, DEV, JUDGE)
    )
    return Split(train, judge, copies, dev)
