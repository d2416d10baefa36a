"""Post-processors compared with numpy, before and after they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.store import ModelStore
from tests.tiny import tiny_source
from tests.training.recipe_cases import WORDS, build_corpus, raw_source
from training.errors import TrainingError
from training.methods.recipe import load_recipe
from training.papers.postprocess import AffinePost, DropPcs, Moments, Whiten, compute_moments
from training.runs.command import train
from training.runs.export import export_run
from training.runs.options import Options
from training.text.corpus import TEXTS

Floats = NDArray[Any]
RANDOM = np.random.default_rng(0)
# 400 vectors of 12 dimensions, each direction with a spread of its own, far from the origin.
TURN = np.linalg.qr(RANDOM.normal(size=(12, 12)))[0]
X = RANDOM.normal(size=(400, 12)) * np.geomspace(3, 0.05, 12)
X = (X @ TURN + RANDOM.normal(size=12) * 4).astype(np.float32)


def moments(x: Floats = X) -> Moments:
    return compute_moments(np.array_split(x, 7))


def applied(posts: list[AffinePost], x: Floats) -> Floats:
    x = x.astype(float)
    for post in posts:  # each fitted on the vectors that its predecessors make, as a run does
        layer = post.fit(moments(x))
        x = x @ layer.weight + layer.bias
    return x


def by_svd(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns centered rows, principal directions and deviations, by an SVD instead of a covariance."""
    centered = x.astype(float) - x.astype(float).mean(0)
    _, singular, directions = np.linalg.svd(centered, full_matrices=False)
    return centered, directions.T, singular / np.sqrt(len(x))


def cosines(x: Floats) -> Floats:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    found: Floats = unit @ unit.T
    return found


@pytest.mark.parametrize("kept", [12, 5])
def test_whitening_is_what_a_singular_value_decomposition_gives(kept: int) -> None:
    centered, directions, spreads = by_svd(X)
    expected = centered @ directions[:, :kept] / spreads[:kept]
    found = applied([Whiten(kept)], X)
    signs = np.sign((found * expected).sum(0))  # a direction has no sign
    assert np.abs(found * signs - expected).max() < 1e-8


def test_a_larger_dimension_than_there_is_keeps_all_of_them() -> None:
    assert np.array_equal(applied([Whiten(300)], X), applied([Whiten(12)], X))


def test_without_its_strongest_directions_a_vector_has_no_part_in_them() -> None:
    centered, directions, _ = by_svd(X)
    top = directions[:, :3]
    found = applied([DropPcs(3)], X)
    assert np.abs(found - (centered - centered @ top @ top.T)).max() < 1e-8
    assert np.abs(found @ top).max() < 1e-9
    assert np.linalg.matrix_rank(found, tol=1e-6) == 9


def test_the_second_post_processor_is_fitted_on_what_the_first_one_makes() -> None:
    centered, directions, spreads = by_svd(X)
    expected = centered @ directions[:, 2:8] / spreads[2:8]  # all but the two strongest
    assert np.abs(cosines(applied([DropPcs(2), Whiten(6)], X)) - cosines(expected)).max() < 1e-8
    turned = applied([Whiten(6), DropPcs(2)], X)
    assert turned.shape == (400, 6)
    assert np.linalg.matrix_rank(turned, tol=1e-6) == 4


def test_moments_do_not_depend_on_the_chunks_and_lose_no_digits_far_from_the_origin() -> None:
    far = RANDOM.normal(size=(1000, 6)).astype(np.float32) + np.float32(10_000)
    expected = np.cov(far.astype(float).T, bias=True)
    for chunks in (1, 3, 400):
        found = compute_moments(np.array_split(far, chunks))
        assert found.texts == 1000
        assert np.abs(found.mean - far.astype(float).mean(0)).max() < 1e-9
        assert np.abs(found.covariance - expected).max() < 1e-11
    naive = far.T.astype(float) @ far / 1000 - np.outer(far.mean(0, float), far.mean(0, float))
    assert np.abs(naive - expected).max() > 1e-9, "the plain formula would have lost them"


def test_vectors_that_differ_in_too_few_directions_are_refused_with_how_many() -> None:
    flat = X.copy()
    flat[:, 4:] = flat[:, :4] @ RANDOM.normal(size=(4, 8)).astype(np.float32)
    with pytest.raises(TrainingError, match=r"The 400 texts differ in 4 directions only; whitening to 12"):
        Whiten(12).fit(moments(flat))
    assert np.abs(np.cov(applied([Whiten(4)], flat).T, bias=True) - np.eye(4)).max() < 1e-6
    with pytest.raises(TrainingError, match="The 5 texts differ in 4 directions only; whitening to 8"):
        Whiten(8).fit(compute_moments(np.split(X[:5], 1)))
    with pytest.raises(TrainingError, match="differ in 0 directions only"):
        Whiten(1).fit(compute_moments([np.repeat(X[:1], 9, 0)]))
    with pytest.raises(TrainingError, match="differ in 9 directions only"):
        applied([DropPcs(3), Whiten(12)], X)


