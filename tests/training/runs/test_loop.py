"""A run from begin to end: it learns, it is watched, and it is the same run each time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from models import cpus
from tests.tiny import MAX_LENGTH
from tests.training.conftest import RECIPE_TEXT, Run, read_recipe
from tests.training.run_cases import command, events, losses, weights
from training.__main__ import main
from training.errors import TrainingError
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe, load_recipe
from training.methods.sources import Given, Rows
from training.runfile import Result
from training.runs.device import give_back
from training.runs.processes import World
from training.runs.step import Step, Trainer
from training.text.corpus import Corpus


def test_thirty_steps_teach_the_tiny_model_its_corpus(run: Run, recipe: Recipe) -> None:
    faster = replace(recipe, optim=replace(recipe.optim, lr=3e-3))
    found = losses(run("out", recipe=faster, steps=30, batch=64))
    assert found[30] < 0.5 * found[1], found
    assert len(found) == 30


def test_a_seed_is_one_run_and_another_seed_another(run: Run) -> None:
    first, again, other = run("a"), run("b"), run("c", seed=43)
    assert losses(first) == losses(again)
    assert weights(first.last) == weights(again.last)
    assert losses(first)[1] != losses(other)[1]
    assert weights(first.last) != weights(other.last)


def test_the_steps_are_those_of_adamw_on_clipped_gradients(
    run: Run, recipe: Recipe, corpus: Corpus, tiny_source: Path
) -> None:
    optim = replace(recipe.optim, lr=1e-3, batch=16, clip=0.01, weight_decay=0.1)
    recipe = replace(recipe, dropout=0.0, optim=optim)
    found = load_file(run("out", recipe=recipe, steps=3).last / "model.safetensors")

    encoder, _ = load_encoder(tiny_source, recipe, torch.device("cpu"))
    rows = Rows(Given(corpus, encoder.tokenizer(32), batch=16, steps=3, seed=recipe.seed))
    named = dict(encoder.backbone.named_parameters())
    moments = {name: [torch.zeros_like(parameter)] * 2 for name, parameter in named.items()}
    for step in range(3):
        batch = rows.batch(step)
        vectors = torch.nn.functional.normalize(encoder(batch.columns[0]).pooled, dim=-1)
        loss = torch.nn.functional.cross_entropy(vectors @ vectors.T / 0.05, torch.arange(16))
        gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        norm = torch.sqrt(sum((g**2).sum() for g in gradients.values()))
        rate = 1e-3 * (3 - step) / 3
        with torch.no_grad():
            for name, parameter in named.items():
                g = gradients[name] * min(1.0, 0.01 / (norm.item() + 1e-6))
                m, v = moments[name]
                m, v = moments[name] = [0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2]
                parameter.mul_(1 - rate * (0.1 if parameter.ndim > 1 else 0.0))
                m, v = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.999 ** (step + 1))
                parameter.sub_(rate * m / (v.sqrt() + 1e-8))
    for name, parameter in named.items():
        difference = np.abs(found[name] - parameter.detach().numpy())
        assert np.quantile(difference, 0.99) < 1e-5, name  # Adam blows up the rounding of gradients near 0


def test_a_run_takes_no_more_threads_than_the_cgroup_allows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(cpus, "available", lambda: 1)
    try:
        [start] = events(run("out", steps=1).out, "start")
    finally:
        torch.set_num_threads(before)
    assert start["machine"]["threads"] == 1


def test_the_training_length_is_not_published(run: Run, recipe: Recipe) -> None:
    short = run("out", recipe=replace(recipe, max_length=8))
    settings = json.loads((short.last / "sentence_bert_config.json").read_text())
    assert settings["max_seq_length"] == MAX_LENGTH
    tokenizer = json.loads((short.last / "tokenizer.json").read_text())
    assert tokenizer["truncation"]["max_length"] == MAX_LENGTH


def test_the_record_says_what_was_run_and_how_fast(run: Run, recipe: Recipe, corpus: Corpus) -> None:
    result = run("out", steps=4, record_steps=2)
    (start,) = events(result.out, "start")
    assert (start["corpus"], start["texts"], start["seed"]) == (corpus.digest, 64, 42)
    assert start["described"]["optim"]["batch"] == 16
    assert start["versions"].keys() == {"python", "simile", "torch", "transformers", "tokenizers", "numpy"}
    steps = events(result.out, "step")
    assert [line["step"] for line in steps] == [2, 4]
    assert [line["lr"] for line in steps] == pytest.approx([3e-5 * 3 / 4, 3e-5 * 1 / 4])
    assert all(line["sentences_per_second"] > 0 for line in steps)
    assert events(result.out, "end")[0]["loss"] == result.loss


def test_the_rate_rises_over_the_warmup_and_falls_to_nothing() -> None:
    class Fixed:
        _steps = 10
        _recipe = read_recipe(
            RECIPE_TEXT.replace("warmup = 0.0", "warmup = 0.2"),
            "w",
        )

    rates = [Trainer.rate(Fixed(), step) / 3e-5 for step in range(11)]  # type: ignore[arg-type]
    assert rates == pytest.approx([0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0])


def test_each_step_draws_numbers_of_its_own_and_always_the_same() -> None:
    class Fixed:
        _recipe = load_recipe("simcse-unsup")
        _world = World()

    def drawn(step: int) -> tuple[list[float], list[float]]:
        generator = Trainer._seed(Fixed(), step)  # type: ignore[arg-type]
        return torch.rand(4).tolist(), torch.rand(4, generator=generator).tolist()

    assert drawn(0) == drawn(0)
    numbers = [tuple(row) for step in range(3) for row in drawn(step)]
    assert len(set(numbers)) == 6


def test_a_loss_that_is_no_number_stops_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "step", lambda self, number: Step(float("nan"), 1, -3.0))
    with pytest.raises(TrainingError, match="The loss is nan at step 1"):
        run("out")


def test_one_text_and_a_missing_device_are_refused(run: Run) -> None:
    with pytest.raises(TrainingError, match="needs two or more"):
        run("out", corpus=Corpus.of(["alone"], "words"))
    with pytest.raises(TrainingError, match="The device 'nonsense' is not there"):
        run("out", device="nonsense")


def test_bf16_stays_near_fp32(run: Run) -> None:
    exact, half = losses(run("a", steps=2)), losses(run("b", steps=2, precision="bf16"))
    assert half[1] != exact[1]
    assert half[1] == pytest.approx(exact[1], rel=0.05)


def test_outside_the_main_thread_a_run_is_only_not_interruptible(run: Run) -> None:
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(run("out", steps=1)))
    thread.start()
    thread.join()
    assert found[0].steps == 1


def test_the_command_says_what_it_did_and_what_is_wrong(
    tmp_path: Path, tiny_source: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(tmp_path, tiny_source, corpus, "--steps", "2")
    assert main(arguments) == 0
    said = capsys.readouterr().err
    assert "64 texts" in said
    assert "2 steps, loss" in said
    assert main(arguments) == 1
    assert "holds a run already" in capsys.readouterr().err
    arguments[arguments.index("--base") + 1] = str(tmp_path / "no such model")
    assert main([*arguments, "--resume"]) == 1
    assert "There is no model" in capsys.readouterr().err


def test_a_published_version_is_a_base_and_becomes_the_parent(
    run: Run, tiny_models_dir: Path, tmp_path: Path
) -> None:
    (version,) = (path for path in tiny_models_dir.iterdir() if (path / "manifest.json").exists())
    copied = shutil.copytree(version, tmp_path / version.name)
    result = run("out", base=copied, steps=1)
    assert json.loads((result.out / "run.json").read_text())["parent"] == version.name


def test_help_and_the_other_commands_import_no_torch() -> None:
    code = "import sys, training.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_freed_memory_goes_back_to_the_system() -> None:
    """Free blocks between live ones stay with glibc until it is asked for them."""
    blocks = [np.ones(8_000) for _ in range(3_000)]  # 64 kB each: too small for pages of their own
    live = blocks[::100]
    blocks.clear()
    before = _resident()
    give_back()
    assert before - _resident() > 100_000_000
    assert sum(map(len, live)) == 8_000 * 30


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
