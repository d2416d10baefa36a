"""Test if the tokenizer of the active model can read the documents, overall and in each collection.

If about a tenth of the documents are in a language that the model cannot read, the documents as a whole count
as unreadable. The test then also says if most documents can be read one by one.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from models.progress import Say, silent
from training.mining.corpus_report import read
from training.retraining.documents import Document

_LOOKED_AT = 500  # documents whose tokens are counted, at least, and fewer than twice as many


class Reading(NamedTuple):
    why_not: str  # the reason why the model cannot read the documents as a whole; empty when it can
    most: bool  # more than half of them can be read


def measure_reading(documents: Sequence[Document], tokenizer: Path) -> Reading:
    """Tests a sample of documents. `tokenizer` is the path of a tokenizer.json."""
    sample = [document.whole for document in documents[:: max(1, len(documents) // _LOOKED_AT)]]
    why_not, found = read(sample, tokenizer)
    return Reading(why_not, 2 * len(found) > len(sample))


def unread_collections(
    documents: Sequence[Document], queried: Container[str], tokenizer: Path, say: Say = silent
) -> set[str]:
    """Returns the collections among `queried` in which the tokenizer cannot read most documents."""
    of_collection: dict[str, list[Document]] = {}
    for document in documents:
        if document.collection in queried:
            of_collection.setdefault(document.collection, []).append(document)
    found = {name for name, some in of_collection.items() if not measure_reading(some, tokenizer).most}
    if found:
        names = ", ".join(sorted(found))
        say(f"the model cannot read half of the documents of {names}: words may lead there")
    return found
