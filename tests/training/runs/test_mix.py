"""The share of a training that is kept: the weights by hand, the choice by numbers, and whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from models.store import Store
from tests.training.run_cases import events
from training.evaluation.encoding import Encode
from training.methods.recipe import Recipe, load_recipe
from training.papers.postprocess import Whiten
from training.runfile import Result
from training.runs.export import export_run
from training.runs.mix import SHARES, best, between

Run = Callable[..., Result]


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
        ((0.3, 0.3, 0.3, 0.3), 1.0),  # a tie
        ((0.3, 0.4, 0.5, 0.6), 1.0),
        ((0.3, 0.5, 0.4, 0.1), 0.5),
        ((0.3, 0.5, 0.4, 0.5), 1.0),
    ],
)
def test_the_best_share_is_kept_and_of_equal_ones_the_largest(means: tuple[float, ...], kept: float) -> None:
    assert best(dict(zip(SHARES, means, strict=True))) == kept


class Peak:
    """Searches that one share is best for; it counts how often it is asked."""

    def __init__(self, share: float) -> None:
        self._best, self.asked = share, 0
        self.vectors: list[NDArray[np.float32]] = []

    def __call__(self, encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
        share = SHARES[self.asked]
        self.asked += 1
        assert np.array_equal(encode_queries(["a cat"]), encode_documents(["a cat"]))  # no prompts
        self.vectors.append(encode_queries(["the red river runs"]))
        return np.full(3, 1 - abs(share - self._best))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_ends_with_the_share_that_searches_choose(
    run: Run, tiny_source: Path, tmp_path: Path, precision: str
) -> None:
    choose = Peak(0.5)
    result = run("out", steps=6, choose=choose, precision=precision)
    assert choose.asked == len(SHARES)
    base, best, last = (
        load_file(folder / "model.safetensors") for folder in (tiny_source, result.best, result.last)
    )
    for name, tensor in best.items():
        assert tensor == pytest.approx((base[name] + last[name]) / 2, abs=1e-6), name
    assert len({vectors.tobytes() for vectors in choose.vectors}) == len(SHARES)
    said = json.loads((result.out / "run.json").read_text())
    assert said["finished"]["share"] == 0.5
    assert said["finished"]["shares"] == {"0.25": 0.75, "0.5": 1.0, "0.75": 0.75, "1.0": 0.5}
    assert events(result.out, "share")[0]["share"] == 0.5
    plain = load_file(run("plain", steps=6, precision=precision).last / "model.safetensors")
    assert all(np.array_equal(plain[name], last[name]) for name in plain)  # choosing changes no training
    store = Store(tmp_path / "models")
    assert export_run(result.out, store).lineage["share"] == 0.5
    assert "share" not in export_run(result.out, store, step="last").lineage


def test_where_there_is_nothing_between_nothing_is_chosen(run: Run, recipe: Recipe) -> None:
    choose = Peak(0.5)
    result = run("out", recipe=replace(recipe, post=(Whiten(8),)), steps=2, choose=choose)
    assert (choose.asked, result.best.is_dir()) == (0, True)
    student = run("student", recipe=load_recipe("distil", {"student.layers": 1}), steps=2, choose=choose)
    assert (choose.asked, student.best.is_dir()) == (0, True)
