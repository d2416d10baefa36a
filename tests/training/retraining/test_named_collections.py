"""A collection with a name, on every path of a retraining: rows, judgements, new documents."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.manifest import REPORT
from tests.service.process import Service
from tests.training.conftest import WORDS
from tests.training.jobs import as_if_served
from training.__main__ import main
from training.methods.recipe import load_recipe
from training.retraining.config import Config, CorpusTable, JudgementsTable, TrainTable
from training.retraining.one import Job
from training.retraining.plan import prepare
from training.text.service import count_of

NAMES = ("tickets", "manuals")
COUNT = 300  # documents of each


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    """Equal ids in each collection, each with texts, titles and queries of its own."""
    folder = tmp_path_factory.mktemp("named")
    with Service(folder, tiny_models_dir) as service:
        for seed, name in enumerate(NAMES):
            draw = random.Random(seed)
            texts = [" ".join([*draw.choices(WORDS, k=12), name]) for _ in range(COUNT)]
            documents = [
                {
                    "id": f"d{at}",
                    "text": f"{text[:30]} ends. {text} begins.",
                    "metadata": {"title": text[:20]},
                }
                for at, text in enumerate(texts)
            ]
            path = f"/collections/{name}"
            service.client.post(f"{path}/documents", json={"documents": documents}).raise_for_status()
            judgements = [
                {
                    "query": " ".join([*draw.choices(WORDS, k=6), str(number), name]),
                    "id": f"d{number}",
                    "relevant": True,
                }
                for number in range(280)
            ]
            service.client.post(f"{path}/feedback", json={"feedback": judgements}).raise_for_status()
        yield service


def config_of(service: Service, file: Path, recipe: str, *names: str) -> Config:
    """A file of judgements says what the feedback says, which then judges although it has no key."""
    said = [
        {"collection": name} | {key: row[key] for key in ("query", "id")}
        for name in (NAMES if names == ("*",) else names)
        for row in service.client.get(f"/collections/{name}/feedback", params={"limit": 1000}).json()[
            "feedback"
        ]
    ]
    file.write_text("\n".join(map(json.dumps, said)))
    return Config(
        corpus=CorpusTable(service=f"http://127.0.0.1:{service.port}", collections=names),
        judgements=JudgementsTable(held_out=0.5, file=file),
        train=TrainTable(recipe=recipe, steps=2, negatives=2),
    )


@pytest.mark.parametrize("method", ["pairs", "triples"])
@pytest.mark.parametrize("names", [("tickets",), NAMES, ("*",)])
def test_rows_and_searches_are_of_the_collections_that_are_named(
    job: Job, service: Service, tmp_path: Path, method: str, names: tuple[str, ...]
) -> None:
    said: list[str] = []
    config = config_of(service, tmp_path / "judgements.jsonl", method, *names)
    found = prepare(config, load_recipe(method), job.store, job.work, said.append)
    wanted = NAMES if names == ("*",) else names
    assert found.about["collections"] == dict.fromkeys(sorted(wanted), COUNT)
    assert found.corpus.columns == (2 if method == "pairs" else 4)
    rows = [
        [text for text in found.corpus.texts[at : at + found.corpus.columns] if text]
        for at in range(0, len(found.corpus.texts), found.corpus.columns)
    ]
    queries = {row[0].split()[-1] for row in rows if row[0].split()[-2].isdigit()}
    assert queries == set(wanted), "each collection's judgements are trained on"
    for row in rows:
        assert len({name for name in NAMES for text in row if name in text}) == 1, row
    judged = found.searches["judged"]
    assert judged.within is not None
    assert {judged.within[name] for name in judged.queries} == set(wanted)
    assert found.options.dev is not None
    counts = found.about["documents"]
    assert counts["judgements_of_unknown_documents"] == 0
    sides = ("queries_trained_on", "queries_held_out", "queries_held_out_for_dev")
    assert sum(counts[side] for side in sides) == 280 * len(wanted)


def test_the_documents_that_begin_a_run_are_those_of_the_named_collection(service: Service) -> None:
    url = f"http://127.0.0.1:{service.port}"
    assert (count_of(url, ("tickets",)), count_of(url, NAMES), count_of(url)) == (COUNT, 2 * COUNT, 0)


@pytest.mark.long
@pytest.mark.parametrize("method", ["triples", "crops"])
def test_a_named_collection_is_retrained_on_from_end_to_end(
    job: Job, service: Service, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["retrain", "--from-service", f"http://127.0.0.1:{service.port}", "--collection", "tickets"]
    given += [
        "--models-dir",
        str(as_if_served(job.store.root, service)),
        "--data",
        str(job.data),
        "--recipe",
        method,
    ]
    assert main([*given, "--steps", "2", "--precision", "fp32", "--set", "optim.batch=8"]) in (0, 3)
    said = capsys.readouterr().err
    assert "of the training is kept" in said
    [made] = [manifest for manifest in job.store.versions() if manifest.gate is not None]
    report = json.loads((job.store.folder(made.version) / REPORT).read_bytes())
    assert report["meta"]["collections"] == {"tickets": COUNT}
    assert "own known" in {row["name"] for row in report["rows"]}
    assert set(made.lineage) >= {"share"}
    assert "stsb_dev" not in made.lineage
