"""The example corpus: a few hundred short texts, so that the first search of a new user answers."""

import logging

import orjson

from models.tokens.texts import example_lines
from service.corpus.corpus import Corpus
from service.store.documents import Document, fact, json_of
from service.store.writer import Transaction

log = logging.getLogger(__name__)

FACT = "examples"
WANTED, LOADED = "wanted", "loaded"
STEP_DOCUMENTS = 64


def read_examples() -> list[Document]:
    """The corpus, each document marked with `metadata.example = true`."""
    rows = map(orjson.loads, example_lines())
    return [Document(row["id"], row["text"], json_of({**row["metadata"], "example": True})) for row in rows]


async def load_examples(corpus: Corpus) -> None:
    """Store the corpus when this data directory was made for it and does not have it yet."""
    if await corpus.documents.own(lambda connection: fact(connection, FACT)) != WANTED:
        return
    examples = read_examples()
    for start in range(0, len(examples), STEP_DOCUMENTS):
        await corpus.put(examples[start : start + STEP_DOCUMENTS])
    await corpus.writer.run(_mark_loaded)
    log.info("Loaded %d example documents", len(examples))


def _mark_loaded(transaction: Transaction) -> None:
    transaction.connection.execute("UPDATE facts SET value = ? WHERE name = ?", (LOADED, FACT))
