"""Automatic choice of recipes: what `retrain` tries and what `advise` recommends."""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from models.manifest import FILE_NAME, REPORT, SearchDefaults
from models.store import ModelStore
from tests.service.lifecycle.test_learned_search import with_search
from tests.service.process import Service
from tests.service.swapping import publish_pair
from tests.training.conftest import WORDS
from tests.training.jobs import as_if_served, tiny_config, write_documents
from tests.training.run_cases import events, stop_after
from training.__main__ import main
from training.methods.recipe_files import TRIED
from training.mining.corpus_report import read as read_texts
from training.retraining import auto
from training.retraining.advise import advice
from training.retraining.auto import (
    ADAPT,
    DISTIL,
    TRIPLES,
    TUNE,
    Choice,
    Material,
    choices,
    measure_reading,
    nothing,
)
from training.retraining.documents import Document
from training.retraining.lineage import find_anchor
from training.retraining.one import Job
from training.retraining.rows import MAX_LISTS
from training.runs.step import Step, Trainer

SYLLABLES = "가나다라마바사아자차카타파하"
KOREAN = [first + second for first in SYLLABLES[:7] for second in SYLLABLES[7:]]

DENSE_LEARNED = {"default": SearchDefaults(mode="dense", weight=1)}
BETTER = ('require = "not worse"', 'require = "better"')

Auto = Callable[..., int]
Captured = pytest.CaptureFixture[str]


def documents(words: list[str], count: int) -> list[dict[str, str]]:
    rng = random.Random(1)
    made = (rng.choices(words, k=12) for _ in range(count))
    return [
        {"id": f"d{at}", "title": f"{' '.join(each[:3])} {at}", "text": " ".join(each)}
        for at, each in enumerate(made)
    ]


def judging(rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(f"{each['text'][:14]} {at}", each["id"]) for at, each in enumerate(rows)]


@pytest.fixture
def retrain(job: Job) -> Auto:
    """Runs `retrain` without a recipe and returns its status. `more`: texts of retrain.toml to replace."""
    place = job.store.root.parent

    def run(
        found: list[dict[str, str]], *more: tuple[str, str], judged: int = 0, train: str = "steps = 2"
    ) -> int:
        write_documents(place, found, judging(found[:judged]))
        folders = {"models": job.store.root, "work": job.work, "sets": Path(str(job.data))}
        judgements = '[judgements]\nfile = "judged.tsv"'
        text = tiny_config(
            'file = "documents.jsonl"', "anchor", **folders, steps=2, batch=4, schedule=judgements
        )
        lines = [line for line in text.splitlines() if not line.strip().startswith(("recipe", "set ="))]
        text = "\n".join(lines).replace("steps = 2", train)
        for what, by in more:
            assert what in text
            text = text.replace(what, by)
        (place / "retrain.toml").write_text(text, encoding="utf-8")
        return main(["retrain", "--config", str(place / "retrain.toml")])

    return run


@pytest.mark.parametrize(
    ("material", "expected"),
    [
        (Material(500, 30, 200, ""), ["triples", "distil-hybrid"]),
        (Material(500, 29, 200, ""), ["distil-hybrid"]),
        (Material(500, 30, 199, ""), ["triples"]),
        (Material(500, 29, 199, ""), []),
        (Material(1000, 90, 900, "it is spelled"), ["adapt"]),
        (Material(999, 90, 900, "it is spelled"), []),
        (Material(5000, 90, 900, "it is spelled", takes_tokens=False), []),
        (Material(1000, 90, 900, "a part", most_read=True), ["adapt", "triples", "distil-hybrid"]),
        (Material(999, 90, 900, "a part", most_read=True), ["triples", "distil-hybrid"]),
        (Material(5000, 90, 9, "a part", takes_tokens=False, most_read=True), ["triples"]),
        (Material(500, 30, 200, "", of_users=200), ["triples", "distil-hybrid"]),
        (Material(500, 30, 200, "", of_users=199, reranker=True), ["triples", "distil-hybrid"]),
        (
            Material(500, 30, 200, "", of_users=200, reranker=True),
            ["triples", "distil-rerank", "distil-hybrid"],
        ),
        (Material(500, 0, 0, "", of_users=200, reranker=True), ["distil-rerank"]),
        (Material(5000, 90, 900, "x", takes_tokens=False, of_users=200, reranker=True), []),
    ],
)
def test_what_there_is_decides_what_is_tried(material: Material, expected: list[str]) -> None:
    found = [choice.recipe for choice in choices(material)]
    assert found == expected
    assert found == [name for name in TRIED if name in found], "a stopped run of one of these is kept"


