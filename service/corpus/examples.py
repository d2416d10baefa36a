"""Loads the example corpus: a few hundred short texts for a new user's first search."""

import logging
from typing import Any

import orjson

from models.tokens.texts import example_lines
from service.corpus.corpus import Corpus
from service.store.values import Document, encode_json

log = logging.getLogger(__name__)

STEP_DOCUMENTS = 64


def example_rows() -> list[dict[str, Any]]:
    """Returns the documents as JSON, each with `metadata.example = true`."""
    rows = map(orjson.loads, example_lines())
    return [row | {"metadata": row["metadata"] | {"example": True}} for row in rows]


async def put_examples(corpus: Corpus) -> None:
    examples = [Document(row["id"], row["text"], encode_json(row["metadata"])) for row in example_rows()]
    for start in range(0, len(examples), STEP_DOCUMENTS):
        await corpus.put(examples[start : start + STEP_DOCUMENTS])
    log.info("Loaded %d example documents", len(examples))
