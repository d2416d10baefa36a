"""Publishes a source folder as a verified version in the store. Start at `publish`.

    source ─▶ graph ─▶ fingerprint ─▶ files ─▶ proof ─▶ ModelStore

Simile writes the graphs of BERT, its relatives and word tables from the weights. For other families, the
folder must contain an ONNX file, or from_torch/export.py exports one and calls `publish_prepared`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from models import cpus
from models.encoder import Encoder
from models.engines.opening import INT8, require
from models.errors import ProofFailed, Unsupported
from models.files.folders import copy_tree
from models.graph import families, file, reference
from models.graph.backbone import OTHERS, Backbone, Tensors, read_backbone, read_safetensors, require_finite
from models.graph.bert import POOLED_FROM, WORDS, table_graph
from models.graph.blocks import packs
from models.graph.file import HIDDEN, LARGEST
from models.graph.head import STATIC_MEAN, append_head
from models.graph.imported import adopt, load_onnx
from models.graph.nodes import Aside, build_model, save
from models.manifest import (
    FILE_NAME,
    ONNX,
    Manifest,
    Quantized,
    QuantizedScores,
    tidy_origin,
    version_name,
)
from models.progress import Say, silent
from models.publishing.calibration import calibrate
from models.publishing.fingerprint import (
    Space,
    build_space,
    canonical,
    compute_fingerprint,
    hash_initializers,
    hash_tensors,
)
from models.publishing.int8 import add_int8
from models.publishing.layout import write_card, write_layout
from models.publishing.proof import Reference, Vectors, prove, write_golden
from models.publishing.scores import add_int8_scores, prove_scores, write_golden_scores
from models.reranker import Reranker
from models.sources.folder import Source, read_source
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS


class Prepared(NamedTuple):
    source: Source
    model: onnx.ModelProto
    space: Space
    reference: Reference | None  # An independent forward; None without weights.
    computed_in: str = "numpy"  # Library of the reference.
    weights: tuple[Backbone, Tensors] | None = None  # Source of the int8 graph.
    aside: Aside | None = None  # Large tensors, if one ONNX file cannot hold them.


Opened = Callable[[Path, Say], Prepared]


def publish(
    store: ModelStore,
    folder: Path,
    *,
    origin: str = "",
    lineage: Mapping[str, Any] | None = None,
    known: Vectors | None = None,
    opened: Opened | None = None,
    int8: bool = False,
    say: Say = silent,
) -> Manifest:
    """Publishes a sentence-transformers or Hugging Face folder, unless the model is already published.

    Returns the manifest of the new or the existing version.

    Args:
        origin: Model name in the version's name.
        lineage: Where the model comes from, for the manifest.
        known: Vectors of PROOF_TEXTS that the model must return.
        opened: Prepares the folder instead of `read_source` and `prepare` (import_process.py).
        int8: Whether to add an int8 graph, which takes most of the time.

    Raises:
        ModelUnavailable: The folder is missing.
        Unsupported: The folder cannot be published.
        ProofFailed: The graph computes wrong vectors.
    """
    say("reading the model")
    with _in_a_sentence(folder):
        prepared = prepare(read_source(folder)) if opened is None else opened(folder, say)
    for link in prepared.source.skipped:
        say(f"skipping {link}: a link that points outside of the folder")
    origin = origin or _get_origin(folder)
    lineage = lineage or {}
    return publish_prepared(store, prepared, origin=origin, lineage=lineage, known=known, int8=int8, say=say)


@contextlib.contextmanager
def _in_a_sentence(folder: Path) -> Iterator[None]:
    """Converts Python errors to Unsupported. Values of wrong types in the folder's files cause them."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise Unsupported(
            f"{folder} cannot be read: a value in its JSON files or weights has the wrong type "
            f"({type(error).__name__}: {reason}). Copy the folder again from its source."
        ) from error


def publish_prepared(
    store: ModelStore,
    prepared: Prepared,
    *,
    origin: str,
    parent: str | None = None,
    lineage: Mapping[str, Any],
    known: Vectors | None = None,
    int8: bool = False,
    say: Say = silent,
) -> Manifest:
    """Publishes a source whose graph was prepared. See `publish` for most arguments.

    Args:
        parent: The version that the model was trained from. If it has an int8 graph, so has the new version.
    """
    manifest = _manifest(prepared, origin, parent, lineage)
    int8 = int8 or any(each.version == parent and each.quantised for each in store.versions())
    existing = store.find(manifest)
    quantized = existing and (existing.quantised or not (int8 and prepared.weights))
    # A version of an old release is published again if it has no calibration or a slower graph.
    calibrated = existing and (existing.calibration.int8 or existing.kind == "reranker")
    if existing and calibrated and existing.packed >= manifest.packed and quantized:
        return existing
    build = partial(_build, prepared=prepared, manifest=manifest, known=known, int8=int8, say=say)
    return store.publish(build)


