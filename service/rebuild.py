"""Make a generation whole: its index from the stored vectors, then whatever those lack.

A vector that is missing or damaged costs its text one more forward pass, in the background lane; nothing
stops the start. Writes go on meanwhile, and a vector is stored only while its revision lives.
"""

import logging
from collections.abc import Callable

import numpy as np

from service.documents import by_revision, revisions, sequence, vectors
from service.errors import Backend
from service.index import Index
from service.library import Library
from service.live import Generation
from service.revisions import Embedding, add_vectors
from service.writer import Transaction

log = logging.getLogger(__name__)

STEP_DOCUMENTS = 64


def load(transaction: Transaction, generation: Generation) -> None:
    """The generation's index from the stored vectors; a writer's job, so that no write is missed."""
    dimension = generation.encoder.dimension
    connection = transaction.connection
    stored = vectors(connection, generation.number, dimension)
    index = Index.load(dimension, stored, sequence(connection))
    generation.index, old = index, generation.index
    old.close()


async def complete(library: Library, generation: Generation, tell: Callable[[int, int], None]) -> None:
    """Embed and index every document that the index lacks; `tell(done, total)` as it goes.

    A text that the model fails on is left out of the index and named in the log.
    """
    stored = await library.documents.read(revisions)
    lacking = np.setdiff1d(stored, generation.index.revisions()).tolist()
    if lacking:
        log.warning(
            "%d of %d documents have no sound vector and are embedded again", len(lacking), len(stored)
        )
    for done in range(0, len(lacking), STEP_DOCUMENTS):
        tell(len(stored) - len(lacking) + done, len(stored))
        await _embed_step(library, generation, lacking[done : done + STEP_DOCUMENTS])


async def _embed_step(library: Library, generation: Generation, step: list[int]) -> None:
    documents = await library.documents.read(lambda connection: by_revision(connection, step))
    try:
        embedded = await library.embed(generation, [document.text for document in documents.values()])
    except Backend:
        if len(documents) > 1:
            for revision in documents:
                await _embed_step(library, generation, [revision])
            return
        log.exception(
            "Document %r is left out of the index", [document.id for document in documents.values()]
        )
        return
    rows: dict[int, Embedding] = dict(zip(documents, embedded, strict=True))
    await library.writer.run(lambda transaction: add_vectors(transaction, generation.number, rows))
