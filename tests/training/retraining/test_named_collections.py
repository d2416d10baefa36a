"""Retraining on the documents of a running service."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.manifest import REPORT
from models.publishing.layout import CARD
from models.store import ModelStore
from tests.parts.json_server import json_server
from tests.service.process import Service
from tests.training.conftest import WORDS
from tests.training.jobs import as_if_served
from training.__main__ import main
from training.methods.recipe import load_recipe
from training.retraining.config import Config, CorpusTable, JudgmentsTable, TrainTable
from training.retraining.one import Job
from training.retraining.plan import prepare
from training.retraining.workplace import OtherFolder, require_same_folder
from training.text.service import fetch_count

NAMES = ("tickets", "manuals")
COUNT = 300  # Documents of each collection.


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    """A service whose collections have equal ids, but different texts, titles and judged queries."""
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
            queries = [" ".join([*draw.choices(WORDS, k=6), str(at), name]) for at in range(280)]
            judgements = [
                {"query": each, "id": f"d{at}", "relevant": True} for at, each in enumerate(queries)
            ]
            service.client.post(f"{path}/feedback", json={"feedback": judgements}).raise_for_status()
        yield service


def config_of(service: Service, file: Path, recipe: str, *names: str) -> Config:
    """Returns a configuration. Copies the feedback to `file`, because feedback of one key is not held out."""
    said = [
        {"collection": name} | {key: row[key] for key in ("query", "id")}
        for name in (NAMES if names == ("*",) else names)
        for row in service.client.get(f"/collections/{name}/feedback?limit=1000").json()["feedback"]
    ]
    file.write_text("\n".join(map(json.dumps, said)))
    return Config(
        corpus=CorpusTable(service=f"http://127.0.0.1:{service.port}", collections=names),
        judgements=JudgmentsTable(held_out=0.5, file=file),
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
    requested = NAMES if names == ("*",) else names
    assert found.about["collections"] == dict.fromkeys(sorted(requested), COUNT)
    assert found.corpus.columns == (2 if method == "pairs" else 4)
    rows = [
        [text for text in found.corpus.texts[at : at + found.corpus.columns] if text]
        for at in range(0, len(found.corpus.texts), found.corpus.columns)
    ]
    queries = {row[0].split()[-1] for row in rows if row[0].split()[-2].isdigit()}
    assert queries == set(requested), "each collection's judgments are trained on"
    for row in rows:
        assert len({name for name in NAMES for text in row if name in text}) == 1, row
    judged = found.searches["judged"]
    assert judged.within is not None
    assert {judged.within[name] for name in judged.queries} == set(requested)
    assert found.options.dev is not None
    counts = found.about["documents"]
    assert counts["judgements_of_unknown_documents"] == 0
    sides = ("queries_trained_on", "queries_held_out", "queries_held_out_for_dev")
    assert sum(counts[side] for side in sides) == 280 * len(requested)


def test_the_documents_that_begin_a_run_are_those_of_the_named_collection(service: Service) -> None:
    url = f"http://127.0.0.1:{service.port}"
    assert [fetch_count(url, ("tickets",)), fetch_count(url, NAMES), fetch_count(url)] == [
        COUNT,
        2 * COUNT,
        0,
    ]


@pytest.mark.long
@pytest.mark.parametrize("method", ["triples", "crops"])
def test_a_named_collection_is_retrained_on_from_end_to_end(
    job: Job, service: Service, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["retrain", "--from-service", f"http://127.0.0.1:{service.port}", "--collection", "tickets"]
    given += ["--models-dir", str(as_if_served(job.store.root, service)), "--data", str(job.data)]
    given += ["--recipe", method]
    assert main([*given, "--steps", "2", "--precision", "fp32", "--set", "optim.batch=8"]) in (0, 3)
    said = capsys.readouterr().err
    assert "of the training is kept" in said
    [made] = [manifest for manifest in job.store.versions() if manifest.gate is not None]
    report = json.loads((job.store.folder(made.version) / REPORT).read_bytes())
    assert report["meta"]["collections"] == {"tickets": COUNT}
    assert "own known" in {row["name"] for row in report["rows"]}
    assert set(made.lineage) >= {"share"}
    assert "stsb_dev" not in made.lineage


@pytest.fixture
def filled(tmp_path: Path, tiny_models_dir: Path) -> Iterator[Service]:
    rng = random.Random(1)
    texts = (" ".join(rng.choices(WORDS, k=12)) for _ in range(300))
    documents = [
        {"id": f"d{at}", "text": text, "metadata": {"title": text[:20]}} for at, text in enumerate(texts)
    ]
    folder = tmp_path / "service"
    folder.mkdir()
    with Service(folder, tiny_models_dir) as filled:
        filled.client.post("/documents", json={"documents": documents}).raise_for_status()
        yield filled


def run(job: Job, filled: Service, *more: str) -> int:
    address = f"http://127.0.0.1:{filled.port}"
    models = as_if_served(job.store.root, filled)
    given = ["retrain", "--from-service", address, "--models-dir", str(models), "--steps", "2"]
    recipe = ["--recipe", "simcse-unsup", "--set", "optim.batch=8"]
    return main([*given, *recipe, "--precision", "fp32", *more])


@pytest.mark.long
def test_documents_of_the_service_are_held_out_and_judge(
    job: Job, filled: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job, filled, "--data", str(job.data)) == 3, "two steps gain nothing, and a gain is asked for"
    assert "held out" in capsys.readouterr().err
    [refused] = [manifest for manifest in job.store.versions() if manifest.gate is not None]
    report = json.loads((job.store.folder(refused.version) / REPORT).read_text(encoding="utf-8"))
    assert report["meta"]["require"] == "better"
    assert report["meta"]["documents"]["held_out"] > 0
    assert "own titles" in {row["name"] for row in report["rows"]}
    counts = report["meta"]["documents"]
    card = (job.store.folder(refused.version) / CARD).read_text(encoding="utf-8")
    learned, held = counts["trained_on"], counts["held_out"]
    assert f"Of the corpus, {learned} documents were there to learn from, and {held}" in card


@pytest.mark.long
@pytest.mark.parametrize("gate", ["on", "off"])
def test_too_few_texts_train_nothing_whatever_the_gate(
    job: Job, filled: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], gate: str
) -> None:
    before = [manifest.version for manifest in job.store.versions()]
    assert run(job, filled, "--gate", gate, "--least", "301") == 4
    assert "Too few documents: 300; at least 301" in capsys.readouterr().out
    corpus = tmp_path / "three.txt"
    corpus.write_text("one text\nanother text\na third text\n")
    models = ["--models-dir", str(job.store.root), "--data", str(job.data)]
    assert main(["retrain", "--recipe", "crops", "--corpus", str(corpus), "--gate", gate, *models]) == 4
    assert "Too few texts: 3; at least 100" in capsys.readouterr().out
    assert [manifest.version for manifest in job.store.versions()] == before


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("served"), tiny_models_dir) as small:
        small.put({"a": "red river", "b": "blue stone"}).raise_for_status()
        yield small


def address(small: Service) -> str:
    return f"http://127.0.0.1:{small.port}"


@pytest.fixture
def other(tmp_path: Path, tiny_models_dir: Path) -> Path:
    """A copy of the models folder with another id, as of another service."""
    models = tmp_path / "other"
    shutil.copytree(tiny_models_dir, models)
    ModelStore(models).renew_id()
    return models


def test_the_folder_of_the_service_is_taken_by_whatever_path(small: Service, tmp_path: Path) -> None:
    models = small.folder / "models"
    (tmp_path / "link").symlink_to(models)
    for path in (models, tmp_path / "link", models.parent / "." / "models", models / ".." / "models"):
        require_same_folder(address(small), path)


@pytest.mark.parametrize(
    "how", ["another service's", "no id", "a copy that is served", "an old backup", "damaged", "missing"]
)
def test_another_folder_is_refused_and_both_are_named(
    small: Service, other: Path, tmp_path: Path, how: str
) -> None:
    served = small.folder / "models"
    if how == "no id":
        (other / "id").unlink()
    elif how == "damaged":
        (other / "id").write_text("not an id\n")
    elif how == "missing":
        other = tmp_path / "nowhere"
    elif how != "another service's":
        shutil.copy(served / "id", other / "id")
        if how == "an old backup":  # made before the service started again
            ModelStore(served).renew_id()
        else:
            ModelStore(other).renew_id()
    with pytest.raises(OtherFolder) as refused:
        require_same_folder(address(small), other)
    said = str(refused.value)
    ours = ModelStore(other).id()
    assert f"{address(small)} uses the models folder {served} (id {ModelStore(served).id()})" in said
    assert f"{other} ({f'id {ours}' if ours else 'without an id'})" in said
    assert f"--models-dir {served}" in said
    assert "folders.models in retrain.toml" in said


@pytest.mark.parametrize(
    "command", ["retrain", "retrain --config", "advise", "advise --config", "schedule --config"]
)
def test_every_command_that_would_use_another_folder_ends_before_it_trains(
    small: Service,
    other: Path,
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SIMILE_MODELS_DIR", str(other))
    before = sorted(path.name for path in other.iterdir())
    name, *config = command.split()
    if config:
        (tmp_path / "retrain.toml").write_text(f'[corpus]\nservice = "{address(small)}"\n')
        given = [name, "--config", str(tmp_path / "retrain.toml")]
    else:
        given = [name, "--from-service", address(small)]
    assert main(given) == 1
    said = capsys.readouterr().err
    assert f"uses the models folder {small.folder / 'models'} (id " in said
    assert "loading torch" not in said
    assert sorted(path.name for path in other.iterdir()) == before


@pytest.fixture
def old(tiny_models_dir: Path) -> Iterator[str]:
    """A stub service without a folder id. Its active version is the requested one of the tiny folder."""
    with json_server(lambda *_: (200, {"model_version": ModelStore(tiny_models_dir).requested()})) as url:
        yield url


def test_of_a_service_without_an_id_the_active_version_tells(
    old: str, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OtherFolder, match="without an id"):
        require_same_folder(old, other)
    (other / "id").unlink()
    require_same_folder(old, other)
    assert f"! The service at {old} does not report the id" in capsys.readouterr().err
    ModelStore(other).write_state({"live": "20200102T030405-another-1a2b3c4d"})
    with pytest.raises(OtherFolder, match="is 20200102T030405-another-1a2b3c4d: it is the folder of another"):
        require_same_folder(old, other)
