"""Training of some layers only, and students with fewer layers than their teacher."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ElectraConfig, ElectraModel

from models.store import ModelStore
from tests.tiny import tiny_source as make_tiny_source
from tests.training.conftest import Run
from tests.training.families import family_source
from tests.training.recipe_cases import corpus_for, raw_source
from tests.training.run_cases import losses, stop_after, weights
from training.errors import TrainingError
from training.methods.loading import _freeze_embeddings, evenly, load_encoder
from training.methods.recipe import Recipe, load_recipe
from training.model.encoder import TrainedEncoder
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.runs.setup import VECTORS, taught, teach
from training.text.corpus import Corpus
from training.text.tokens import tokenize

LAST = load_recipe("simcse-unsup", {"optim.train_layers": 1, "optim.lr": 3e-3})


def moved(before: Path, after: Path) -> set[str]:
    one, other = weights(before), weights(after)
    assert other.keys() <= one.keys()  # a backbone's pooler and language head are not kept
    return {name for name in other if one[name] != other[name]}


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_only_the_last_layers_move(family: str, run: Run, tmp_path: Path) -> None:
    base = family_source(tmp_path / "base", family)
    whole = run("whole", base=base, recipe=load_recipe("simcse-unsup"))
    found = moved(base, run("out", base=base, recipe=LAST).last)
    assert found
    assert all("layer.1." in name for name in found)
    assert {name for name in moved(base, whole.last) if "layer.1." in name} == found
    assert any("embeddings" in name for name in moved(base, whole.last))


def test_all_layers_are_more_than_the_last_and_embeddings_stay(run: Run, tiny_source: Path) -> None:
    both = run("both", recipe=load_recipe("simcse-unsup", {"optim.train_layers": 2}))
    found = moved(tiny_source, both.last)
    assert any("layer.0." in name for name in found)
    assert not any("embeddings" in name for name in found)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_embeddings_keep_their_values_and_all_layers_move(family: str, run: Run, tmp_path: Path) -> None:
    base = family_source(tmp_path / "base", family)
    recipe = load_recipe("simcse-unsup", {"optim.train_embeddings": False})
    found = moved(base, run("out", base=base, recipe=recipe).last)
    assert not any("embeddings" in name for name in found)
    assert all(any(f"layer.{at}." in name for name in found) for at in (0, 1))


def test_kept_embeddings_are_refused_where_they_are_all_that_learns(tmp_path: Path, run: Run) -> None:
    recipe = load_recipe("simcse-unsup", {"pool": "static", "optim.train_embeddings": False})
    with pytest.raises(TrainingError, match="leaves a word table nothing to learn"):
        run("out", base=raw_source(tmp_path / "raw"), recipe=recipe)


def test_the_map_behind_narrow_embeddings_keeps_its_values_too() -> None:
    sizes: dict[str, Any] = {
        "embedding_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
    }
    config = ElectraConfig(vocab_size=20, num_hidden_layers=1, **sizes)
    of_layers = SimpleNamespace(head=SimpleNamespace(tokens="last"))
    encoder: Any = SimpleNamespace(backbone=ElectraModel(config), source=of_layers)
    _freeze_embeddings(encoder)
    found = [name for name, each in encoder.backbone.named_parameters() if each.requires_grad]
    assert found
    assert all(name.startswith("encoder.layer.0.") for name in found)


@pytest.mark.parametrize("chunk", [None, 4])
def test_the_head_that_is_kept_is_trained_with_them(chunk: int | None, tmp_path: Path) -> None:
    recipe = load_recipe("simcse-sup", {"optim.train_layers": 1, "optim.batch": 8})
    options = Options(steps=2, precision="fp32", threads=1, chunk=chunk)
    base, corpus = raw_source(tmp_path / "raw"), corpus_for(recipe)
    two = train(recipe, corpus, base, tmp_path / "out", options)
    assert two.finished
    one = train(recipe, corpus, base, tmp_path / "one", Options(steps=1, precision="fp32"))
    before, after = ([weights(at) for at in sorted(run.last.glob("*_Dense"))] for run in (one, two))
    assert before != after != []


def test_the_twin_and_a_frozen_layer_agree(tmp_path: Path) -> None:
    recipe = load_recipe("esimcse", {"optim.train_layers": 1, "optim.batch": 8, "twin.momentum": 0.5})
    options = Options(steps=3, precision="fp32", threads=1)
    result = train(recipe, corpus_for(recipe), raw_source(tmp_path / "raw"), tmp_path / "out", options)
    found = moved(tmp_path / "raw", result.last)
    assert found
    assert all("layer.1." in name for name in found)


def test_more_layers_than_there_are_leave_nothing_behind(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"optim\.train_layers is 3, and the base has 2 layers\."):
        run("out", recipe=load_recipe("simcse-unsup", {"optim.train_layers": 3}))
    assert not (tmp_path / "out").exists()


def test_a_recipe_without_them_keeps_its_digest() -> None:
    described = load_recipe("pairs").described()
    assert "student" not in described
    assert "train_layers" not in described["optim"]
    assert load_recipe("simcse-sup").digest().startswith("dd5f56ed7201")
    assert LAST.described()["optim"]["train_layers"] == 1
    assert distil(1).described()["student"] == {"layers": 1}


CPU = torch.device("cpu")


def distil(layers: int, **changes: Any) -> Recipe:
    rate = 3e-3 if layers else 3e-2
    return load_recipe("distil", {"student.layers": layers, "optim.lr": rate, "optim.warmup": 0.0} | changes)


def opened(base: Path, layers: int | None) -> TrainedEncoder:
    recipe = load_recipe("simcse-unsup") if layers is None else distil(layers)
    return load_encoder(base, recipe, CPU)[0]


def nearness(one: TrainedEncoder, other: TrainedEncoder, corpus: Corpus) -> float:
    return float((one.encode(corpus.texts) * other.encode(corpus.texts)).sum(1).mean())


@pytest.mark.parametrize(
    ("layers", "of", "kept"), [(3, 6, [0, 2, 5]), (4, 12, [0, 3, 7, 11]), (2, 3, [0, 2]), (1, 2, [1])]
)
def test_layers_stay_from_the_first_to_the_last(layers: int, of: int, kept: list[int]) -> None:
    assert evenly(layers, of) == kept


def test_a_student_begins_with_the_embeddings_and_layers_of_its_teacher(tiny_source: Path) -> None:
    teacher, student = opened(tiny_source, None), opened(tiny_source, 1)
    was, now = teacher.backbone.state_dict(), student.backbone.state_dict()
    assert now
    for name, tensor in now.items():
        assert torch.equal(tensor, was[name.replace("layer.0.", "layer.1.")]), name
    assert not any("layer.1." in name for name in now)
    assert student.source.config["num_hidden_layers"] == 1


def test_a_row_of_the_table_is_what_the_teacher_says_of_the_token_alone(tiny_source: Path) -> None:
    teacher, student = opened(tiny_source, None), opened(tiny_source, 0)
    words = ["river", "stone"]
    [ids] = [tokens.ids for tokens in student.tokenizer(64).tokenize([" ".join(words)])]
    rows = student.backbone.get_input_embeddings().weight.detach().numpy()[list(ids)]
    assert np.allclose(rows, teacher.encode(words), atol=1e-6)
    mean = rows.mean(0)
    assert np.allclose(student.encode([" ".join(words)])[0], mean / np.linalg.norm(mean), atol=1e-6)


@pytest.mark.parametrize("layers", [0, 1])
def test_the_teacher_encodes_what_the_student_reads(
    layers: int, tiny_source: Path, corpus: Corpus, tmp_path: Path
) -> None:
    teacher, student = opened(tiny_source, None), opened(tiny_source, layers)
    shelf = tokenize(corpus.texts, student.tokenizer(64))
    teach(teacher, student.lexicon, shelf, tmp_path, bf16=False, progress=False)
    found = taught(tmp_path).float().numpy()
    assert np.abs(found - teacher.encode(corpus.texts)).max() < 2**-11  # half of float16's last digit


@pytest.mark.parametrize("layers", [0, 1])
def test_a_student_comes_nearer_to_its_teacher_and_is_published_with_its_name(
    layers: int, run: Run, tiny_models_dir: Path, corpus: Corpus, tmp_path: Path
) -> None:
    active = ModelStore(tiny_models_dir)
    version = active.requested()
    assert version is not None
    base = active.folder(version)
    teacher = opened(base, None)
    result = run("out", recipe=distil(layers), base=base, steps=30, batch=32)
    trained = opened(result.last, None) if layers else None
    found = losses(result)
    assert found[30] < 0.6 * found[1]
    if trained:
        assert nearness(teacher, trained, corpus) > nearness(teacher, opened(base, layers), corpus) + 0.05
    assert not (result.out / VECTORS).exists()
    store = ModelStore(tmp_path / "models")
    manifest = export_run(result.out, store)
    taught_by = active.verify(version)
    assert manifest.lineage["teacher"] == taught_by.fingerprint != manifest.fingerprint
    assert manifest.parent == version
    assert manifest.dimension == taught_by.dimension
    vectors = store.open(manifest.version).encode(list(corpus.texts)).vectors
    cosine = float((vectors * teacher.encode(corpus.texts)).sum(1).mean())
    assert 2 - 2 * cosine == pytest.approx(found[30], abs=0.2)


def test_a_base_that_is_not_published_is_named_as_it_would_be(
    run: Run, tiny_source: Path, tiny_models_dir: Path, tmp_path: Path
) -> None:
    result = run("out", recipe=distil(1), base=tiny_source, steps=1)
    manifest = export_run(result.out, ModelStore(tmp_path / "models"))
    [published] = ModelStore(tiny_models_dir).versions()
    assert manifest.lineage["teacher"] == published.fingerprint


@pytest.mark.parametrize("layers", [0, 1])
def test_a_run_stopped_and_resumed_is_one_run_and_asks_its_teacher_once(
    layers: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run("straight", recipe=distil(layers))
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        run("stopped", recipe=distil(layers))
    monkeypatch.delattr("training.runs.setup.teach")
    resumed = run("stopped", recipe=distil(layers), resume=True)
    assert losses(resumed) == losses(straight)
    assert weights(resumed.last) == weights(straight.last)


def test_what_could_not_be_a_student_is_refused_and_leaves_nothing(
    run: Run, tiny_source: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=r"student\.layers is 2, and the base has 2\. Lower it\."):
        run("out", recipe=distil(2))
    other = family_source(tmp_path / "other", "distilbert")
    with pytest.raises(TrainingError, match="A student of fewer layers works for bert"):
        run("out", recipe=distil(1), base=other)
    table = run("table", recipe=distil(0), steps=1)
    with pytest.raises(TrainingError, match="The base is a table of tokens"):
        run("out", recipe=distil(0), base=table.last)
    assert not (tmp_path / "out").exists()


def test_prompts_are_the_teachers(tmp_path: Path, run: Run) -> None:
    base = make_tiny_source(tmp_path / "base", prompts={"query": "how do ", "document": "the "})
    result = run("out", recipe=distil(0), base=base, steps=1)
    manifest = export_run(result.out, ModelStore(tmp_path / "models"))
    assert (manifest.search_prompt, manifest.document_prompt) == ("how do ", "the ")
