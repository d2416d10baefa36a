"""The best step, the share of a training that is kept, and the curves of a run."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.publishing.publish import publish
from models.store import ModelStore
from tests.tiny import tiny_source as make_tiny_source
from tests.training.conftest import Run
from tests.training.recipe_cases import corpus_for
from tests.training.run_cases import command, events, stop_after, weights
from training.__main__ import main
from training.errors import TrainingError
from training.evaluation.encoding import Encode
from training.methods.loading import load_encoder
from training.methods.recipe import Recipe, load_recipe
from training.model.encoder import TrainedEncoder
from training.papers.postprocess import Whiten
from training.runfile import Result
from training.runs.export import export_run
from training.runs.mix import SHARES, best, between
from training.runs.record import FILE_NAME, MAX_POINTS, read_curve
from training.text.corpus import Corpus

PAIRS = {
    ("river", "river stone"): 4.0,
    ("cat", "dog"): 1.0,
    ("cat dog", "dog cat"): 5.0,
    ("a", "window"): 0.0,
}


def write_dev(data: Path) -> Path:
    rows = ["genre\tscore\tsentence1\tsentence2"]
    rows += [f"x\t{score}\t{first}\t{second}" for (first, second), score in PAIRS.items()]
    (data / "stsb").mkdir(parents=True)
    (data / "stsb" / "dev.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    return data


def assert_best_is_step_4(result: Result, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares the best weights with those of the same run stopped after step 4."""
    stop_after(monkeypatch, 4)
    stopped = load_file(run("four").out / "checkpoint.safetensors")
    for name, array in load_file(result.best / "model.safetensors").items():
        assert np.array_equal(array, stopped[f"model.encoder.backbone.{name}"])


@pytest.mark.parametrize(
    ("scores", "kept"),
    [([0.3, 0.7, 0.5], {2: 0.3, 4: 0.7, 6: 0.5}), ([math.nan, 0.4, math.nan], {2: None, 4: 0.4, 6: None})],
)
def test_the_best_step_on_dev_is_kept_beside_the_last(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scores: list[float],
    kept: dict[int, float | None],
) -> None:
    found, said = iter(scores), list[str]()
    monkeypatch.setattr("training.runs.dev.spearman", lambda encode, pairs: next(found))
    result = run("out", data=write_dev(tmp_path / "data"), eval_steps=2, say=said.append)
    assert result.dev == kept
    assert [line["stsb_dev"] for line in events(result.out, "dev")] == list(kept.values())
    assert f"step 4: stsb_dev {kept[4]:.4f}, the best so far" in said
    monkeypatch.undo()
    assert_best_is_step_4(result, run, monkeypatch)
    assert weights(result.best) != weights(result.last)


def test_the_dev_score_is_the_rank_correlation_of_cosines(
    run: Run, tmp_path: Path, tiny_source: Path, recipe: Recipe
) -> None:
    still = replace(recipe, optim=replace(recipe.optim, lr=0.0))
    result = run("out", data=write_dev(tmp_path / "data"), recipe=still, steps=1)
    # By ranks: the model's own vectors of the four pairs, computed by the published path.
    store = ModelStore(tmp_path / "models")
    encoder = store.open(publish(store, tiny_source).version)
    cosines = [float(np.dot(*encoder.encode(pair).vectors)) for pair in PAIRS]
    ranks, gold = np.argsort(np.argsort(cosines)), np.array([2, 1, 3, 0])
    assert result.dev[1] == pytest.approx(1 - 6 * np.sum((ranks - gold) ** 2) / (4 * 15), abs=1e-9)


def test_without_a_dev_set_best_is_the_last_step_and_that_is_said(run: Run) -> None:
    said: list[str] = []
    result = run("out", say=said.append)
    assert weights(result.best) == weights(result.last)
    assert said.index("no STS-B dev set was found, so best will be the last step") < said.index("tokenizing")


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


def test_named_data_that_is_not_there_is_refused_before_anything_is_read(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="nope is not a folder of evaluation sets"):
        run("out", data=tmp_path / "nope")
    assert not (tmp_path / "out").exists()


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


def test_weights_are_a_share_of_the_way() -> None:
    base = {"w": torch.tensor([1.0, -2.0]), "ids": torch.tensor([1, 2])}
    trained = {"w": torch.tensor([3.0, 2.0]), "ids": torch.tensor([3, 4])}
    found = between(base, trained, 0.25)
    assert found["w"].tolist() == [1.5, -1.0]
    assert found["ids"].tolist() == [3, 4]
    assert between(base, trained, 1.0)["w"].tolist() == [3.0, 2.0]


