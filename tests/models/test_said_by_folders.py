"""Settings of a sentence-transformers folder give the library's vectors. Families: test_families.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers.sentence_transformer import modules

from models.sources.folder import Overrides
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS
from tests.models.families import FAMILIES, WIDTH, assembled, family_source, raw_source
from tests.models.test_families import CLOSE, imported, reference, refused, same_as_the_library
from tests.parts.json_files import edit_json

TEXTS = [*PROOF_TEXTS[:16], "garden " * 300]
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PROMPTS = {"query": "how do i find: ", "document": "the letter: "}


def _long(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long) for name in names]


def _layer_norm(width: int) -> torch.nn.Module:
    layer: Any = modules.LayerNorm(width)
    with torch.no_grad():
        layer.norm.weight.normal_(1, 0.2)
        layer.norm.bias.normal_(0, 0.2)
    module: torch.nn.Module = layer
    return module


def _dense(out: int, activation: torch.nn.Module, into: int = WIDTH) -> torch.nn.Module:
    layer: torch.nn.Module = modules.Dense(into, out, activation_function=activation)
    return layer


BEHIND: dict[str, Callable[[], list[torch.nn.Module]]] = {
    **{mode: lambda mode=mode: [modules.Pooling(WIDTH, mode)] for mode in MODES},  # type: ignore[misc]
    "all, concatenated": lambda: [modules.Pooling(WIDTH, list(MODES[::-1]))],
    "layers of every kind": lambda: [
        modules.Pooling(WIDTH, "mean"),
        _dense(24, torch.nn.GELU()),
        modules.Dropout(0.5),
        _layer_norm(24),
        modules.Normalize(),
        _dense(16, torch.nn.SiLU(), 24),
        _dense(12, torch.nn.ReLU(), 16),
        _dense(12, torch.nn.Sigmoid(), 12),
    ],
}


@pytest.mark.parametrize("family", ["bert", *_long("albert")])  # graphs by Simile and by torch
@pytest.mark.parametrize("kind", BEHIND)
def test_poolings_and_layers(tmp_path: Path, family: str, kind: str) -> None:
    torch.manual_seed(3)
    raw = raw_source(tmp_path / "raw", FAMILIES[family])
    folder = assembled(raw, tmp_path / "model", BEHIND[kind]())
    store = ModelStore(tmp_path / "models")
    version = imported(folder, store).version
    expected = reference(folder, TEXTS)
    np.testing.assert_allclose(store.open(version).encode(TEXTS).vectors, expected, atol=CLOSE)
    np.testing.assert_allclose(reference(store.folder(version), TEXTS), expected, atol=CLOSE)


@pytest.mark.parametrize("pooling", ["weightedmean", *_long("mean", "cls", "max")])
@pytest.mark.parametrize("family", ["qwen3", *_long("roberta", "xlm-roberta")])
def test_a_prompt_that_is_not_pooled(tmp_path: Path, family: str, pooling: str) -> None:
    raw = raw_source(tmp_path / "raw", FAMILIES[family])
    left_out = modules.Pooling(WIDTH, pooling, include_prompt=False)
    folder = assembled(raw, tmp_path / "model", [left_out], prompts=PROMPTS)
    store = ModelStore(tmp_path / "models")
    version = imported(folder, store).version
    encoder = store.open(version)
    texts = TEXTS[:12]
    for name, prompt in PROMPTS.items():
        expected = reference(folder, texts, prompt_name=name)
        found = encoder.encode([prompt + text for text in texts]).vectors
        np.testing.assert_allclose(found, expected, atol=CLOSE)
        pooled = reference(folder, [prompt + text for text in texts])  # as if the prompt were text
        assert np.abs(pooled - expected).max() > 1e-3
    np.testing.assert_allclose(encoder.encode(texts).vectors, reference(folder, texts), atol=CLOSE)
    again = imported(store.folder(version), store)
    assert again.version == version, "the published folder says it, too"


def test_texts_are_lowered_where_the_settings_say_so_and_the_tokenizer_does_not(tmp_path: Path) -> None:
    folder = family_source(tmp_path / "model", "roberta")
    edit_json(folder / "sentence_bert_config.json", do_lower_case=True)
    encoder = same_as_the_library(folder, ["THE CAT Sleeps", "ΑΣΣ ΣΟΦΟΣ", "İstanbul ÅNGSTRÖM"])
    upper, lower = encoder.encode(["THE CAT", "the cat"]).vectors
    np.testing.assert_allclose(upper, lower, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", *_long("albert", "qwen3")])
def test_weights_in_half_precision_and_in_several_files(
    tmp_path: Path, family: str, kind: torch.dtype
) -> None:
    import transformers

    from models.publishing.from_torch.backbone import quiet

    folder = family_source(tmp_path / "model", family)
    with quiet():
        model = transformers.AutoModel.from_pretrained(folder, dtype=kind)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    store = ModelStore(tmp_path / "models")
    encoder = store.open(imported(folder, store).version)
    with quiet():  # the stored values, in float32 as here
        transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).save_pretrained(tmp_path / "wide")
    for shard in folder.glob("model*.safetensors*"):
        shard.unlink()
    (tmp_path / "wide" / "model.safetensors").rename(folder / "model.safetensors")
    (tmp_path / "wide" / "config.json").rename(folder / "config.json")
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, reference(folder, TEXTS), atol=CLOSE)


@pytest.mark.parametrize(("family", "pooling"), [("bert", ""), ("roberta", "cls"), ("qwen3", "lasttoken")])
def test_a_plain_folder_takes_pooling_length_and_prompts_from_the_command(
    tmp_path: Path, family: str, pooling: str
) -> None:
    raw = raw_source(tmp_path / "raw", FAMILIES[family])
    behind = [modules.Pooling(WIDTH, pooling or "mean")]
    expected = reference(assembled(raw, tmp_path / "model", behind), TEXTS)
    store = ModelStore(tmp_path / "models")
    requested = Overrides((pooling,) if pooling else (), 64, {"query": "find: "})
    manifest = imported(raw, store, requested)
    assert (manifest.max_length, manifest.search_prompt) == (64, "find: ")
    np.testing.assert_allclose(store.open(manifest.version).encode(TEXTS).vectors, expected, atol=CLOSE)
    assert reference(store.folder(manifest.version), ["a"], prompt_name="query").shape == (1, WIDTH)


def _not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("LayerNorm.weight"))
    weights[name][3] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _without_a_shard(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({name: weights[name] for name in names[::2]}, folder / shards[0], metadata={"format": "pt"})
    index = {"weight_map": {name: shards[at % 2] for at, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _own_code(folder: Path) -> None:
    edit_json(folder / "config.json", auto_map={"AutoModel": "modeling_own.OwnModel"})
    (folder / "modeling_own.py").write_text("import pathlib; pathlib.Path('ran').touch()")


def _own_module(folder: Path) -> None:
    listed = json.loads((folder / "modules.json").read_bytes())
    listed[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))


def _japanese(folder: Path, words: str) -> None:
    kind = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": words}
    edit_json(folder / "tokenizer_config.json", **kind)
    vocabulary = json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
    tokens = vocabulary if isinstance(vocabulary, dict) else [token for token, _ in vocabulary]
    (folder / "vocab.txt").write_text("\n".join(tokens))


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda at: (at / "tokenizer.json").unlink(), "has no tokenizer: neither tokenizer.json"),
    "NaN weights": (_not_finite, r"The tensor .*LayerNorm\.weight is not finite"),
    "a missing shard": (_without_a_shard, r"00002-of-00002\.safetensors is missing, but "),
    "remote code": (_own_code, "needs code of its own .modeling_own.OwnModel.*never runs remote code"),
    "a module of its own": (_own_module, "needs code of its own .custom_st.Transformer.*never run"),
    "an unknown family": (lambda at: edit_json(at / "config.json", model_type="mystery"), "['`]mystery['`]"),
    "a pickle": (
        lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"),
        "pickled weights only, which are never read",
    ),
    "words by Sudachi": (lambda at: _japanese(at, "sudachi"), "uses sudachi for words"),
}


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_folder_is_refused_in_one_clear_line(tmp_path: Path, wrong: str, family: str) -> None:
    folder = family_source(tmp_path / "model", family)
    break_it, reason = WRONG[wrong]
    break_it(folder)
    refused(folder, reason)
    store = ModelStore(tmp_path / "models")
    assert store.versions() == []
    assert not any(store.root.glob(".tmp-*"))
    assert not (tmp_path / "ran").exists()
    assert not Path("ran").exists()


def test_without_torch_the_error_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = family_source(tmp_path / "model", "albert")
    monkeypatch.setattr("models.publishing.import_process.find_spec", lambda name: None)
    refused(folder, r"family 'albert'.*`train` is not installed\. `make train`")


def test_pooling_is_refused_where_the_folder_says_its_own(tmp_path: Path) -> None:
    folder = family_source(tmp_path / "model", "bert")
    refused(folder, "leave --pooling out", Overrides(("mean",)))


def test_words_by_mecab_without_its_package_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = family_source(tmp_path / "model", "bert")
    _japanese(folder, "mecab")
    monkeypatch.setitem(sys.modules, "fugashi", None)
    refused(folder, r"needs the package fugashi.*pip install .*japanese")
