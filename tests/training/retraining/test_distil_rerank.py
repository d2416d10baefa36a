"""A retraining that learns from the active reranker, and rerankers that were trained here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.errors import ModelError, WrongKind
from models.publishing.default import publish_named
from models.tokens.pairs import Pair
from tests.tiny import tiny_cross_encoder
from tests.training.conftest import WORDS
from tests.training.jobs import configured
from tests.training.runs.test_reranker import PAIRS, RECIPES, train_reranker
from training.errors import NothingToLearn
from training.methods.recipe import load_recipe
from training.model.reranker import load_reranker
from training.retraining.auto import build_material
from training.retraining.gather import Gathered, gather
from training.retraining.one import Job, retrain
from training.retraining.plan import build_job
from training.runs.export import export_run
from training.text.corpus import LISTED

QUERIES = [f"where is the {word}" for word in WORDS]


@pytest.fixture
def gathered(job: Job) -> Gathered:
    """200 documents, of which some are held out, and 14 unjudged queries of users."""
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=12)) for _ in range(200)]
    rows = [
        {"id": str(at), "title": f"{text[:14]} {at}", "text": f"{text}. {text[::-1]}"}
        for at, text in enumerate(texts)
    ]
    config = configured(job.store.root.parent, rows, held_out=0.3)
    return gather(config, job.store, print)._replace(queried={"default": QUERIES})


def activate(job: Job, **config: Any) -> str:
    source = tiny_cross_encoder(job.store.root.parent / "source", **config)
    version = publish_named(job.store, str(source)).version
    job.store.request_reranker(version)
    return version


def test_the_active_reranker_scores_the_queries_of_users_and_the_gate_judges(
    job: Job, gathered: Gathered
) -> None:
    version = activate(job)
    made = build_job(gathered, load_recipe("distil-rerank"), job.work)
    columns = LISTED + 1
    rows = [made.corpus.texts[at : at + columns] for at in range(0, len(made.corpus.texts), columns)]
    assert [row[0] for row in rows] == sorted(QUERIES)
    with closing(job.store.open_reranker(version)) as reranker:
        pairs = [Pair(row[0], text) for row in rows for text in row[1:]]
        expected = reranker.score(pairs, normalize=False)[:, 0]
    labels: Any = made.corpus.labels
    assert np.ravel(labels) == pytest.approx(expected, abs=2e-6)
    assert build_material(gathered).reranker
    assert build_material(gathered).of_users == len(QUERIES)
    outcome = retrain(made)
    assert outcome.version is not None
    manifest = job.store.verify(outcome.version)
    assert manifest.gate is not None
    assert manifest.gate.verdict in ("accepted", "refused")
    assert manifest.lineage["method"] == "distil-rerank"
    with pytest.raises(NothingToLearn, match="came of this very text"):
        retrain(made)


def test_another_reranker_teaches_another_corpus(job: Job, gathered: Gathered) -> None:
    recipe, digests = load_recipe("distil-rerank"), []
    for seed in (0, 1):
        source = tiny_cross_encoder(job.store.root.parent / f"source{seed}", seed=seed)
        job.store.request_reranker(publish_named(job.store, str(source)).version)
        digests.append(build_job(gathered, recipe, job.work).corpus.digest)
    assert digests[0] != digests[1]


@pytest.mark.parametrize("case", ["none", "no longer", "classifier", "deleted", "not open", "no queries"])
def test_without_a_teacher_or_queries_nothing_is_trained(case: str, job: Job, gathered: Gathered) -> None:
    reasons = {"classifier": "has 3 scores of a pair", "no queries": r"set events\.queries = true"}
    reasons["not open"] = "is requested, but the service has not made it active"
    if case != "none":
        version = activate(job, labels=("a", "b", "c") if case == "classifier" else ())
        if case in ("no longer", "deleted"):
            job.store.request_reranker(None)
        if case == "deleted":
            requested = job.store.root / "reranker.json"
            was = requested.read_text()
            requested.unlink()
            job.store.prune(version)
            requested.write_text(was.replace("null", f'"{version}"', 1))
    if case == "not open":
        job.store.write_state({"live": gathered.active, "reranker": None})
    if case == "no queries":
        job.store.write_state({"live": gathered.active, "reranker": version})
        gathered = gathered._replace(queried={})
    with pytest.raises(NothingToLearn, match=reasons.get(case, "No reranker is active")):
        build_job(gathered, load_recipe("distil-rerank"), job.work)
    assert build_material(gathered).reranker == (case == "no queries")


DAMAGED: dict[str, Callable[[Path], object]] = {
    "half a file": lambda file: file.write_text("{"),
    "empty": lambda file: file.write_text(""),
    "no fields": lambda file: file.write_text("{}"),
    "a list": lambda file: file.write_text("[]"),
    "bytes": lambda file: file.write_bytes(b"\xff\xfe"),
    "deleted": Path.unlink,
    "a folder": lambda file: file.rename(file.with_name("other")).with_name("manifest.json").mkdir(),
    "of another version": lambda file: file.write_text(file.read_text().replace("-source-", "-other-")),
    "other weights": lambda file: (file.parent / "model.safetensors").write_bytes(b"0"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_reranker_stops_only_the_recipe_that_needs_it(
    case: str, job: Job, gathered: Gathered, capsys: pytest.CaptureFixture[str]
) -> None:
    version = activate(job)
    DAMAGED[case](job.store.folder(version) / "manifest.json")
    assert not build_material(gathered).reranker
    assert f"! The reranker cannot teach. Version {version}" in capsys.readouterr().out
    with pytest.raises(ModelError, match=version):
        build_job(gathered, load_recipe("distil-rerank"), job.work)


def test_an_encoder_in_reranker_json_is_no_teacher(job: Job, gathered: Gathered) -> None:
    (job.store.root / "reranker.json").write_text(json.dumps({"version": gathered.active, "previous": None}))
    assert not build_material(gathered).reranker
    with pytest.raises(WrongKind, match="is an encoder"):
        build_job(gathered, load_recipe("distil-rerank"), job.work)


@pytest.mark.parametrize("case", ["cross-encoder", "scores", "relations"])
def test_a_run_is_published_as_a_reranker_with_equal_scores(
    case: str, run: Callable[..., Any], job: Job
) -> None:
    result = train_reranker(run, "out", case, steps=3)
    best, manifest = result.best, export_run(result.out, job.store)
    assert manifest.lineage["method"] == RECIPES[case][0]
    assert publish_named(job.store, str(best)).version == manifest.version
    labels = ["entailment", "neutral", "contradiction"] if case == "relations" else []
    assert (manifest.kind, manifest.labels, manifest.dimension) == ("reranker", labels, max(1, len(labels)))
    with closing(job.store.open_reranker(manifest.version)) as reranker:
        found = reranker.score([Pair(*pair) for pair in PAIRS], normalize=False)
    assert found == pytest.approx(load_reranker(best).score(PAIRS), abs=1e-5)
    again = train_reranker(run, "again", case, base=job.store.folder(manifest.version), steps=1)
    assert load_reranker(again.best).width == manifest.dimension
