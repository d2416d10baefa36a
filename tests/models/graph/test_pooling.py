"""Poolings have equal values in numpy, in the graph and in torch. Tests their files and names, too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from models.errors import Unsupported
from models.graph import reference
from models.graph.backbone import Backbone, read_backbone
from models.graph.file import HIDDEN, POOLED, SENTENCE
from models.graph.head import POOLING_FLAGS, POOLINGS, Dense, Head
from models.publishing.layout import write_layout
from models.publishing.proof import check_golden
from models.publishing.publish import prepare, publish
from models.sources.folder import read_source
from models.sources.template import with_template
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS
from tests.models import feeds
from tests.parts.json_files import edit_json
from tests.tiny import ROUNDING, WIDTH, tiny_source

KINDS = [  # poolings that sentence-transformers does not know
    *(name for name, flag in POOLING_FLAGS.items() if flag is None),
    "first_last.mean",
    "first_last.cls",
    "top2.mean",
    "static.mean",
    "static.max",
    "mask:2",
    "first_last.mask:2",
]
TEMPLATE = 'the letter "{}" is [MASK].'
ROWS = [[2, 7, 114, 4, 54, 3], [2, 40, 41, 42, 4, 43, 44, 4, 9, 3], [2, *range(50, 105), 114, 4, 9, 3]]
WORDS = "embeddings.word_embeddings.weight"
KNOWN_TO_SENTENCE_TRANSFORMERS = {"cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"}


def _folder(at: Path, kind: str, seed: int = 0) -> Path:
    folder = tiny_source(at, seed, pooling=kind)
    if "mask" in kind:
        content, _ = with_template(json.loads((folder / "tokenizer.json").read_bytes()), TEMPLATE)
        (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def _unit(vectors: np.ndarray) -> np.ndarray:
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def _expected(folder: Path, names: str) -> np.ndarray:
    source = read_source(folder)
    backbone = Backbone.from_config(source.config)
    return reference.embed(backbone, read_backbone(source.weights, backbone), Head.of(names.split("+")), ROWS)


def test_the_first_layer_is_the_one_behind_the_embeddings(tiny_source: Path) -> None:
    source = read_source(tiny_source)
    backbone = Backbone.from_config(source.config)
    tensors = read_backbone(source.weights, backbone)
    first = reference.token_vectors(replace(backbone, layers=1), tensors, "last", ROWS)
    last = reference.token_vectors(backbone, tensors, "last", ROWS)
    expected = _unit(np.stack([(one + two).mean(0) for one, two in zip(first, last, strict=True)]))
    np.testing.assert_allclose(_expected(tiny_source, "first_last.mean"), expected, atol=1e-6)


def test_with_one_layer_first_and_last_are_the_same(tmp_path: Path) -> None:
    vectors = []
    for kind in ("mean", "first_last.mean"):
        folder = _folder(tmp_path / kind, kind)
        edit_json(folder / "config.json", num_hidden_layers=1)
        store = ModelStore(tmp_path / "models")
        vectors.append(store.open(publish(store, folder).version).encode(PROOF_TEXTS).vectors)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_static_vectors_are_rows_of_the_word_table_and_nothing_else(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "static", "static.mean")
    table = load_file(folder / "model.safetensors")[WORDS]
    expected = _unit(np.stack([table[row].mean(0) for row in ROWS]))
    np.testing.assert_allclose(_expected(folder, "static.mean"), expected, atol=1e-6)
    store = ModelStore(tmp_path / "models")
    manifest = publish(store, folder)
    np.testing.assert_allclose(store.open(manifest.version).forward(ROWS), expected, atol=ROUNDING)
    model = onnx.load(store.folder(manifest.version) / "onnx" / "model.onnx")
    (table_node,) = (node for node in model.graph.node if not node.name.startswith("simile."))
    assert (table_node.op_type, list(table_node.output)) == ("Gather", [HIDDEN])
    assert {tensor.name for tensor in model.graph.initializer if "simile." not in tensor.name} == {WORDS}


def test_the_docs_name_each_pooling_that_a_folder_may_have() -> None:
    text = (Path(__file__).parents[3] / "docs/MODELS.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| pooling \| (.*), several joined", text, re.MULTILINE)
    assert row == ", ".join(f"`{name}`" for name in POOLINGS)


@pytest.mark.parametrize("kind", [*POOLINGS, *KINDS])
def test_graph_formulas_and_torch_agree_alone_and_padded(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch")
    from models.publishing.from_torch.backbone import load_backbone, token_vectors
    from models.publishing.from_torch.export import Forward
    from models.publishing.from_torch.pooling import pool

    folder = _folder(tmp_path / "model", kind)
    source = read_source(folder)
    expected = _expected(folder, kind)
    np.testing.assert_allclose(Forward.load(source).embed(ROWS), expected, atol=ROUNDING)

    ids, mask, _ = map(torch.tensor, feeds.padded(ROWS, max(map(len, ROWS)) + 5, 9).values())
    with torch.no_grad():
        states = token_vectors(load_backbone(folder), ids, mask, source.head.tokens)
        padded = torch.nn.functional.normalize(pool(states, mask, source.head.pooling), dim=-1)
    np.testing.assert_allclose(padded.numpy(), expected, atol=ROUNDING)

    store = ModelStore(tmp_path / "models")
    encoder = store.open(publish(store, folder).version)
    np.testing.assert_allclose(encoder.forward(ROWS), expected, atol=ROUNDING)
    alone = np.concatenate([encoder.forward([row]) for row in ROWS])
    np.testing.assert_allclose(alone, expected, atol=ROUNDING)


def test_torch_trains_the_vector_at_the_mask() -> None:
    torch = pytest.importorskip("torch")
    from models.publishing.from_torch.pooling import pool

    hidden = torch.arange(24.0).reshape(2, 4, 3).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    pooled = pool(hidden, mask, ("mask:1", "cls"))
    assert pooled.tolist() == [[6, 7, 8, 0, 1, 2], [15, 16, 17, 12, 13, 14]]
    (gradient,) = torch.autograd.grad(pooled[:, :3].sum(), hidden)
    assert gradient[..., 0].tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_of_its_kind_is_proved_and_is_its_own_source(tmp_path: Path, kind: str) -> None:
    store = ModelStore(tmp_path / "models")
    manifest = publish(store, _folder(tmp_path / "model", kind))
    assert (manifest.pooling, manifest.portable, manifest.dimension) == (kind, "simile", WIDTH)
    at = store.folder(manifest.version)
    encoder = store.open(manifest.version)
    assert check_golden(encoder, at) < 1e-6
    outputs = [output.name for output in onnx.load(at / "onnx" / "model.onnx").graph.output]
    assert outputs == [HIDDEN, SENTENCE, POOLED]

    other = ModelStore(tmp_path / "other")
    again = publish(other, at)
    assert (again.fingerprint, again.pooling, again.portable) == (manifest.fingerprint, kind, "simile")
    found = other.open(again.version).encode(PROOF_TEXTS).vectors
    np.testing.assert_array_equal(found, encoder.encode(PROOF_TEXTS).vectors)


@pytest.mark.parametrize("kind", [*POOLINGS, *KINDS, "first_last.max+first_last.mean", "mask:2+cls"])
def test_a_folder_that_was_written_is_read_back_as_it_was(tmp_path: Path, kind: str) -> None:
    folder = _folder(tmp_path / "model", kind.partition("+")[0])
    names = kind.split("+")
    generator = np.random.default_rng(2)
    dense = Dense(generator.normal(size=(5, len(names) * WIDTH)).astype(np.float32), None, "tanh")
    before = replace(read_source(folder), head=Head.of(names, (dense,)))
    (tmp_path / "written").mkdir()
    write_layout(before, tmp_path / "written")
    after = read_source(tmp_path / "written")
    assert after.head.names == tuple(names)
    assert (after.head.pooling, after.head.tokens) == (before.head.pooling, before.head.tokens)
    (layer,) = after.head.layers
    assert isinstance(layer, Dense)
    np.testing.assert_array_equal(layer.weight, dense.weight)
    assert after.tokenizer["post_processor"] == before.tokenizer["post_processor"]
    for field in ("max_length", "prompts", "config"):
        assert getattr(after, field) == getattr(before, field)
    spaces = [prepare(replace(source, onnx=None)).space for source in (before, after)]
    assert spaces[0] == spaces[1]
    config = json.loads((tmp_path / "written" / "1_Pooling" / "config.json").read_bytes())
    if not after.head.portable:
        assert config == {"embedding_dimension": WIDTH, "pooling_mode": names}
        assert not set(names) <= KNOWN_TO_SENTENCE_TRANSFORMERS
    else:
        assert "pooling_mode" not in config


@pytest.mark.long
def test_each_kind_is_a_space_of_its_own(tmp_path: Path) -> None:
    kinds, store, names = [*KINDS, "mean", "cls", "max", "mask:3"], ModelStore(tmp_path / "models"), {}
    for at, kind in enumerate(kinds):
        folder = _folder(tmp_path / str(at), kind.replace("mask:3", "mask:2"))
        if kind == "mask:3":
            plain = json.loads((tiny_source(tmp_path / "plain") / "tokenizer.json").read_bytes())
            content, distance = with_template(plain, 'the letter "{}" is [MASK] .. ')
            assert distance == 3
            (folder / "tokenizer.json").write_text(json.dumps(content))
            _edit_pooling(folder, kind)
        names[kind] = (prepare(read_source(folder)).space["pooling"], publish(store, folder).fingerprint)
    assert [pooling for pooling, _ in names.values()] == kinds
    assert len({fingerprint for _, fingerprint in names.values()}) == len(kinds)


def test_a_static_space_is_named_by_its_word_table_alone(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    folder = _folder(tmp_path / "model", "static.mean")
    manifest = publish(store, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][3] += 1
    save_file(tensors, folder / "model.safetensors")
    assert publish(store, folder) == manifest
    (store.folder(manifest.version) / "onnx").rename(folder / "onnx")
    (folder / "model.safetensors").unlink()
    assert publish(ModelStore(tmp_path / "other"), folder).fingerprint == manifest.fingerprint
    tensors[WORDS][7, 7] += 1
    save_file({WORDS: tensors[WORDS]}, folder / "model.safetensors")
    assert publish(ModelStore(tmp_path / "third"), folder).fingerprint != manifest.fingerprint


def _edit_pooling(folder: Path, *names: str) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": names}))


def _foreign_onnx(folder: Path) -> None:
    model = prepare(replace(read_source(folder), head=Head(("mean",), ()))).model
    del model.graph.output[1:]
    (folder / "onnx").mkdir()
    onnx.save(model, folder / "onnx" / "model.onnx")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda at: edit_json(at / "config.json", model_type="distilbert"),
            "mean is supported for BERT folders",
        ),
        (_foreign_onnx, "put model.safetensors next to"),
        (lambda at: _edit_pooling(at, "static.cls"), "the same for every text"),
        (lambda at: _edit_pooling(at, "static.mask:2"), "the same for every text"),
        (lambda at: _edit_pooling(at, "static.mean", "max"), "must use the same token vectors"),
        (lambda at: _edit_pooling(at, "max", "static.mean"), "must use the same token vectors"),
        (lambda at: _edit_pooling(at, "last.mean"), "is not supported"),
        (lambda at: _edit_pooling(at, "second.mean"), "second.mean.* is not supported"),
        (lambda at: _edit_pooling(at, "first_last.median"), "first_last.median.* is not supported"),
        (_edit_pooling, r"pooling \(\) is not supported"),
    ],
)
def test_a_pooling_that_cannot_be_is_refused_by_name(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    folder = _folder(tmp_path / "model", "first_last.mean")
    change(folder)
    with pytest.raises(Unsupported, match=reason):
        publish(ModelStore(tmp_path / "models"), folder)


@pytest.mark.parametrize("tokens", ["first_last", "static"])
def test_torch_does_not_export_another_family_with_it(tmp_path: Path, tokens: str) -> None:
    pytest.importorskip("torch")
    from models.publishing.from_torch.export import export
    from tests.training.families import family_source

    folder = family_source(tmp_path / "roberta", "roberta")
    _edit_pooling(folder, f"{tokens}.mean")
    with pytest.raises(Unsupported, match="for BERT folders only"):
        export(folder, ModelStore(tmp_path / "models"), origin="x")
    assert ModelStore(tmp_path / "models").versions() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_trained_is_proved_against_torch(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    from models.publishing.from_torch.export import export

    store = ModelStore(tmp_path / "models")
    folder = _folder(tmp_path / "model", kind)
    manifest = export(folder, store, origin="trained")
    assert (manifest.pooling, manifest.portable) == (kind, "simile")
    assert publish(store, folder) == manifest, "the same space without torch"
