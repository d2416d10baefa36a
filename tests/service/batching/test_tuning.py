"""How many workers: by hand, remembered, measured; and when nothing can be learnt, one for each processor."""

import json
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models import cpus
from models.encoder import Encoder
from models.store import Store
from service.app import create_app
from service.batching import tuning
from service.batching.tuning import Layout, Slice, choose, known, layouts, measure, tune
from service.cli.check import report
from service.errors import StartupError
from service.runtime.runtime import Runtime
from service.settings import Settings
from tests.service.conftest import new_settings, serving
from tests.service.fakes import CountingEncoder


class Engine(CountingEncoder):
    """Its passes take what `seconds_of` says for its threads, and no processor."""

    closed = False

    def __init__(self, threads: int, seconds: float) -> None:
        super().__init__(seconds=seconds)
        self.threads = threads

    def close(self) -> None:
        self.closed = True


def engines(seconds_of: Callable[[int], float], opened: list[Engine]) -> Callable[[int], Encoder]:
    def open_encoder(threads: int) -> Encoder:
        opened.append(Engine(threads, seconds_of(threads)))
        return opened[-1].as_encoder()

    return open_encoder


def slices(share: float = 1.0, **rates: float) -> dict[Layout, list[Slice]]:
    """`w4x1=10` for a rate of 10 with four workers of one thread."""
    return {
        Layout(*map(int, name[1:].split("x"))): [Slice(0.5 * rate, 0.5 * share), Slice(rate, share)]
        for name, rate in rates.items()
    }


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of four processors, as far as anyone asks."""
    monkeypatch.setattr(cpus, "available", lambda: 4)


def test_the_cpu_can_be_asked_for_where_the_package_is_the_one_for_gpus(
    four: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime-gpu brings the module onnxruntime, and no package of that name."""
    found = metadata.Distribution.from_name

    def from_name(name: str) -> metadata.Distribution:
        if name == "onnxruntime":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata.Distribution, "from_name", from_name)
    assert known(settings_in(tmp_path)).layout == Layout(4, 1)


def settings_in(folder: Path, **others: Any) -> Settings:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    return Settings(data_dir=folder / "data", models_dir=folder / "models", **others)


def test_one_thread_each_two_each_and_all_for_one_are_compared() -> None:
    assert layouts(2) == [(2, 1), (1, 2)]
    assert layouts(3) == [(3, 1), (1, 2), (1, 3)]
    assert layouts(8) == [(8, 1), (4, 2), (1, 8)]


def test_the_fastest_is_taken_when_it_is_clearly_faster() -> None:
    assert choose(slices(w4x1=100, w2x2=105, w1x4=60), 4).layout == (4, 1)
    assert choose(slices(w4x1=100, w2x2=111, w1x4=60), 4).layout == (2, 2)
    assert choose(slices(w4x1=100, w2x2=111, w1x4=120), 4).layout == (1, 4)
    assert "4x1 100, 2x2 111" in choose(slices(w4x1=100, w2x2=111), 4).reason


def test_a_layout_that_there_was_no_time_for_is_not_taken() -> None:
    found = slices(w4x1=100)
    assert choose({**found, Layout(2, 2): [], Layout(1, 4): []}, 4).layout == (4, 1)


def test_while_others_use_the_machine_one_thread_each_is_taken_and_that_is_said() -> None:
    found = choose(slices(share=0.7, w4x1=100, w2x2=300), 4)
    assert found.layout == (4, 1)
    assert "others used the machine" in found.reason
    assert found.settled, "the second start is not slowed"
    nothing = choose({Layout(4, 1): [], Layout(2, 2): []}, 4)
    assert nothing.layout == (4, 1)


def test_what_is_measured_is_what_all_workers_get_done_together() -> None:
    opened: list[Engine] = []
    found = measure(layouts(4), engines(lambda threads: 0.02 / threads, opened))
    rates = {layout: max(one.batches_per_second for one in found[layout]) for layout in found}
    for rate in rates.values():
        assert 120 < rate < 205, "each layout computes 200 batches a second"
    assert [engine.threads for engine in opened] == [1, 2, 4]
    assert all(engine.closed for engine in opened)
    assert all(one.share < 0.5 for one in found[Layout(4, 1)]), "sleeping takes no processor"


def test_a_slow_model_is_measured_for_a_few_seconds_and_no_longer() -> None:
    opened: list[Engine] = []
    started = time.monotonic()
    found = measure(layouts(4), engines(lambda threads: 0.8, opened))
    assert time.monotonic() - started < 5
    assert 1 <= len(found[Layout(4, 1)]) <= 3
    assert not found[Layout(1, 4)]


def test_what_is_set_by_hand_counts_and_nothing_is_measured(tmp_path: Path, four: None) -> None:
    for given, layout in (
        ({"workers": 3}, (3, 1)),
        ({"threads": 2}, (2, 2)),
        ({"threads": 8}, (1, 8)),
        ({"workers": 3, "threads": 2}, (3, 2)),
    ):
        found = known(settings_in(tmp_path, **given))
        assert found.layout == layout
        assert found.settled
        assert "set by" in found.reason


def test_one_processor_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "available", lambda: 1)
    assert known(settings_in(tmp_path)) == (Layout(1, 1), "one processor", True)


