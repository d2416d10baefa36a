"""Writes MODEL_CARD.md, which describes a version in plain English. README.md is the card of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from models.manifest import ANCHOR, QUERIES, Manifest

CARD = "MODEL_CARD.md"
_NOT_MEASURED = (
    "The quality of this version was not measured when it was published. Its vectors were checked against "
    "those of the weights, as golden.json shows."
)


def write_card(
    folder: Path, manifest: Manifest, measured: Iterable[str] = (_NOT_MEASURED,), limits: Iterable[str] = ()
) -> None:
    """Writes the card into a folder that is not sealed yet.

    Args:
        measured: Paragraphs of Markdown about quality.
        limits: Additional limits, a sentence each.
    """
    about = (
        f"A sentence encoder. It turns a text into a vector of {manifest.dimension} numbers and of length 1; "
        "texts of like meaning have a large inner product."
    )
    parts = [
        f"# {manifest.version}",
        about,
        "## Origin",
        _bullets(_origin(manifest)),
        "## Measured",
        *measured,
        *_int8(manifest),
        *_pair(manifest),
        "## Limits",
        _bullets([*_limits(manifest), *limits]),
        "## Use",
        *_use(manifest),
    ]
    (folder / CARD).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _origin(manifest: Manifest) -> Iterator[str]:
    lineage = manifest.lineage
    if "method" not in lineage:
        yield f"Imported from {lineage.get('source', manifest.origin)}, and not trained here."
    else:
        rows = f" on {lineage['texts']:,} rows" if "texts" in lineage else ""
        yield f"Trained by the recipe {lineage['method']}{rows}, in {lineage['steps']:,} steps."
        yield f"Base, where the training began: {lineage['base']}."
        if "share" in lineage:
            yield f"{lineage['share']:.0%} of the way from the base to the trained weights was kept."
    for collection, use in sorted(manifest.search.items()):
        passages = f", passages of {use.passage_tokens} tokens" if use.passage_tokens else ""
        yield (
            f"Learned search settings of the collection {collection}: {use.mode}, weight {use.weight:g} of "
            f"the vectors{passages}."
        )
    if manifest.parent:
        yield f"Parent: {manifest.parent}."
    if ANCHOR in lineage:
        yield f"Anchor, the imported model of its line: {lineage[ANCHOR]}."
    yield f"Published: {manifest.created}."
    yield f"Fingerprint of its vector space: {manifest.fingerprint}."


def _int8(manifest: Manifest) -> Iterator[str]:
    if cost := manifest.quantised:
        yield (
            f"The graph in 8 bits was compared with float32 on {cost.measured_on:,} texts: mean cosine "
            f"{cost.cosine_mean:.4f}, smallest {cost.cosine_least:.4f}; {cost.same_neighbours:.1%} of the "
            "ten nearest texts are the same."
        )


def _pair(manifest: Manifest) -> Iterator[str]:
    if student := manifest.query_encoder:
        yield (
            f"Simile encodes the queries of searches with a student, {student.version} in {QUERIES}/. Its "
            f"vectors of {student.measured_on:,} texts have a mean cosine of {student.cosine_mean:.4f} to "
            f"those of this model, and {student.cosine_least:.4f} at least; {student.same_neighbours:.1%} of "
            "the ten nearest texts are the same. The rest of this card is about this model only."
        )


def _limits(manifest: Manifest) -> Iterator[str]:
    yield (
        f"It reads {manifest.max_length} tokens of a text, special ones included. Simile also searches "
        "longer documents by passages; other tools truncate them."
    )
    yield (
        "Its vocabulary and the text it learned from decide which languages it reads, and the manifest does "
        "not name them. `python -m training report --corpus FILE` says whether it can read yours."
    )
    yield "Its vectors may only be compared with vectors of the same version."
    if manifest.portable == "simile":
        yield "Its pooling is Simile's own, so sentence-transformers cannot open it; onnx/model.onnx has it."


def _use(manifest: Manifest) -> Iterator[str]:
    yield f"With Simile: `python -m models activate {manifest.version}`."
    if manifest.portable == "sentence-transformers":
        yield "With sentence-transformers:"
        prompt = ', prompt_name="query"' if "query" in manifest.prompts else ""
        yield (
            "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("THIS FOLDER")\n'
            f'vectors = model.encode(["a text"]{prompt}, normalize_embeddings=True)\n```'
        )
    if manifest.search_prompt or manifest.document_prompt:
        yield (
            f"Put {manifest.search_prompt!r} before a query and {manifest.document_prompt!r} before a "
            "document; Simile does so itself."
        )
    yield (
        "With ONNX Runtime alone: onnx/model.onnx takes the ids of tokenizer.json, and its output "
        "`sentence_embedding` is the vector."
    )
