"""Other tools open the files of a published version and compute the same vectors.

Each tool runs where it is installed, and is skipped elsewhere. Infinity needs numpy 1 and cannot share an
environment with Simile. docs/PORTABILITY.md has the results of tools that CI does not install.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.encoder import Encoder
from models.manifest import QUERIES
from models.publishing.publish import publish
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS, long_text
from tests.service.swapping import published_pair
from tests.tiny import WIDTH, tiny_source

PROMPTS = {"query": "how do i ", "document": "the letter: "}
# Texts that some tools strip or drop, eleven scripts, special tokens as text, and a text beyond the maximum.
ODD_TEXTS = (
    *("", " ", "\n\t ", "\u200b", ".", "🎉", "🏳️‍🌈🏴‍☠️ 1️⃣", "  blanks around the text  "),
    *("สวัสดีชาวโลก", "नमस्ते दुनिया", "שלום עולם", "Բարեւ աշխարհ", "გამარჯობა", "[CLS] [MASK] </s> <pad>"),
)
TEXTS = [*PROOF_TEXTS, *ODD_TEXTS, "end " + long_text(900)]
REQUIRED = 0.9999  # cosine

Tool = Callable[[Path, Sequence[str]], Any]


def sentence_transformers(folder: Path, texts: Sequence[str], **how: Any) -> Any:
    module = pytest.importorskip("sentence_transformers", reason="needs the extra reference")
    model = module.SentenceTransformer(str(folder), device="cpu", local_files_only=True, **how)
    return model.encode(list(texts), prompt="", show_progress_bar=False)


def sentence_transformers_onnx(folder: Path, texts: Sequence[str]) -> Any:
    pytest.importorskip("optimum.onnxruntime", reason="needs sentence-transformers[onnx]")
    how = {"provider": "CPUExecutionProvider", "file_name": "onnx/model.onnx"}
    return sentence_transformers(folder, texts, backend="onnx", model_kwargs=how)


def fastembed(folder: Path, texts: Sequence[str]) -> Any:
    module = pytest.importorskip("fastembed", reason="needs fastembed")
    described = pytest.importorskip("fastembed.common.model_description")
    name = f"simile/{folder.name}"
    module.TextEmbedding.add_custom_model(
        model=name,
        pooling=described.PoolingType.DISABLED,  # the graph pools and normalizes
        normalization=False,
        output_name="sentence_embedding",
        sources=described.ModelSource(hf=name),
        dim=json.loads((folder / "manifest.json").read_bytes())["dimension"],
        model_file="onnx/model.onnx",
    )
    model = module.TextEmbedding(name, specific_model_path=str(folder), cuda=False)
    return np.stack(list(model.embed(texts, batch_size=16)))


def onnx_runtime(folder: Path, texts: Sequence[str]) -> Any:
    """Returns vectors from ONNX Runtime and the package tokenizers alone, as any program gets them."""
    runtime, tokenizers = pytest.importorskip("onnxruntime"), pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    session = runtime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    vectors = []
    for text in texts:
        row = tokenizer.encode(text)
        given = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
        feed = {each.name: np.array([given[each.name]]) for each in session.get_inputs()}
        vectors += [session.run(["sentence_embedding"], feed)[0][0]]
    return np.stack(vectors)


TOOLS: tuple[Tool, ...] = (onnx_runtime, sentence_transformers, sentence_transformers_onnx, fastembed)


def mean(folder: Path) -> None:
    """Leaves the model as it is: mean pooling."""


def several_poolings(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": ["mean", "cls"]}))


def dense(folder: Path) -> None:
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": np.eye(WIDTH, dtype=np.float32)[:8]}, folder / "2_Dense/model.safetensors")
    settings = {"in_features": WIDTH, "out_features": 8, "bias": False}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
    modules = json.loads((folder / "modules.json").read_bytes())
    layer = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules[:2], layer, *modules[2:]]))


def first_last(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "first_last.mean"}))


@pytest.fixture(
    scope="module", params=[mean, several_poolings, dense, first_last], ids=lambda each: each.__name__
)
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Encoder]:
    """A published version of one kind of model: its folder and Simile's encoder."""
    root = tmp_path_factory.mktemp("portable")
    request.param(tiny_source(root / "source", prompts=PROMPTS))
    store = ModelStore(root / "models")
    published = publish(store, root / "source").version
    return store.folder(published), store.open(published)


def assert_same(found: Any, encoder: Encoder, texts: Sequence[str]) -> None:
    expected = encoder.encode(texts).vectors
    assert found.shape == expected.shape
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-3)
    cosines = (found * expected).sum(axis=1)
    assert cosines.min() > REQUIRED, texts[int(cosines.argmin())]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_a_tool_computes_the_same_vectors(tool: Tool, version: tuple[Path, Encoder]) -> None:
    folder, encoder = version
    assert encoder.encode(TEXTS[-1:]).truncated == [True]
    manifest = json.loads((folder / "manifest.json").read_bytes())
    if manifest["portable"] == "simile" and tool.__name__.startswith("sentence_transformers"):
        pytest.skip(f"sentence-transformers has no pooling {manifest['pooling']}")
    assert_same(tool(folder, TEXTS), encoder, TEXTS)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_a_tool_opens_the_query_encoder_of_a_pair(tool: Tool, tmp_path: Path) -> None:
    *_, pair = published_pair(tmp_path / "models")
    store = ModelStore(tmp_path / "models")
    queries = store.open(pair).queries
    assert queries is not None
    assert_same(tool(store.folder(pair) / QUERIES, TEXTS), queries, TEXTS)


def test_sentence_transformers_knows_the_prompts_by_name(tmp_path: Path) -> None:
    module = pytest.importorskip("sentence_transformers", reason="needs the extra reference")
    store = ModelStore(tmp_path / "models")
    published = publish(store, tiny_source(tmp_path / "source", prompts=PROMPTS)).version
    model = module.SentenceTransformer(str(store.folder(published)), device="cpu", local_files_only=True)
    for name, prompt in PROMPTS.items():
        found = model.encode(list(PROOF_TEXTS), prompt_name=name, show_progress_bar=False)
        assert_same(found, store.open(published), [prompt + text for text in PROOF_TEXTS])


def test_a_published_folder_names_its_maximum_and_padding_for_other_tools(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    published = publish(store, tiny_source(tmp_path / "source")).version
    config = json.loads((store.folder(published) / "tokenizer_config.json").read_bytes())
    assert config == {"tokenizer_class": "BertTokenizer", "model_max_length": 64, "pad_token": "[PAD]"}