def quantize(store: ModelStore, version: str, say: Say = silent) -> Manifest:
    """Publishes a version again with an int8 graph, unless it has one. Its vector space stays the same.

    Raises:
        Damaged: A file of the version was changed.
        FormUnavailable: This processor cannot compute int8.
        UnknownVersion: The version is missing.
        Unsupported: No int8 graph can be built from its weights, or the graph loses too much accuracy.
    """
    manifest = store.verify(version)
    if manifest.quantised:
        return manifest
    require(INT8)
    source = read_source(store.folder(version))
    weights = prepare(source).weights
    if weights is None:
        raise Unsupported(f"{version} has no weights that an int8 graph can be built from. Serve it in fp32.")
    now = store.new_time(manifest.origin, manifest.fingerprint)
    changed = {
        "version": version_name(now, manifest.origin, manifest.fingerprint),
        "created": now.isoformat(timespec="seconds"),
        "files": {},
    }

    def build(folder: Path) -> Manifest:
        copy_tree(source.folder, folder, {FILE_NAME})
        cost: Quantized | QuantizedScores | None
        if manifest.kind == "reranker":
            with closing(Reranker(folder, manifest, threads=cpus.available())) as reranker:
                cost = add_int8_scores(folder, reranker, *weights, source.head, say)
        else:
            with closing(Encoder(folder, manifest, threads=cpus.available())) as encoder:
                verified = encoder.encode(PROOF_TEXTS).vectors
                cost = add_int8(folder, encoder, verified, *weights, source.head, say)
        if cost is None:
            raise Unsupported(f"The int8 graph of {version} loses too much accuracy. Serve it in fp32.")
        published = manifest.model_copy(update=changed | {"quantised": cost})
        write_card(folder, published)
        return published

    return store.publish(build)


def prepare(source: Source) -> Prepared:
    """Builds the graph of a source, or adopts its ONNX file, in memory. Raises Unsupported."""
    if source.is_table:
        return _from_table(source)
    if weights := _read_weights(source):  # Preferred to an ONNX file, because Simile's graph skips padding.
        return _from_weights(source, *weights)
    return prepare_adopted(source)


def prepare_adopted(source: Source) -> Prepared:
    """Prepares the ONNX file of a source for publishing. Raises Unsupported if the file cannot be used."""
    if source.onnx is None:
        raise Unsupported(_no_weights(source))
    model = load_onnx(source.onnx)
    initializers = hash_initializers(model.graph)
    dimension = adopt(model, source.head, source.width)
    return Prepared(source, model, build_space(source, initializers, None, dimension), None)


def _from_weights(source: Source, backbone: families.AnyBackbone, tensors: Tensors) -> Prepared:
    large = sum(tensor.nbytes for tensor in tensors.values()) > LARGEST
    aside = Aside() if large else None
    graph = families.build_graph(backbone, tensors, source.head, source.max_length, aside)
    dimension = source.head.dimension(backbone.width)
    append_head(graph, POOLED_FROM[source.head.tokens], source.head, dimension)
    space = build_space(source, hash_tensors(tensors), backbone, dimension)
    computed = partial(families.embed, backbone, tensors, source.head)
    small = (backbone, tensors) if isinstance(backbone, Backbone) and not large else None
    return Prepared(source, build_model(graph), space, computed, weights=small, aside=aside)


def _from_table(source: Source) -> Prepared:
    """Prepares a model that pools rows of a word table."""
    floats = read_safetensors(source.weights[0])
    if not floats:
        raise Unsupported(f"The table in {source.weights[0]} has no floats. Save it without quantization.")
    [(name, table)] = floats.items()
    require_finite(name, table)
    graph = table_graph(table)
    dimension = source.head.dimension(source.width)
    append_head(graph, HIDDEN, source.head, dimension)
    space = build_space(source, hash_tensors({WORDS: table}), None, dimension)
    computed = partial(reference.embed_table, table, source.head)
    return Prepared(source, build_model(graph), space, computed)


