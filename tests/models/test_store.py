"""The store on a real file system: refusals with reasons, remains of a kill, two publishers at once."""

from __future__ import annotations

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

from models.errors import ModelError, UnknownVersion
from models.manifest import Manifest, version_name
from models.publishing.publish import publish
from models.store import ModelStore
from tests.tiny import tiny_source as make_tiny_source
from tests.waiting import LIMIT


@pytest.fixture
def store(tiny_models_dir: Path, tmp_path: Path) -> ModelStore:
    return ModelStore(shutil.copytree(tiny_models_dir, tmp_path / "models"))


@pytest.fixture
def version(store: ModelStore) -> str:
    return store.versions()[0].version


def test_a_damaged_version_is_left_out_and_reported_and_the_others_are_served(
    store: ModelStore, version: str, tmp_path: Path
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
    store: ModelStore, version: str, tiny_source: Path
) -> None:
    (store.folder(version) / "model.safetensors").write_bytes(b"damaged")
    again = publish(store, tiny_source, origin="again")
    assert again.version != version
    assert store.verify(again.version) == again


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../models", "/etc", "wanted", "20200101T000000-a-0000000", "20200101T000000-A-00000000"],
)
def test_no_path_is_made_of_a_name_that_is_no_version(store: ModelStore, version: str, name: str) -> None:
    for act in (store.folder, store.verify, store.open, store.request):
        with pytest.raises(UnknownVersion):
            act(name)
    with pytest.raises(UnknownVersion):
        store.folder(f"{version}/../{version}")


@pytest.mark.long
def test_wanting_is_one_pointer_that_always_names_a_version(
    store: ModelStore, version: str, tmp_path: Path
) -> None:
    other = publish(store, make_tiny_source(tmp_path / "other", seed=1)).version
    with pytest.raises(UnknownVersion):
        store.request("20200101T000000-unknown-00000000")
    assert store.requested() == version
    seen: set[str | None] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.add(store.requested())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for turn in range(200):
        store.request((version, other)[turn % 2])
    done.set()
    watcher.join()
    assert seen == {version, other}  # never a half-written name
    assert [file.name for file in store.root.glob(".wanted*")] == []


def test_a_pointer_to_nothing_is_no_wish_and_is_reported(store: ModelStore, version: str) -> None:
    for content in ("20200101T000000-gone-00000000\n", "../../etc\n", "\x00"):
        (store.root / "wanted").write_text(content)
        assert store.requested() is None
        assert "not a published version" in store.problems()["wanted"]
    (store.root / "wanted").write_text(f"{version}\n\n")  # as an editor leaves it
    assert store.requested() == version
    (store.root / "wanted").unlink()
    assert store.requested() is None
    assert store.problems() == {}


def test_the_state_is_what_was_written_last(store: ModelStore, tmp_path: Path) -> None:
    assert store.read_state() == {}
    store.write_state({"live": "a", "previous": None})
    store.write_state({"live": "b", "previous": "a"})
    assert ModelStore(store.root).read_state() == {"live": "b", "previous": "a"}
    (store.root / "state.json").write_text("half")
    assert store.read_state() == {}
    fresh = ModelStore(tmp_path / "new" / "models")
    assert (fresh.versions(), fresh.requested(), fresh.problems(), fresh.read_state()) == ([], None, {}, {})
    fresh.write_state({"live": None})
    assert fresh.read_state() == {"live": None}


def test_a_build_that_fails_publishes_nothing_and_passes_its_error_on(
    store: ModelStore, version: str
) -> None:
    def build(folder: Path) -> Manifest:
        (folder / "half").write_text("written")
        raise RuntimeError("no power")

    with pytest.raises(RuntimeError, match="no power"):
        store.publish(build)
    assert [manifest.version for manifest in store.versions()] == [version]
    assert list(store.root.glob(".tmp-*")) == []


def test_a_build_cannot_smuggle_in_a_pickle_or_a_link(store: ModelStore, version: str) -> None:
    manifest = store.versions()[0]

    acts: dict[str, Callable[[Path], object]] = {
        "may hold a pickle": lambda folder: (folder / "weights.bin").touch(),
        "is a link": lambda folder: (folder / "weights").symlink_to("/etc/passwd"),
    }
    for reason, smuggle in acts.items():
        with pytest.raises(ModelError, match=reason):
            store.publish(lambda folder, smuggle=smuggle: (smuggle(folder), manifest)[1])  # type: ignore[misc]
    assert len(store.versions()) == 1


def test_what_a_dead_builder_left_is_swept_and_a_living_one_is_left_alone(
    store: ModelStore, version: str, tmp_path: Path
) -> None:
    dead = store.root / ".tmp-dead"
    dead.mkdir()
    (dead / "model.safetensors").touch()
    building, finish = threading.Event(), threading.Event()

    def slow(folder: Path) -> Manifest:
        shutil.copytree(store.folder(version), folder, dirs_exist_ok=True)
        (folder / "manifest.json").unlink()
        building.set()
        assert finish.wait(LIMIT)
        named = {"version": version.replace("-tiny-", "-slow-"), "prompts": {"a": ""}}
        return store.versions()[0].model_copy(update=named)

    builder = threading.Thread(target=store.publish, args=(slow,))
    builder.start()
    assert building.wait(LIMIT)
    publish(store, make_tiny_source(tmp_path / "other", seed=1))  # sweeps
    assert not dead.exists()
    assert len(list(store.root.glob(".tmp-*"))) == 1
    finish.set()
    builder.join()
    assert version.replace("-tiny-", "-slow-") in [manifest.version for manifest in store.versions()]


@pytest.mark.long
def test_a_killed_publisher_leaves_whole_versions_only(
    store: ModelStore, version: str, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("publish_forever.py")
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    generator = random.Random(4)
    left = 0
    for turn in range(6):
        given = store.root, tmp_path / "scratch", 1000 * (turn + 1)
        command = [sys.executable, str(script), *map(str, given)]
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


def test_versions_of_one_second_get_different_names(tmp_path: Path) -> None:
    store, fingerprint = ModelStore(tmp_path), "a" * 64
    names = []
    for _ in range(4):
        names.append(version_name(store.new_time("tiny-ranking", fingerprint), "tiny-ranking", fingerprint))
        (tmp_path / names[-1]).mkdir()
    assert len({*names}) == 4
    assert names == sorted(names)


@pytest.mark.long
def test_two_publishers_of_the_same_model_end_with_one_version(tmp_path: Path, tiny_source: Path) -> None:
    store = ModelStore(tmp_path / "models")
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
