"""The store on a real file system: what is refused and why, what survives a kill, what two processes see."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.errors import Damaged, ModelError, UnknownVersion
from models.manifest import Manifest
from models.publish import publish
from models.store import Store
from tests.tiny import tiny_source as make_tiny_source


@pytest.fixture
def store(tiny_models_dir: Path, tmp_path: Path) -> Store:
    return Store(shutil.copytree(tiny_models_dir, tmp_path / "models"))


@pytest.fixture
def version(store: Store) -> str:
    return store.versions()[0].version


def _manifest(folder: Path, **changed: object) -> None:
    content = json.loads((folder / "manifest.json").read_bytes()) | changed
    (folder / "manifest.json").write_text(json.dumps(content))


def _flip(file: Path, at: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def _files(folder: Path, path: str) -> None:
    content = json.loads((folder / "manifest.json").read_bytes())
    _manifest(folder, files=content["files"] | {path: "0" * 64})


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "one byte of the weights": (
        lambda at: _flip(at / "model.safetensors"),
        r"model\.safetensors was changed after it was published",
    ),
    "one byte of the graph": (lambda at: _flip(at / "onnx" / "model.onnx", 5000), r"onnx/model\.onnx was changed"),
    "one byte of the golden vectors": (lambda at: _flip(at / "golden.json", 50), r"golden\.json was changed"),
    "a missing file": (lambda at: (at / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    "an extra file": (lambda at: (at / "notes.txt").touch(), r"notes\.txt is not listed in the manifest"),
    "a pickle": (lambda at: (at / "onnx" / "extra.pkl").touch(), r"onnx/extra\.pkl may hold a pickle"),
    "a listed pickle": (
        lambda at: ((at / "pytorch_model.bin").touch(), _files(at, "pytorch_model.bin")),
        r"pytorch_model\.bin may hold a pickle",
    ),
    "a path upwards": (lambda at: _files(at, "../wanted"), r"leads out of the folder: '\.\./wanted'"),
    "an absolute path": (lambda at: _files(at, "/etc/passwd"), "leads out of the folder: '/etc/passwd'"),
    "a path that hides": (lambda at: _files(at, "a/./b"), "leads out of the folder"),
    "a link": (
        lambda at: ((at / "vocab.txt").unlink(missing_ok=True), (at / "vocab.txt").symlink_to("/etc/passwd")),
        r"vocab\.txt is a link",
    ),
    "a linked folder": (
        lambda at: ((at / "onnx").rename(at.parent / "elsewhere"), (at / "onnx").symlink_to(at.parent / "elsewhere")),
        "onnx is a link",
    ),
    "a pipe": (lambda at: os.mkfifo(at / "pipe"), "pipe is a link or a device"),
    "another fingerprint": (
        lambda at: _manifest(at, fingerprint="0" * 64),
        "claims another fingerprint than its ONNX file",
    ),
    "another prompt": (lambda at: _manifest(at, search_prompt="find: "), "says search_prompt='find: ' and its ONNX file ''"),
    "another maximum": (lambda at: _manifest(at, max_length=9), "says max_length=9 and its ONNX file 64"),
    "another version's manifest": (
        lambda at: _manifest(at, version="20200101T000000-other-00000000"),
        "its manifest belongs to 20200101T000000-other-00000000",
    ),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), r"manifest\.json cannot be read \(No such file"),
    "half a manifest": (lambda at: (at / "manifest.json").write_text("{"), r"manifest\.json is malformed"),
    "a newer manifest": (lambda at: _manifest(at, format=2), r"malformed \(format"),
    "an unknown field": (lambda at: _manifest(at, speed=3), r"malformed \(speed: Extra inputs"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_version_is_refused_by_name(store: Store, version: str, what: str) -> None:
    tamper, reason = TAMPERED[what]
    assert store.verify(version).version == version
    tamper(store.folder(version))
    with pytest.raises(Damaged, match=reason) as caught:
        store.open(version)
    assert caught.value.version == version


def test_a_graph_of_another_space_is_refused_even_with_a_matching_checksum(
    store: Store, version: str, tmp_path: Path
) -> None:
    import hashlib

    other = publish(store, make_tiny_source(tmp_path / "other", seed=1))
    folder = store.folder(version)
    graph = (store.folder(other.version) / "onnx" / "model.onnx").read_bytes()
    (folder / "onnx" / "model.onnx").write_bytes(graph)
    files = store.versions()[0].files | {"onnx/model.onnx": hashlib.sha256(graph).hexdigest()}
    _manifest(folder, files=files)
    with pytest.raises(Damaged, match="another fingerprint"):
        store.verify(version)
    files["onnx/model.onnx"] = hashlib.sha256(b"\x08").hexdigest()
    (folder / "onnx" / "model.onnx").write_bytes(b"\x08")
    _manifest(folder, files=files)
    with pytest.raises(Damaged, match="is not an ONNX file"):
        store.verify(version)


def test_a_damaged_version_is_left_out_and_reported_and_the_others_are_served(
    store: Store, version: str, tmp_path: Path
) -> None:
    other = publish(store, make_tiny_source(tmp_path / "other", seed=1))
    (store.folder(version) / "manifest.json").write_text("{}")
    (store.root / "20200101T000000-nobody-00000000").mkdir()
    (store.root / "lost+found").mkdir()
    assert store.versions() == [other]
    problems = store.problems()
    assert problems.keys() == {version, "20200101T000000-nobody-00000000", "lost+found"}
    assert "malformed" in problems[version]
    assert store.open(other.version).manifest == other


def test_a_damaged_version_does_not_keep_its_model_from_being_published_again(
    store: Store, version: str, tiny_source: Path
) -> None:
    _flip(store.folder(version) / "model.safetensors")
    again = publish(store, tiny_source, origin="again")
    assert again.version != version
    assert store.verify(again.version) == again


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../models", "/etc", "wanted", "20200101T000000-a-0000000", "20200101T000000-A-00000000"]
)
def test_no_path_is_made_of_a_name_that_is_no_version(store: Store, version: str, name: str) -> None:
    for act in (store.folder, store.verify, store.open, store.want):
        with pytest.raises(UnknownVersion):
            act(name)
    with pytest.raises(UnknownVersion):
        store.folder(f"{version}/../{version}")


def test_wanting_is_one_pointer_that_always_names_a_version(store: Store, version: str, tmp_path: Path) -> None:
    other = publish(store, make_tiny_source(tmp_path / "other", seed=1)).version
    with pytest.raises(UnknownVersion):
        store.want("20200101T000000-unknown-00000000")
    assert store.wanted() == version
    seen: set[str | None] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(store.wanted())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for turn in range(200):
        store.want((version, other)[turn % 2])
    done.set()
    watcher.join()
    assert seen == {version, other}  # never a half-written name
    assert [file.name for file in store.root.glob(".wanted*")] == []


def test_a_pointer_to_nothing_is_no_wish_and_is_reported(store: Store, version: str) -> None:
    for content in ("20200101T000000-gone-00000000\n", "../../etc\n", "\x00"):
        (store.root / "wanted").write_text(content)
        assert store.wanted() is None
        assert "no published version" in store.problems()["wanted"]
    (store.root / "wanted").write_text(f"{version}\n\n")  # as an editor leaves it
    assert store.wanted() == version
    (store.root / "wanted").unlink()
    assert store.wanted() is None
    assert store.problems() == {}


def test_the_state_is_what_was_written_last(store: Store, tmp_path: Path) -> None:
    assert store.read_state() == {}
    store.write_state({"live": "a", "previous": None})
    store.write_state({"live": "b", "previous": "a"})
    assert Store(store.root).read_state() == {"live": "b", "previous": "a"}
    fresh = Store(tmp_path / "new" / "models")
    assert (fresh.versions(), fresh.wanted(), fresh.problems(), fresh.read_state()) == ([], None, {}, {})
    fresh.write_state({"live": None})
    assert fresh.read_state() == {"live": None}


def test_a_build_that_fails_publishes_nothing_and_passes_its_error_on(store: Store, version: str) -> None:
    def build(folder: Path) -> Manifest:
        (folder / "half").write_text("written")
        raise RuntimeError("no power")

    with pytest.raises(RuntimeError, match="no power"):
        store.publish(build)
    assert [manifest.version for manifest in store.versions()] == [version]
    assert list(store.root.glob(".tmp-*")) == []


def test_a_build_cannot_smuggle_in_a_pickle_or_a_link(store: Store, version: str) -> None:
    manifest = store.versions()[0]

    def pickled(folder: Path) -> Manifest:
        (folder / "weights.bin").touch()
        return manifest

    def linked(folder: Path) -> Manifest:
        (folder / "weights").symlink_to("/etc/passwd")
        return manifest

    for build, reason in ((pickled, "may hold a pickle"), (linked, "is a link")):
        with pytest.raises(ModelError, match=reason):
            store.publish(build)
    assert len(store.versions()) == 1


def test_what_a_dead_builder_left_is_swept_and_a_living_one_is_left_alone(
    store: Store, version: str, tmp_path: Path
) -> None:
    dead = store.root / ".tmp-dead"
    dead.mkdir()
    (dead / "model.safetensors").touch()
    building, finish = threading.Event(), threading.Event()

    def slow(folder: Path) -> Manifest:
        shutil.copytree(store.folder(version), folder, dirs_exist_ok=True)
        (folder / "manifest.json").unlink()
        building.set()
        assert finish.wait(30)
        return store.versions()[0].model_copy(update={"version": version.replace("-tiny-", "-slow-"), "prompts": {"a": ""}})

    builder = threading.Thread(target=store.publish, args=(slow,))
    builder.start()
    assert building.wait(30)
    publish(store, make_tiny_source(tmp_path / "other", seed=1))  # sweeps
    assert not dead.exists()
    assert len(list(store.root.glob(".tmp-*"))) == 1
    finish.set()
    builder.join()
    assert version.replace("-tiny-", "-slow-") in [manifest.version for manifest in store.versions()]


def test_a_killed_publisher_leaves_whole_versions_only(store: Store, version: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("publish_forever.py")
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    generator = random.Random(4)
    left = 0
    for turn in range(6):
        command = [sys.executable, str(script), str(store.root), str(tmp_path / "scratch"), str(1000 * (turn + 1))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(generator.random() * 0.15)
            process.kill()
            told = process.stdout.read().split()
        left += len(list(store.root.glob(".tmp-*")))
        published = [manifest.version for manifest in store.versions()]
        assert set(told) <= set(published)
        assert store.problems() == {}
        for name in published:
            store.verify(name)
    assert left > 0, "no kill hit a build: the test shows nothing"
    publish(store, make_tiny_source(tmp_path / "after", seed=2))
    assert list(store.root.glob(".tmp-*")) == []


def test_two_publishers_of_the_same_model_end_with_one_version(tmp_path: Path, tiny_source: Path) -> None:
    store = Store(tmp_path / "models")
    start = threading.Barrier(4)
    answers: list[Manifest] = []

    def work() -> None:
        start.wait()
        answers.append(publish(store, tiny_source))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert [manifest.version for manifest in store.versions()] == [answers[0].version]
    assert {manifest.version for manifest in answers} == {answers[0].version}
