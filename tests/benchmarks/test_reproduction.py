"""A reproduction that was stopped: what is there counts, and half of a run does not."""

from __future__ import annotations

import gzip
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from benchmarks.places import rows
from benchmarks.reproduction import Bench
from benchmarks.workloads import WIKIPEDIA
from tests.training.run_cases import stop_after
from training.errors import Interrupted
from training.runs.log import FILE_NAME as RECORD


def written(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


def begun(folder: Path, **changed: Any) -> Bench:
    """The bench of the command, with three steps from each stage."""
    data = folder / "data"
    pairs = (f"g\ts\t2020\t{at}\t{at}\tw{at} w1\tw{at} w{at + 1}" for at in range(5))
    written(data / "stsb" / "dev.tsv.gz", "genre\tsource\tyear\tindex\tscore\tsentence1\tsentence2", *pairs)
    written(data / WIKIPEDIA, "sentence", *(f"w{at % 7} w{at % 5} w{at % 3} {at}" for at in range(200)))
    options = {
        "data": data, "work": folder / "work", "out": folder / "out.jsonl", "seeds": [1], "stages": [1, 2],
        "base": None, "stage": None, "set": [], "texts": 150, "batch": 4, "lr": 5e-4, "steps": 3,
        "eval_steps": 1, "threads": 1,
    }  # fmt: skip
    return Bench(Namespace(**options | changed))


@pytest.fixture
def start(tmp_path: Path, tiny_source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a reproduction whose backbone is there, so that none is drawn from the default model."""
    monkeypatch.setattr("benchmarks.reproduction.SENTENCES", 150)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "blank").symlink_to(tiny_source)
    return tmp_path


def test_a_stopped_run_is_no_line_and_a_stopped_stage_is_none(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 2)  # the stages have a step each, and SimCSE has three
        with pytest.raises(Interrupted, match="same command"):
            begun(start).ladder()
    assert rows(start / "out.jsonl") == []
    with monkeypatch.context() as patched:
        stop_after(patched, 1)
        with pytest.raises(Interrupted):
            begun(start, seeds=[]).ladder()
    assert [path.name for path in (start / "work").glob("mlm-*")] == ["mlm-1"]
    begun(start).ladder()
    found = rows(start / "out.jsonl")
    assert [line["stage"] for line in found] == ["mlm-1", "mlm-1", "mlm-2", "mlm-2"]
    assert all([*line["dev"]] == ["0", "1", "2", "3"] for line in found)


def test_a_ladder_from_a_base_has_stages_of_its_own_and_a_climb_reads_what_it_is_told_and_goes_on(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = (start / "work" / "blank").rename(start / "work" / "given")
    begun(start, base=base, stages=[1], texts=100).ladder()
    climb = begun(start, base=base, stages=[1], texts=200, set=["optim.lr=1e-5", "optim.batch=32"]).climb
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        with pytest.raises(Interrupted, match="same command"):
            climb()
    climb()
    found = rows(start / "out.jsonl")
    assert [path.name for path in (start / "work").glob("*-*")] == ["given-1"]
    assert [(line["part"], line["stage"], line["name"], line["texts"], line["batch"]) for line in found] == [
        ("ladder", "given-1", "mlp in training", 100, 64),
        ("ladder", "given-1", "none", 100, 64),
        ("climb", "given-1", "optim.lr=1e-5, optim.batch=32", 200, 32),
    ]
    (run,) = (start / "work" / "climbs").iterdir()
    steps = [event["step"] for event in rows(run / RECORD) if event["event"] == "step"]
    assert steps == [1, 2, 3, 4, 5, 6]  # each once: the second call went on from the third
    assert [*found[-1]["dev"]] == ["0", "2", "4", "6"]
    assert (run / "last").is_dir()
