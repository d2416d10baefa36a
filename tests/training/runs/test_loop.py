"""A training run: steps, record, refusals, stops, and what a resumed run restores."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from models import cpus
from models.graph.head import Dense
from models.sources.folder import read_source
from models.store import ModelStore
from tests.tiny import MAX_LENGTH, tiny_source
from tests.training.conftest import Run
from tests.training.recipe_cases import corpus_for, raw_source, triples
from tests.training.run_cases import command, events, losses, stop_after, weights
from tests.waiting import LIMIT, until
from training.__main__ import main
from training.errors import NothingToLearn, TrainingError
from training.evaluation.scorable import open_scorable
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe, load_recipe
from training.methods.sources import Given, Rows
from training.methods.views import Repeat
from training.model.encoder import compute_digest
from training.papers.spans import DocumentSpans
from training.runfile import Result
from training.runs.command import train
from training.runs.device import give_back
from training.runs.export import export_run
from training.runs.loop import _Run
from training.runs.options import Options
from training.runs.processes import World
from training.runs.step import Step, Trainer
from training.text.corpus import Corpus


def test_thirty_steps_teach_the_tiny_model_its_corpus(run: Run, recipe: Recipe) -> None:
    faster = replace(recipe, optim=replace(recipe.optim, lr=3e-3))
    found = losses(run("out", recipe=faster, steps=30, batch=64))
    assert found[30] < 0.5 * found[1], found
    assert len(found) == 30


def test_a_seed_is_one_run_whatever_the_order_of_the_texts_and_another_seed_another(
    run: Run, corpus: Corpus
) -> None:
    turned = Corpus.of(reversed(corpus.texts), "words")
    assert turned.digest == corpus.digest
    first, again, other = run("a"), run("b", corpus=turned), run("c", seed=43)
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


def test_one_text_and_a_missing_device_are_refused(run: Run) -> None:
    with pytest.raises(TrainingError, match="needs two or more"):
        run("out", corpus=Corpus.of(["alone"], "words"))
    for name in ("nonsense", "meta"):
        with pytest.raises(TrainingError, match=f"The device '{name}' is not there: name auto, cpu, cuda or"):
            run("out", device=name)


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


def test_the_command_says_what_it_did(
    tmp_path: Path, tiny_source: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, tiny_source, corpus, "--steps", "2")) == 0
    said = capsys.readouterr().err
    assert "64 texts" in said
    assert "2 steps, loss" in said


def test_freed_memory_goes_back_to_the_system() -> None:
    blocks = [np.ones(8_000) for _ in range(3_000)]  # 64 kB each: too small for pages of their own
    active = blocks[::100]
    blocks.clear()
    before = _resident()
    give_back()
    assert before - _resident() > 100_000_000
    assert sum(map(len, active)) == 8_000 * 30


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("changes", [{}, {"optim.train_layers": 1, "optim.lr": 3e-3}], ids=["all", "layers"])
def test_a_resumed_run_ends_with_the_same_losses_and_weights_bit_for_bit(
    run: Run, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    recipe = load_recipe("simcse-unsup", changes)
    straight = run("straight", recipe=recipe)
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        stopped = run("stopped", recipe=recipe)
    assert (stopped.interrupted, stopped.steps) == (True, 3)
    assert not stopped.last.exists()
    resumed = run("stopped", recipe=recipe, resume=True)
    assert (resumed.interrupted, resumed.steps) == (False, 6)
    assert losses(resumed) == losses(straight)
    assert weights(resumed.last) == weights(straight.last)
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
    resumed = run("killed", resume=True)
    assert weights(resumed.last) == weights(straight.last)
    assert [line["seed"] for line in events(resumed.out, "start")] == [42]


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


@contextmanager
def files_of_at_most(count: int) -> Iterator[None]:
    """Limits files to `count` bytes. Longer files cannot be written, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_base_that_cannot_be_used_leaves_nothing_behind(
    run: Run, tiny_source: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny_source, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    with pytest.raises(TrainingError, match=r"has no model\.safetensors to train from"):
        run("out", base=broken)
    assert not (tmp_path / "out").exists()


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
    with files_of_at_most(20_000), pytest.raises(TrainingError, match=r"\.safetensors cannot be written"):
        run("ended")
    assert not (tmp_path / "ended" / "last").exists()


def test_too_little_memory_names_the_batch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Trainer, number: int) -> tuple[float, int]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore words.")

    monkeypatch.setattr(Trainer, "step", full)
    with pytest.raises(
        TrainingError, match=r"too little memory \(CUDA .*GiB.\). Give --chunk, or lower --ba"
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
        export_run(tmp_path / "out", ModelStore(tmp_path / "models"))


def test_the_digest_of_a_base_covers_its_dense_layers(tiny_source: Path) -> None:
    source = read_source(tiny_source)

    def digest(*dense: Any) -> str:
        layers = (Dense(*dense),) if dense else ()
        return compute_digest(replace(source, head=replace(source.head, layers=layers)))

    weight, bias = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    others = (bias, "identity"), (None, "tanh"), (bias + 1, "tanh")
    known = [digest(), digest(2 * weight, bias, "tanh"), *(digest(weight, *other) for other in others)]
    assert len({*known, digest(weight, bias, "tanh")}) == 6
    assert digest(weight, bias, "tanh") == digest(weight.copy(), bias, "tanh")


def told(recipe: Recipe, base: Path, out: Path, corpus: Corpus | None = None) -> tuple[list[str], Result]:
    said: list[str] = []
    given = corpus or corpus_for(recipe)
    result = train(recipe, given, base, out, Options(steps=1, precision="fp32", threads=1, say=said.append))
    return said, result


def test_a_base_that_pools_says_that_the_recipe_s_pool_is_not_used(tmp_path: Path) -> None:
    said, _ = told(load_recipe("simcse-unsup"), tiny_source(tmp_path / "base"), tmp_path / "out")
    assert "the base keeps its own pooling (mean); the recipe's pool and head are for raw ones" in said
    said, _ = told(load_recipe("simcse-unsup"), raw_source(tmp_path / "raw"), tmp_path / "other")
    assert not any("keeps its own pooling" in words for words in said)


@pytest.mark.parametrize("name", ["first-last", "static-average", "whitening", "promptbert"])
def test_a_base_that_pools_cannot_be_pooled_in_another_way(name: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"pools in its own way.*pool=\"mean\""):
        told(load_recipe(name), tiny_source(tmp_path / "base"), tmp_path / "out")


@pytest.mark.parametrize("name", ["mlm", "tsdae", "simcse-unsup-mlm"])
def test_a_language_head_that_begins_at_random_is_told(name: str, tmp_path: Path) -> None:
    words = "the base has no masked-language head: it begins at random"
    bare, whole = raw_source(tmp_path / "bare", language=False), raw_source(tmp_path / "whole")
    assert words in told(load_recipe(name), bare, tmp_path / "a")[0]
    assert words not in told(load_recipe(name), whole, tmp_path / "b")[0]


def test_documents_too_short_for_spans_are_counted(tmp_path: Path) -> None:
    recipe = load_recipe("declutr")
    assert isinstance(recipe.source, DocumentSpans)
    recipe = replace(recipe, source=replace(recipe.source, shortest=8, longest=30), max_length=40)
    corpus = Corpus.of([*(triples()[at][0] for at in range(5)), *corpus_for(recipe, 4).texts], "mixed")
    recipe = replace(recipe, optim=replace(recipe.optim, batch=9))
    said, _ = told(recipe, raw_source(tmp_path / "raw"), tmp_path / "out", corpus)
    assert "5 documents too short for spans left out" in said


def test_epochs_decide_the_steps_unless_they_are_given(tmp_path: Path) -> None:
    recipe = load_recipe("simcse-unsup", {"optim.epochs": 3, "optim.batch": 32})
    base, corpus = raw_source(tmp_path / "raw"), corpus_for(recipe)
    for steps, done in ((None, 6), (1, 1)):
        options = Options(steps=steps, precision="fp32", threads=1)
        assert train(recipe, corpus, base, tmp_path / f"{steps}", options).steps == done
    epochs = {"simcse-sup": 3, "diffcse": 2, "simcse-unsup": 1}
    assert {name: load_recipe(name).optim.epochs for name in epochs} == epochs


def test_a_repeated_text_stays_within_the_positions(tmp_path: Path) -> None:
    for rate in (0.1, 0.32, 1.0):
        room = Repeat(rate).room(128)
        assert room + max(2, int(room * rate)) <= 128 < room + 1 + max(2, int((room + 1) * rate))
    recipe = load_recipe("esimcse", {"max_length": 128, "optim.batch": 8})
    texts = Corpus.of((f"{row[0]} " * 100 for row in triples()), "long")
    assert told(recipe, raw_source(tmp_path / "raw"), tmp_path / "out", texts)[1].finished


def test_a_run_is_scored_as_its_best_step(tmp_path: Path) -> None:
    _, result = told(load_recipe("simcse-unsup"), raw_source(tmp_path / "raw"), tmp_path / "out")
    with open_scorable(str(result.out)) as run, open_scorable(str(result.best)) as best:
        assert run.fingerprint == best.fingerprint
        assert (run.encode(["river stone"]) == best.encode(["river stone"])).all()


def test_several_negatives_and_the_base_s_prompts_are_trained_with(tmp_path: Path) -> None:
    base = tiny_source(tmp_path / "base", prompts={"query": "blue: ", "document": "red: "})
    rows = [{"anchor": a, "positive": b, "negative": [c, f"the {c}"]} for a, b, c in triples()]
    rows[0]["negative"] = rows[0]["negative"][0]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ["train", "triples", "--corpus", str(tmp_path / "t.jsonl"), "--base", str(base), "--steps", "2"]
    given += ["--precision", "fp32", "--data", str(tmp_path)]
    found: list[tuple[int, float]] = []
    for more in ([], ["--negatives", "1"], ["--set", "source.queries=false"]):
        out = tmp_path / f"out{len(found)}"
        assert main([*given, "--out", str(out), *more]) == 0
        described = json.loads((out / "run.json").read_text())["described"]
        found.append((len(described["views"]), events(out, "step")[0]["loss"]))
    assert [views for views, _ in found] == [4, 3, 4]
    assert len({loss for _, loss in found}) == 3, "the second negative and the prompts change the loss"


def test_negatives_are_for_triples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    given = ["train", "simcse-unsup", "--corpus", str(tmp_path / "t.txt"), "--out", str(tmp_path / "out")]
    assert main([*given, "--negatives", "2"]) == 1
    assert "--negatives is for a recipe that reads triples." in capsys.readouterr().err
    assert main(["report", "--corpus", str(tmp_path / "t.txt"), "--recipe", "triples"]) == 1
    assert "triples reads rows of several" in capsys.readouterr().err