@pytest.mark.parametrize(
    ("means", "kept"),
    [
        ((3, 3, 3, 3, 3), 1.0),
        ((2, 3, 4, 5, 6), 1.0),
        ((2, 3, 5, 4, 1), 0.5),
        ((2, 3, 5, 4, 5), 1.0),
        ((6, 3, 5, 4, 5), 0.0),
    ],
)
def test_the_best_share_is_kept_and_of_equal_ones_the_largest(means: tuple[int, ...], kept: float) -> None:
    assert best(dict(zip(SHARES, means, strict=True))) == kept


class Peak:
    def __init__(self, share: float) -> None:
        self._best, self.requested = share, 0
        self.vectors: list[NDArray[np.float32]] = []

    def __call__(self, encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
        share = SHARES[self.requested]
        self.requested += 1
        assert np.array_equal(encode_queries(["a cat"]), encode_documents(["a cat"]))  # no prompts
        self.vectors.append(encode_queries(["the red river runs"]))
        return np.full(3, 1 - abs(share - self._best))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_ends_with_the_share_that_searches_choose(
    run: Run, tiny_source: Path, tmp_path: Path, precision: str
) -> None:
    choose = Peak(0.5)
    result = run("out", steps=6, choose=choose, precision=precision)
    assert choose.requested == len(SHARES)
    folders = tiny_source, result.best, result.last
    base, best, last = (load_file(folder / "model.safetensors") for folder in folders)
    for name, tensor in best.items():
        assert tensor == pytest.approx((base[name] + last[name]) / 2, abs=1e-6), name
    assert len({vectors.tobytes() for vectors in choose.vectors}) == len(SHARES)
    said = json.loads((result.out / "run.json").read_text())
    assert said["finished"]["share"] == 0.5
    assert said["finished"]["shares"] == {"0.0": 0.5, "0.25": 0.75, "0.5": 1.0, "0.75": 0.75, "1.0": 0.5}
    assert events(result.out, "share")[0]["share"] == 0.5
    plain = load_file(run("plain", steps=6, precision=precision).last / "model.safetensors")
    assert all(np.array_equal(plain[name], last[name]) for name in plain)  # choosing changes no training
    store = ModelStore(tmp_path / "models")
    assert export_run(result.out, store).lineage["share"] == 0.5
    assert "share" not in export_run(result.out, store, step="last").lineage


def test_where_there_is_nothing_between_nothing_is_chosen(run: Run, recipe: Recipe) -> None:
    choose = Peak(0.5)
    result = run("out", recipe=replace(recipe, post=(Whiten(8),)), steps=2, choose=choose)
    assert (choose.requested, result.best.is_dir()) == (0, True)
    student = run("student", recipe=load_recipe("distil", {"student.layers": 1}), steps=2, choose=choose)
    assert (choose.requested, student.best.is_dir()) == (0, True)


def recorded(folder: Path, *events: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    lines = "".join(f"{json.dumps({'time': 'then'} | event)}\n" for event in events)
    (folder / FILE_NAME).write_text(lines, encoding="utf-8")


def step(number: int, loss: float) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": loss, "lr": 1e-5}


def test_what_came_after_a_lost_step_is_drawn_once(tmp_path: Path) -> None:
    recorded(
        tmp_path / "run",
        {"event": "start", "steps": 30},
        step(10, 3.0),
        {"event": "dev", "step": 10, "stsb_dev": 0.5},
        step(20, 2.0),
        {"event": "dev", "step": 20, "stsb_dev": 0.9},
        {"event": "resume", "step": 10, "steps": 30},
        step(20, 2.5),
        {"event": "dev", "step": 20, "stsb_dev": None},
        {"event": "share", "share": 0.5},
        {"event": "end", "step": 20, "loss": 2.5},
    )
    loss = [(10, 3.0), (20, 2.5)]
    assert read_curve(tmp_path / "run") == {"loss": loss, "dev": [(10, 0.5)], "dev_name": "stsb_dev"}


def test_stages_follow_each_other_by_their_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        start, end = {"event": "start", "steps": 5}, {"event": "end", "step": 5}
        recorded(tmp_path / f"{number}-mlm", start, step(5, float(number)), end)
    assert read_curve(tmp_path)["loss"] == [(5, 1.0), (10, 2.0), (15, 10.0)]


def test_a_long_run_is_thinned_and_keeps_its_last_step(tmp_path: Path) -> None:
    recorded(tmp_path / "run", *(step(at, float(at)) for at in range(1, 1001)))
    found = read_curve(tmp_path / "run")["loss"]
    assert MAX_POINTS / 2 < len(found) <= MAX_POINTS
    assert found[-1] == (1000, 1000.0)
    assert read_curve(tmp_path / "none") == {"loss": [], "dev": [], "dev_name": ""}
