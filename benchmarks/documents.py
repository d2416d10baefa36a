"""Create documents and model versions for benchmarks."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import call
from models.publishing.default import default_source
from models.publishing.publish import publish
from models.sources.folder import read_source
from models.store import ModelStore
from training.text.corpus import read_corpus

REQUEST_DOCUMENTS = 200
LENGTH_FILE = "sentence_bert_config.json"
# Standard deviation. With the 0.02 of BERT, a cross-encoder would score all pairs nearly equally.
WEIGHTS = 0.1


def draw_texts(file: Path, count: int, words: int = 0) -> list[str]:
    """Return at most `count` distinct texts of a training corpus, in random order.

    Args:
        words: Words of each text, which may then consist of several texts of the corpus. 0: whole texts.
    """
    found: Sequence[str] = read_corpus(file).texts
    if words:
        all_words = [word for text in found for word in text.split()]
        found = [" ".join(all_words[at : at + words]) for at in range(0, len(all_words), words)]
    return random.Random(0).sample(found, min(count, len(found)))


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


def write_cross_encoder(folder: Path) -> Path:
    """Write a cross-encoder as transformers does: the default model's size and tokenizer, random weights."""
    import torch  # noqa: PLC0415  slow to import
    import transformers  # noqa: PLC0415

    from models.publishing.from_torch.backbone import quiet  # noqa: PLC0415  it imports both

    torch.manual_seed(0)
    with default_source() as default, quiet():
        config = transformers.BertConfig.from_pretrained(default, num_labels=1, initializer_range=WEIGHTS)
        model = transformers.BertForSequenceClassification(config)
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(default).save_pretrained(folder)
    return folder


def store_documents(port: int, texts: Sequence[str], count: int) -> None:
    """Store `count` documents in a running service. The texts repeat after the last one."""
    for begin in range(0, count, REQUEST_DOCUMENTS):
        rows = range(begin, min(count, begin + REQUEST_DOCUMENTS))
        documents = [
            {"id": f"stored-{row}", "text": texts[row % len(texts)], "metadata": {"kind": row % 4}}
            for row in rows
        ]
        call(port, "POST", "/documents", {"documents": documents})
