"""Documents kept back: they judge every candidate, and no candidate has read them.

    hash of the id ─▶ held out ─▶ of near copies one judges
                  └▶ to train on ─▶ less what nearly repeats a document held out, or another one to train on

A hash of the id decides, so that the same documents are kept back in every run, whatever was added. A near
copy is on neither side: who has read it has read the text, and two of them would judge, or teach, as two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from training.mining.dedupe import near_duplicates
from training.retraining.documents import Document


class Split(NamedTuple):
    train: tuple[Document, ...]
    held: tuple[Document, ...]
    copies: Mapping[str, str]  # id of a near copy, which is in neither, to the document that stands for it


def place(id: str) -> float:
    """The place of an id in [0, 1), evenly and for ever."""
    digest = hashlib.sha256(b"held out\0" + id.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def hold_out(documents: Sequence[Document], share: float) -> Split:
    """About `share` of the documents, from 0 to 1, each side in the order that they came in."""
    held = [document for document in documents if place(document.id) < share]
    rest = [document for document in documents if place(document.id) >= share]
    both = [*held, *rest]
    found = near_duplicates([document.whole for document in held])
    # Every document held out is compared with, the near copies among them too: a copy of a copy is one.
    found += near_duplicates([document.whole for document in both], keep=len(held))
    stands = {both[each.place].id: both[each.first].id for each in found}
    copies = {id: stands.get(first, first) for id, first in stands.items()}
    return Split(
        tuple(document for document in rest if document.id not in copies),
        tuple(document for document in held if document.id not in copies),
        copies,
    )