def test_what_was_measured_is_remembered_for_this_machine_and_form(
    tmp_path: Path, four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(tmp_path)
    first = known(settings)
    assert (first.layout, first.settled) == ((4, 1), False)
    monkeypatch.setattr(tuning, "BUSY_SHARE", 0.0)
    measured = tune(settings, engines(lambda threads: 0.02 / threads**2, []))
    assert measured.layout == (1, 4)
    assert known(settings) == measured
    monkeypatch.setattr(cpus, "available", lambda: 8)
    assert not known(settings).settled
    monkeypatch.setattr(cpus, "available", lambda: 4)
    monkeypatch.setattr(tuning, "_cpu", lambda: "another processor")
    assert not known(settings).settled


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: "",
        lambda kept: "[1, 2]",
        lambda kept: json.dumps(kept)[:-20],
        lambda kept: json.dumps({**kept, "workers": 0}),
        lambda kept: json.dumps({**kept, "workers": 10_000}),
        lambda kept: json.dumps({**kept, "threads": "2"}),
        lambda kept: json.dumps({**kept, "key": {**kept["key"], "onnxruntime": "0.1"}}),
        lambda kept: json.dumps({key: kept[key] for key in kept if key != "reason"}),
        lambda kept: "\x00\xff",
    ],
)
def test_a_damaged_or_foreign_file_is_measured_anew(
    tmp_path: Path, four: None, monkeypatch: pytest.MonkeyPatch, damage: Callable[[dict[str, Any]], str]
) -> None:
    monkeypatch.setattr(tuning, "MOST_SECONDS", 0.05)
    settings = settings_in(tmp_path)
    tune(settings, engines(lambda threads: 0.001, []))
    file = settings.data_dir / tuning.FILE
    assert known(settings).settled
    file.write_text(damage(json.loads(file.read_text())), encoding="latin-1")
    assert not known(settings).settled


def test_the_first_start_measures_and_the_second_takes_what_it_found(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "available", lambda: 2)
    monkeypatch.setattr(tuning, "SLICE_SECONDS", 0.01)
    monkeypatch.setattr(tuning, "BUSY_SHARE", 0.0)
    monkeypatch.setattr(tuning, "CLEARLY_FASTER", 0.0)  # so that whichever wins, it is not for being plain
    rates = {Layout(2, 1): [Slice(1, 1)], Layout(1, 2): [Slice(2, 1)]}
    measured: list[dict[Layout, list[Slice]]] = []

    def biased(*arguments: Any) -> dict[Layout, list[Slice]]:
        measured.append(measure(*arguments))
        return rates

    monkeypatch.setattr(tuning, "measure", biased)
    settings = new_settings(tmp_path, tiny_models_dir)
    first = Runtime(settings)
    first.open()
    first.tune()
    assert all(measured[0].values()), "there was time for both"
    assert first.live.generation.encoder.threads == 2
    assert np.isfinite(first.live.generation.encoder.encode(["still open"]).vectors).all()
    first.live.close()
    assert first._data_lock is not None
    first._data_lock.release()

    app = create_app(settings)
    app.state.runtime.open()
    app.state.runtime.tune()
    assert len(measured) == 1, "the second start measures nothing"
    assert app.state.runtime.live.generation.encoder.threads == 2
    app.state.runtime.live.close()
    app.state.runtime._data_lock.release()
    with serving(settings) as client:
        info = client.get("/info").json()
        assert (info["threads"], info["workers"]["workers"], info["workers"]["threads"]) == (2, 1, 2)
        assert info["workers"]["reason"].startswith("measured")
        assert client.post("/embed", json={"inputs": "red river"}).status_code == 200
    assert "1x2 (measured" in report(settings)


def test_a_measurement_that_breaks_stops_no_start(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "available", lambda: 2)

    def broken(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(tuning, "replace_text", broken)
    monkeypatch.setattr(tuning, "MOST_SECONDS", 0.05)
    runtime = Runtime(new_settings(tmp_path, tiny_models_dir))
    runtime.open()
    runtime.tune()
    assert runtime.tuning.layout == (2, 1)
    assert np.isfinite(runtime.live.generation.encoder.encode(["open"]).vectors).all()
    runtime.live.close()
    assert runtime._data_lock is not None
    runtime._data_lock.release()


def test_a_model_that_cannot_be_opened_again_after_the_measurement_is_served_as_it_was(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "available", lambda: 2)
    chosen = tuning.Tuning(Layout(1, 2), "measured", settled=True)

    def broken(*_: object, **__: object) -> None:
        raise MemoryError("injected")

    monkeypatch.setattr(tuning, "tune", lambda *_: chosen)
    runtime = Runtime(new_settings(tmp_path, tiny_models_dir))
    runtime.open()
    monkeypatch.setattr(Store, "open", broken)
    runtime.tune()
    assert runtime.tuning.layout == (2, 1), "it says what is not so"
    assert np.isfinite(runtime.live.generation.encoder.encode(["still open"]).vectors).all()
    runtime.live.close()
    assert runtime._data_lock is not None
    runtime._data_lock.release()


def test_the_command_measures_the_wanted_version_and_says_when_there_is_none(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "MOST_SECONDS", 0.05)
    with pytest.raises(StartupError, match="no version yet"):
        tuning.run(settings_in(tmp_path / "empty"))
    settings = new_settings(tmp_path, tiny_models_dir)
    settings.data_dir.mkdir()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(tuning, "form_for", lambda *_: "bf16/openvino")
        with pytest.raises(StartupError, match="Only fp32 on the CPU"):
            tuning.run(settings)
    assert "from the next start on" in tuning.run(settings)
    assert (settings.data_dir / tuning.FILE).is_file()
    by_hand = settings.model_copy(update={"workers": 3})
    assert "SIMILE_THREADS counts" in tuning.run(by_hand)