def test_no_direction_would_be_left() -> None:
    with pytest.raises(TrainingError, match="Vectors of 12 dimensions cannot lose 12 of them"):
        DropPcs(12).fit(moments())


def test_all_but_the_top_takes_one_direction_for_every_hundred_dimensions() -> None:
    wide = RANDOM.normal(size=(900, 250)).astype(np.float32)
    lost = 250 - np.linalg.matrix_rank(applied([DropPcs()], wide), tol=1e-6)
    assert lost == 2
    assert np.linalg.matrix_rank(applied([DropPcs()], X), tol=1e-6) == 11, "one at least"


def test_directions_from_the_origin_are_those_of_an_uncentered_svd_and_the_mean_stays() -> None:
    x = X.astype(float)
    _, _, directions = np.linalg.svd(x, full_matrices=False)
    top = directions[:1].T
    found = applied([DropPcs(1, centred=False)], X)
    assert np.abs(found - (x - x @ top @ top.T)).max() < 1e-8


def test_by_share_takes_of_each_direction_what_it_has_of_their_spread() -> None:
    x = X.astype(float)
    _, singular, directions = np.linalg.svd(x, full_matrices=False)
    shares = singular[:3] ** 2 / (singular[:3] ** 2).sum()
    expected = x - sum(
        share * np.outer(x @ each, each) for share, each in zip(shares, directions, strict=False)
    )
    found = applied([DropPcs(3, centred=False, by_share=True)], X)
    assert np.abs(found - expected).max() < 1e-8


@pytest.mark.parametrize("chunks", [[], [X[:1]]])
def test_one_vector_alone_is_too_few(chunks: list[Floats]) -> None:
    with pytest.raises(TrainingError, match="fitted on two texts or more"):
        compute_moments(chunks)


def pooled(base: Path, recipe: str, work: Path, texts: list[str], **changes: Any) -> Floats:
    """Publishes a recipe without steps, and returns its vectors of `texts` before normalization."""
    given: dict[str, Any] = {"precision": "fp32", "device": "cpu", "threads": 1}
    corpus = build_corpus(TEXTS)
    result = train(load_recipe(recipe, changes), corpus, base, work / recipe, Options(**given))
    assert result.steps == 0
    store = ModelStore(work / f"{recipe}-models")
    encoder = store.open(export_run(result.out, store).version)
    rows = [tokens.ids for tokens in encoder.tokenize(texts)]
    return encoder.forward(rows, normalize=False)


OTHER = [f"the {word} runs to my {word}" for word in WORDS]  # not those that it was fitted on


@pytest.mark.parametrize(
    "post",
    [
        [{"name": "whiten", "dimension": 6}],
        [{"name": "drop_pcs", "count": 3}],
        [{"name": "drop_pcs", "count": 1}, {"name": "whiten", "dimension": 4}],
    ],
)
def test_the_published_file_computes_what_numpy_does(tmp_path: Path, post: list[dict[str, Any]]) -> None:
    base = raw_source(tmp_path / "raw")
    found = pooled(base, "whitening", tmp_path, OTHER, post=post)
    before = pooled(base, "first-last", tmp_path, [*build_corpus(TEXTS).texts, *OTHER])
    fitted, x = np.split(before.astype(float), [len(build_corpus(TEXTS))])
    _, directions, spreads = by_svd(fitted)
    x = x - fitted.mean(0)
    dropped = post[0].get("count", 0)
    if post[-1]["name"] == "whiten":
        kept = slice(dropped, dropped + post[-1]["dimension"])
        expected = x @ directions[:, kept] / spreads[kept]
        found = found * np.sign((found * expected).sum(0))
    else:
        expected = x - x @ directions[:, :dropped] @ directions[:, :dropped].T
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(expected).max() > 0.1


def test_documents_have_their_prompt_when_a_post_processor_is_fitted(tmp_path: Path) -> None:
    prompt = "close number river "
    base = tiny_source(tmp_path / "base", prompts={"document": prompt})
    prompted = [prompt + text for text in build_corpus(TEXTS).texts]
    found = pooled(
        base, "whitening", tmp_path, prompted, post=[{"name": "whiten", "dimension": 6}], pool="mean"
    )
    assert np.abs(found.mean(0)).max() < 1e-4
    assert np.abs(np.cov(found.T, bias=True) - np.eye(6)).max() < 1e-4
    pooling = ModelStore(tmp_path / "whitening-models").versions()[0].pooling
    assert pooling == "mean", "a base that pools keeps its own way"
