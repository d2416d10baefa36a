"""Versions that differ in name and cost the same: one model, published again with a token less at most.

The greatest length is part of a vector space's fingerprint, so such a version has its documents embedded
anew, by the same weights at the same speed. Only a text that is cut costs a token less.
"""

import json
import random
from pathlib import Path

from benchmarks import documents
from benchmarks.places import say
from benchmarks.server import Server
from models.publishing.default import default_source
from models.publishing.publish import publish
from models.sources.folder import read_source
from models.store import Store
from training.text.corpus import read_corpus

LENGTH_FILE = "sentence_bert_config.json"


def publish_variants(models_dir: Path, count: int) -> list[str]:
    """Publish `count` of them; their names."""
    with default_source() as folder:
        longest = read_source(folder).max_length
        file = folder / LENGTH_FILE
        written = json.loads(file.read_bytes())
        published = []
        for less in range(1, count + 1):
            file.write_text(json.dumps(written | {"max_seq_length": longest - less}))
            published.append(publish(Store(models_dir), folder, origin=f"variant-{less}").version)
    return published


def drawn(file: Path, count: int) -> list[str]:
    """Distinct texts of a training corpus, at most `count`; drawn, because a corpus is sorted."""
    found = read_corpus(file).texts
    return random.Random(0).sample(found, min(count, len(found)))


def prepared(data_dir: Path, texts: list[str], count: int) -> str:
    """A data directory with the default model, `count` documents and a second version; that one's name."""
    say(f"storing {count} documents and publishing a second version")
    with Server(data_dir):
        pass  # it publishes the default model and makes the store
    documents.fill(data_dir, texts, count)
    return publish_variants(data_dir / "models", 1)[0]
