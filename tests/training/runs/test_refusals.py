"""What a training refuses, in one line, and what it leaves behind then: nothing."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.graph.head import Dense
from models.sources.folder import read_source
from models.store import Store
from tests.training.conftest import Run
from tests.training.run_cases import command, stop_after, weights
from training.__main__ import main
from training.errors import NothingToLearn, TrainingError
from training.methods.recipe import Recipe
from training.model.encoder import digest_of
from training.runs.export import export_run
from training.runs.step import Trainer
from training.text.corpus import Corpus


@contextmanager
def files_of_at_most(count: int) -> Iterator[None]:
    """Longer files cannot be written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_same_texts_in_another_order_are_the_same_run(run: Run, corpus: Corpus) -> None:
    turned = Corpus.of(reversed(corpus.texts), "words")
    assert turned.digest == corpus.digest
    assert weights(run("a").last) == weights(run("b", corpus=turned).last)


def test_a_base_that_cannot_be_used_leaves_nothing_behind(
    run: Run, tiny_source: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny_source, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    with pytest.raises(TrainingError, match=r"has no model\.safetensors to train from"):
        run("out", base=broken)
    assert not (tmp_path / "out").exists()


def test_a_device_that_makes_no_run_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="The device 'meta' is not there: name auto, cpu, cuda or cuda:N"):
        run("out", device="meta")
    assert not (tmp_path / "out").exists()


def test_a_seed_that_is_too_large_is_wrong_usage(
    tmp_path: Path, tiny_source: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(command(tmp_path, tiny_source, corpus, "--seed", str(1 << 63)))
    assert "is not a whole number from 0 to 9223372036854775807" in capsys.readouterr().err


def test_texts_that_are_equal_at_the_training_length_are_nothing_to_learn(
    run: Run, recipe: Recipe, tmp_path: Path
) -> None:
    same_begin = Corpus.of(["cat dog river", "cat dog stone"], "words")
    with pytest.raises(NothingToLearn, match="No two of the texts differ in their first 4 tokens"):
        run("out", corpus=same_begin, recipe=replace(recipe, max_length=4))
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_told_at_the_checkpoint_and_at_the_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        with files_of_at_most(20_000), pytest.raises(TrainingError, match=r"checkpoint.* cannot be written"):
            run("stopped")
    assert {path.name for path in (tmp_path / "stopped").glob("*.json*")} == {"run.json", "record.jsonl"}
    with (
        files_of_at_most(20_000),
        pytest.raises(TrainingError, match=r"model\.safetensors cannot be written"),
    ):
        run("ended")
    assert not (tmp_path / "ended" / "last").exists()


def test_too_little_memory_names_the_batch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Trainer, number: int) -> tuple[float, int]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore words.")

    monkeypatch.setattr(Trainer, "step", full)
    with pytest.raises(
        TrainingError, match=r"too little memory \(CUDA out .*GiB.\). Give --chunk, or lower --batch"
    ):
        run("out")


@pytest.mark.parametrize("lost", ["parent", "code", "finished.loss", "finished.dev"])
def test_a_run_json_without_what_export_needs_is_refused_by_its_name(
    run: Run, tmp_path: Path, lost: str
) -> None:
    file = run("out", steps=1).out / "run.json"
    content = json.loads(file.read_text())
    inner, key = (content["finished"], lost.split(".")[1]) if "." in lost else (content, lost)
    del inner[key]
    file.write_text(json.dumps(content))
    with pytest.raises(TrainingError, match=f"run.json .* lacks {lost}"):
        export_run(tmp_path / "out", Store(tmp_path / "models"))


def test_a_base_that_names_no_home_or_the_active_version_is_refused(
    tmp_path: Path, tiny_source: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(tmp_path, tiny_source, corpus)
    for base, message in (
        ("~nosuchuser/x", "There is no home folder for '~nosuchuser' in ~nosuchuser/x"),
        ("active", "`active` is for retrain; name a version"),
    ):
        arguments[arguments.index("--base") + 1] = base
        assert main(arguments) == 1
        assert message in capsys.readouterr().err


def test_the_digest_of_a_base_covers_its_dense_layers(tiny_source: Path) -> None:
    source = read_source(tiny_source)

    def digest(*dense: Dense) -> str:
        return digest_of(replace(source, head=replace(source.head, layers=dense)))

    weight, bias = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    known = [
        digest(),
        digest(Dense(weight, bias, "tanh")),
        digest(Dense(weight, bias, "identity")),
        digest(Dense(weight, None, "tanh")),
        digest(Dense(2 * weight, bias, "tanh")),
        digest(Dense(weight, bias + 1, "tanh")),
    ]
    assert len(set(known)) == len(known)
    assert digest(Dense(weight, bias, "tanh")) == known[1]


@pytest.mark.long
def test_a_wrong_name_fails_before_torch_is_imported() -> None:
    code = (
        "import sys; from training.__main__ import main; status = main(sys.argv[1:]); "
        "sys.exit(10 if 'torch' in sys.modules else status)"
    )
    for recipe, corpus in (("simcse-unsupp", "pyproject.toml"), ("simcse-unsup", "no-such-corpus.txt")):
        arguments = ["train", recipe, "--corpus", corpus, "--out", "no-such-run"]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stderr
        assert "There is no" in done.stderr
