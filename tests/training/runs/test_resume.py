"""A run that was stopped or killed goes on as if it had not been; no other run does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import Run
from tests.training.run_cases import command, events, losses, stop_after, weights
from tests.waiting import LIMIT, until
from training.errors import TrainingError
from training.runs.loop import _Run
from training.runs.step import Step, Trainer
from training.text.corpus import Corpus


def test_a_resumed_run_ends_with_the_same_losses_and_weights_bit_for_bit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run("straight")
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        stopped = run("stopped")
    assert (stopped.interrupted, stopped.steps) == (True, 3)
    assert not stopped.last.exists()
    resumed = run("stopped", resume=True)
    assert (resumed.interrupted, resumed.steps) == (False, 6)
    assert losses(resumed) == losses(straight)
    assert weights(resumed.last) == weights(straight.last)
    assert weights(resumed.last).keys() == weights(straight.last).keys()
    assert [line["step"] for line in events(resumed.out, "resume")] == [3]


def test_a_killed_run_loses_only_the_steps_since_its_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run("straight")

    class Killed(BaseException):
        pass

    whole = Trainer.step

    def killed(self: Trainer, number: int) -> Step:
        if number == 5:
            raise Killed
        return whole(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", killed)
        with pytest.raises(Killed):
            run("killed", checkpoint_steps=2)
    resumed = run("killed", checkpoint_steps=2, resume=True)
    assert [line["step"] for line in events(resumed.out, "resume")] == [4]
    assert weights(resumed.last) == weights(straight.last)


def test_a_run_killed_before_its_first_checkpoint_begins_again(run: Run, tmp_path: Path) -> None:
    straight = run("straight")
    (tmp_path / "killed").mkdir()
    unfinished = json.loads((straight.out / "run.json").read_text())
    del unfinished["finished"]
    (tmp_path / "killed" / "run.json").write_text(json.dumps(unfinished))
    assert weights(run("killed", resume=True).last) == weights(straight.last)


def test_a_damaged_checkpoint_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        out = run("stopped").out
    file = out / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TrainingError, match="not a checkpoint of this run"):
        run("stopped", resume=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 43}, "another seed"),
        ({"steps": 7}, "another number of steps"),
        ({"batch": 8}, "another recipe"),
        ({"precision": "bf16"}, "another precision"),
        ({"corpus": Corpus.of(["river", "stone"], "words")}, "another corpus"),
    ],
)
def test_another_run_is_not_resumed(run: Run, changed: dict[str, Any], words: str) -> None:
    run("out")
    with pytest.raises(TrainingError, match=f"holds a run with {words}"):
        run("out", resume=True, **changed)


def test_a_folder_that_is_in_use_is_not_written_over(run: Run, tmp_path: Path) -> None:
    before = weights(run("out").last)
    with pytest.raises(TrainingError, match=r"holds a run already. Continue it with --resume"):
        run("out", seed=1)
    assert weights(tmp_path / "out" / "last") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(TrainingError, match="not an empty folder"):
        run("mine")
    with pytest.raises(TrainingError, match="holds no run"):
        run("new", resume=True)
    assert not (tmp_path / "new").exists()


def test_a_finished_run_is_not_run_again(run: Run) -> None:
    first = run("out")
    assert run("out", resume=True) == first
    assert not events(first.out, "resume")


def test_nothing_is_pickled_and_the_checkpoint_goes_when_the_run_is_finished(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        out = run("out").out
    names = {path.name for path in out.rglob("*") if path.is_file()}
    assert names == {"run.json", "record.jsonl", "checkpoint.safetensors", "tokens.ids", "tokens.starts"}
    run("out", resume=True)
    suffixes = {path.suffix for path in out.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".jsonl", ".safetensors"}
    assert not (out / "checkpoint.safetensors").exists()


def goes_on_until(process: subprocess.Popen[str], true: Callable[[], bool]) -> None:
    until(lambda: process.poll() is not None or true(), pause=0.05)
    assert process.poll() is None, process.communicate()[1]


@pytest.mark.long
def test_ctrl_c_in_a_real_process_can_be_resumed(tmp_path: Path, tiny_source: Path, corpus: Corpus) -> None:
    arguments = command(tmp_path, tiny_source, corpus, "--steps", "100000", "--threads", "1", "--batch", "8")
    process = subprocess.Popen(
        [sys.executable, "-m", "training", *arguments], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    record = tmp_path / "out" / "record.jsonl"
    goes_on_until(process, lambda: record.exists() and '"step"' in record.read_text())
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 130, said
    assert "the same command with --resume goes on" in said
    done = events(tmp_path / "out", "pause")[0]["step"]
    again = [sys.executable, "-m", "training", *arguments, "--resume"]
    process = subprocess.Popen(again, stderr=subprocess.PIPE, text=True, env=os.environ)
    goes_on_until(process, lambda: bool(events(tmp_path / "out", "resume")))
    told = len(events(tmp_path / "out", "step"))
    goes_on_until(process, lambda: len(events(tmp_path / "out", "step")) > told)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 130, said
    assert events(tmp_path / "out", "resume")[0]["step"] == done
    assert events(tmp_path / "out", "pause")[1]["step"] > done


def test_the_loop_s_folder_is_whole_or_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _Run._save

    def killed(self: _Run, name: str) -> None:
        monkeypatch.setattr(self._trainer.encoder, "save", lambda folder: 1 / 0)
        whole(self, name)

    monkeypatch.setattr(_Run, "_save", killed)
    with pytest.raises(ZeroDivisionError):
        run("out", steps=1, checkpoint_steps=1)
    monkeypatch.undo()
    result = run("out", steps=1, resume=True)
    assert sorted(path.name for path in result.out.iterdir()) == ["best", "last", "record.jsonl", "run.json"]


def test_a_run_with_the_precision_left_open_goes_on_in_the_one_that_it_was_begun_in(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is slow in bf16 finds the run of one that is fast at it, and the other way round."""
    for begun, here in (("bf16", False), ("fp32", True)):
        monkeypatch.setattr("training.runs.loop.use_bf16", lambda _, __, fast=not here: fast)
        straight = run(f"straight-{begun}", precision="auto")
        with monkeypatch.context() as patched:
            stop_after(patched, 3)
            run(f"stopped-{begun}", precision="auto")
        monkeypatch.setattr("training.runs.loop.use_bf16", lambda _, __, fast=here: fast)
        said: list[str] = []
        resumed = run(f"stopped-{begun}", precision="auto", resume=True, say=said.append)
        assert losses(resumed) == losses(straight)
        assert f"the run was begun in {begun} and goes on in it; a new one would not, on this machine" in said
        with pytest.raises(TrainingError, match="holds a run with another precision"):
            run(f"stopped-{begun}", precision="fp32" if begun == "bf16" else "bf16", resume=True)
