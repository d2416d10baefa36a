"""What a run does with its dev set, and what it leaves when it is stopped at its end."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.tiny import tiny_source as make_tiny_source
from tests.training.conftest import Run
from tests.training.recipe_cases import corpus_for
from tests.training.run_cases import command, events, stop_after, weights
from training.__main__ import main
from training.errors import TrainingError
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe, load_recipe
from training.model.encoder import TrainedEncoder
from training.runfile import Result
from training.text.corpus import Corpus


def write_dev(data: Path) -> Path:
    """A dev set in which the texts with more words in common have the higher score."""
    rows = ["genre\tscore\tsentence1\tsentence2"]
    pairs = [
        ("river", "river stone", 4.0),
        ("cat", "dog", 1.0),
        ("cat dog", "dog cat", 5.0),
        ("a", "window", 0.0),
    ]
    rows += [f"x\t{score}\t{first}\t{second}" for first, second, score in pairs]
    (data / "stsb").mkdir(parents=True)
    (data / "stsb" / "dev.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    return data


def assert_best_is_step_4(result: Result, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same run, stopped there."""
    stop_after(monkeypatch, 4)
    stopped = load_file(run("four").out / "checkpoint.safetensors")
    best = load_file(result.best / "model.safetensors")
    assert all(
        np.array_equal(array, stopped[f"model.encoder.backbone.{name}"]) for name, array in best.items()
    )


