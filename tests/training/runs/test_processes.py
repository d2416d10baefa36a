"""Two processes train as one does, with equal losses, gradients and weights. They end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tests.training import world_process
from tests.training.recipe_cases import WORDS, raw_source
from tests.training.run_cases import events, losses
from tests.training.world_process import CASES, STEPS, found_by, recipe_of, trainer_for
from tests.waiting import LIMIT, until
from training.methods.recipe import load_recipe
from training.runfile import Result
from training.runs.command import train
from training.runs.options import Options
from training.runs.processes import World, own_device
from training.text.corpus import read_corpus

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
TORCHRUN += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # a port of its own
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


class Two(NamedTuple):
    folder: Path
    answers: list[dict[str, Any]]  # Of each process, by rank.
    said: str


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    folder = tmp_path_factory.mktemp("world")
    raw_source(folder / "base")
    done = subprocess.run(
        [*TORCHRUN, world_process.__file__, str(folder)],
        env=ENVIRONMENT,
        cwd=ROOT,
        timeout=LIMIT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    return Two(folder, answers, done.stderr)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_have_the_losses_gradients_and_weights_of_one(two: Two, case: str) -> None:
    torch.set_num_threads(1)
    alone = found_by(trainer_for(two.folder / "base", recipe_of(*CASES[case])))
    both = [load_file(two.folder / f"{case}.{rank}.safetensors") for rank in (0, 1)]
    assert both[0].keys() == both[1].keys() == alone.keys()
    assert sum(name.startswith("gradient.0.") for name in alone) > 0
    for name, expected in alone.items():
        assert torch.equal(both[0][name], both[1][name]), f"{name} differs between the processes"
        scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
        difference = (both[0][name] - expected).abs().max().item() if expected.numel() else 0.0
        # Shares of a batch are summed in another order: 32 x eps / 2 in a cosine, over the temperature 0.05.
        assert difference < 5e-5 * scale, (name, difference, scale)
    steps = [alone[f"loss.{number}"].item() for number in range(STEPS)]
    assert steps[0] != steps[1]


def test_a_batch_is_shared_out_whole_and_evenly() -> None:
    for count in range(1, 20):
        for size in range(1, 9):
            shares = [range(count)[World(rank, size).share(count)] for rank in range(size)]
            assert [text for share in shares for text in share] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_processes_know_whether_they_agree(two: Two) -> None:
    for answers in two.answers:
        assert answers["agree"]
        assert not answers["differ"]


def test_what_one_process_raises_ends_the_other_as_well(two: Two) -> None:
    other = "Another process of this run cannot go on, and says why."
    assert [answers["fails 0"] for answers in two.answers] == ["0 alone", other]
    assert [answers["fails 1"] for answers in two.answers] == [other, "1 alone"]


def test_what_is_refused_is_refused_by_both_and_leaves_nothing(two: Two) -> None:
    for answers in two.answers:
        assert answers["out-texts"] == 0
        assert (answers["out-alike"], answers["out-alike left"]) == (1, False)
        assert (answers["out-own"], answers["out-own left"]) == (1, False)
        assert (answers["no chunks"], answers["out-mlm left"]) == (1, False)
        assert answers["again"] == answers["no folder"] == 1
        assert answers["finished"] == 0
    assert two.said.count("No two of the texts differ in their first 32 tokens") == 2
    assert two.said.count("do not have the same recipe, corpus and base") == 2
    assert two.said.count("2 steps, loss") == 2, "the first process alone says so: at the end, and resumed"


def test_each_process_has_a_gpu_of_its_own_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert own_device("auto") == "auto", "alone there is nothing to share out"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [own_device(name) for name in ("auto", "cuda", "cuda:0", "cpu")] == ["cuda:1"] * 2 + [
        "cuda:0",
        "cpu",
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_device("auto") == "auto"


class Command(NamedTuple):
    """A training under torchrun that was stopped by Ctrl-C and resumed, and the same one in one process."""

    out: Path
    status: int
    seconds: float  # from Ctrl-C to the end
    left: set[str]  # the files of the run that was stopped
    steps: int  # Steps before the stop.
    resumed: subprocess.CompletedProcess[str]
    alone: Result


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    folder = tmp_path_factory.mktemp("command")
    base, out = raw_source(folder / "base"), folder / "out"
    file = folder / "corpus.txt"
    file.write_text("\n".join(WORDS))
    recipe = load_recipe("simcse-unsup", {"dropout": 0.0, "optim.epsilon": 1e-2, "optim.batch": 5})
    options = Options(steps=60, precision="fp32", threads=1)
    alone = train(recipe, read_corpus(file), base, folder / "alone", options)
    given = ["-m", "training", "train", "simcse-unsup", "--corpus", str(file), "--base", str(base)]
    given += ["--out", str(out), "--data", str(folder), "--steps", "60", "--batch", "5"]
    given += ["--precision", "fp32", "--threads", "1"]
    given += ["--set", "dropout=0.0", "--set", "optim.epsilon=1e-2"]
    process = subprocess.Popen([*TORCHRUN, *given], env=ENVIRONMENT, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        record = out / "record.jsonl"
        until(lambda: process.poll() is not None or (record.exists() and events(out, "step")))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        status = process.wait(LIMIT)
        seconds = time.monotonic() - began
    finally:
        process.kill()
    left = {path.name for path in out.iterdir()}
    steps = events(out, "pause")[0]["step"]
    resumed = subprocess.run(
        [*TORCHRUN, *given, "--resume"],
        env=ENVIRONMENT,
        cwd=ROOT,
        timeout=LIMIT,
        capture_output=True,
        text=True,
        check=False,
    )
    return Command(out, status, seconds, left, steps, resumed, alone)


def test_ctrl_c_ends_both_processes_after_their_step(command: Command) -> None:
    assert command.status != 0
    assert command.seconds < 25, "torchrun kills after 30 seconds what does not end by itself"
    assert {"run.json", "record.jsonl", "checkpoint.safetensors"} <= command.left
    assert not {"best", "last"} & command.left
    assert 10 <= command.steps < 60


def test_a_run_of_two_processes_resumed_is_that_of_one(command: Command) -> None:
    assert command.resumed.returncode == 0, command.resumed.stderr[-2000:]
    assert {path.name for path in command.out.iterdir()} == {"run.json", "record.jsonl", "best", "last"}
    assert len(events(command.out, "start")) == len(events(command.out, "end")) == 1
    assert [line["step"] for line in events(command.out, "resume")] == [command.steps]
    found = json.loads((command.out / "run.json").read_text())
    assert found["finished"]["done"] == 60
    alone = losses(command.alone)
    both = {line["step"]: line["loss"] for line in events(command.out, "step")}
    assert both.keys() == alone.keys()
    assert both == pytest.approx(alone, rel=1e-4)
    assert command.resumed.stderr.count(f"resuming after step {command.steps}") == 1
