"""The files that are fetched from the hub. A fake hub copies the allowed files, without network."""

from __future__ import annotations

import fnmatch
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.errors import ModelError, ModelUnavailable
from models.publishing.default import publish_named
from models.sources.hub import fetch, is_hub_id
from models.store import ModelStore
from tests.parts.json_files import edit_json
from tests.tiny import tiny_source


class Hub:
    """A fake hub with one repository. As in `huggingface_hub`, `*` in a pattern also matches slashes."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        self.requested: list[str] = []

    def snapshot_download(self, name: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        self.requested.append(name)
        for file in self.folder.rglob("*"):
            path = file.relative_to(self.folder).as_posix()
            allowed = any(fnmatch.fnmatch(path, pattern) for pattern in allow_patterns)
            if file.is_file() and allowed and not any(fnmatch.fnmatch(path, one) for one in ignore_patterns):
                (self.cache / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, self.cache / path)
        return str(self.cache)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    folder = tiny_source(tmp_path / "hub")
    for name in "onnx/model.onnx onnx/model_qint8.onnx pytorch_model.bin modeling.py openvino/x.json".split():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    made = Hub(folder, tmp_path / "cache")
    monkeypatch.setitem(
        sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=made.snapshot_download)
    )
    return made


def _fetched(hub: Hub) -> set[str]:
    folder = fetch("somebody/model")
    assert folder == hub.cache
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_of_a_bert_neither_onnx_nor_pickles_nor_code_are_fetched(hub: Hub) -> None:
    found = _fetched(hub)
    assert {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"} <= found
    assert not {
        name for name in found if name.startswith(("onnx", "openvino")) or name.endswith((".bin", ".py"))
    }
    assert hub.requested == ["somebody/model"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "[1]"),
        ("modules.json", '[{"idx": 0, "path": 1, "type": 2}]'),
        ("config.json", '{"max_position_embeddings": "many"}'),
        ("config.json", '{"model_type": ["bert"]}'),
        ("tokenizer.json", '{"normalizer": 5, "model": 5}'),
        ("1_Pooling/config.json", '{"word_embedding_dimension": [], "pooling_mode_mean_tokens": {}}'),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_in_a_sentence_once_it_is_fetched(
    hub: Hub, tmp_path: Path, name: str, content: str
) -> None:
    (hub.folder / name).write_text(content)
    with pytest.raises(ModelError) as refused:
        publish_named(ModelStore(tmp_path / "models"), "somebody/model")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("why", ["another family", "no weights"])
def test_the_onnx_file_comes_where_it_is_what_is_published(hub: Hub, why: str) -> None:
    if why == "no weights":
        (hub.folder / "model.safetensors").unlink()
    else:
        edit_json(hub.folder / "config.json", model_type="albert")
    found = _fetched(hub)
    assert "onnx/model.onnx" in found
    assert not {"onnx/model_qint8.onnx", "pytorch_model.bin", "modeling.py", "openvino/x.json"} & found


def test_a_hub_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route to it\nand much more")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=refuse))
    with pytest.raises(
        ModelUnavailable, match=r"could not be fetched from the hub: no route to it\. Name a folder"
    ):
        fetch("somebody/model")


def test_hub_ids() -> None:
    assert is_hub_id("all-MiniLM-L6-v2")
    assert is_hub_id("sentence-transformers/all-MiniLM-L6-v2")
    assert not is_hub_id("../secrets")
    assert not is_hub_id("a/b/c")
