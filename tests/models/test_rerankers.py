"""Each family of cross-encoders gives the scores of sentence-transformers, alone and in any batch."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from transformers.models.auto import tokenization_auto

from models.engines.opening import INT8
from models.errors import Unsupported
from models.manifest import Manifest, QuantizedScores
from models.publishing import import_process
from models.publishing.default import publish_named
from models.publishing.from_torch.backbone import quiet
from models.publishing.import_process import open_with_overrides
from models.publishing.scores import PROOF_PAIRS
from models.reranker import Reranker
from models.sources.folder import NO_OVERRIDES, read_source
from models.store import ModelStore
from models.tokens.pairs import Pair
from models.tokens.texts import long_text, short_texts
from tests.models.cross_encoders import (
    CLASSES,
    LABELS,
    cross_encoder_source,
    modular_source,
    raw_cross_encoder,
)
from tests.models.forms import needs_int8
from tests.tiny import HEADS, INNER, LAYERS, WIDTH, tiny_cross_encoder

_SHORT = short_texts(24)
PAIRS = [
    *(pair for pair in PROOF_PAIRS if len(pair.text) < 1000),
    *map(Pair, _SHORT[::2], _SHORT[1::2]),
    Pair("garden", long_text(40)),
    Pair(long_text(20), long_text(21)),
    Pair(long_text(80), "bridge"),
]
SCORES, LOGITS = 1e-5, 1e-4


def reference(folder: Path, **how: Any) -> NDArray[np.float32]:
    """Returns the scores of sentence-transformers' CrossEncoder, shape (pairs, outputs)."""
    with quiet():
        model = CrossEncoder(str(folder), device="cpu")
        found = model.predict([list(pair) for pair in PAIRS], show_progress_bar=False, **how)
    return np.asarray(found, np.float32).reshape(len(PAIRS), -1)


def imported(folder: Path, store: ModelStore) -> Manifest:
    return publish_named(store, str(folder), opened=partial(open_with_overrides, NO_OVERRIDES))


def same_as_the_library(folder: Path, store: ModelStore) -> Reranker:
    """Imports the folder, compares its scores with the library's, and returns its reranker.

    The library opens the published version as well, and must get the same logits from it.
    """
    reranker = store.open_reranker(imported(folder, store).version)
    scores = reference(folder)
    assert scores.std(axis=0).min() > 1e-3, "all pairs would look alike"
    order = random.Random(0).sample(range(len(PAIRS)), len(PAIRS))
    together = np.empty_like(scores)
    rows = [row.ids for row in reranker.tokenize(PAIRS)]
    for start in range(0, len(order), 7):
        batch = order[start : start + 7]
        together[batch] = reranker.forward([rows[at] for at in batch])
    np.testing.assert_allclose(together, scores, atol=SCORES, rtol=0)
    np.testing.assert_allclose(reranker.score(PAIRS), scores, atol=SCORES, rtol=0)
    logits = reference(reranker.folder, activation_fn=torch.nn.Identity())
    alone = np.concatenate([reranker.score([pair], normalize=False) for pair in PAIRS])
    # A logit near 0 is a difference of larger terms, whose rounding errors stay: 1e-5, as for scores.
    assert (np.abs(alone - logits) / np.maximum(SCORES / LOGITS, np.abs(logits))).max() <= LOGITS
    return reranker


QUICK = {"bert", "modernbert", "deberta-v2"}  # One of each way to make a graph.
FAMILIES = [
    pytest.param(name, outputs, marks=() if outputs == 1 or name in QUICK else pytest.mark.long)
    for name in CLASSES
    for outputs in (1, 3)
]


@pytest.mark.parametrize(("name", "outputs"), FAMILIES)
def test_a_family_scores_as_sentence_transformers_does(tmp_path: Path, name: str, outputs: int) -> None:
    folder = cross_encoder_source(tmp_path / name, name, outputs)
    store = ModelStore(tmp_path / "models")
    manifest = same_as_the_library(folder, store).manifest
    assert (manifest.kind, manifest.dimension) == ("reranker", outputs)
    assert manifest.labels == ([] if outputs == 1 else list(LABELS[:outputs]))
    assert manifest.activation == ("sigmoid" if outputs == 1 else "identity")
    assert manifest.packed == (name != "deberta-v2")
    assert imported(store.folder(manifest.version), store) == manifest, "a version is such a folder, too"


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modernbert", "deberta-v2"])
def test_a_family_scores_single_texts_as_transformers_does(tmp_path: Path, name: str) -> None:
    folder = cross_encoder_source(tmp_path / name, name, 3)
    store = ModelStore(tmp_path / "models")
    reranker = store.open_reranker(imported(folder, store).version)
    texts = [pair.text for pair in PAIRS if pair.text]
    with quiet(), torch.no_grad():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        given = tokenizer(
            texts, truncation=True, max_length=reranker.max_length, padding=True, return_tensors="pt"
        )
        expected = model(**given).logits.numpy()
    np.testing.assert_allclose(reranker.score(texts, normalize=False), expected, atol=SCORES, rtol=LOGITS)


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_head_of_modules_is_read(tmp_path: Path, outputs: int) -> None:
    folder = modular_source(tmp_path / "modular", outputs)
    store = ModelStore(tmp_path / "models")
    manifest = same_as_the_library(folder, store).manifest
    assert (manifest.kind, manifest.dimension, manifest.packed) == ("reranker", outputs, True)
    assert imported(store.folder(manifest.version), store) == manifest


