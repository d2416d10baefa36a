"""Create documents and model versions for benchmarks.

`prepare` makes a data directory with many documents and a second model version. The service's own code stores
the documents with random unit vectors. The search time of an exact index does not depend on the vectors.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.command import progress
from benchmarks.processes import Server
from models.publishing.default import default_source
from models.publishing.publish import publish
from models.sources.folder import read_source
from models.store import ModelStore
from service.store.sqlite.schema import DATABASE, connect
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import upsert
from service.store.values import Document, Embedding, encode_json
from training.text.corpus import read_corpus

COMMIT_DOCUMENTS = 2000
LENGTH_FILE = "sentence_bert_config.json"


def draw_texts(file: Path, count: int) -> list[str]:
    """Return at most `count` distinct texts of a training corpus, in random order."""
    found = read_corpus(file).texts
    return random.Random(0).sample(found, min(count, len(found)))


def prepare(data_dir: Path, texts: list[str], count: int) -> str:
    """Create a data directory with the default model and `count` documents.

    Returns:
        The name of a second version, which is published but not active.

    """
    progress(f"storing {count} documents and publishing a second version")
    with Server(data_dir):
        pass  # publishes the default model and creates the store
    fill(data_dir, texts, count)
    return publish_variants(data_dir / "models", 1)[0]


def publish_variants(models_dir: Path, count: int) -> list[str]:
    """Publish `count` versions with the same weights as the default model, and return their names.

    The versions differ in the maximum length of a text, by one token each. The maximum length is part of the
    fingerprint of a vector space, so the service embeds all documents again for each version.
    """
    with default_source() as folder:
        max_length = read_source(folder).max_length
        file = folder / LENGTH_FILE
        original = json.loads(file.read_bytes())
        published = []
        for less in range(1, count + 1):
            file.write_text(json.dumps(original | {"max_seq_length": max_length - less}))
            published.append(publish(ModelStore(models_dir), folder, origin=f"variant-{less}").version)
    return published


def fill(data_dir: Path, texts: Sequence[str], count: int) -> None:
    """Store `count` documents in a data directory that no service has open."""
    connection = connect(data_dir / DATABASE)
    generation, dimension = connection.execute(
        "SELECT number, dimension FROM generations WHERE state = 'active'"
    ).fetchone()
    chance = np.random.default_rng(0)
    for begin in range(0, count, COMMIT_DOCUMENTS):
        rows = range(begin, min(count, begin + COMMIT_DOCUMENTS))
        vectors = chance.standard_normal((len(rows), dimension), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        documents = [
            Document(f"stored-{row}", texts[row % len(texts)], encode_json({"row": row})) for row in rows
        ]
        embedded = {at: Embedding(vector, truncated=False) for at, vector in enumerate(vectors)}
        connection.execute("BEGIN IMMEDIATE")
        upsert(Transaction(connection), documents, {generation: embedded})
        connection.execute("COMMIT")
    connection.close()