@pytest.mark.parametrize(
    ("material", "says"),
    [
        (Material(150, 3, 40, ""), "it takes 30 judged queries (POST /feedback) or 200 documents"),
        (Material(150, 3, 40, "x"), "There are 150 documents"),
        (Material(150, 3, 40, "x"), "it takes 1,000 documents to learn tokens from"),
        (Material(5000, 3, 40, "x", takes_tokens=False), "its vocabulary takes no new tokens"),
        (Material(150, 3, 40, "x", most_read=True), "others: x. That is too little: it takes 30 judged"),
    ],
)
def test_what_is_missing_is_named(material: Material, says: str) -> None:
    assert says in nothing(material)


def test_with_nothing_better_to_find_it_ends_with_what_is_missing(
    job: Job, retrain: Auto, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [{"id": each["id"], "text": each["text"]} for each in documents(WORDS, 160)]
    before = [manifest.version for manifest in job.store.versions()]
    assert retrain(found, ("[gate]", '[gate]\nmode = "off"')) == 4
    said = capsys.readouterr().out
    assert "There are" in said
    assert "That is too little: it takes 30 judged queries" in said
    assert [manifest.version for manifest in job.store.versions()] == before


@pytest.mark.long
def test_beside_a_pair_only_the_search_is_tuned(
    job: Job, retrain: Auto, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model without a student would be slower than the pair, so no model is trained."""
    teacher = job.store.versions()[0]
    _, both = publish_pair(job.store, teacher, tiny_source)
    dense = both.model_copy(update={"search": DENSE_LEARNED}).model_dump_json()
    (job.store.folder(both.version) / FILE_NAME).write_text(dense, encoding="utf-8")
    active = both.version
    job.store.request(active)
    assert retrain(documents(WORDS, 420), BETTER, ("slower = 1.0", "slower = 0.25"), judged=100) == 0
    said = capsys.readouterr()
    assert f"nothing to learn by distil-hybrid: {active} is a pair" in said.out + said.err
    tuned = job.store.verify(str(job.store.requested()))
    assert (tuned.parent, tuned.query_encoder) == (active, both.query_encoder)
    assert tuned.search["default"].mode in {"hybrid", "lexical"}


@pytest.mark.long
def test_what_is_refused_leads_to_the_next_and_at_last_to_the_search(
    job: Job, retrain: Auto, capsys: pytest.CaptureFixture[str]
) -> None:
    job.store.request(with_search(job.store, str(job.store.requested()), DENSE_LEARNED))
    active = str(job.store.requested())
    found = documents(WORDS, 420)
    assert retrain(found, BETTER, judged=100) == 0
    said = capsys.readouterr()
    names = ("triples", "distil-hybrid")
    words = [f"{name}{end}" for name in names for end in (", because", " was refused: ")]
    places = [said.err.index(each) for each in (*words, "search was published")]
    assert places == sorted(places)
    requested = str(job.store.requested())
    served, manifest = job.store.verify(active), job.store.verify(requested)
    assert (manifest.fingerprint, manifest.parent) == (served.fingerprint, active)
    report = json.loads((job.store.folder(requested) / REPORT).read_bytes())
    assert report["meta"]["recipe"] == "search"
    # The same command again: both candidates were judged before, and no judgment changed.
    assert retrain(found, BETTER, judged=100) == 4
    again = capsys.readouterr()
    assert again.out.count("came of this very text by this recipe") == 2, "another search is no other model"
    assert "nothing to learn by search: no judgment changed" in again.err, "each choice says how it ended"


@pytest.mark.long
def test_a_run_that_was_stopped_in_its_second_choice_goes_on_there(
    job: Job, retrain: Auto, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, whole = documents(WORDS, 420), Trainer.step

    def interrupted(self: Trainer, number: int) -> Step:
        if self._recipe.name == "distil-hybrid" and number == 1:
            signal.raise_signal(signal.SIGINT)
        return whole(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", interrupted)
        assert retrain(found, BETTER, judged=100, train="steps = 3") == 130
    assert "triples was refused" in capsys.readouterr().err
    assert retrain(found, BETTER, judged=100, train="steps = 3") in {0, 3}
    said = capsys.readouterr().err
    assert "nothing to learn by triples" in said, "it was judged before the stop"
    [run] = job.work.glob("*/run")
    assert [line["step"] for line in events(run, "resume")] == [2]


@pytest.fixture
def unread_text(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Korean documents, which the tiny model cannot read. Makes `adapt` need fewer documents."""
    monkeypatch.setattr(auto, "MIN_TO_READ", 100)
    return documents(KOREAN, 300)


LOOSE = (
    ("mean_fall = 0.1", "mean_fall = 1.0\nlarger = 1.0\nuniformity_loss = 1.0"),
    ("set_fall = 0.1", "set_fall = 1.0"),
)


@pytest.mark.long
def test_a_text_that_the_model_cannot_read_becomes_readable(
    job: Job, retrain: Auto, unread_text: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    active = str(job.store.requested())
    assert retrain(unread_text, *LOOSE, train="minutes = 0.05") == 0
    said = capsys.readouterr()
    assert "adapt, because the model cannot read all of the text" in said.err
    names = [each.version for each in job.store.versions()]
    [version] = [name for name in names if "-adapt-" in name and "-search-" not in name]
    requested = str(job.store.requested())
    assert version in {requested, job.store.verify(requested).parent}, "its search may be learned as well"
    texts = [each["text"] for each in unread_text]
    read = [read_texts(texts, job.store.folder(each) / "tokenizer.json")[0] for each in (active, version)]
    assert "are unknown" in read[0]
    assert read[1] == ""
    manifest = job.store.verify(version)
    assert manifest.parent == active
    assert [stage["method"] for stage in manifest.lineage["stages"]] == ["mlm", "simcse-unsup", "pairs"]
    assert find_anchor(job.store, version) == version, "what is trained next must read the text as well"
    report = json.loads((job.store.folder(version) / REPORT).read_bytes())
    rows = {row["name"] for row in report["rows"]}
    assert {"own titles", "megabytes"} <= rows
    assert "drift from the anchor" not in rows, "there is no text that the anchor could read"
    job.store.request(active)
    assert retrain(unread_text, *LOOSE, train="minutes = 0.05") in {0, 4}
    assert "came of this very text by this recipe" in capsys.readouterr().err


@pytest.mark.long
def test_a_stopped_one_goes_on_and_is_refused_where_it_forgets_too_much(
    job: Job,
    retrain: Auto,
    unread_text: list[dict[str, str]],
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tight = ("mean_fall = 0.1", "mean_fall = 0.0")
    with monkeypatch.context() as patched:
        patched.setattr("training.runs.stages._TRIAL", 1)  # The trial ends before the stop.
        stop_after(patched, 2)
        assert retrain(unread_text, tight, train="minutes = 0.05") == 130
    [run] = job.work.glob("*/run/1-mlm")
    assert retrain(unread_text, tight, train="minutes = 0.05") in {0, 3}
    assert [line["step"] for line in events(run, "resume")] == [2]
    assert "adapt was refused: mean of 1: " in capsys.readouterr().err


def test_without_a_search_no_english_set_judges_a_text_that_cannot_be_read(
    job: Job, retrain: Auto, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No search can be made: texts have no titles, one sentence, and too few words for a known-item query."""
    monkeypatch.setattr(auto, "MIN_TO_READ", 100)
    monkeypatch.setenv("SIMILE_EVAL_DATA", str(job.data))
    short = [{"id": f"d{at}", "text": f"{' '.join(KOREAN[at % 40 :][:4])} {at}"} for at in range(300)]
    assert retrain(short, (f'data = "{job.data}"', "")) == 4
    assert "adapt: There is nothing to judge with" in capsys.readouterr().out


def test_changes_to_a_recipe_need_its_name(
    job: Job, retrain: Auto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ("[train]", '[train]\n        set = { "optim.lr" = 1e-5 }')
    assert retrain(documents(WORDS, 120), changed) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert 'set changes a recipe: name one (recipe = "triples"), auto chooses itself' in line
    models = ["--models-dir", str(job.store.root)]
    assert main(["retrain", "--from-service", "http://127.0.0.1:9", "--set", "optim.lr=1e-5", *models]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "--set changes one recipe, and auto chooses among several: add --recipe NAME." in line
    (tmp_path / "rows.txt").write_text("a text\n", encoding="utf-8")
    assert main(["retrain", "--corpus", str(tmp_path / "rows.txt"), *models]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "Say which recipe reads the rows of this file: --recipe pairs, triples" in line


@pytest.fixture(scope="module")
def tokenizer(tiny_models_dir: Path) -> Path:
    store = ModelStore(tiny_models_dir)
    return store.folder(store.versions()[0].version) / "tokenizer.json"


def made(words: list[str], count: int) -> list[Document]:
    return [Document(each["id"], each["title"], each["text"]) for each in documents(words, count)]


@pytest.mark.parametrize(
    ("english", "korean", "whole", "most"),
    [(100, 0, True, True), (90, 10, False, True), (50, 50, False, False), (0, 100, False, False)],
)
def test_what_is_read_of_a_mixture(
    tokenizer: Path, english: int, korean: int, whole: bool, most: bool
) -> None:
    why_not, found = measure_reading([*made(WORDS, english), *made(KOREAN, korean)], tokenizer)
    assert (why_not == "", found) == (whole, most)


@pytest.mark.parametrize(
    ("choice", "minutes"),
    # Texts of a choice, times 3 for the backward pass, at 10 texts per second, and the mining.
    [
        (TRIPLES, (4000 + (300 + 300) * 2 * 5 * 3) / 600),
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
    assert line.endswith(f"About {30 + (60_000 + MAX_LISTS) / 6000:.0f} min here.")


def test_mining_encodes_no_document_that_a_service_has() -> None:
    material = Material(4000, 300, 2000, "", titles=700)
    triples, lists = advice(material, [TRIPLES, DISTIL], 10.0, 1000, served=True)
    assert triples.endswith("About 30 min here.")
    assert lists.endswith(f"About {(2000 + 2000 * 9 * 3) / 600:.0f} min here.")


def test_beside_a_pair_only_the_search_is_advised(
    job: Job, tmp_path: Path, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, both = publish_pair(job.store, job.store.versions()[0], tiny_source)
    job.store.request(both.version)
    assert _advise(job, tmp_path, WORDS, 420, judged=100) == 0
    said = capsys.readouterr()
    assert "\n1. search, because" in said.out
    assert "triples, because" not in said.out
    assert f"! {both.version} is a pair, and what triples or distil-hybrid trains has no student" in said.err
    assert _advise(job, tmp_path, WORDS, 420, judged=100, gate='on"\nslower = 1 #') == 0
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
    assert "Too few" in capsys.readouterr().out
    assert _advise(job, tmp_path, KOREAN, 150, gate="off") == 4
    said = capsys.readouterr().out
    assert said.startswith("Nothing to learn: ")
    assert "it takes 1,000 documents to learn tokens from" in said


def test_where_nothing_can_be_trained_the_search_may_still_be_set(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _advise(job, tmp_path, KOREAN, 420, judged=40) == 0
    said = capsys.readouterr().out
    assert "\n1. search, because another mode or other passages may find more" in said
    assert "About 1 min here." in said


def test_text_that_cannot_be_read_is_advised_to_be_learned(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "MIN_TO_READ", 100)
    assert _advise(job, tmp_path, KOREAN, 260) == 0
    said = capsys.readouterr().out
    assert "The model cannot read the text: " in said
    assert "\n1. adapt, because the model cannot read all of the text" in said


def _advise(job: Job, folder: Path, words: list[str], count: int, gate: str = "on", judged: int = 0) -> int:
    found = documents(words, count)
    write_documents(folder, found, judging(found[:judged]))
    text = (
        '[corpus]\nfile = "documents.jsonl"\n[judgements]\nfile = "judged.tsv"\n'
        f'[folders]\nmodels = "{job.store.root}"\n[gate]\nmode = "{gate}"\n'
    )
    (folder / "retrain.toml").write_text(text, encoding="utf-8")
    return main(["advise", "--config", str(folder / "retrain.toml")])