ACTIVATIONS = {
    "sigmoid": torch.nn.Sigmoid(),
    "softmax": torch.nn.Softmax(dim=1),
    "identity": torch.nn.Identity(),
}


@pytest.mark.filterwarnings("ignore:Implicit dimension choice for softmax")
@pytest.mark.parametrize(
    ("name", "outputs"),
    [("sigmoid", 1), ("identity", 1), ("sigmoid", 3), ("identity", 3), ("softmax", 3)],
)
def test_the_activation_of_the_folder_is_applied(tmp_path: Path, name: str, outputs: int) -> None:
    folder = cross_encoder_source(tmp_path / "bert", "bert", outputs, activation_fn=ACTIVATIONS[name])
    manifest = same_as_the_library(folder, ModelStore(tmp_path / "models")).manifest
    assert manifest.activation == name


@pytest.mark.parametrize("key", ["sentence_transformers", "sbert_ce_default_activation_function"])
def test_the_activation_of_older_releases_is_applied(tmp_path: Path, key: str) -> None:
    folder = raw_cross_encoder(tmp_path / "old", "bert")
    path = "torch.nn.modules.linear.Identity"
    _edit(folder / "config.json", {key: {"activation_fn": path} if key == "sentence_transformers" else path})
    manifest = same_as_the_library(folder, ModelStore(tmp_path / "models")).manifest
    assert manifest.activation == "identity"


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "deberta-v2"])
def test_the_default_prompt_is_put_before_the_query(tmp_path: Path, name: str) -> None:
    prompts = {"query": "the title of a text: ", "other": "red "}
    folder = cross_encoder_source(tmp_path / name, name, prompts=prompts, default_prompt_name="query")
    manifest = same_as_the_library(folder, ModelStore(tmp_path / "models")).manifest
    assert (manifest.default_prompt, manifest.prompts) == (prompts["query"], prompts)


@pytest.mark.parametrize("most", [16, 17, 40])
def test_the_maximum_length_of_the_folder_is_kept(tmp_path: Path, most: int) -> None:
    folder = cross_encoder_source(tmp_path / "bert", "bert", max_length=most)
    assert same_as_the_library(folder, ModelStore(tmp_path / "models")).max_length == most


@pytest.mark.parametrize(
    "given", [{"model_input_names": ["input_ids", "attention_mask"]}, {"tokenizer_class": "BertTokenizer"}]
)
def test_token_types_are_those_that_transformers_makes(tmp_path: Path, given: dict[str, Any]) -> None:
    folder = raw_cross_encoder(tmp_path / "bert", "bert")
    _edit(folder / "tokenizer_config.json", {"model_input_names": None} | given)
    same_as_the_library(folder, ModelStore(tmp_path / "models"))


_KINDS = (
    "Bert",
    "Electra",
    "MobileBert",
    "SqueezeBert",
    "ConvBert",
    "LayoutLM",
    "Roberta",
    "DistilBert",
    "MPNet",
)
_FAMILIES = (
    "bert",
    "electra",
    "mobilebert",
    "squeezebert",
    "convbert",
    "ernie",
    "megatron-bert",
    "nomic_bert",
)


