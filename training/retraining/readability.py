"""What the active model can read of the documents: of all together, of most of them, of each collection.

A part in another language makes the whole unreadable from about a tenth on. So what is learned for most of
the documents asks of each whether the model reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from models.words.progress import Say, silent
from training.mining.figures import readable, unread
from training.retraining.documents import Document

_LOOKED_AT = 500  # documents whose tokens are counted


class Reading(NamedTuple):
    why_not: str  # the reason why the model cannot read the documents as a whole; empty when it can
    most: bool  # more than half of them can be read


def reading_of(documents: Sequence[Document], tokenizer: Path) -> Reading:
    """What can be read of a sample of them by the tokenizer in that file."""
    sample = [document.whole for document in documents[:: max(1, len(documents) // _LOOKED_AT)]]
    why_not = unread(sample, tokenizer)
    return Reading(why_not, not why_not or 2 * len(readable(sample, tokenizer)) > len(sample))


def unread_collections(documents: Sequence[Document], tokenizer: Path, say: Say = silent) -> set[str]:
    """The names of those of which the tokenizer cannot read most documents."""
    of_collection: dict[str, list[Document]] = {}
    for document in documents:
        of_collection.setdefault(document.collection, []).append(document)
    found = {name for name, some in of_collection.items() if not reading_of(some, tokenizer).most}
    if found:
        say(f"the model cannot read most documents of {', '.join(sorted(found))}: words may lead there")
    return found
