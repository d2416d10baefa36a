"""A process to be killed. It runs all operations of a store in several threads and prints them.

    python -m tests.service.store_worker FOLDER SEED

Each writing thread has its own ids. It prints `try THREAD OPERATION` before each operation and `ack THREAD
OPERATION` after it (JSON). Thread 3 builds and activates one generation after another, printing only `ack`.
Every generation has an index, loaded as the service loads it. A base needs few rows, so many bases arise.
`try 4 {"snapshot": generation}` means that its lists will be written to disk, `ack` that they are on disk.

    {"put": {id: text, …}}     several documents, in one transaction
    {"delete": id}
    {"filter": parity}         every document of the thread whose text's step is even (0) or odd (1)
    {"swap": number}           the generation that becomes active
"""

import os
import random
import sqlite3
import sys
import threading
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from models.manifest import Manifest
from service.index import maintenance
from service.index.index import Index
from service.index.ivf import Clustered
from service.index.ivf_snapshots import IvfSnapshots, Origin, tidy
from service.settings import INDEXES
from service.store.filters.grammar import Predicate
from service.store.sql.generations import begin, get_active_number, kept_numbers, make_active
from service.store.sql.records import collections, unembedded
from service.store.sqlite import vectors
from service.store.sqlite.documents import sequence
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.reader import Snapshot
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.vectors import add_vectors, lacking
from service.store.sqlite.writer import Transaction, Writer
from service.store.sqlite.writes import purge, trim, upsert
from service.store.values import DEFAULT_COLLECTION, Changes, Document, Embedding, encode_json
from tests.service.deleting import delete

THREADS = 3
BUILDER, MERGERS = THREADS, THREADS + 1  # thread numbers in the printed lines
IDS_PER_THREAD = 12
DIMENSION, FINGERPRINT = 8, "f"
STEP = 5  # documents per step of a build
SAYING = threading.Lock()
GAPS = 0.5  # share of writes without vectors for followers
BASE_ROWS = 8  # replaces maintenance.BASE_ROWS


def get_vector(text: str, generation: int) -> NDArray[np.float32]:
    """Returns the vector of `text` in a generation."""
    seed = zlib.crc32(f"{generation} {text}".encode())
    raw = np.random.default_rng(seed).standard_normal(DIMENSION)
    return (raw / np.linalg.norm(raw)).astype(np.float32)


def parity_of(text: str) -> int:
    """Returns the parity of the step, the fourth part of the text."""
    return int(text.split("-")[3]) % 2


def embedding(text: str, generation: int) -> Embedding:
    return Embedding(get_vector(text, generation), truncated=False)


