"""An index base on a GPU: one thread uses the GPU, answers equal the CPU's, and the CPU takes over failures.

A copy of the lists in main memory stands for the GPU and has the limits of FAISS on a GPU. The last test uses
a real GPU if one is available.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from service.app import create_app
from service.cli import check
from service.errors import StartupError
from service.index import gpu as device
from service.index import ivf, maintenance
from service.index.gpu import LIMIT, GpuThread, find, open_gpu
from service.index.index import Index
from service.index.ivf_snapshots import IvfSnapshots, Origin
from service.settings import Settings
from tests.parts.places import Place
from tests.service.brute_force import firsts, settle
from tests.service.index.test_ivf import DIMENSION, mixture
from tests.service.swapping import published

ROWS = 3000
ORIGIN = Origin(1, "a1b2", DIMENSION)
HAS_GPU_PART = hasattr(faiss, "StandardGpuResources")


@pytest.fixture(autouse=True)
def _small_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 2000)
    monkeypatch.setattr(ivf, "EXACT_ROWS", 10)
    monkeypatch.setattr(ivf, "LOOKED_AT", 2.0)
    monkeypatch.setattr(maintenance, "MIN_QUERIES", 1_000_000)  # No recall is measured.


class Gpu:
    """A fake GPU. Counts the copies of lists on it, and records the searches that it receives."""

    def __init__(self) -> None:
        self.thread = 0
        self.copies = self.most = 0  # copies now, and their largest number
        self.requested: list[tuple[int, int, int]] = []  # (queries, candidates, lists) of each search
        self.in_hand = threading.Lock()
        self.trouble: Callable[[], None] = lambda: None

    def open(self) -> Callable[[Any], "Lists"]:
        self.thread = threading.get_ident()
        return lambda lists: Lists(self, lists)

    def used(self) -> None:
        assert threading.get_ident() == self.thread, "another thread than the owner's"
        self.trouble()


class Lists:
    def __init__(self, gpu: Gpu, lists: Any) -> None:
        self.gpu = gpu
        gpu.copies += 1
        gpu.most = max(gpu.most, gpu.copies)
        gpu.used()
        self.lists: Any = faiss.clone_index(lists)

    def search(self, queries: NDArray[np.float32], k: int, *, params: Any) -> Any:
        self.gpu.used()
        self.gpu.requested.append((len(queries), k, params.nprobe))
        assert self.gpu.in_hand.acquire(blocking=False), "two searches at once"
        try:
            if max(k, params.nprobe) > LIMIT:
                raise RuntimeError("Error in … at …: Error: 'k <= 2048' failed: not so many")
            assert params.sel is None, "a GPU does not look at it"
            return self.lists.search(queries, k, params=params)
        finally:
            self.gpu.in_hand.release()

    def __del__(self) -> None:
        self.gpu.copies -= 1
        assert threading.get_ident() == self.gpu.thread


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def owner(gpu: Gpu) -> Iterator[GpuThread]:
    owner = GpuThread("cuda:0", gpu.open)
    yield owner
    owner.close()


class Pair:
    """Two indexes with the same rows, on the CPU and on the device of `owner`."""

    def __init__(self, folder: Path, owner: GpuThread, *, settled: bool = True) -> None:
        self.vectors = mixture(ROWS, seed=0)[np.random.default_rng(3).permutation(ROWS)]
        self.ivf_snapshots = IvfSnapshots(folder, ORIGIN, owner)
        rows = [(firsts(range(ROWS)), self.vectors)]
        self.cpu, self.gpu = Index.load(DIMENSION, rows), Index.load(DIMENSION, rows, 1, self.ivf_snapshots)
        if settled:
            self.settle()

    def settle(self) -> None:
        for index in (self.cpu, self.gpu):
            settle(index)
            assert index.kind == "IVF,SQ8"

    def apply(self, *change: Any) -> None:
        for index in (self.cpu, self.gpu):
            index.apply(*change)
        self.settle()

    def check(self, k: int, allowed: NDArray[np.int64] | None = None, queries: int = 20) -> None:
        """Checks that both indexes return identical answers."""
        requested = mixture(queries, seed=k)
        answers = [index.search(requested, k, allowed) for index in (self.cpu, self.gpu)]
        for (scores, names), (again, others) in zip(*answers, strict=True):
            np.testing.assert_array_equal(scores, again)
            np.testing.assert_array_equal(names, others)

    def close(self) -> None:
        self.cpu.close()
        self.gpu.close()


@pytest.fixture
def pair(tmp_path: Path, owner: GpuThread) -> Iterator[Pair]:
    pair = Pair(tmp_path, owner)
    yield pair
    pair.close()


def test_a_search_is_answered_as_by_the_cpu_and_by_one_call(pair: Pair, gpu: Gpu) -> None:
    assert (pair.cpu.device, pair.gpu.device) == ("cpu", "cuda:0")
    for k in (1, 10, 30):
        gpu.requested.clear()
        pair.check(k)
        [(queries, candidates, _)] = gpu.requested
        assert (queries, candidates) == (20, ivf.OVER * (k + 16))


def test_dead_rows_and_wide_filters_are_left_out_of_what_it_finds(pair: Pair, gpu: Gpu) -> None:
    pair.apply((firsts(range(ROWS, ROWS + 50)), mixture(50, seed=5)), np.arange(0, 400))
    assert len(pair.gpu.view.parts) == 2
    chance = np.random.default_rng(6).random(ROWS + 50)
    for share in (None, 0.9, 0.7):
        gpu.requested.clear()
        pair.check(10, None if share is None else np.flatnonzero(chance < share))
        assert sum(queries for queries, *_ in gpu.requested) == 20
        assert min(candidates for _, candidates, _ in gpu.requested) > ivf.OVER * 26


def test_its_candidates_are_the_cpus_where_the_codes_err_too(
    pair: Pair, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ivf, "OVER", 1)
    some = np.flatnonzero(np.random.default_rng(6).random(ROWS) < 0.7)
    found = []
    for index in (pair.cpu, pair.gpu):
        [part] = index.view.parts
        found.append(part.segment.nearest(mixture(20, seed=9), 50, part.selection(some))[1])
    assert gpu.requested
    np.testing.assert_array_equal(np.sort(found[0]), np.sort(found[1]))


@pytest.mark.parametrize("share", [0.3, 0.05])
def test_a_narrow_filter_is_not_asked_of_it(pair: Pair, gpu: Gpu, share: float) -> None:
    pair.check(10, np.flatnonzero(np.random.default_rng(6).random(ROWS) < share))
    assert not gpu.requested


def test_where_the_nearest_do_not_pass_the_cpu_looks_further(pair: Pair, gpu: Gpu) -> None:
    query = mixture(1, seed=7)
    far = np.sort(np.argsort(pair.vectors @ query[0])[: ROWS * 6 // 10])
    found = [index.search(query, 10, far) for index in (pair.cpu, pair.gpu)]
    assert gpu.requested
    np.testing.assert_array_equal(found[0][0][1], found[1][0][1])
    assert len(found[1][0][1]) == 10


def test_more_than_it_can_do_at_once_is_done_by_the_cpu(
    pair: Pair, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.check(LIMIT - ivf.FURTHER - 16 + 1, queries=2)
    monkeypatch.setattr(device, "LIMIT", 30)  # fewer lists than a search reads
    monkeypatch.setattr(ivf, "OVER", 1)
    pair.check(10)
    assert not gpu.requested
    assert pair.gpu.device == "cuda:0"


def test_one_thread_asks_it_whoever_searches(pair: Pair, gpu: Gpu) -> None:
    failures: list[BaseException] = []

    def search(seed: int) -> None:
        try:
            for k in range(1, 10):
                pair.check(k + seed)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=search, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not failures
    assert len(gpu.requested) == 36


def fails(message: str) -> Callable[[], None]:
    def trouble() -> None:
        raise RuntimeError(f"Error in … at GpuResources.cpp:200: Error: {message}\nand more")

    return trouble


def test_a_base_that_has_no_room_there_is_searched_on_the_cpu_and_the_next_one_is_tried_again(
    tmp_path: Path, owner: GpuThread, gpu: Gpu, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.trouble = fails("cudaMalloc error out of memory")
    pair = Pair(tmp_path, owner)
    assert "not on cuda:0 and is searched on the CPU" in caplog.text
    assert "cudaMalloc error out of memory" in caplog.text
    assert "GpuResources.cpp" not in caplog.text
    assert pair.gpu.device == "cpu"
    pair.check(10)
    assert not gpu.requested
    gpu.trouble = lambda: None
    pair.apply((firsts(range(ROWS, ROWS + 400)), mixture(400, seed=5)))
    assert pair.gpu.device == "cuda:0"
    pair.check(10)
    assert gpu.requested
    pair.close()


def test_one_that_fails_is_asked_no_more_and_every_search_is_answered(
    pair: Pair, gpu: Gpu, caplog: pytest.LogCaptureFixture
) -> None:
    pair.check(10)
    gpu.trouble = fails("an illegal memory access")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            pair.check(10)
    assert caplog.text.count("cuda:0 failed") == 1
    assert pair.gpu.device == "cpu"
    gpu.trouble = lambda: None
    gpu.requested.clear()
    pair.check(10)
    assert not gpu.requested


def test_one_that_hangs_is_waited_for_no_longer_than_it_should_take(
    pair: Pair, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device, "SEARCH_SECONDS", 0.05)
    go = threading.Event()
    gpu.trouble = lambda: assert_true(go.wait(LIMIT))
    pair.check(10)
    assert "has not answered for" in caplog.text
    assert pair.gpu.device == "cpu"
    go.set()


def assert_true(value: bool) -> None:
    assert value


def test_what_a_base_had_there_is_freed_before_another_takes_its_place(pair: Pair, gpu: Gpu) -> None:
    assert gpu.copies == 1
    for start in (ROWS, ROWS + 400):
        pair.apply((firsts(range(start, start + 400)), mixture(400, seed=start)))
    pair.check(10)
    assert gpu.copies == gpu.most == 1


def test_a_start_puts_the_base_of_a_snapshot_there(
    pair: Pair, tmp_path: Path, owner: GpuThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.close()
    monkeypatch.setattr(ivf, "_train", fails("trained again"))
    again = Index.load(
        DIMENSION, [(firsts(range(ROWS)), pair.vectors)], 1, IvfSnapshots(tmp_path, ORIGIN, owner)
    )
    assert (again.kind, again.device) == ("IVF,SQ8", "cuda:0")
    again.close()


def test_a_closed_owner_has_freed_all_and_the_cpu_answers(pair: Pair, gpu: Gpu, owner: GpuThread) -> None:
    owner.close()
    assert gpu.copies == 0
    pair.check(10)
    assert pair.gpu.device == "cpu"


def test_info_says_where_the_index_is_and_another_version_is_there_too(
    tmp_path: Path, owner: GpuThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []

    def given(needed: str) -> GpuThread:
        requested.append(needed)
        return owner

    monkeypatch.setattr("service.runtime.runtime.open_gpu", given)
    monkeypatch.setattr(maintenance, "BASE_ROWS", 50)
    published(tmp_path / "models", 3)
    place = Place(tmp_path)
    with place.serving(index_device="cuda:0") as client:

        def told() -> object:
            return client.get("/info").json()["index"]["device"]

        assert (told(), requested) == ("cpu", ["cuda:0"])
        place.fill()
        place.until(lambda: told() == "cuda:0")
        place.activate(place.b)
        place.until(lambda: told() == "cuda:0")


def test_the_cpu_needs_no_owner() -> None:
    assert find("cpu") is None
    assert open_gpu("cpu") is None


@pytest.mark.skipif(HAS_GPU_PART, reason="this FAISS has a part for GPUs")
@pytest.mark.parametrize("needed", ["cuda", "cuda:1"])
def test_a_faiss_without_a_part_for_gpus_is_refused_with_the_extra_that_brings_it(needed: str) -> None:
    with pytest.raises(StartupError, match=rf"SIMILE_INDEX_DEVICE={needed}: .*not support GPUs.*docs/GPU.md"):
        find(needed)


def test_a_gpu_that_is_not_there_is_refused_at_the_start_and_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    settings = Settings(data_dir=tmp_path / "data", index_device="cuda", cache_mb=0)
    for refused in (lambda: check.report(settings), create_app(settings).state.runtime.open):
        with pytest.raises(StartupError, match="SIMILE_INDEX_DEVICE=cuda: FAISS finds no GPU"):
            refused()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    assert (find("cuda"), find("cuda:1")) == (0, 1)
    assert "large ones searched on GPU 0" in check.report(settings)
    with pytest.raises(StartupError, match="cuda:2: FAISS finds 2 GPUs, numbered from 0"):
        find("cuda:2")


def test_a_gpu_that_cannot_be_opened_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss, "StandardGpuResources", fails("no kernel image"), raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    with pytest.raises(StartupError, match=r"SIMILE_INDEX_DEVICE=cuda cannot be used: no kernel image$"):
        open_gpu("cuda")
    assert "index-device" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("needed", ["gpu", "cuda:", "cuda:x", "0", "CPU"])
def test_a_device_that_there_cannot_be_is_refused_by_its_name(needed: str) -> None:
    with pytest.raises(ValueError, match=f"SIMILE_INDEX_DEVICE={needed}: name `cpu`"):
        Settings(index_device=needed)


@pytest.mark.skipif(
    not (HAS_GPU_PART and faiss.get_num_gpus()), reason="there is no GPU that this FAISS can use"
)
def test_on_a_real_gpu_nearly_every_answer_is_the_cpus(tmp_path: Path) -> None:
    owner = open_gpu("cuda")
    assert owner is not None
    pair = Pair(tmp_path, owner)
    assert pair.gpu.device == "cuda:0"
    pair.apply((firsts(range(ROWS, ROWS + 50)), mixture(50, seed=5)), np.arange(0, 400))
    shares = []
    for allowed in (None, np.flatnonzero(np.random.default_rng(6).random(ROWS) < 0.8)):
        queries = mixture(100, seed=8)
        answers = [index.search(queries, 10, allowed) for index in (pair.cpu, pair.gpu)]
        for (scores, names), (again, others) in zip(*answers, strict=True):
            both = np.intersect1d(names, others)
            np.testing.assert_array_equal(scores[np.isin(names, both)], again[np.isin(others, both)])
            shares.append(len(both) / len(names))
    assert pair.gpu.device == "cuda:0", "it failed"
    assert np.mean(shares) > 0.99  # Sums in another order may tie differently.
    pair.close()
    owner.close()
