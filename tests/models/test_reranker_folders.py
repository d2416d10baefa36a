"""Folders of cross-encoders that cannot be published are refused with the reason, and odd ones are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from models.engines.opening import INT8
from models.errors import ProofFailed, Unsupported
from models.graph.file import LOGITS
from models.manifest import ONNX, QuantizedScores
from models.publishing.default import publish_named
from models.publishing.scores import PROOF_PAIRS, activate, check_golden_scores, correlation
from models.store import ModelStore
from models.tokens.pairs import Pair
from tests.models.forms import needs_int8
from tests.tiny import WIDTH, tiny_cross_encoder, tiny_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_cross_encoder(tmp_path / "source")


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(content | changes))


def change_bare(folder: Path, **changes: Any) -> None:
    """Changes config.json, and removes tokenizer_config.json."""
    (folder / "tokenizer_config.json").unlink()
    edit(folder / "config.json", **changes)


def change(folder: Path, name: str, tensor: Callable[[Any], Any] | None) -> None:
    """Replaces a tensor of the folder's weights, or removes it."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    found = weights.pop(name)
    save_file(weights if tensor is None else weights | {name: tensor(found)}, file)


def as_modules(folder: Path, *kinds: str, **said: Any) -> None:
    listed = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" if at else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    edit(folder / "config_sentence_transformers.json", model_type="CrossEncoder", **said)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no classifier": (lambda at: change(at, "classifier.weight", None), "classifier.weight is missing"),
    "no pooler": (lambda at: change(at, "bert.pooler.dense.weight", None), "pooler.dense.weight is missing"),
    "not finite": (
        lambda at: change(at, "classifier.bias", lambda found: found * np.nan),
        "classifier.bias is not finite",
    ),
    "infinite": (
        lambda at: change(at, "classifier.weight", lambda found: found + np.inf),
        "classifier.weight is not finite",
    ),
    "wrong width": (
        lambda at: change(at, "classifier.weight", lambda found: np.ones((1, WIDTH + 1), np.float32)),
        "A Dense after the pooling",
    ),
    "no layer": (
        lambda at: change(at, "bert.encoder.layer.1.output.dense.weight", None),
        "layer.1.output.dense.weight is missing",
    ),
    "unknown activation": (
        lambda at: edit(at / "config.json", sentence_transformers={"activation_fn": "torch.nn.Tanh"}),
        "torch.nn.Tanh is not supported",
    ),
    "own code": (
        lambda at: edit(
            at / "config.json",
            auto_map={"AutoModelForSequenceClassification": "modeling.Own"},
        ),
        "never runs remote code",
    ),
    "no tokenizer": (lambda at: (at / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "a language model": (lambda at: as_modules(at, "Transformer", "LogitScore"), "LogitScore"),
    "too short": (lambda at: edit(at / "tokenizer_config.json", model_max_length=4), "no room for two texts"),
    "unknown tokenizer": (
        lambda at: edit(at / "tokenizer_config.json", tokenizer_class="OwnTokenizer"),
        "tokenizer OwnTokenizer is unknown.*add model_input_names to",
    ),
    "unknown tokenizer in config.json": (
        lambda at: change_bare(at, tokenizer_class="MyBertTokenizerFast"),
        "tokenizer MyBertTokenizerFast is unknown",
    ),
    "a family of unknown tokenizers": (
        lambda at: change_bare(at, model_type="tapas"),
        "tokenizer of the family tapas is unknown",
    ),
    "pickled weights": (
        lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"),
        "pickled weights only",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_cannot_be_published_is_refused(tmp_path: Path, folder: Path, name: str) -> None:
    spoil, reason = REFUSED[name]
    spoil(folder)
    store = ModelStore(tmp_path / "models")
    with pytest.raises(Unsupported, match=reason) as raised:
        publish_named(store, str(folder))
    assert "\n" not in str(raised.value)
    assert not store.versions()


@pytest.mark.parametrize("path", ["mine.Function", "sentence_transformers.util.own", "os.system"])
def test_an_activation_of_others_is_not_loaded(tmp_path: Path, folder: Path, path: str) -> None:
    """As in sentence-transformers, which then applies the default."""
    edit(folder / "config.json", sentence_transformers={"activation_fn": path})
    assert publish_named(ModelStore(tmp_path / "models"), str(folder)).activation == "sigmoid"


def test_labels_without_names_are_numbered(tmp_path: Path) -> None:
    folder = tiny_cross_encoder(tmp_path / "source", labels=("a", "b", "c"), id2label={"1": "yes"})
    manifest = publish_named(ModelStore(tmp_path / "models"), str(folder))
    assert manifest.labels == ["LABEL_0", "yes", "LABEL_2"]


def test_other_labels_are_another_version(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    for number, labels in enumerate((("no", "yes"), ("bad", "good"))):
        folder = tiny_cross_encoder(tmp_path / str(number), labels=labels)
        assert publish_named(store, str(folder), labels[0]).labels == [*labels]
    assert len(store.versions()) == 2


def test_the_activation_and_the_token_types_belong_to_the_fingerprint(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    folders = [tiny_cross_encoder(tmp_path / str(number)) for number in range(3)]
    edit(folders[1] / "config.json", sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    edit(folders[2] / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    found = [publish_named(store, str(folder)) for folder in folders]
    assert len({manifest.fingerprint for manifest in found}) == 3
    logits = [store.open_reranker(each.version).score(PROOF_PAIRS[:4], normalize=False) for each in found]
    assert np.array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).max() > 1e-3


def test_a_folder_with_only_an_onnx_file_is_adopted(tmp_path: Path, folder: Path) -> None:
    """The file has logits, as other tools export them."""
    store = ModelStore(tmp_path / "models")
    first = publish_named(store, str(folder))
    model = onnx.load(store.folder(first.version) / ONNX)
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info(LOGITS, onnx.TensorProto.FLOAT, ["n", 1]))
    alone = tiny_cross_encoder(tmp_path / "alone")
    (alone / "model.safetensors").unlink()
    (alone / "onnx").mkdir()
    kept = [node for node in model.graph.node if node.output[0] != "scores"]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, alone / "onnx" / "model.onnx")
    adopted = publish_named(store, str(alone))
    assert (adopted.kind, adopted.activation, adopted.dimension) == ("reranker", "sigmoid", 1)
    expected, found = (store.open_reranker(each.version).score(PROOF_PAIRS) for each in (first, adopted))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_graph_with_other_scores_than_the_weights_is_not_published(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.graph import reference

    right = reference.embed
    monkeypatch.setattr(reference, "embed", lambda *given: right(*given) + 0.001)
    store = ModelStore(tmp_path / "models")
    with pytest.raises(ProofFailed, match="differs from the same weights computed in numpy"):
        publish_named(store, str(folder))
    assert not store.versions()


def test_an_encoder_with_the_name_of_a_classifier_stays_an_encoder(tmp_path: Path) -> None:
    """Folders of sentence-transformers say what they are in modules.json."""
    folder = tiny_source(tmp_path / "source")
    edit(folder / "config.json", architectures=["BertForSequenceClassification"])
    assert publish_named(ModelStore(tmp_path / "models"), str(folder)).kind == "encoder"


@pytest.mark.parametrize(
    ("logit", "score"), [(-3e38, 0.0), (-710, 0.0), (-89, 0.0), (0, 0.5), (89, 1.0), (710, 1.0), (3e38, 1.0)]
)
def test_large_logits_have_scores_without_a_warning(logit: float, score: float) -> None:
    found = activate(np.array([[logit]], np.float32), "sigmoid")
    assert found == pytest.approx(score, abs=1e-38)


@pytest.mark.parametrize(
    ("pairs", "wrong"),
    [
        ([("one", "pair")], 0),
        ([(f"query {at}", f"text {at}") for at in range(4)], 2),
        ([*PROOF_PAIRS, ("one pair", "more than this release has")], len(PROOF_PAIRS)),
        ([("a first pair", "of another release"), *PROOF_PAIRS], 0),
        ([*reversed(PROOF_PAIRS)], 3),
    ],
)
def test_a_wrong_golden_score_names_the_pair_of_the_file(
    tmp_path: Path, folder: Path, pairs: list[tuple[str, str]], wrong: int
) -> None:
    """Another release may have written other pairs."""
    store = ModelStore(tmp_path / "models")
    with closing(store.open_reranker(publish_named(store, str(folder)).version)) as reranker:
        logits = reranker.score([Pair(*pair) for pair in pairs], normalize=False)
        file = tmp_path / "golden.json"
        file.write_text(json.dumps({"pairs": pairs, "logits": logits.tolist()}))
        assert check_golden_scores(reranker, tmp_path) < 1e-4
        logits[wrong] += 1
        file.write_text(json.dumps({"pairs": pairs, "logits": logits.tolist()}))
        with pytest.raises(ProofFailed, match=re.escape(ascii(pairs[wrong][1][:40])[:-1])):
            check_golden_scores(reranker, tmp_path)


@needs_int8
@pytest.mark.parametrize("labels", [(), ("no", "yes", "unknown")])
def test_int8_is_added_if_it_is_asked_for(tmp_path: Path, labels: tuple[str, ...]) -> None:
    folder = tiny_cross_encoder(tmp_path / "source", labels=labels)
    store = ModelStore(tmp_path / "models")
    manifest = publish_named(store, str(folder), int8=True)
    assert isinstance(manifest.quantised, QuantizedScores)
    exact, small = (
        store.open_reranker(manifest.version, **how).score(PROOF_PAIRS, normalize=False)  # type: ignore[arg-type]
        for how in ({}, {"form": INT8})
    )
    assert np.abs(exact - small).max() > 1e-5
    assert correlation(small, exact) > 0.95
    assert publish_named(store, str(folder)) == manifest, "it is not published again without"