def test_the_best_step_on_dev_is_kept_beside_the_last(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dev(tmp_path / "data")
    said: list[str] = []
    scores = iter([0.3, 0.7, 0.5])
    monkeypatch.setattr("training.runs.dev.spearman", lambda encode, pairs: next(scores))
    result = run("out", data=data, eval_steps=2, say=said.append)
    assert result.dev == {2: 0.3, 4: 0.7, 6: 0.5}
    assert [line["stsb_dev"] for line in events(result.out, "dev")] == [0.3, 0.7, 0.5]
    assert "step 4: stsb_dev 0.7000, the best so far" in said
    monkeypatch.undo()
    assert_best_is_step_4(result, run, monkeypatch)
    assert weights(result.best) != weights(result.last)


def test_the_dev_score_is_the_rank_correlation_of_cosines(
    run: Run, tmp_path: Path, tiny_source: Path, recipe: Recipe
) -> None:
    still = replace(recipe, optim=replace(recipe.optim, lr=0.0))
    result = run("out", data=write_dev(tmp_path / "data"), recipe=still, steps=1)
    # By ranks: the model's own vectors of the four pairs, computed by the published path.
    from models.publishing.publish import publish
    from models.store import Store

    store = Store(tmp_path / "models")
    encoder = store.open(publish(store, tiny_source).version)
    pairs = [("river", "river stone"), ("cat", "dog"), ("cat dog", "dog cat"), ("a", "window")]
    cosines = [float(np.dot(*encoder.encode(pair).vectors)) for pair in pairs]
    ranks, gold = np.argsort(np.argsort(cosines)), np.array([2, 1, 3, 0])
    assert result.dev[1] == pytest.approx(1 - 6 * np.sum((ranks - gold) ** 2) / (4 * 15), abs=1e-9)


def test_without_a_dev_set_best_is_the_last_step_and_that_is_said(run: Run) -> None:
    said: list[str] = []
    result = run("out", say=said.append)
    assert weights(result.best) == weights(result.last)
    assert said.index("no STS-B dev set was found, so best will be the last step") < said.index("tokenising")


def test_a_score_that_is_no_number_is_never_the_best(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dev(tmp_path / "data")
    scores = iter([math.nan, 0.4, math.nan])
    monkeypatch.setattr("training.runs.dev.spearman", lambda encode, pairs: next(scores))
    result = run("out", data=data, eval_steps=2)
    assert result.dev == {2: None, 4: 0.4, 6: None}
    monkeypatch.undo()
    assert_best_is_step_4(result, run, monkeypatch)


def test_without_any_score_that_is_a_number_best_is_the_last_step_and_the_files_are_json(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dev(tmp_path / "data")
    monkeypatch.setattr("training.runs.dev.spearman", lambda encode, pairs: math.nan)
    result = run("out", data=data, eval_steps=3)
    assert weights(result.best) == weights(result.last)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    for name in ("run.json", "record.jsonl"):
        text = (result.out / name).read_text()
        for line in text.splitlines() if name.endswith("l") else [text]:
            json.loads(line, parse_constant=refuse)


def test_a_run_resumed_without_the_data_keeps_the_best_that_was_chosen(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dev(tmp_path / "data")
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        chosen = weights(run("out", data=data, eval_steps=2).best)
    said: list[str] = []
    result = run("out", resume=True, say=said.append)
    assert weights(result.best) == chosen != weights(result.last)
    assert result.dev.keys() == {2}
    assert "no STS-B dev set was found, so best will be the last step, unless one was chosen before" in said


def test_named_data_that_is_not_there_is_refused_before_anything_is_read(
    run: Run, tmp_path: Path, tiny_source: Path, corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(tmp_path, tiny_source, corpus, "--steps", "1", "--data", str(tmp_path / "nope"))
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"python -m training: {tmp_path / 'nope'} is not a folder.")
    with pytest.raises(TrainingError, match="nope is not a folder of evaluation sets"):
        run("out", data=tmp_path / "nope")
    assert not (tmp_path / "out").exists()


def test_a_damaged_dev_set_is_named_with_its_line(run: Run, tmp_path: Path) -> None:
    file = write_dev(tmp_path / "data") / "stsb" / "dev.tsv.gz"
    file.write_bytes(gzip.compress(b"score\tsentence1\tsentence2\n6\ta\tb\n"))
    with pytest.raises(TrainingError, match=r"dev\.tsv\.gz, line 2: the score 6 is not between 0 and 5"):
        run("out", data=tmp_path / "data")


def test_ctrl_c_in_the_last_step_writes_everything_and_is_not_swallowed(
    run: Run,
    tmp_path: Path,
    tiny_source: Path,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    straight = run("straight")
    assert (straight.interrupted, straight.finished) == (False, True)
    with monkeypatch.context() as patched:
        stop_after(patched, 6)
        stopped = run("stopped")
    assert (stopped.interrupted, stopped.finished, stopped.steps) == (True, True, 6)
    assert weights(stopped.last) == weights(stopped.best) == weights(straight.last)
    assert run("stopped", resume=True) == replace(stopped, interrupted=False)
    stop_after(monkeypatch, 2)
    assert main(command(tmp_path, tiny_source, corpus, "--steps", "2")) == 130
    said = capsys.readouterr().err
    assert "that was the last step" in said
    assert "--resume" not in said
    assert (tmp_path / "out" / "last" / "model.safetensors").is_file()


def test_searches_that_are_given_choose_the_step(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.3, 0.7, 0.5])
    seen: list[bool] = []

    def score(encoder: TrainedEncoder) -> float:
        texts = ["river stone", "cat"]
        seen.append(np.array_equal(encoder.encode_queries(texts), encoder.encode(texts)))
        return next(scores)

    said: list[str] = []
    result = run("out", dev=score, eval_steps=2, say=said.append)
    assert result.dev == {2: 0.3, 4: 0.7, 6: 0.5}
    assert [line["search_dev"] for line in events(result.out, "dev")] == [0.3, 0.7, 0.5]
    assert seen == [True] * 3, "a base without prompts"
    assert_best_is_step_4(result, run, monkeypatch)


def test_an_encoder_in_training_asks_with_its_prompts(tmp_path: Path, recipe: Recipe) -> None:
    base = make_tiny_source(tmp_path / "base", prompts={"query": "blue: ", "document": "red: "})
    encoder, _ = load_encoder(base, recipe, torch.device("cpu"))
    given = [encoder.encode_queries(["cat"]), encoder.encode_documents(["cat"])]
    assert np.array_equal(given, [encoder.encode(["blue: cat"]), encoder.encode(["red: cat"])])


@pytest.mark.parametrize(
    "name", ["pairs", "triples", "crops", "ict", "distil-hybrid", "simcse-sup", "triplet"]
)
def test_sts_b_chooses_no_step_of_a_model_that_learns_to_search(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scores = iter([0.9, 0.1])
    monkeypatch.setattr("training.runs.dev.spearman", lambda encode, pairs: next(scores))
    recipe = load_recipe(name)
    said: list[str] = []
    given = {"recipe": recipe, "corpus": corpus_for(recipe), "data": write_dev(tmp_path / "data")}
    result = run("out", **given, steps=4, eval_steps=2, say=said.append)
    if name in ("simcse-sup", "triplet"):  # whose triples are sentences
        assert result.dev == {2: 0.9, 4: 0.1}
    else:
        assert result.dev == {}
        assert weights(result.best) == weights(result.last)
        assert "no dev searches were given, so best will be the last step" in said
