"""Recipes whose blocks do not fit each other: the error names what would fit."""

from __future__ import annotations

from typing import Any

import pytest

from training.errors import TrainingError
from training.methods.recipe import column_of_each_view, count_columns, fitted, load_recipe

INFO = {"name": "info_nce", "tau": 0.05}
TRIPLET = {"name": "triplet", "margin": 1}
GIVEN = TRIPLET | {"mine": False}  # the negative of the row
NT_XENT = {"name": "nt_xent", "tau": 0.1}
REPEAT = {"name": "repeat", "rate": 0.3}
MASKED = {"name": "mask", "rate": 0.15}
ASIDE = {"name": "same", "aside": True}
TEMPLATE = {"name": "template", "text": '"{}" means [MASK].'}
QUEUED = {"negatives": [{"name": "queue", "batches": 1}], "twin": {"name": "ema", "momentum": 0.9}}
SPANS = {"name": "documents", "anchors": 1, "positives": 2, "shortest": 8, "longest": 30}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("simcse-unsup", {"objectives": ["vector_mse"]}, "the recipe needs a `student`"),
    ("distil", {"source": "pairs", "views": ["same", "same"]}, 'needs the source "pieces" or "lines"'),
    ("distil", {"views": [MASKED | {"aside": False}]}, "the views must be `same`, without a twin"),
    ("distil", {"head": {"name": "gelu", "width": 8}}, 'the head must be "none"'),
    ("promptbert", {"views": [TEMPLATE, TEMPLATE | {"less_bias": False}]}, "less_bias is for all templates"),
    ("esimcse", {"head": "bn"}, 'the head "bn" gives a queue'),
    ("simcse-unsup", {"views": ["same", MASKED, "same"]}, "views that stand aside come after those"),
    ("simcse-unsup", {"views": ["same"]}, "InfoNCE compares two views; the recipe has 1."),
    ("declutr", {"views": ["same"], "source.positives": 1}, "2 texts in a row, and the recipe 1"),
    ("sbert-nli", {"source": "pairs"}, 'pair_softmax needs the source "labelled_pairs"'),
    ("sbert-nli", {"views": ["same"]}, "the source has 2 texts in a row, and the recipe 1 views of them"),
    (
        "sbert-nli",
        {"objectives": [{"name": "pair_softmax", "classes": 2}]},
        "labelled pairs have 3 relations",
    ),
    ("triplet", {"source": "pairs"}, "the source has 2 texts in a row, and the recipe 3 views"),
    (
        "triplet",
        {"views": ["same"] * 4, "objectives": [GIVEN]},
        "reads one negative of a row: give --negatives 1",
    ),
    (
        "triplet",
        {"source": "pairs", "views": ["same", "same"], "objectives": [GIVEN]},
        "a positive and a negative; the recipe has 2.",
    ),
    ("simcse-unsup", {"objectives": ["mlm"]}, "mlm needs a view `mask`"),
    ("simcse-unsup", {"objectives": ["rtd"]}, "rtd needs a view `mask` aside for each view"),
    ("diffcse", {"views": ["same", "same", MASKED]}, "rtd needs a view `mask` aside for each view"),
    ("diffcse", {"views": ["same", REPEAT, MASKED, MASKED]}, "the contrasted views must be `same`"),
    ("tsdae", {"views": ["same"]}, "denoise needs the whole text as its last view"),
    ("tsdae", {"views": ["same", ASIDE, MASKED]}, "denoise needs the whole text as its last view"),
    ("tsdae", {"views": [ASIDE]}, "all views stand aside, and at least one"),
    ("mlm", {"views": []}, "all views stand aside"),
    ("simcse-sup", {"views": ["same", "same", "same", *[MASKED] * 4]}, "more views than that stand aside"),
    ("simcse-sup", {"objectives": [NT_XENT]}, "a triple ends with a negative"),
    ("tsdae", {"negatives": [{"name": "noise", "batches": 1}]}, "negatives are for info_nce"),
    ("simcse-unsup", {"negatives": [{"name": "queue", "batches": 1}]}, 'a queue needs the twin "ema"'),
    ("simcse-unsup", {"twin": {"name": "ema", "momentum": 0.9}}, 'a queue needs the twin "ema"'),
    ("simcse-unsup", {"views": [TEMPLATE, TEMPLATE]}, 'the pool "mask" goes with views `template`, all'),
    ("promptbert", {"views": [TEMPLATE, "same"]}, 'the pool "mask" goes with views `template`, all'),
    ("promptbert", {"pool": "cls"}, 'the pool "mask" goes with views `template`, all of them'),
    ("promptbert", {"fixed_mask": True}, "templates less their bias are encoded together"),
    ("simcse-unsup-mlm", {"fixed_mask": True}, "encode each view by itself; mlm and mi_jsd need"),
    ("simcse-unsup", {"result": "backbone"}, 'the result "backbone" needs the objective mlm'),
    ("mlm", {"post": [{"name": "drop_pcs", "count": 1}]}, 'the result "backbone" has no vectors'),
    ("pairs", {"objectives": [{"name": "kl_teacher", "tau": 0.1}]}, 'kl_teacher needs the source "lists"'),
    ("distil-hybrid", {"objectives": [INFO]}, "documents of a list are neither right nor wrong"),
    ("pairs", {"objectives": ["cosine_mse"]}, 'cosine_mse needs the source "scored_pairs" or "lists"'),
    ("cosent", {"objectives": [INFO]}, "documents of a list are neither right nor wrong, nor are pairs with"),
    ("pairsupcon", {"objectives": [INFO]}, "labelled pairs contradict each other as well"),
    ("pairs", {"objectives": [{"name": "hard_nce", "tau": 1}]}, 'hard_nce needs the source "labelled_pairs"'),
    ("ct", {"views": ["same"]}, "BceDot compares two views; the recipe has 1."),
    ("simcse-unsup", {"twin": "frozen"}, 'the twin "frozen" is for self_guided'),
    ("whitening", {"twin": "clone"}, "a twin is for training, and the recipe has no objective"),
    ("ct", {"objectives": ["mi_jsd"]}, "each view by itself; mlm and mi_jsd need more"),
    ("simcse-unsup-mlm", {"dropouts": [0.1]}, "encode each view by itself"),
    ("defsent", {"optim.table_lr": 1e-3}, "table_lr is the rate of embeddings, and train_embeddings = false"),
    ("promptbert", {"dropouts": [0.1]}, "templates less their bias are encoded together"),
    ("crops", QUEUED, "a queue recognizes texts by their numbers, and documents are cut again"),
    ("distil-hybrid", {"views": ["same"] * 8}, "the source has 9 texts in a row, and the recipe 8 views"),
    ("simcse-sup", {"objectives": []}, "a head that is kept must be trained"),
    (
        "declutr",
        {"source": SPANS, "views": ["same"] * 3, "objectives": [INFO]},
        "further spans of a document are positives",
    ),
    (
        "declutr",
        {"source": SPANS, "views": ["same"] * 3, "objectives": [TRIPLET]},
        "further spans of a document are positives",
    ),
    ("ct", {"objectives": ["neighbours"]}, 'neighbours needs the source "sentences"'),
    ("ct", {"objectives": ["word_ce"]}, 'word_ce needs the source "pairs"'),
    ("sg-opt", {"twin": "clone"}, "self_guided compares one view with the layers of the twin"),
    ("sg-opt", {"views": ["same", "same"]}, "self_guided compares one view with the layers"),
    ("whitening", {"post": ["sif"]}, "sif and usif weigh the rows of a word table: the pool must be static"),
    ("sif", {"post": ["drop_pcs", "sif"]}, "sif and usif come before other post-processors"),
    ("bert-flow", {"post": ["flow", "drop_pcs"]}, "flow comes after all other post-processors"),
    ("crops", {"views": ["same", REPEAT]}, "fills its rows, which a view `repeat` would make longer"),
    ("ict", {"views": ["same"] * 3}, "the source has 2 texts in a row, and the recipe 3"),
    ("declutr", {"source.longest": 31}, "the source's `shortest` is above its `longest`"),
    ("quickthoughts", {"views": ["same"]}, "Neighbours compares two views; the recipe has 1."),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_what_could_not_work_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError) as refused:
        load_recipe(name, changes)
    assert str(refused.value).startswith(f"The recipe {name}: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("simcse-unsup", {"views": ["same", "same", "same"]}),
        ("simcse-unsup", {"objectives": [INFO, INFO]}),
        ("simcse-unsup", {"objectives": [TRIPLET]}),
        ("simcse-unsup", {"fixed_mask": True, "negatives": [{"name": "noise", "batches": 1}]}),
        ("diffcse", {"fixed_mask": True}),
        ("diffcse", {"objectives": [INFO, "rtd", "mlm"]}),
        ("promptbert", {"views": [TEMPLATE | {"less_bias": False}] * 2, "fixed_mask": True}),
        ("ct", {"objectives": [INFO]}),
        ("esimcse", {"negatives": [{"name": "queue", "batches": 1}, {"name": "noise", "batches": 1}]}),
        ("declutr", {"source": SPANS | {"positives": 1}, "views": ["same"] * 2, "objectives": [INFO]}),
        ("declutr", {"source.near": "adjacent"}),
        ("sif", {"post": ["usif", "flow"]}),
    ],
)
def test_what_can_work_is_not(name: str, changes: dict[str, Any]) -> None:
    assert load_recipe(name, changes).name == name


