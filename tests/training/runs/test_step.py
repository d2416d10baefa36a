"""Training steps, GradCache, and warnings if the loss or the vectors teach nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.errors import Unsupported
from tests.training.conftest import Run
from tests.training.jobs import gold
from tests.training.recipe_cases import build_corpus, raw_source
from tests.training.run_cases import command, events, weights
from tests.training.world_process import found_by, recipe_of, trainer_for
from training.__main__ import main
from training.errors import NothingToLearn, TrainingError
from training.methods.loading import load_encoder
from training.methods.objectives import info_nce
from training.methods.recipe import Recipe, load_recipe
from training.model.encoder import TrainedEncoder
from training.retraining.one import Job
from training.runs import forward
from training.runs.alarms import LONG, LOOK, SATURATED, Saturation
from training.runs.forward import backward_in_chunks
from training.runs.step import Step, Trainer, _uniformity, rate
from training.text.corpus import TEXTS, Corpus
from training.text.tokens import Tokens, build_tokens

HEADS = ["simcse-unsup-mlm", "mlm", "diffcse", "tsdae"]
NO_STEPS = ["first-last", "static-average", "whitening", "all-but-the-top", "static-max", "power-means"]


def uniformities(monkeypatch: pytest.MonkeyPatch, found: list[float]) -> None:
    """Makes step n report the uniformity `found[n]`, and later steps the last value of `found`."""
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
    """A head with batch normalization spreads vectors, even if the encoder's are nearly equal."""
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
    """No fault is injected: all vectors become equal, and the loss is that of a guess among 32 texts."""
    wild = replace(recipe, dropout=0.0, optim=replace(recipe.optim, lr=0.5))
    result = run("out", recipe=wild, base=raw_source(tmp_path / "raw"), steps=8, batch=32)
    assert len(events(result.out, "collapse")) == 1
    assert result.loss == pytest.approx(np.log(32), abs=1e-3)


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_no_model(run: Run, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    base = raw_source(tmp_path / "raw")
    tensors = load_file(base / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][3:] = 3e38  # their squares overflow
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
    optimizer = copy.deepcopy(trainer.optimizer.state_dict())
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
    for number, state in optimizer["state"].items():
        assert all(torch.equal(tensor, after["state"][number][name]) for name, tensor in state.items())
    assert np.isfinite(trainer.step(1).loss)


EIGHTHS = [each / 8 for each in range(8, -1, -1)]


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("linear", [0, 0.5, *EIGHTHS]),
        ("constant", [0, 0.5, *[1.0] * 9]),
        # Howard and Ruder 2018, equation 3, with T = 10 steps, a cut of 2 and a ratio of 32.
        ("slanted", [(1 + 31 * share) / 32 for share in (0, 0.5, *EIGHTHS)]),
    ],
)
def test_the_rate_rises_over_the_warmup_and_then_follows_its_decay(decay: str, rates: list[float]) -> None:
    optim = load_recipe("simcse-unsup", {"optim.decay": decay, "optim.warmup": 0.2, "optim.lr": 3e-3}).optim
    assert [rate(optim, 10, step) / 3e-3 for step in range(11)] == pytest.approx(rates)


@pytest.mark.parametrize(("part", "name"), [("head_lr", "pairsupcon"), ("table_lr", "simcse-unsup")])
def test_the_head_and_the_word_table_may_have_a_rate_of_their_own(
    tmp_path: Path, part: str, name: str
) -> None:
    changes = {f"optim.{part}": 1e-1, "optim.lr": 1e-3, "optim.warmup": 0.0, "optim.decay": "constant"}
    trainer = trainer_for(raw_source(tmp_path / "raw"), recipe_of(name, changes))
    table = trainer.encoder.backbone.get_input_embeddings().weight
    trainer.step(0)
    names = {id(tensor): name for name, tensor in trainer.model.named_parameters()}
    rates = {id(each): group["lr"] for group in trainer.optimizer.param_groups for each in group["params"]}
    assert rates.keys() == names.keys()
    for each, found in rates.items():
        own = each == id(table) if part == "table_lr" else not names[each].startswith("encoder.")
        assert found == (1e-1 if own else 1e-3), names[each]


