"""An unfinished run that the next retraining finds: it goes on, or training begins anew and says why."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny import tiny_source as make_tiny_source
from tests.training.recipe_cases import WORDS, triples
from tests.training.run_cases import events, stop_after
from training.errors import Interrupted, NothingToLearn
from training.methods.recipe import load_recipe
from training.retraining.config import Config, CorpusTable, TrainTable
from training.retraining.gathered import gather
from training.retraining.one import Job, retrain
from training.retraining.plan import job_of, prepare
from training.retraining.sides import digest
from training.text.corpus import Corpus

MADE_OF = "0" * 64


def mined(rows: Sequence[tuple[str, ...]]) -> Corpus:
    """Rows that are named by what they were made of, as those with negatives that a model found."""
    return replace(Corpus.of_rows(((row, None) for row in rows), "mined"), digest=MADE_OF)


def of_triples(job: Job, rows: Sequence[tuple[str, ...]]) -> Job:
    recipe = load_recipe("triples", {"optim.batch": 8})
    return replace(job, recipe=recipe, corpus=mined(rows), mode="off", data=None, steps=6)


def stopped(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(Interrupted):
            retrain(job)


def resumptions(job: Job) -> list[int]:
    [run] = job.work.glob("*/run")
    return [line["step"] for line in events(run, "resume")]


def test_a_stopped_run_of_mined_rows_goes_on_with_the_same_rows(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = of_triples(job, triples())
    stopped(asked, monkeypatch)
    assert retrain(asked).published
    assert resumptions(asked) == [3]


@pytest.mark.parametrize("change", ["a negative", "fewer rows", "more negatives"])
def test_where_other_rows_were_mined_training_begins_anew_and_says_so(
    job: Job, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    rows: list[tuple[str, ...]] = triples()
    stopped(of_triples(job, rows), monkeypatch)
    other = {
        "a negative": [(*rows[0][:2], rows[1][2]), *rows[1:]],
        "fewer rows": rows[:40],
        "more negatives": [(*row, "another") for row in rows],
    }[change]
    again = replace(of_triples(job, other), sweep=True)
    said: list[str] = []
    assert retrain(again, said.append).published
    assert resumptions(again) == []
    assert len([words for words in said if "training begins anew" in words]) == 1, said


def test_a_stopped_run_is_kept_while_another_recipe_trains(
    job: Job, tiny_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` was stopped in its second choice, and tries the first again, which left no version."""
    asked = replace(of_triples(job, triples()), base=str(tiny_source), sweep=True)
    stopped(asked, monkeypatch)
    other = replace(job, mode="off", data=None, base=str(tiny_source), sweep=True)
    assert retrain(other).published
    assert retrain(asked).published
    assert resumptions(asked) == [3]


def test_a_damaged_run_or_one_of_another_release_is_begun_anew(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = of_triples(job, triples())
    for damage in ("checkpoint", "release"):
        stopped(replace(asked, recipe=replace(asked.recipe, seed=len(damage))), monkeypatch)
        [run] = job.work.glob("*/run")
        if damage == "checkpoint":
            (run / "checkpoint.safetensors").write_bytes(b"nothing")
        else:
            known = json.loads((run / "run.json").read_text())
            del known["precision"]
            (run / "run.json").write_text(json.dumps(known))
        said: list[str] = []
        assert retrain(replace(asked, recipe=replace(asked.recipe, seed=len(damage))), said.append).published
        [why] = [words for words in said if "training begins anew" in words]
        assert {"checkpoint": "is not a checkpoint", "release": "lacks precision"}[damage] in why
        shutil.rmtree(job.work)


def test_a_run_of_a_release_that_did_not_note_its_rows_goes_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = of_triples(job, triples())
    stopped(asked, monkeypatch)
    [run] = job.work.glob("*/run")
    known = json.loads((run / "run.json").read_text())
    del known["rows"]
    (run / "run.json").write_text(json.dumps(known))
    assert retrain(asked).published
    assert resumptions(asked) == [3]


def config_of(job: Job, recipe: str) -> Config:
    file = job.store.root.parent / "documents.jsonl"
    found = enumerate(itertools.permutations(WORDS, 3))
    rows = [
        {"id": str(at), "title": f"{a} {at}", "text": f"{b} {c} {a} {at}."}
        for at, (a, b, c) in itertools.islice(found, 0, 2000, 11)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return Config(corpus=CorpusTable(file=file, least=20), train=TrainTable(recipe=recipe, steps=2))


@pytest.mark.long
def test_another_active_model_mines_other_negatives_and_that_is_new(job: Job, tmp_path: Path) -> None:
    make_tiny_source(tmp_path / "base", seed=3)

    def asked(recipe: str) -> Job:
        loaded = load_recipe(recipe, {"optim.batch": 8})
        found = prepare(config_of(job, recipe), loaded, job.store, job.work, lambda _: None)
        return replace(found, mode="off", base=str(tmp_path / "base"), options=job.options)

    first = str(job.store.wanted())
    one = asked("triples")
    assert asked("triples").corpus.digest == one.corpus.digest
    made = retrain(one).version
    assert job.store.wanted() == made
    again = asked("triples")
    assert again.corpus.digest != one.corpus.digest
    assert retrain(again).version not in {made, None}
    job.store.want(first)  # whose negatives were learned from
    with pytest.raises(NothingToLearn, match="came of this very text"):
        retrain(asked("triples"))
    retrain(asked("pairs"))
    assert job.store.wanted() != first
    with pytest.raises(NothingToLearn, match="came of this very text"):  # a pair is the same for any model
        retrain(asked("pairs"))


def test_queries_of_people_that_were_listed_are_learned_and_others_are_not(job: Job) -> None:
    config = config_of(job, "distil-hybrid")
    gathered = gather(config, job.store, lambda _: None)
    asked = {"default": ["Where is the  river", "a stone"], "gone": ["a letter"]}
    learned = gathered._replace(asked=asked, learned=frozenset({"before"}))
    found = job_of(learned, config, load_recipe("distil-hybrid"), job.store, job.work, lambda _: None)
    assert {*found.about["learned"]} == {"before", digest("where is the river"), digest("a stone")}
