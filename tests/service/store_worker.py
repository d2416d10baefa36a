"""A process to be killed: it writes to a document store from several threads and says what it was told.

    python -m tests.service.store_worker FOLDER SEED

prints `try THREAD ID TEXT` before each write and `ack THREAD ID TEXT` once it was answered; a text of `-`
means that the document is deleted.
"""

import os
import random
import sys
import threading
import zlib
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from service.documents import Document
from service.index import Index
from service.revisions import Embedding, delete, upsert
from service.schema import connect, migrate
from service.where import Where
from service.writer import Changes, Writer

THREADS = 3
IDS_PER_THREAD = 12
DIMENSION = 8
GENERATION = 1


def vector_of(text: str) -> NDArray[np.float32]:
    """The one vector that `text` has here."""
    raw = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIMENSION)
    return (raw / np.linalg.norm(raw)).astype(np.float32)


def open_store(folder: Path, index: Index) -> Writer:
    path = folder / "simile.db"
    migrate(path)
    connection = connect(path)
    connection.execute(
        "INSERT OR IGNORE INTO generations (number, version, fingerprint, form, dimension, state) "
        "VALUES (?, 'v', 'f', 'form', ?, 'active')",
        (GENERATION, DIMENSION),
    )

    def follow(changes: Changes) -> None:
        rows = changes.added.get(GENERATION, [])
        vectors = np.array([vector for _, vector in rows], dtype=np.float32).reshape(-1, DIMENSION)
        index.apply((np.array([row[0] for row in rows], dtype=np.int64), vectors), changes.removed)

    return Writer(connection, follow, lambda seconds: None)


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())  # one write, so that lines of two threads never mix


def write_for_ever(writer: Writer, thread: int, seed: int) -> None:
    rng = random.Random(seed * 100 + thread)
    for step in range(1_000_000):
        id = f"{thread}-{rng.randrange(IDS_PER_THREAD)}"
        text = "-" if rng.random() < 0.3 else f"text-{seed}-{thread}-{step}-" + "x" * rng.randrange(3000)
        say("try", str(thread), id, text)
        if text == "-":
            where = Where("id = ?", [id])
            writer.submit(partial(delete, where=where)).result()
        else:
            document = Document(id, text, {"step": step})
            given = {GENERATION: {0: Embedding(vector_of(text), truncated=False)}}
            job = partial(upsert, documents=[document], embedded=given)
            writer.submit(job).result()
        say("ack", str(thread), id, text)


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    writer = open_store(folder, Index(DIMENSION))
    threads = [
        threading.Thread(target=write_for_ever, args=(writer, number, seed), daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
