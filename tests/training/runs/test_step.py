"""A step's figures, the alarms that they raise, and runs that have no step at all."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.errors import Unsupported
from tests.training.conftest import Run
from tests.training.jobs import gold
from tests.training.recipe_cases import corpus_of, raw_source
from tests.training.run_cases import events, weights
from tests.training.world_process import recipe_of, trainer_for
from training.errors import TrainingError
from training.methods.catalogue import load_recipe
from training.methods.recipe import Recipe
from training.runs.alarms import LONG
from training.runs.step import Step, Trainer, _uniformity
from training.text.corpus import TEXTS, Corpus

NO_STEPS = ["first-last", "static-average", "whitening", "all-but-the-top", "static-max", "power-means"]


def uniformities(monkeypatch: pytest.MonkeyPatch, found: list[float]) -> None:
    """Make every step say these instead of its own; the last one goes on for ever."""
    whole = Trainer.step

    def step(self: Trainer, number: int) -> Step:
        return whole(self, number)._replace(uniformity=found[min(number, len(found) - 1)])

    monkeypatch.setattr(Trainer, "step", step)


def test_the_uniformity_of_a_batch_is_that_of_its_pairs() -> None:
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    x = vectors.double().numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [np.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i in range(6) for j in range(i)]
    assert _uniformity(vectors) == pytest.approx(np.log(np.mean(pairs)), abs=1e-6)
    assert _uniformity(vectors[:1].repeat(4, 1)) == pytest.approx(0, abs=1e-5)
    assert np.isnan(_uniformity(vectors[:1]))


def test_uniformity_is_of_the_vectors_that_are_published_not_of_the_head_s(tmp_path: Path) -> None:
    """A head that normalises a batch spreads it out, however much alike its vectors have become."""
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("simcse-unsup", {"head": "bn"}))
    vectors = trainer.encoder(trainer._source.batch(0).columns[0]).pooled
    expected = _uniformity(vectors)
    found = trainer.step(0)
    assert found.uniformity == pytest.approx(expected, abs=1e-5)
    assert found.texts == 5
    assert abs(_uniformity(trainer.model["head"](vectors)) - expected) > 0.1


def test_vectors_that_collapse_are_told_once_and_are_in_the_record(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniformities(monkeypatch, [-0.01, -2.0, -0.06, -0.03, -2.0, -0.01])
    said: list[str] = []
    result = run("out", say=said.append)
    warnings = [words for words in said if "collapsed" in words]
    assert len(warnings) == 1
    assert warnings[0].startswith("WARNING: the vectors have collapsed: uniformity -0.030, where 0 is all")
    assert [(line["step"], line["uniformity"]) for line in events(result.out, "collapse")] == [(4, -0.03)]
    assert result.finished, "it goes on"
    assert [line["uniformity"] for line in events(result.out, "step")][:3] == [-0.01, -2.0, -0.06]


def test_vectors_that_begin_alike_have_time_to_part(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    uniformities(monkeypatch, [-0.01])
    result = run("out", steps=LONG + 5)
    assert [line["step"] for line in events(result.out, "collapse")] == [LONG]


def test_a_backbone_has_no_vectors_that_could_collapse(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    uniformities(monkeypatch, [-2.0, -0.01])
    result = run("out", recipe=load_recipe("mlm"), base=raw_source(tmp_path / "raw"), steps=3)
    assert not events(result.out, "collapse")


def test_a_learning_rate_that_ruins_the_model_is_noticed(run: Run, recipe: Recipe, tmp_path: Path) -> None:
    """Nothing is injected here: all vectors become one, and the loss that of a guess among 32."""
    wild = replace(recipe, dropout=0.0, optim=replace(recipe.optim, lr=0.5))
    result = run("out", recipe=wild, base=raw_source(tmp_path / "raw"), steps=8, batch=32)
    assert len(events(result.out, "collapse")) == 1
    assert result.loss == pytest.approx(np.log(32), abs=1e-3)


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_no_model(run: Run, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    base = raw_source(tmp_path / "raw")
    tensors = load_file(base / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][3:] = 3e38  # each is a number, and their squares are none
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainingError, match=r"The loss is nan at step 1\. Lower the recipe's lr"):
        run("out", base=base)
    assert not (tmp_path / "out" / "last").exists()
    assert not events(tmp_path / "out", "step")
    assert [event["step"] for event in events(tmp_path / "out", "diverged")] == [1]


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_step_whose_loss_is_no_number_changes_nothing(broken: str, tmp_path: Path) -> None:
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("esimcse", {}))
    trainer.step(0)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    optimiser = copy.deepcopy(trainer.optimizer.state_dict())
    if broken == "loss":
        hook: Any = trainer._objectives[0].register_forward_hook(lambda *given: given[2] * torch.inf)
    else:
        weight = trainer.encoder.backbone.encoder.layer[0].output.dense.weight
        hook = weight.register_hook(lambda gradient: gradient * torch.nan)
    assert np.isnan(trainer.step(1).loss)
    hook.remove()
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    after = trainer.optimizer.state_dict()
    for number, state in optimiser["state"].items():
        assert all(torch.equal(tensor, after["state"][number][name]) for name, tensor in state.items())
    assert np.isfinite(trainer.step(1).loss)


def test_a_slanted_rate_begins_and_ends_at_a_32nd(tmp_path: Path) -> None:
    """Howard and Ruder 2018, equation 3, with T = 10 steps, a cut of 2 and a ratio of 32, by hand."""
    changes = {"optim.decay": "slanted", "optim.warmup": 0.2, "optim.lr": 3.2e-3}
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("simcse-unsup", changes))
    shares = [0, 1 / 2, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [trainer.rate(step) for step in range(10)] == pytest.approx([1e-4 * (1 + 31 * p) for p in shares])


def test_the_head_has_a_rate_of_its_own(tmp_path: Path) -> None:
    changes = {"optim.head_lr": 1e-1, "optim.lr": 1e-3, "optim.warmup": 0.0, "optim.decay": "constant"}
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("pairsupcon", changes))
    trainer.step(0)
    names = {id(tensor): name for name, tensor in trainer.model.named_parameters()}
    rates = {
        names[id(tensor)]: group["lr"]
        for group in trainer.optimizer.param_groups
        for tensor in group["params"]
    }
    assert rates.keys() == set(names.values())
    for name, rate in rates.items():
        assert rate == (1e-3 if name.startswith("encoder.") else 1e-1), name


def test_a_base_with_a_weight_that_is_no_number_is_refused(run: Run, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    base = raw_source(tmp_path / "raw")
    tensors = load_file(base / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][3] = np.nan
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Unsupported, match=r"encoder\.layer\.1\.output\.dense\.bias is not finite"):
        run("out", base=base)


def test_a_constant_rate_stays_after_the_warmup(tmp_path: Path) -> None:
    changes = {"optim.decay": "constant", "optim.warmup": 0.2, "optim.lr": 1e-3}
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("simcse-unsup", changes))
    assert [trainer.rate(step) for step in range(11)] == pytest.approx([0, 5e-4] + [1e-3] * 9)
    trainer.step(5)
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {1e-3}


def test_the_word_table_has_a_rate_of_its_own(tmp_path: Path) -> None:
    changes = {"optim.table_lr": 2e-2, "optim.lr": 1e-3, "optim.warmup": 0.0, "optim.decay": "constant"}
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("simcse-unsup", changes))
    table = trainer.encoder.backbone.get_input_embeddings().weight
    trainer.step(0)
    rates = {
        id(tensor): group["lr"] for group in trainer.optimizer.param_groups for tensor in group["params"]
    }
    assert rates.pop(id(table)) == 2e-2
    assert set(rates.values()) == {1e-3}
    assert len(rates) == len(list(trainer.model.parameters())) - 1


def test_weight_decay_is_not_for_biases_and_normalisations(tmp_path: Path) -> None:
    changes = {"optim.weight_decay": 0.3}
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of("simcse-unsup", changes))
    names = {id(tensor): name for name, tensor in trainer.model.named_parameters()}
    decayed, others = (
        {names[id(tensor)] for tensor in group["params"]} for group in trainer.optimizer.param_groups
    )
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.3, 0.0]
    assert decayed | others == set(names.values())
    assert others == {name for name in names.values() if name.endswith("bias") or "LayerNorm" in name}


@pytest.mark.parametrize("name", NO_STEPS)
def test_a_recipe_without_objectives_makes_no_step_and_changes_no_weight(
    name: str, run: Run, tmp_path: Path
) -> None:
    base, corpus = raw_source(tmp_path / "raw"), corpus_of(TEXTS)
    data = gold(tmp_path / "data", lambda texts: np.eye(64)[: len(texts)], corpus.texts)
    changes = {"post": [{"name": "whiten", "dimension": 6}]} if name == "whitening" else {}
    recipe = load_recipe(name, changes)
    said: list[str] = []
    result = run("out", recipe=recipe, base=base, corpus=corpus, steps=5, data=data, say=said.append)
    assert (result.steps, result.finished, result.interrupted) == (0, True, False)
    assert np.isnan(result.loss)
    assert list(result.dev) == [0]
    record = [json.loads(line)["event"] for line in (result.out / "record.jsonl").read_text().splitlines()]
    assert record == ["start", "dev", "end"]
    assert events(result.out, "end")[0]["loss"] is None
    before = weights(base)
    assert weights(result.last).items() <= before.items()
    assert weights(result.best) == weights(result.last)
    assert {path.name for path in result.out.iterdir()} == {"run.json", "record.jsonl", "best", "last"}
    again = run("out", recipe=recipe, base=base, corpus=corpus, steps=5, data=data, resume=True)
    assert (again.steps, again.dev, again.finished) == (0, result.dev, True)


def test_a_corpus_larger_than_a_batch_is_seen_whole_by_a_post_processor(run: Run, tmp_path: Path) -> None:
    """A recipe without steps tokenises one batch only; what is fitted reads every text."""
    texts = corpus_of(TEXTS)
    changes: dict[str, Any] = {"post": [{"name": "whiten", "dimension": 30}], "optim.batch": 4}
    base = raw_source(tmp_path / "raw")
    result = run("out", recipe=load_recipe("whitening", changes), base=base, corpus=texts, batch=4)
    assert result.finished
    few = Corpus.of(texts.texts[:20], "few")
    with pytest.raises(TrainingError, match="The 20 texts differ in 19 directions only"):
        run("few", recipe=load_recipe("whitening", changes), base=base, corpus=few, batch=4)
