"""Figures of the default model on public sets, and measurements behind the gate's thresholds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from models import cpus
from models.store import ModelStore
from tests.evaldata import FOLDER, needs
from training.evaluation.data import BY_KEY, SETS, is_absent, load
from training.evaluation.encoding import Encode, encode_once
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection, retrieval
from training.evaluation.retrieval import load as load_collection
from training.evaluation.sts import cosines, spearman
from training.evaluation.suites import score
from training.retraining.gate import rules

pytestmark = pytest.mark.long

SPLITS = ("train", "dev", "test")
# sentence-transformers' vectors scored with scipy, Spearman over all pairs of a set.
REFERENCE = {"sts12": 0.7237, "sts14": 0.7560, "sts16": 0.7899, "stsb": 0.8203, "sickr": 0.7715}


def all_five(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs all sets of REFERENCE. It is skipped if one of them is absent."""
    for name in ("sts12", "sts14", "sts16", "stsb", "sick"):
        test = needs(name)(test)
    return test


class Measured(NamedTuple):
    encode: Encode  # Looks up vectors that were computed before.
    scores: dict[str, Any]


@pytest.fixture(scope="module")
def default_encode(default_models_dir: Path) -> Encode:
    store = ModelStore(default_models_dir)
    encoder = store.open(store.versions()[0].version, threads=cpus.available())
    return lambda texts: encoder.encode(texts).vectors


@pytest.fixture(scope="module")
def default(default_encode: Encode) -> Measured:
    there = [key for key in BY_KEY if not is_absent(key, FOLDER)]
    files = [load(key, FOLDER, split) for key in there for split in (SPLITS if key == "stsb" else ["test"])]
    sentences = {text for pairs in files for text in (*pairs.left, *pairs.right)}
    encode = encode_once(default_encode, sentences)
    return Measured(encode, score(encode, FOLDER))


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=needs("sick" if key == "sickr" else key)) for key in REFERENCE]
)
def test_the_default_model_scores_what_sentence_transformers_gives(default: Measured, key: str) -> None:
    found = default.scores["sts"][key]
    assert found["spearman_all"] == pytest.approx(REFERENCE[key], abs=0.0005)
    assert found["pairs"] == next(known.published for known in SETS if known.key == key)
    assert (found["unscored"], found["undefined"]) == (0, 0)


@needs("korsts")
def test_korean_is_scored_beside_the_mean(default: Measured) -> None:
    assert default.scores["sts"]["korsts"]["spearman_all"] == pytest.approx(0.4218, abs=0.0005)
    assert default.scores["sts"]["korsts"]["pairs"] == BY_KEY["korsts"].published
    assert "korsts" not in default.scores["mean"]["sets"]


def sampled(name: str) -> Collection:
    """Returns every fifth query, the relevant documents of these queries, and every 25th other document.

    A whole set takes minutes. tests/service/corpus/test_retrieval.py searches all of Cranfield.
    """
    whole = load_collection(FOLDER / name)
    queries = dict(list(whole.queries.items())[::5])
    relevant = {query: whole.relevant[query] for query in queries}
    requested = {document for gains in relevant.values() for document in gains}
    others = [id for id in whole.documents if id not in requested]
    documents = {id: whole.documents[id] for id in [*requested, *others[::25]]}
    return Collection(documents, queries, relevant, whole.empty)


# nDCG@10 of a full sort in plain Python, over the same model's vectors.
@pytest.mark.parametrize(
    ("name", "expected", "queries", "documents"),
    [
        pytest.param("cranfield", 0.6033, 45, 345, marks=needs("cranfield")),
        pytest.param("scifact", 0.8000, 60, 275, marks=needs("scifact")),
    ],
)
def test_the_default_model_finds_what_was_judged_relevant(
    default_encode: Encode, name: str, expected: float, queries: int, documents: int
) -> None:
    collection = sampled(name)
    encode = encode_once(
        default_encode,
        [*(content.whole for content in collection.documents.values()), *collection.queries.values()],
    )
    found = retrieval(collection, encode, encode, whole)
    assert found["ndcg10"] == pytest.approx(expected, abs=0.001)
    assert (found["queries"], found["documents"], found["undefined"]) == (queries, documents, 0)


@needs("stsb")
def test_the_default_models_geometry_is_that_of_all_of_sts_b(default: Measured) -> None:
    splits = [load("stsb", FOLDER, split) for split in SPLITS]
    left = default.encode([text for pairs in splits for text in pairs.left])
    right = default.encode([text for pairs in splits for text in pairs.right])
    alike = np.concatenate([pairs.gold for pairs in splits]) > 4
    found = default.scores["geometry"]
    assert found["pairs"] == alike.sum()
    # Vectors of length 1: |x - y|² is 2 - 2 cos.
    assert found["alignment"] == pytest.approx(np.mean(2 - 2 * cosines(left, right)[0][alike]), abs=1e-6)
    assert found["uniformity"] == pytest.approx(-3.816, abs=0.001)
    sentences = dict.fromkeys(text for pairs in splits for text in (*pairs.left, *pairs.right))
    vectors = default.encode(list(sentences))
    every_pair = sum(float((some @ vectors.T).sum()) for some in np.array_split(vectors, 32))
    assert found["mean_cosine"] == pytest.approx(every_pair / len(vectors) ** 2 - 1 / len(vectors), abs=1e-5)
    values = np.linalg.svd(vectors.astype(float), compute_uv=False)
    energy = values**2 / np.sum(values**2)
    assert found["directions"] == len(values)
    assert found["top_energy"] == pytest.approx(energy[0], abs=1e-6)
    assert found["effective_rank"] == pytest.approx(np.exp(-np.sum(energy * np.log(energy))), rel=1e-5)


@all_five
def test_the_means_limit_is_about_its_standard_error(default: Measured) -> None:
    generator = np.random.default_rng(0)
    errors = {}
    means = np.zeros(60)
    for key in REFERENCE:
        pairs = load(key, FOLDER)
        cosine, _ = cosines(default.encode(pairs.left), default.encode(pairs.right))
        draws = generator.integers(0, len(cosine), (len(means), len(cosine)))
        found = np.array([spearman(cosine[draw], pairs.gold[draw]) for draw in draws])
        errors[key] = found.std()
        means += found / len(REFERENCE)
    limits = rules.Thresholds()
    assert 0.6 < means.std() / limits.mean_fall < 1.4
    assert 0.4 < max(errors.values()) / limits.set_fall < 1


@all_five
@pytest.mark.parametrize(("length", "accepted"), [(0.0, True), (0.25, True), (1.0, False)])
def test_a_common_direction_is_seen_by_uniformity_alone(
    default: Measured, length: float, accepted: bool
) -> None:
    direction = np.random.default_rng(1).normal(size=384)
    common = (length * direction / np.linalg.norm(direction)).astype(np.float32)
    crowded = score(lambda texts: default.encode(texts) + common, FOLDER)
    verdict = rules.compare(crowded, default.scores)
    assert verdict.accepted is accepted
    assert {row.name for row in verdict.rows if not row.passed} <= {"uniformity"}
    assert crowded["mean"]["spearman_all"] == pytest.approx(default.scores["mean"]["spearman_all"], abs=0.002)