def _get_origin(folder: Path) -> str:
    """Returns the origin of a published version. For another folder, returns its name."""
    try:
        return Manifest.read(folder).origin
    except (OSError, ValueError):
        return folder.resolve().name


def _read_weights(source: Source) -> tuple[families.AnyBackbone, Tensors] | None:
    """Reads the sizes and tensors from a source's safetensors files. Raises Unsupported.

    Returns None without safetensors files, or if only the folder's ONNX file supports the family.
    """
    if not source.weights or (source.onnx and not source.is_written_here):
        return None
    backbone = families.build_backbone(source.config)
    if source.scoring and not source.head.layers:
        raise Unsupported(f"The head of {source.folder} is not supported. {OTHERS}")
    return backbone, read_backbone(source.weights, backbone, source.head.tokens)


def _no_weights(source: Source) -> str:
    if any(source.backbone.glob("pytorch_model*.bin")):
        return f"{source.folder} has pickled weights only, which are never read. Save it as safetensors."
    return f"{source.folder} has neither model.safetensors nor onnx/model.onnx."


def _manifest(prepared: Prepared, origin: str, parent: str | None, lineage: Mapping[str, Any]) -> Manifest:
    source, space = prepared.source, prepared.space
    scoring = source.scoring
    created = datetime.now(UTC)
    fingerprint = compute_fingerprint(space)
    known_elsewhere = source.head.portable or (source.is_table and source.head.names == STATIC_MEAN)
    return Manifest(
        kind="reranker" if scoring else "encoder",
        version=version_name(created, origin, fingerprint),
        fingerprint=fingerprint,
        created=created.isoformat(timespec="seconds"),
        origin=tidy_origin(origin),
        parent=parent,
        lineage=dict(lineage),
        dimension=space["dimension"],
        labels=list(scoring.labels) if scoring else [],
        activation=scoring.activation if scoring else "identity",
        max_length=source.max_length,
        pooling=space["pooling"],
        prompts=source.prompts,
        default_prompt=source.default_prompt,
        search_prompt=source.search_prompt,
        document_prompt=source.document_prompt,
        packed=packs(prepared.model.graph),
        portable="sentence-transformers" if known_elsewhere else "simile",
    )


def _build(
    folder: Path, *, prepared: Prepared, manifest: Manifest, known: Vectors | None, int8: bool, say: Say
) -> Manifest:
    say("writing the ONNX file")
    write_layout(prepared.source, folder)
    metadata = {file.FINGERPRINT: manifest.fingerprint, file.SPACE: canonical(prepared.space).decode()}
    del prepared.model.metadata_props[:]
    onnx.helper.set_model_props(prepared.model, metadata)
    (folder / ONNX).parent.mkdir()
    save(prepared.model, folder / ONNX, prepared.aside)
    say("verifying it against the weights" if prepared.reference else "verifying it")
    try:
        if manifest.kind == "reranker":
            found = _verify_reranker(folder, prepared, manifest, int8, say)
        else:
            found = _verify_encoder(folder, prepared, manifest, known, int8, say)
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):  # These errors share no base class.
            raise
        reason = str(error).splitlines()[0]
        raise ProofFailed(f"ONNX Runtime cannot compute the graph: {reason}") from error
    published = manifest.model_copy(update=found)
    write_card(folder, published)
    return published


def _verify_encoder(
    folder: Path, prepared: Prepared, manifest: Manifest, known: Vectors | None, int8: bool, say: Say
) -> dict[str, object]:
    """Verifies an encoder, and writes golden.json. Returns measured fields of its manifest."""
    encoder = Encoder(folder, manifest, threads=cpus.available())
    verified = prove(encoder, prepared.reference, known, prepared.computed_in, say)
    write_golden(folder, verified)
    found: dict[str, object] = {"calibration": calibrate(encoder, verified)}
    if int8 and prepared.weights:
        found["quantised"] = add_int8(folder, encoder, verified, *prepared.weights, prepared.source.head, say)
    return found


def _verify_reranker(
    folder: Path, prepared: Prepared, manifest: Manifest, int8: bool, say: Say
) -> dict[str, object]:
    """Does the same as `_verify_encoder` for a reranker."""
    reranker = Reranker(folder, manifest, threads=cpus.available())
    verified = prove_scores(reranker, prepared.reference, prepared.computed_in, say)
    write_golden_scores(folder, verified, manifest.activation)
    if not (int8 and prepared.weights):
        return {}
    return {"quantised": add_int8_scores(folder, reranker, *prepared.weights, prepared.source.head, say)}
