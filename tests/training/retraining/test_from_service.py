"""`retrain --from-service`: a service's own documents judge, without any file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.manifest import REPORT
from models.publishing.layout import CARD
from tests.service.process import Service
from tests.training.conftest import WORDS
from tests.training.jobs import as_if_served
from training.__main__ import main
from training.retraining.one import Job


@pytest.fixture
def service(tmp_path: Path, tiny_models_dir: Path) -> Iterator[Service]:
    rng = random.Random(1)
    texts = (" ".join(rng.choices(WORDS, k=12)) for _ in range(300))
    documents = [
        {"id": f"d{at}", "text": text, "metadata": {"title": text[:20]}} for at, text in enumerate(texts)
    ]
    folder = tmp_path / "service"
    folder.mkdir()
    with Service(folder, tiny_models_dir) as service:
        service.client.post("/documents", json={"documents": documents}).raise_for_status()
        yield service


def run(job: Job, service: Service, *more: str) -> int:
    address = f"http://127.0.0.1:{service.port}"
    models = as_if_served(job.store.root, service)
    given = ["retrain", "--from-service", address, "--models-dir", str(models), "--steps", "2"]
    recipe = ["--recipe", "simcse-unsup", "--set", "optim.batch=8"]
    return main([*given, *recipe, "--precision", "fp32", *more])


@pytest.mark.long
def test_documents_of_the_service_are_held_out_and_judge(
    job: Job, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job, service, "--data", str(job.data)) == 3, "two steps gain nothing, and a gain is asked for"
    assert "held out" in capsys.readouterr().err
    [refused] = [manifest for manifest in job.store.versions() if manifest.gate is not None]
    report = json.loads((job.store.folder(refused.version) / REPORT).read_text(encoding="utf-8"))
    assert report["meta"]["require"] == "better"
    assert report["meta"]["documents"]["held_out"] > 0
    assert "own titles" in {row["name"] for row in report["rows"]}
    counts = report["meta"]["documents"]
    card = (job.store.folder(refused.version) / CARD).read_text(encoding="utf-8")
    assert (
        f"Of the corpus, {counts['trained_on']} documents were there to learn from, and {counts['held_out']}"
    ) in card


@pytest.mark.long
@pytest.mark.parametrize("gate", ["on", "off"])
def test_too_few_texts_train_nothing_whatever_the_gate(
    job: Job, service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], gate: str
) -> None:
    before = [manifest.version for manifest in job.store.versions()]
    assert run(job, service, "--gate", gate, "--least", "301") == 4
    assert "300 documents are too few; at least 301" in capsys.readouterr().out
    corpus = tmp_path / "three.txt"
    corpus.write_text("one text\nanother text\na third text\n")
    models = ["--models-dir", str(job.store.root), "--data", str(job.data)]
    assert main(["retrain", "--recipe", "crops", "--corpus", str(corpus), "--gate", gate, *models]) == 4
    assert "3 texts are too few; at least 100" in capsys.readouterr().out
    assert [manifest.version for manifest in job.store.versions()] == before
