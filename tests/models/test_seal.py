"""Damaged versions are refused, and the refusal names the reason."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from models.errors import Damaged
from models.manifest import Manifest
from models.publishing.publish import publish
from models.store import ModelStore
from tests.parts.json_files import edit_json
from tests.tiny import tiny_source as make_tiny_source


@pytest.fixture
def store(tiny_models_dir: Path, tmp_path: Path) -> ModelStore:
    return ModelStore(shutil.copytree(tiny_models_dir, tmp_path / "models"))


@pytest.fixture
def version(store: ModelStore) -> str:
    return store.versions()[0].version


def set_manifest(folder: Path, **changed: object) -> None:
    edit_json(folder / "manifest.json", **changed)


def flip(file: Path, at: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def _files(folder: Path, path: str) -> None:
    content = json.loads((folder / "manifest.json").read_bytes())
    set_manifest(folder, files=content["files"] | {path: "0" * 64})


def _listed_pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").touch()
    _files(folder, "pytorch_model.bin")


def _linked_folder(folder: Path) -> None:
    (folder / "onnx").rename(folder.parent / "elsewhere")
    (folder / "onnx").symlink_to(folder.parent / "elsewhere")


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "one byte of the weights": (
        lambda at: flip(at / "model.safetensors"),
        "model.safetensors was changed after",
    ),
    "one byte of the graph": (
        lambda at: flip(at / "onnx" / "model.onnx", 5000),
        "onnx/model.onnx was changed",
    ),
    "one byte of the golden vectors": (lambda at: flip(at / "golden.json", 50), r"golden\.json was changed"),
    "a missing file": (lambda at: (at / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    "an extra file": (lambda at: (at / "notes.txt").touch(), r"notes\.txt is not listed in the manifest"),
    "a pickle": (lambda at: (at / "onnx" / "extra.pkl").touch(), r"onnx/extra\.pkl may hold a pickle"),
    "a listed pickle": (_listed_pickle, r"pytorch_model\.bin may hold a pickle"),
    "a path upwards": (lambda at: _files(at, "../wanted"), r"leads out of the folder: '\.\./wanted'"),
    "an absolute path": (lambda at: _files(at, "/etc/passwd"), "leads out of the folder: '/etc/passwd'"),
    "a path that hides": (lambda at: _files(at, "a/./b"), "leads out of the folder"),
    "a link": (lambda at: (at / "vocab.txt").symlink_to("/etc/passwd"), r"vocab\.txt is a link"),
    "a linked folder": (_linked_folder, "onnx is a link"),
    "a pipe": (lambda at: os.mkfifo(at / "pipe"), "pipe is a link or a device"),
    "another fingerprint": (
        lambda at: set_manifest(at, fingerprint="0" * 64),
        r"claims another fingerprint than onnx/model\.onnx",
    ),
    "another prompt": (
        lambda at: set_manifest(at, search_prompt="find: "),
        "says search_prompt='find: ' and onnx/model.onnx ''",
    ),
    "another maximum": (
        lambda at: set_manifest(at, max_length=9),
        "says max_length=9 and onnx/model.onnx 64",
    ),
    "another version's manifest": (
        lambda at: set_manifest(at, version="20200101T000000-other-00000000"),
        "its manifest belongs to 20200101T000000-other-00000000",
    ),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), r"manifest\.json cannot be read \(No such"),
    "half a manifest": (lambda at: (at / "manifest.json").write_text("{"), r"manifest\.json is malformed"),
    "a manifest without end": (
        lambda at: os.truncate(at / "manifest.json", 1 << 40),
        r"manifest\.json is malformed \(it is larger than 16384 KiB",
    ),
    "a newer manifest": (lambda at: set_manifest(at, format=2), r"malformed \(format"),
    "an unknown field": (lambda at: set_manifest(at, speed=3), r"malformed \(speed: Extra inputs"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_version_is_refused_by_name(store: ModelStore, version: str, what: str) -> None:
    tamper, reason = TAMPERED[what]
    assert store.verify(version).version == version
    tamper(store.folder(version))
    with pytest.raises(Damaged, match=reason) as caught:
        store.open(version)
    assert caught.value.version == version


def test_a_graph_of_another_space_is_refused_even_with_a_matching_checksum(
    store: ModelStore, version: str, tmp_path: Path
) -> None:
    other = publish(store, make_tiny_source(tmp_path / "other", seed=1))
    folder = store.folder(version)
    graph = (store.folder(other.version) / "onnx" / "model.onnx").read_bytes()
    (folder / "onnx" / "model.onnx").write_bytes(graph)
    files = Manifest.read(folder).files | {"onnx/model.onnx": hashlib.sha256(graph).hexdigest()}
    set_manifest(folder, files=files)
    with pytest.raises(Damaged, match="another fingerprint"):
        store.verify(version)
    files["onnx/model.onnx"] = hashlib.sha256(b"\x08").hexdigest()
    (folder / "onnx" / "model.onnx").write_bytes(b"\x08")
    set_manifest(folder, files=files)
    with pytest.raises(Damaged, match="is not an ONNX file"):
        store.verify(version)