def columns(name: str, **changes: Any) -> list[int]:
    return column_of_each_view(load_recipe(name, changes))


def test_each_view_is_of_the_text_that_stands_in_its_place() -> None:
    assert columns("simcse-unsup-mlm") == [0, 0, 0, 0]
    assert columns("simcse-sup") == [0, 1, 2]
    assert columns("simcse-sup-mlm") == [0, 1, 2, 0, 1, 2]
    assert columns("declutr") == [0, 1, 2]
    assert columns("simcse-sup-mlm", views=["same"] * 3 + [MASKED] * 2) == [0, 1, 2, 0, 1]


def test_a_recipe_of_triples_takes_as_many_negatives_as_its_rows_have() -> None:
    triples = load_recipe("triples")
    assert fitted(triples, 3) is triples
    three = fitted(triples, 5)
    assert (len(three.views), count_columns(three), column_of_each_view(three)) == (5, 5, [0, 1, 2, 3, 4])
    assert fitted(three, 3) == triples
    assert three.digest() != triples.digest()
    masked = fitted(load_recipe("simcse-sup-mlm"), 4)
    assert column_of_each_view(masked) == [0, 1, 2, 3, 0, 1, 2]
    pairs = load_recipe("pairs")
    assert fitted(pairs, 2) is pairs
    with pytest.raises(TrainingError, match="The recipe triplet: triplet without `mine` reads one negative"):
        fitted(load_recipe("triplet", {"objectives": [GIVEN]}), 4)
