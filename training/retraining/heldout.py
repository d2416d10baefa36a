"""Documents kept back: those that judge every candidate, those that choose among its settings, and the rest.

    hash of the id ─▶ judge ─▶ of near copies one judges
                  ├▶ dev: the best step and weights are chosen with it, so its word is no judgement
                  └▶ train ─▶ less what nearly repeats a document kept back, or another one to train on

A hash of the id decides, so that the same documents are kept back in every run, whatever was added. A near
copy is on no side: a model that has read it has read the text, and two of them would judge, or teach, as two.
A document that answers a judged query goes to the side of that query (sides.py).
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
        """The documents that `parts` names are where it says; the order within a part is by id."""
        now: dict[Part, list[Document]] = {TRAIN: [], DEV: [], JUDGE: []}
        for part, documents in ((TRAIN, self.train), (DEV, self.dev), (JUDGE, self.held)):
            for document in documents:
                now[parts.get(document.id, part)].append(document)
        train, dev, judge = (
            tuple(sorted(now[part], key=lambda each: each.id)) for part in (TRAIN, DEV, JUDGE)
        )
        return Split(train, judge, self.copies, dev)


def place(id: str) -> float:
    """The place of an id in [0, 1), evenly and for ever."""
    digest = hashlib.sha256(b"held out\0" + id.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose_part(at: float, share: float) -> Part:
    """The part of what has that place, when a share of all judges; both 0 to 1."""
    if at < share:
        return JUDGE
    return DEV if at < share + DEV_SHARE * (1 - share) else TRAIN


def hold_out(documents: Sequence[Document], share: float) -> Split:
    """About `share` of the documents judge, from 0 to 1; each side in the order that they came in."""
    parts: dict[Part, list[Document]] = {TRAIN: [], DEV: [], JUDGE: []}
    for document in documents:
        parts[choose_part(place(document.id), share)].append(document)
    held = parts[JUDGE]
    every = [*held, *parts[DEV], *parts[TRAIN]]
    found = near_duplicates([document.whole for document in held])
    # Every document that judges is compared with, the near copies among them too: a copy of a copy is one.
    found += near_duplicates([document.whole for document in every], keep=len(held))
    stands = {every[each.place].id: every[each.first].id for each in found}
    copies = {id: stands.get(first, first) for id, first in stands.items()}
    train, dev, judge = (
        tuple(document for document in parts[part] if document.id not in copies)
        for part in (TRAIN, DEV, JUDGE)
    )
    return Split(train, judge, copies, dev)
