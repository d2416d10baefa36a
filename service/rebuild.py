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
HARMLESS_TEXT = "A short sentence."


def load(transaction: Transaction, generation: Generation) -> None:
    """The generation's index from the stored vectors; a writer's job, so that no write is missed."""
    dimension = generation.encoder.dimension
    connection = transaction.connection
    stored = vectors(connection, generation.number, dimension)
    index = Index.load(dimension, stored, sequence(connection))
    generation.index, old = index, generation.index
    old.close()


async def complete(library: Library, generation: Generation, tell: Callable[[int, int], None]) -> int:
    """Embed and index every document that the index lacks; `tell(done, total)` as it goes.

    Can be called again after it failed, and goes on where it was.

    Returns:
        How many documents were left out because the model fails on their text; the log names them.

    Raises:
        ServiceError: the model fails on any text, the queue is full, or the disk is.

    """
    stored = await library.documents.read(revisions)
    lacking = np.setdiff1d(stored, generation.index.revisions()).tolist()
    if lacking:
        log.warning(
            "%d of %d documents have no sound vector and are embedded again", len(lacking), len(stored)
        )
    left_out = 0
    for done in range(0, len(lacking), STEP_DOCUMENTS):
        tell(len(stored) - len(lacking) + done, len(stored))
        left_out += await _embed_step(library, generation, lacking[done : done + STEP_DOCUMENTS])
    return left_out


async def _embed_step(library: Library, generation: Generation, step: list[int]) -> int:
    """Embed and store some documents; how many of them were left out."""
    documents = await library.documents.read(lambda connection: by_revision(connection, step))
    try:
        embedded = await library.embed(generation, [document.text for document in documents.values()])
    except Backend:
        if len(documents) > 1:
            return sum([await _embed_step(library, generation, [revision]) for revision in documents])
        # Is it this text, or the model? A failure here is the model's, and the caller's to wait for.
        await library.embed(generation, [HARMLESS_TEXT])
        log.exception(
            "Document %r is left out of the index", [document.id for document in documents.values()]
        )
        return 1
    rows: dict[int, Embedding] = dict(zip(documents, embedded, strict=True))
    await library.writer.run(lambda transaction: add_vectors(transaction, generation.number, rows))
    return 0
