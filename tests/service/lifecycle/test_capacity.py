"""Memory: limits of cgroups, the memory that a generation needs, and a version that waits for memory."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.manifest import ONNX
from models.store import ModelStore, RequestedVersion
from service.errors import StartupError
from service.index.index import Index
from service.lifecycle import capacity
from service.lifecycle.capacity import COLLECTION_BYTES, needed, no_publishing, no_start, shortage
from service.lifecycle.model_loader import ModelLoader
from service.lifecycle.swap import Swap
from service.memory import free, limit
from service.settings import Settings
from tests.parts.places import DOCUMENTS, Place
from tests.parts.rerankers import publish_reranker
from tests.service.brute_force import firsts
from tests.service.conftest import HOST, serving
from tests.service.swapping import TEXTS
from tests.tiny import tiny_source

MIB = 2**20


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")
    return root


def meminfo(kilobytes: int) -> dict[str, str]:
    return {"proc/meminfo": f"MemTotal: 99999999 kB\nMemFree: 5 kB\nMemAvailable:   {kilobytes} kB"}


def second_version(limit: str, used: int, inactive: int = 0, path: str = "/box") -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    return {
        "proc/self/cgroup": f"0::{path}",
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": str(used),
        f"{folder}/memory.stat": f"anon 7\nactive_file 9\ninactive_file {inactive}\nslab 3",
    }


@pytest.mark.parametrize(
    ("files", "left"),
    [
        (second_version(str(1000 * MIB), 800 * MIB, 150 * MIB), 350 * MIB),  # cached files can be evicted
        (second_version("100", 500), 0),
        (second_version("many", 5) | {"proc/meminfo": "MemAvailable: some kB"}, None),
        ({}, None),
        # A container may see its own cgroup as the root.
        *(
            (second_version(str(10 * MIB), 4 * MIB, path="") | {"proc/self/cgroup": f"0::{path}"}, 6 * MIB)
            for path in ("/box", "/docker/not-seen-from-inside", "/")
        ),
    ],
)
def test_free_memory_is_the_limit_of_the_cgroup_without_its_use(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    assert free(write(tmp_path, files)) == left
    if left is None:
        assert shortage(10**9, [10**9], 4096, tmp_path, tmp_path) is None


def test_the_cgroups_above_count_too_and_so_does_the_machine(tmp_path: Path) -> None:
    write(tmp_path, second_version("max", 5, path="/outer/inner"))
    assert free(tmp_path) is None
    write(tmp_path, meminfo(2048))
    assert free(tmp_path) == 2 * MIB
    outer = second_version(str(100 * MIB), 99 * MIB, path="/outer")
    write(tmp_path, outer | {"proc/self/cgroup": "0::/outer/inner"})
    assert free(tmp_path) == 1 * MIB


def test_the_first_version_of_cgroups_is_read_too(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/box"
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/box\n3:cpuset:/\n0::/",
        f"{folder}/memory.limit_in_bytes": str(50 * MIB),
        f"{folder}/memory.usage_in_bytes": str(45 * MIB),
        f"{folder}/memory.stat": f"inactive_file 77\ntotal_inactive_file {3 * MIB}",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
    }
    write(tmp_path, files | meminfo(10**9))
    assert free(tmp_path) == 8 * MIB
    write(tmp_path, {f"{folder}/memory.limit_in_bytes": "9223372036854771712"})
    assert free(tmp_path) == 1024 * 10**9


def test_the_limit_is_the_least_of_the_cgroups_and_the_machine(tmp_path: Path) -> None:
    assert limit(tmp_path) is None
    write(tmp_path, meminfo(1))
    assert limit(tmp_path) == 1024 * 99999999
    write(tmp_path, second_version("max", 5, path="/outer/inner"))
    assert limit(tmp_path) == 1024 * 99999999
    outer = second_version(str(100 * MIB), 99 * MIB, path="/outer")
    write(tmp_path, outer | {"proc/self/cgroup": "0::/outer/inner"})
    assert limit(tmp_path) == 100 * MIB, "what is in use plays no part"
    write(tmp_path, second_version(str(30 * MIB), 5, path="/outer/inner"))
    assert limit(tmp_path) == 30 * MIB


def test_this_machine_has_some(tmp_path: Path) -> None:
    assert 0 < (free() or 0) < (limit() or 0) < 2**50


def test_what_a_generation_needs_is_worked_out_from_its_files_and_its_rows(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / ONNX).write_bytes(b"x" * 300)
    (tmp_path / "onnx/model.onnx_data").write_bytes(b"x" * 1000)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 5000)  # never loaded
    assert needed([], 384, tmp_path) == 1800  # External weights are mapped.
    assert needed([], 384, tmp_path, alone=True) == 2450  # with the session for single texts
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 100)
    assert needed([], 384, tmp_path) == 1800 + 1400
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "config.json").write_text('{"vocab_size": 25, "hidden_size": 4}')
    assert needed([], 384, tmp_path) == 1800 - 480, "vectors of the vocabulary stay in the file"
    (tmp_path / "config.json").unlink()
    small = 1800 + COLLECTION_BYTES + 154_400_000  # 2.5 x 40,000 x (1,536 + 8)
    assert needed([40_000], 384, tmp_path) == small
    # The index copies a sample for its centroids: 48 rows for each of 512 lists.
    base = 1800 + COLLECTION_BYTES + 386_000_000 + 48 * 512 * 1536
    assert needed([100_000], 384, tmp_path) == base
    assert needed([100_000, 40_000], 384, tmp_path) == base + small - 1800


def test_a_start_needs_room_for_the_model_and_a_first_one_for_publishing_it(tmp_path: Path) -> None:
    published_at, source = tmp_path / "v/onnx", tmp_path / "source"
    published_at.mkdir(parents=True)
    source.mkdir()
    (published_at / "model.onnx").write_bytes(b"x" * MIB)
    (source / "model.safetensors").write_bytes(b"x" * MIB)
    machine = write(tmp_path, second_version(str(10 * MIB), 8 * MIB))
    assert no_start("v", tmp_path / "v", machine) is None
    reason = no_publishing(source, machine)
    assert reason is not None
    assert "about 417.1 MiB of memory, and 2.0 MiB are free of the 10.0 MiB" in reason
    write(tmp_path, second_version(str(10 * MIB), 8 * MIB + 1))
    reason = no_start("v", tmp_path / "v", machine)
    assert reason is not None
    assert "v needs about 2.0 MiB of memory" in reason
    with (source / "model.safetensors").open("r+b") as file:
        file.truncate(2_500_000_000)  # A sparse file takes no disk space.
    reason = no_publishing(source, machine)
    assert reason is not None
    assert "about 2.8 GiB" in reason, "a large source is published from the mapped file"


def test_a_start_without_room_is_refused_with_figures_and_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_source(tmp_path / "source")
    store = ModelStore(tmp_path / "models")

    def started(**others: Any) -> str:
        settings = Settings(
            data_dir=tmp_path / "data", models_dir=store.root, model=str(source), allowed_hosts=HOST, **others
        )
        with serving(settings) as client:
            return str(client.get("/info").json()["model_version"])

    monkeypatch.setattr(capacity, "free", lambda machine: 1000)
    with pytest.raises(StartupError, match=r"To publish .* MiB of memory, and 0\.0 MiB are free"):
        started()
    assert not store.versions()
    version = started(memory_check=False)
    with pytest.raises(StartupError, match=rf"{version} needs about .* are free"):
        started()
    monkeypatch.undo()
    assert started() == version


@pytest.mark.sqlite("its vectors take memory of the process")
def test_a_version_waits_for_the_memory_of_every_collection_and_of_every_passage(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, list[int]]] = []

    def looked(documents: int, rows: list[int], *others: object, **options: object) -> None:
        seen.append((documents, sorted(rows)))

    monkeypatch.setattr(capacity, "shortage", looked)
    with place.serving() as client:
        place.fill()
        long = [{"id": f"long{at}", "text": " ".join(TEXTS[at : at + 40])} for at in range(5)]
        client.post("/collections/notes/documents", json={"documents": long})
        active = place.app.state.runtime.active.generation.indexes
        notes = active.of("notes")
        assert (notes.documents, active.of("default").rows) == (5, 60)
        assert notes.rows > 10, "no text is so long that it has passages"
        place.activate(place.b)
    assert seen[0] == (65, sorted([notes.rows, 60]))


def test_an_index_keeps_no_more_than_is_asked_for(tmp_path: Path) -> None:
    index = Index(32)
    for at in range(5):
        rows = firsts(range(at * 1024, (at + 1) * 1024))
        index.apply((rows, np.ones((1024, 32), np.float32)), (), at)
    rows_alone = 5 * 1024 * (32 * 4 + 8)
    assert rows_alone <= index.nbytes <= needed([5 * 1024], 32, tmp_path)
    index.close()


def test_what_fits_just_so_is_built_and_a_byte_less_is_not(tmp_path: Path) -> None:
    need = needed([600, 400], 384, tmp_path)
    machine = write(tmp_path, second_version(str(need + 100), 100))
    assert shortage(1000, [600, 400], 384, tmp_path, machine) is None
    write(tmp_path, second_version(str(need + 100), 101))
    reason = shortage(900, [600, 400], 384, tmp_path, machine)
    assert reason is not None
    assert "3.7 MiB" in reason  # 3,876,384 bytes. The machine has one byte less.
    assert "900 documents in 1000 passages" in reason


def test_the_memory_of_a_reranker_that_is_being_opened_counts(tmp_path: Path) -> None:
    need = needed([600], 384, tmp_path)
    machine = write(tmp_path, second_version(str(need + 100), 0))
    assert shortage(600, [600], 384, tmp_path, machine, opening=100) is None
    reason = shortage(600, [600], 384, tmp_path, machine, opening=101)
    assert reason is not None
    assert "the reranker that is being opened" in reason


def test_a_version_waits_while_a_reranker_that_needs_the_memory_is_opened(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "free", lambda _: 2**40)
    monkeypatch.setattr("service.lifecycle.swap.MEMORY_LOOK_SECONDS", 0.05)
    with place.serving(memory_check=True):
        reranker = place.app.state.runtime.active.reranker
        reranker.opening_bytes = 2**41
        place.client.post(f"/models/{place.b}/activate")
        place.until(lambda: "being opened" in (place.state(place.b)["reason"] or ""))
        reranker.opening_bytes = 0
        place.until_active(place.b)


def test_a_version_waits_for_memory_and_comes_to_live_when_there_is_room(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = write(tmp_path / "machine", second_version(str(500 * MIB), 500 * MIB - 1000))
    monkeypatch.setattr("service.lifecycle.swap.MACHINE", machine)
    monkeypatch.setattr("service.lifecycle.swap.MEMORY_LOOK_SECONDS", 0.05)
    with place.serving() as client:
        place.fill()
        place.store.request(place.b)
        place.until(lambda: place.state(place.b)["reason"] is not None)
        state = place.state(place.b)
        assert (state["state"], state["eta_seconds"]) == ("building", None)
        assert "simile_swap_waiting 1.0" in client.get("/metrics").text
        assert "index of 60 documents need about" in state["reason"]
        assert "0.0 MiB are free" in state["reason"]
        assert "SIMILE_GRACE_SECONDS" in state["reason"]
        time.sleep(0.7)
        assert place.active() == place.a
        assert place.everything() == DOCUMENTS
        assert place.app.state.runtime.active.followers == (), "it was opened all the same"
        assert sum("need about" in record.getMessage() for record in caplog.records) == 1
        write(machine, second_version(str(500 * MIB), 0))
        place.until_active(place.b)
        assert place.everything() == DOCUMENTS
        place.until(lambda: "simile_swap_waiting 0.0" in client.get("/metrics").text)
        assert place.swaps("failed", 0)
        write(machine, second_version(str(500 * MIB), 500 * MIB))
        place.rollback(place.a)  # The previous version is still in memory.


@pytest.mark.parametrize("free_bytes", [0, 1000, 100_000])
def test_a_reranker_is_opened_while_a_version_waits_for_memory(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    """A version that waits has taken no memory, and may wait for days."""
    machine = write(tmp_path / "machine", second_version(str(500 * MIB), 500 * MIB - free_bytes))
    monkeypatch.setattr("service.lifecycle.swap.MACHINE", machine)
    with place.serving() as client:
        place.fill()
        place.store.request(place.b)
        place.until(lambda: place.state(place.b)["reason"] is not None)
        assert place.app.state.runtime.controller.building_bytes == 0
        reranker = publish_reranker(place.store.root)
        room = needed([], 0, place.store.root / reranker) + 1000
        monkeypatch.setattr(
            "service.lifecycle.rerankers.MACHINE",
            write(tmp_path / "other", second_version(str(500 * MIB), 500 * MIB - room)),
        )
        place.store.request_reranker(reranker)
        place.until(lambda: client.get("/models").json()["reranker"]["active"] == reranker)


def test_the_memory_of_a_version_counts_until_it_is_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(*arguments: Any) -> Any:
        seen.append(place.app.state.runtime.controller.building_bytes)
        return original(*arguments)

    original = ModelLoader.open_verified
    monkeypatch.setattr(ModelLoader, "open_verified", look)
    with place.serving():
        place.fill()
        place.activate(place.b)
        model, whole = (needed(rows, 32, place.store.root / place.b) for rows in ([], [60]))
        assert seen == [pytest.approx(whole, rel=0.5)]
        assert seen[0] > model
        assert place.app.state.runtime.controller.building_bytes == 0


@pytest.mark.parametrize(
    ("state", "done", "total", "expected"),
    [
        ("building", 0, 0, 1000),
        ("building", 0, 8, 1000),
        ("building", 6, 8, 250),
        ("building", 8, 8, 0),
        ("ready", 0, 8, 0),
        ("failed", 0, 0, 0),
    ],
)
def test_memory_that_the_index_has_is_counted_once(state: str, done: int, total: int, expected: int) -> None:
    absent: Any = None
    swap = Swap(RequestedVersion("v", "want", ""), absent, absent, absent, absent)
    swap.reserved_bytes, swap.state, swap.done, swap.total = 1000, state, done, total
    assert swap.coming_bytes == expected


@pytest.mark.long
def test_a_version_that_waits_for_memory_can_be_given_up(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = write(tmp_path / "machine", second_version("1000", 1000))
    monkeypatch.setattr("service.lifecycle.swap.MACHINE", machine)
    with place.serving() as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["reason"] is not None)
        assert client.post(f"/models/{place.a}/activate").status_code == 200
        place.until_state(place.b, "candidate")
    with place.serving(memory_check=False):
        place.activate(place.b)
        assert place.everything() == DOCUMENTS


@pytest.mark.parametrize(("single_text_threads", "requested"), [(2, True), (1, False)])
def test_a_new_version_waits_for_the_memory_of_its_lone_texts_too(
    place: Place, monkeypatch: pytest.MonkeyPatch, single_text_threads: int, requested: bool
) -> None:
    seen: list[bool] = []

    def shortage(*_: object, alone: bool, **__: object) -> None:
        seen.append(alone)
        assert (
            not place.app.state.runtime.batcher.single_text.has_room()
        )  # during a build, no second session opens

    monkeypatch.setattr(capacity, "shortage", shortage)
    with place.serving(threads=1, single_text_threads=single_text_threads):
        assert place.app.state.runtime.batcher.single_text.has_room()
        place.activate(place.b)
        place.until_active(place.b)
        place.until(place.app.state.runtime.batcher.single_text.has_room)
    assert seen == [requested]