@pytest.mark.parametrize("kind", [*(f"{name}Tokenizer" for name in _KINDS), "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_a_tokenizer_class_has_the_token_types_of_transformers(tmp_path: Path, kind: str, file: str) -> None:
    folder = tiny_cross_encoder(tmp_path / "source")
    _edit(folder / "tokenizer_config.json", {"tokenizer_class": None})
    _edit(folder / file, {"tokenizer_class": kind})
    assert is_typed(folder) == makes_types(folder)


def test_no_class_of_transformers_has_other_token_types(tmp_path: Path) -> None:
    """A class that Simile does not know is refused."""
    source = tiny_cross_encoder(tmp_path / "source")
    known = set()
    for kind in {str(name) for name in tokenization_auto.TOKENIZER_MAPPING_NAMES.values()}:
        if kind == "BertJapaneseTokenizer":  # Its models were trained with types; release 5 makes none.
            continue
        folder = Path(shutil.copytree(source, tmp_path / kind))
        _edit(folder / "tokenizer_config.json", {"tokenizer_class": kind})
        with contextlib.suppress(Unsupported):
            made: Any = tokenization_auto.tokenizer_class_from_name(kind)
            assert is_typed(folder) == ("token_type_ids" in made.model_input_names), kind
            known.add(kind)
    assert {"BertTokenizer", "XLMRobertaTokenizer", "MobileBertTokenizer", "TokenizersBackend"} < known


@pytest.mark.parametrize("family", [*_FAMILIES, "roberta", "nystromformer", "longformer", "data2vec-text"])
def test_a_family_without_a_tokenizer_class_has_the_token_types_of_transformers(
    tmp_path: Path, family: str
) -> None:
    folder = tiny_cross_encoder(tmp_path / "source")
    _edit(folder / "tokenizer_config.json", {"tokenizer_class": None})
    _edit(folder / "config.json", {"model_type": family})
    assert is_typed(folder) == makes_types(folder)


def is_typed(folder: Path) -> bool:
    (folder / "model.safetensors").unlink()  # Another family has other names of tensors.
    scoring = read_source(folder).scoring
    assert scoring is not None
    return scoring.typed


def makes_types(folder: Path) -> bool:
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    return any(map(any, tokenizer([["red", "blue"]]).get("token_type_ids", [])))


@pytest.mark.parametrize(
    ("model", "kind", "settings"),
    [
        ("MobileBert", "MobileBertTokenizer", {"embedding_size": 16, "intra_bottleneck_size": WIDTH}),
        ("MobileBert", None, {"embedding_size": 16, "intra_bottleneck_size": WIDTH}),
        ("SqueezeBert", "SqueezeBertTokenizer", {"embedding_size": WIDTH}),
        ("SqueezeBert", "PreTrainedTokenizerFast", {"embedding_size": WIDTH}),
        ("MegatronBert", "BertTokenizer", {}),
        ("MegatronBert", None, {}),
    ],
)
def test_a_family_that_torch_exports_has_the_token_types_of_transformers(
    tmp_path: Path, model: str, kind: str | None, settings: dict[str, Any]
) -> None:
    folder = tiny_cross_encoder(tmp_path / "source")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    (folder / "config.json").unlink()
    shape = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS}
    rest = {"num_hidden_layers": LAYERS, "initializer_range": 0.5, "num_labels": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    with quiet():
        config = getattr(transformers, f"{model}Config")(vocab_size=size, **shape, **rest, **settings)
        getattr(transformers, f"{model}ForSequenceClassification")(config).save_pretrained(folder)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    _edit(folder / "tokenizer_config.json", {"tokenizer_class": kind, "model_max_length": 64} | names)
    same_as_the_library(folder, ModelStore(tmp_path / "models"))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("bias", [False, True])
def test_variants_of_modernbert_are_read(tmp_path: Path, pooling: str, bias: bool) -> None:
    biases = {"classifier_bias": bias, "norm_bias": bias}
    folder = raw_cross_encoder(
        tmp_path / "modernbert", "modernbert", 2, classifier_pooling=pooling, norm_eps=1e-3, **biases
    )
    assert same_as_the_library(folder, ModelStore(tmp_path / "models")).manifest.packed


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("modernbert", {"classifier_activation": "gelu_new"}),
        ("deberta-v2", {"type_vocab_size": 2}),
        ("bert", {"hidden_act": "silu"}),
        pytest.param("roberta", {"hidden_act": "silu"}, marks=pytest.mark.long),
        pytest.param("electra", {"hidden_act": "silu"}, marks=pytest.mark.long),
    ],
)
def test_a_graph_that_simile_does_not_write_is_exported_by_torch(
    tmp_path: Path, name: str, changed: dict[str, Any]
) -> None:
    folder = raw_cross_encoder(tmp_path / name, name, 2, **changed)
    assert not same_as_the_library(folder, ModelStore(tmp_path / "models")).manifest.packed


def test_without_torch_a_family_that_needs_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cross_encoder_source(tmp_path / "deberta", "deberta-v2")
    monkeypatch.setattr(import_process, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"'deberta-v2', which needs torch.*`make train`"):
        imported(folder, ModelStore(tmp_path / "models"))


@needs_int8
@pytest.mark.parametrize(
    "name",
    [
        name if name == "bert" else pytest.param(name, marks=pytest.mark.long)
        for name in CLASSES
        if name not in ("deberta-v2", "modernbert")
    ],
)
def test_a_family_is_served_in_int8(tmp_path: Path, name: str) -> None:
    folder, store = cross_encoder_source(tmp_path / name, name), ModelStore(tmp_path / "models")
    opened = partial(open_with_overrides, NO_OVERRIDES)
    manifest = publish_named(store, str(folder), opened=opened, int8=True)
    assert isinstance(manifest.quantised, QuantizedScores)
    found = store.open_reranker(manifest.version, form=INT8).score(PAIRS)
    assert np.abs(found - reference(folder)).mean() < 0.03


def _edit(file: Path, changes: dict[str, Any]) -> None:
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