class Told(IvfSnapshots):
    """Snapshots that print when a base was built, and when it is on disk."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder / INDEXES / DEFAULT_COLLECTION, Origin(number, FINGERPRINT, DIMENSION))
        self._number = number

    def keep(self, base: Clustered, sequence: int) -> None:
        say("try", MERGERS, snapshot := {"snapshot": self._number})
        super().keep(base, sequence)
        say("ack", MERGERS, snapshot)


class Store:
    """The store in `folder` and the indexes of its generations."""

    def __init__(self, folder: Path) -> None:
        path = folder / "simile.db"
        migrate(path)
        connection = connect(path, Snapshot)
        connection.execute(
            "INSERT INTO generations (version, fingerprint, form, dimension, state) "
            "SELECT 'v0', ?, 'form', ?, 'active' WHERE NOT EXISTS (SELECT 1 FROM generations)",
            (FINGERPRINT, DIMENSION),
        )
        kept = kept_numbers(connection)
        tidy(folder / INDEXES, collections(connection), kept)
        self._folder = folder
        self._indexes = {number: self._loaded(connection, number) for number in kept}
        self.writer = Writer(connection, self._follow, lambda seconds: None)

    def _loaded(self, connection: sqlite3.Connection, number: int) -> Index:
        stored = vectors.read(connection, number, DIMENSION, [], DEFAULT_COLLECTION)
        return Index.load(DIMENSION, stored, sequence(connection), Told(self._folder, number))

    def _follow(self, changes: Changes) -> None:
        for number in {*self._indexes, *(number for number, _ in changes.added)}:
            added = changes.added.get((number, DEFAULT_COLLECTION), {})
            rows = np.array([*added.values()], dtype=np.float32).reshape(-1, DIMENSION)
            if number not in self._indexes:
                self._indexes[number] = Index(DIMENSION, Told(self._folder, number))
            names = np.array([*added], dtype=np.int64)
            self._indexes[number].apply(
                (names, rows), changes.removed.get(DEFAULT_COLLECTION, ()), changes.sequence
            )

    def let_go(self, transaction: Transaction) -> list[Index]:
        """Removes and returns the indexes of dropped generations."""
        dropped = self._indexes.keys() - kept_numbers(transaction.connection)
        return [self._indexes.pop(number) for number in dropped]


def say(word: str, thread: int, operation: dict[str, Any]) -> None:
    with SAYING:  # A long write to a full pipe may be split.
        os.write(1, f"{word} {thread} ".encode() + orjson.dumps(operation) + b"\n")


def put(transaction: Transaction, documents: list[Document], *, gaps: bool) -> None:
    connection = transaction.connection
    numbers = {get_active_number(connection)} if gaps else kept_numbers(connection)
    given = {
        number: {at: embedding(document.text, number) for at, document in enumerate(documents)}
        for number in numbers
    }
    upsert(transaction, documents, given)


def write_for_ever(writer: Writer, thread: int, seed: int) -> None:
    rng = random.Random(seed * 100 + thread)
    operation: dict[str, Any]
    for step in range(1_000_000):
        ids = [f"{thread}-{at}" for at in rng.sample(range(IDS_PER_THREAD), rng.choice([1, 1, 1, 4]))]
        kind = rng.choices(["put", "delete", "filter"], [10, 3, 1])[0]
        if kind == "put":
            texts = {id: f"text-{seed}-{thread}-{step}-{id}-" + "x" * rng.randrange(3000) for id in ids}
            metadata = {"thread": thread, "odd": step % 2}
            documents = [Document(id, text, encode_json(metadata)) for id, text in texts.items()]
            say("try", thread, operation := {"put": texts})
            writer.submit(partial(put, documents=documents, gaps=rng.random() < GAPS)).result()
        elif kind == "delete":
            where = Predicate("id = ?", [ids[0]])
            say("try", thread, operation := {"delete": ids[0]})
            writer.submit(partial(delete, where=where)).result()
        else:
            say("try", thread, operation := {"filter": step % 2})
            where = compile_filter({"thread": thread, "odd": step % 2})
            writer.submit(partial(delete, where=where)).result()
        say("ack", thread, operation)


def build_for_ever(store: Store, seed: int) -> None:
    """Builds and activates generations in small steps, as the service does."""
    writer = store.writer
    for step in range(1_000_000):
        named = SimpleNamespace(version=f"v{seed}-{step}", fingerprint=FINGERPRINT, dimension=DIMENSION)
        manifest = cast("Manifest", named)
        number = writer.submit(partial(begin_for, manifest)).result()
        while not writer.submit(partial(build_or_swap, number=number)).result():
            pass
        say("ack", BUILDER, {"swap": number})
        for index in writer.submit(store.let_go).result():
            index.close()
        while writer.submit(purge).result():
            pass
        writer.submit(trim).result()


def begin_for(manifest: Manifest, transaction: Transaction) -> int:
    return begin(transaction.connection, manifest, "form")


def build_or_swap(transaction: Transaction, number: int) -> bool:
    """Embeds the next documents without a vector. If none is left, activates and returns True."""
    step = lacking(transaction.connection, number, 0, STEP)
    if step:
        found = unembedded(cast("Snapshot", transaction.connection), step)
        rows = {revision: embedding(each.content.text, number) for revision, each in found.items()}
        add_vectors(transaction, number, rows)
        return False
    make_active(transaction.connection, number, "", rollback=False)
    transaction.changes.sequence = sequence(transaction.connection)
    return True


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    maintenance.BASE_ROWS = BASE_ROWS
    store = Store(folder)
    threads = [
        threading.Thread(target=write_for_ever, args=(store.writer, number, seed), daemon=True)
        for number in range(THREADS)
    ]
    threads.append(threading.Thread(target=build_for_ever, args=(store, seed), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