def test_a_base_with_a_weight_that_is_no_number_is_refused(run: Run, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    base = raw_source(tmp_path / "raw")
    tensors = load_file(base / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"][3] = np.nan
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Unsupported, match=r"encoder\.layer\.1\.output\.dense\.bias is not finite"):
        run("out", base=base)


def test_weight_decay_is_not_for_biases_and_normalizations(tmp_path: Path) -> None:
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
    base, corpus = raw_source(tmp_path / "raw"), build_corpus(TEXTS)
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
    texts = build_corpus(TEXTS)
    changes: dict[str, Any] = {"post": [{"name": "whiten", "dimension": 30}], "optim.batch": 4}
    base = raw_source(tmp_path / "raw")
    result = run("out", recipe=load_recipe("whitening", changes), base=base, corpus=texts, batch=4)
    assert result.finished
    few = Corpus.of(texts.texts[:20], "few")
    with pytest.raises(TrainingError, match="The 20 texts differ in 19 directions only"):
        run("few", recipe=load_recipe("whitening", changes), base=base, corpus=few, batch=4)


ROWS = build_tokens([[2, *range(60 + row, 64 + 2 * row), 3] for row in range(12)])
PARTS = [ROWS.select(part) for part in torch.split(torch.arange(12), 5)]  # 5, 5 and 2
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def compute_loss(vectors: Tensor) -> Tensor:
    kept = nn.functional.dropout(vectors, 0.1)
    none = torch.zeros(6, len(kept) - 6, device=kept.device)
    return info_nce(kept[:6], kept[6:], tau=0.05, same_NM=none.bool(), bonus_NM=none)


def gradients_of(
    encoder: TrainedEncoder, backward: Callable[[Callable[[Tokens], Tensor]], Tensor]
) -> tuple[float, dict[str, Tensor]]:
    """Returns loss and gradients. `backward` gets a forward pass with dropout, and returns the loss."""
    encoder.zero_grad()
    torch.manual_seed(3)
    loss = backward(lambda rows: encoder(rows, 0.3).pooled)
    found = {name: each.grad for name, each in encoder.named_parameters() if each.grad is not None}
    return loss.item(), {name: gradient.clone() for name, gradient in found.items()}


def in_chunks(encode: Callable[[Tokens], Tensor]) -> Tensor:
    return backward_in_chunks(encode, PARTS, compute_loss)


def kept_whole(encode: Callable[[Tokens], Tensor]) -> Tensor:
    """Runs the forward passes of GradCache in their order, with all graphs in memory. Returns the loss."""
    loss = compute_loss(torch.cat([encode(part) for part in PARTS]))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


@pytest.fixture
def encoder(tmp_path: Path, request: pytest.FixtureRequest) -> TrainedEncoder:
    device = torch.device(getattr(request, "param", "cpu"))
    return load_encoder(raw_source(tmp_path / "raw"), load_recipe("first-last"), device)[0]


@pytest.mark.parametrize("encoder", DEVICES, indirect=True)
def test_the_gradient_in_chunks_is_that_of_the_same_forward_kept_whole(encoder: TrainedEncoder) -> None:
    loss, found = gradients_of(encoder, in_chunks)
    after = torch.rand(1)
    expected_loss, expected = gradients_of(encoder, kept_whole)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(1.0, gradient.abs().max().item())
        assert (found[name] - gradient).abs().max() < 1e-5 * scale, name
    assert torch.equal(after, torch.rand(1)), "what is drawn afterwards is what would have been"


@pytest.mark.parametrize("encoder", DEVICES, indirect=True)
def test_without_the_replay_of_its_random_numbers_the_gradient_is_another(
    encoder: TrainedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = gradients_of(encoder, kept_whole)
    monkeypatch.setattr(forward, "set_random_state", lambda state: None)
    _, found = gradients_of(encoder, in_chunks)
    name = "backbone.encoder.layer.0.output.dense.weight"
    cosine = nn.functional.cosine_similarity(found[name].flatten(), expected[name].flatten(), dim=0)
    assert cosine < 0.99


def test_a_loss_that_reads_no_vectors_is_an_error() -> None:
    constant = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="does not depend on the vectors"):
        backward_in_chunks(lambda part: torch.ones(len(part), 2), PARTS, lambda vectors: constant.sum())


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a head that normalises the batch": ("simcse-unsup", {"head": "bn"}),
    "a queue": ("esimcse", {}),
    "hard negatives": ("simcse-sup", {}),
    "templates less their bias": ("promptbert", {}),
    "spans": ("declutr", {"views": ["same"] * 3, "objectives": [{"name": "nt_xent", "tau": 0.05}]}),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_in_chunks_are_the_steps_of_the_whole_batch(tmp_path: Path, case: str) -> None:
    base = raw_source(tmp_path / "raw")
    recipe = recipe_of(*CASES[case], batch=9)
    whole = found_by(trainer_for(base, recipe, rows=27))
    assert any(name.startswith("gradient.2.") for name in whole)
    for size in (2, 7):
        parts = found_by(trainer_for(base, recipe, rows=27, chunk=size))
        assert parts.keys() == whole.keys()
        for name, expected in whole.items():
            if expected.numel():
                scale = max(1.0, expected.abs().max().item())
                # Chunks are summed in another order: a cosine of 32 terms is off by up to 32 x eps / 2,
                # and the temperature of 0.05 makes 20 times that, 4e-5.
                assert (parts[name] - expected).abs().max() < 5e-5 * scale, (size, name)


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in HEADS), ("simcse-unsup", {"fixed_mask": True})],
)
def test_what_reads_more_than_vectors_refuses_chunks_and_leaves_nothing(
    run: Run, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    given = {"recipe": load_recipe(name, changes), "base": raw_source(tmp_path / "raw")}
    said = f"The recipe {name} reads more than vectors, or encodes view by view: its batch cannot"
    with pytest.raises(TrainingError, match=said):
        run("out", **given, chunk=2)
    assert not (tmp_path / "out").exists()


# Without dropout both views are one vector, and so small a tau makes much of any difference of texts.
SIMCSE = load_recipe("simcse-unsup")
EASY = {"dropout": 0.0, "objectives": [{"name": "info_nce", "tau": 0.001}]}


@pytest.mark.parametrize(("steps", "looked"), [(LOOK, LOOK), (1000, LOOK), (2, 2)])
def test_only_a_run_whose_first_steps_are_all_easy_is_ended(steps: int, looked: int) -> None:
    easy = Saturation(SIMCSE, steps)
    for number in range(1, looked):
        easy.seen(number, SATURATED / 2)
    with pytest.raises(NothingToLearn, match=rf"The loss was 0\.005 at most in the first {looked} steps: "):
        easy.seen(looked, SATURATED / 3)


@pytest.mark.parametrize(
    ("name", "hard"),
    [
        *(("simcse-unsup", {at}) for at in (1, 5, LOOK)),
        *((name, set()) for name in ("distil-hybrid", *HEADS)),
    ],
)
def test_one_hard_step_or_a_loss_of_another_kind_lets_a_run_go_on(name: str, hard: set[int]) -> None:
    watched = Saturation(load_recipe(name), 1000)
    for number in range(1, 500):
        watched.seen(number, SATURATED if number in hard else 0.0)


def test_a_saturated_run_ends_and_its_record_says_so(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NothingToLearn, match="the model tells these texts apart already"):
        run("out", steps=40, recipe=load_recipe("simcse-unsup", EASY))
    [said] = events(tmp_path / "out", "saturated")
    assert (said["step"], said["loss"] < SATURATED) == (10, True)
    assert not (tmp_path / "out" / "last").exists()
    assert run("other", steps=12).finished, "the recipe as it is has something to learn"


def test_the_commands_say_it_in_a_sentence(
    job: Job, tiny_source: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ["--set", "dropout=0.0", "--set", 'objectives=[{ name = "info_nce", tau = 0.001 }]']
    assert main(command(tmp_path, tiny_source, corpus, "--steps", "40", *changed)) == 1
    said = capsys.readouterr().err
    assert "python -m training: The loss was" in said
    assert "as crops, ict or pairs" in said
    before = [manifest.version for manifest in job.store.versions()]
    given = ["retrain", "--recipe", "simcse-unsup", "--corpus", str(tmp_path / "corpus.txt")]
    given += ["--models-dir", str(job.store.root)]
    given += ["--data", str(job.data), "--least", "2", "--steps", "40", "--precision", "fp32", *changed]
    assert main(given) == 4
    assert capsys.readouterr().out.startswith("Nothing to learn: The loss was")
    assert [manifest.version for manifest in job.store.versions()] == before
