"""`advise`: what there is to learn from, what would be tried and why, its gain and cost; nothing trains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.service.process import Service
from tests.service.swapping import publish_pair
from tests.training.conftest import WORDS
from tests.training.jobs import as_if_served
from tests.training.retraining.test_auto import KOREAN, documents
from training.__main__ import main
from training.retraining import advise, auto, halves
from training.retraining.advise import advice
from training.retraining.auto import ADAPT, DISTIL, TRIPLES, TUNE, Choice, Material
from training.retraining.one import Job
from training.retraining.rows import MOST_LISTS


@pytest.mark.parametrize(
    ("choice", "minutes"),
    # Texts of a choice times 3 for the backward pass, at 10 texts of a second, and what is mined once.
    [
        (TRIPLES, (4000 + (300 + 700) * 5 * 3) / 600),
        (DISTIL, (4000 + 2000 + 2000 * 9 * 3) / 600),
        (ADAPT, 4000 * 5 * 3 / 600),
        (TUNE, 4000 * 3 / 600),
    ],
)
def test_a_choice_has_its_reason_its_gain_and_its_minutes(choice: Choice, minutes: float) -> None:
    [line] = advice(Material(4000, 300, 2000, "", titles=700), [choice], 10.0, 1000)
    assert line.startswith(f"1. {choice.recipe}, because {choice.why}. It gained {choice.gained}. ")
    assert line.endswith(f"About {minutes:.0f} min here.")


def test_less_than_a_minute_is_one_and_a_training_has_its_bound() -> None:
    [line] = advice(Material(400, 30, 200, ""), [TRIPLES], 1e6, 30)
    assert line.endswith("About 1 min here.")
    large = Material(60_000, 30, 100_000, "")
    [line] = advice(large, [DISTIL], 100.0, 30)
    assert line.endswith(f"About {30 + (60_000 + MOST_LISTS) / 6000:.0f} min here.")


def test_judged_queries_that_are_cross_fitted_take_three_trainings() -> None:
    material = Material(4000, 300, 2000, "", titles=700)
    once = advice(material, [TRIPLES, DISTIL], 10.0, 1000)
    crossed = advice(material, [TRIPLES, DISTIL], 10.0, 1000, crossed=True)
    assert once[0].endswith("About 32 min here.")
    assert crossed[0].endswith("About 95 min here.")
    assert crossed[1] == once[1], "it reads no judged query"


@pytest.mark.parametrize(("few", "times"), [(1, 1), (1000, 3)])
def test_the_minutes_are_those_of_the_trainings_that_a_run_makes(
    job: Job,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    times: int,
) -> None:
    monkeypatch.setattr(halves, "FEW", few)  # groups held out, from which on one half is enough
    monkeypatch.setattr(advise, "_pace", lambda *_: 1.0)
    monkeypatch.setattr(advise, "_minutes", lambda *_: 7.0)
    assert _advise(job, tmp_path, WORDS, 420, judged=80) == 0
    assert re.search(rf"\n1\. triples, .* About {7 * times} min here\.", capsys.readouterr().out)


def test_beside_a_pair_only_the_search_is_advised(
    job: Job, tmp_path: Path, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto` does the same: what it trains would be slower, and is refused before."""
    _, both = publish_pair(job.store, job.store.versions()[0], tiny_source)
    job.store.want(both.version)
    assert _advise(job, tmp_path, WORDS, 420, judged=80) == 0
    said = capsys.readouterr()
    assert "\n1. search, because" in said.out
    assert "triples, because" not in said.out
    assert f"! {both.version} is a pair, and what triples or distil-hybrid trains has no student" in said.err
    assert _advise(job, tmp_path, WORDS, 420, judged=80, gate='on"\nslower = 1 #') == 0
    assert "\n1. triples, because" in capsys.readouterr().out, "the file says that it may be slower"


@pytest.mark.long
def test_a_service_is_advised_and_nothing_is_trained(
    job: Job, tmp_path: Path, tiny_models_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [manifest.version for manifest in job.store.versions()]
    (tmp_path / "service").mkdir()
    with Service(tmp_path / "service", tiny_models_dir) as service:
        service.client.post("/documents", json={"documents": documents(WORDS, 420)}).raise_for_status()
        where = ["--from-service", f"http://127.0.0.1:{service.port}"]
        assert main(["advise", *where, "--models-dir", str(as_if_served(job.store.root, service))]) == 0
    said = capsys.readouterr().out
    assert re.search(r"There are \d+ documents, 0 judged queries, and \d+ titles", said)
    assert "\n1. distil-hybrid, because words find what vectors miss" in said
    assert [manifest.version for manifest in job.store.versions()] == before


def test_a_file_that_teaches_nothing_ends_with_status_4(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _advise(job, tmp_path, KOREAN, 30) == 4
    assert "are too few" in capsys.readouterr().out
    assert _advise(job, tmp_path, KOREAN, 150, gate="off") == 4
    said = capsys.readouterr().out
    assert said.startswith("Nothing to learn: ")
    assert "It takes 1,000 documents to learn tokens from" in said


def test_where_nothing_can_be_trained_the_search_may_still_be_set(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _advise(job, tmp_path, KOREAN, 420) == 0
    said = capsys.readouterr().out
    assert "\n1. search, because words, vectors and passages may be set better" in said
    assert "About 1 min here." in said


def test_text_that_cannot_be_read_is_advised_to_be_learned(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "LEAST_TO_READ", 100)
    assert _advise(job, tmp_path, KOREAN, 260) == 0
    said = capsys.readouterr().out
    assert "The model cannot read the text: " in said
    assert "\n1. adapt, because the model cannot read the text" in said


def _advise(job: Job, folder: Path, words: list[str], count: int, gate: str = "on", judged: int = 0) -> int:
    found = documents(words, count)
    (folder / "documents.jsonl").write_text("\n".join(map(json.dumps, found)), encoding="utf-8")
    rows = [f"{each['text'][:14]} {at}\t{each['id']}" for at, each in enumerate(found[:judged])]
    (folder / "judged.tsv").write_text("\n".join(["query\tid", *rows]) + "\n", encoding="utf-8")
    text = (
        '[corpus]\nfile = "documents.jsonl"\n[judgements]\nfile = "judged.tsv"\n'
        f'[folders]\nmodels = "{job.store.root}"\n[gate]\nmode = "{gate}"\n'
    )
    (folder / "retrain.toml").write_text(text, encoding="utf-8")
    return main(["advise", "--config", str(folder / "retrain.toml")])
