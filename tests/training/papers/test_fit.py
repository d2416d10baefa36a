"""Blocks of the papers that do not work together are rejected when the recipe is read."""

from __future__ import annotations

from typing import Any

import pytest

from training.errors import TrainingError
from training.methods.recipe import load_recipe

INFO = {"name": "info_nce", "tau": 0.05}
SPANS = {"name": "documents", "anchors": 1, "positives": 2, "shortest": 8, "longest": 30}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "declutr",
        {"source": SPANS, "views": ["same"] * 3, "objectives": [INFO]},
        "further spans of a document are positives: nt_xent takes them for such",
    ),
    (
        "declutr",
        {"source": SPANS, "views": ["same"] * 3, "objectives": [{"name": "triplet", "margin": 1}]},
        "further spans of a document are positives",
    ),
    ("ct", {"objectives": ["neighbours"]}, 'neighbours needs the source "sentences"'),
    ("ct", {"objectives": ["word_ce"]}, 'word_ce needs the source "pairs"'),
    ("sg-opt", {"twin": "clone"}, "self_guided compares one view with the layers of the twin"),
    ("sg-opt", {"views": ["same", "same"]}, "self_guided compares one view with the layers"),
    ("whitening", {"post": ["sif"]}, "sif and usif weigh the rows of a word table: the pool must be static"),
    ("sif", {"post": ["drop_pcs", "sif"]}, "sif and usif come before other post-processors"),
    ("bert-flow", {"post": ["flow", "drop_pcs"]}, "flow comes after all other post-processors"),
    ("declutr", {"source.longest": 31}, "the source's `shortest` is above its `longest`"),
    ("quickthoughts", {"views": ["same"]}, "Neighbours compares two views; there are 1."),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_what_cannot_work_is_rejected(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError) as refused:
        load_recipe(name, changes)
    assert str(refused.value).startswith(f"The recipe {name}: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("declutr", {"source": SPANS | {"positives": 1}, "views": ["same"] * 2, "objectives": [INFO]}),
        ("declutr", {"source.near": "adjacent"}),
        ("sif", {"post": ["usif", "flow"]}),
    ],
)
def test_other_combinations_are_accepted(name: str, changes: dict[str, Any]) -> None:
    assert load_recipe(name, changes).name == name
