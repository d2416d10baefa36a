"""What a run tells its user that the recipe does not, and what is refused rather than half done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny import tiny_source
from tests.training.recipe_cases import corpus_for, raw_source, triples
from tests.training.run_cases import events
from training.__main__ import main
from training.errors import TrainingError
from training.evaluation.scorable import open_scorable
from training.methods.recipe import Recipe, load_recipe
from training.methods.views import Repeat
from training.papers.spans import DocumentSpans
from training.runfile import Result
from training.runs.command import train
from training.runs.options import Options
from training.text.corpus import Corpus


def told(recipe: Recipe, base: Path, out: Path, corpus: Corpus | None = None) -> tuple[list[str], Result]:
    said: list[str] = []
    given = corpus or corpus_for(recipe)
    result = train(recipe, given, base, out, Options(steps=1, precision="fp32", threads=1, say=said.append))
    return said, result


def test_a_base_that_pools_says_that_the_recipe_s_pool_is_not_used(tmp_path: Path) -> None:
    said, _ = told(load_recipe("simcse-unsup"), tiny_source(tmp_path / "base"), tmp_path / "out")
    assert "the base keeps its own pooling (mean); the recipe's pool and head are for raw ones" in said
    said, _ = told(load_recipe("simcse-unsup"), raw_source(tmp_path / "raw"), tmp_path / "other")
    assert not any("keeps its own pooling" in words for words in said)


@pytest.mark.parametrize("name", ["first-last", "static-average", "whitening", "promptbert"])
def test_a_base_that_pools_cannot_be_pooled_in_another_way(name: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"pools in its own way.*pool=\"mean\""):
        told(load_recipe(name), tiny_source(tmp_path / "base"), tmp_path / "out")


@pytest.mark.parametrize("name", ["mlm", "tsdae", "simcse-unsup-mlm"])
def test_a_language_head_that_begins_at_random_is_told(name: str, tmp_path: Path) -> None:
    words = "the base has no masked-language head: it begins at random"
    bare, whole = raw_source(tmp_path / "bare", language=False), raw_source(tmp_path / "whole")
    assert words in told(load_recipe(name), bare, tmp_path / "a")[0]
    assert words not in told(load_recipe(name), whole, tmp_path / "b")[0]


def test_documents_too_short_for_spans_are_counted(tmp_path: Path) -> None:
    recipe = load_recipe("declutr")
    assert isinstance(recipe.source, DocumentSpans)
    recipe = replace(recipe, source=replace(recipe.source, shortest=8, longest=30), max_length=40)
    corpus = Corpus.of([*(triples()[at][0] for at in range(5)), *corpus_for(recipe, 4).texts], "mixed")
    recipe = replace(recipe, optim=replace(recipe.optim, batch=9))
    said, _ = told(recipe, raw_source(tmp_path / "raw"), tmp_path / "out", corpus)
    assert "5 documents too short for spans are left out" in said


def test_epochs_decide_the_steps_unless_they_are_given(tmp_path: Path) -> None:
    recipe = load_recipe("simcse-unsup", {"optim.epochs": 3, "optim.batch": 32})
    base, given = raw_source(tmp_path / "raw"), {"precision": "fp32", "threads": 1}
    corpus = corpus_for(recipe)
    assert train(recipe, corpus, base, tmp_path / "a", Options(**given)).steps == 6  # type: ignore[arg-type]
    assert train(recipe, corpus, base, tmp_path / "b", Options(steps=1, **given)).steps == 1  # type: ignore[arg-type]
    assert {name: load_recipe(name).optim.epochs for name in ("simcse-sup", "diffcse", "simcse-unsup")} == {
        "simcse-sup": 3,
        "diffcse": 2,
        "simcse-unsup": 1,
    }


def test_a_repeated_text_stays_within_the_positions(tmp_path: Path) -> None:
    for rate in (0.1, 0.32, 1.0):
        room = Repeat(rate).room(128)
        assert room + max(2, int(room * rate)) <= 128 < room + 1 + max(2, int((room + 1) * rate))
    recipe = load_recipe("esimcse", {"max_length": 128, "optim.batch": 8})
    texts = Corpus.of((f"{row[0]} " * 100 for row in triples()), "long")
    assert told(recipe, raw_source(tmp_path / "raw"), tmp_path / "out", texts)[1].finished


def test_a_run_that_was_killed_before_its_first_step_has_a_whole_record(tmp_path: Path) -> None:
    recipe, base = load_recipe("simcse-unsup", {"optim.batch": 8}), raw_source(tmp_path / "raw")
    out, given = tmp_path / "out", {"steps": 1, "precision": "fp32", "threads": 1}
    straight = train(recipe, corpus_for(recipe), base, tmp_path / "straight", Options(**given))  # type: ignore[arg-type]
    unfinished = json.loads((straight.out / "run.json").read_text())
    del unfinished["finished"]
    out.mkdir()
    (out / "run.json").write_text(json.dumps(unfinished))
    train(recipe, corpus_for(recipe), base, out, Options(resume=True, **given))  # type: ignore[arg-type]
    assert [line["seed"] for line in events(out, "start")] == [42]


def test_a_run_is_scored_as_its_best_step(tmp_path: Path) -> None:
    _, result = told(load_recipe("simcse-unsup"), raw_source(tmp_path / "raw"), tmp_path / "out")
    with open_scorable(str(result.out)) as run, open_scorable(str(result.best)) as best:
        assert run.fingerprint == best.fingerprint
        assert (run.encode(["river stone"]) == best.encode(["river stone"])).all()


def test_what_was_mined_is_written_where_it_can_be_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text('{"text": "river stone", "title": "river"}\n', encoding="utf-8")
    for wrong in ("pairs.tsv", "pairs.txt"):
        assert main(["mine", "pairs", "--corpus", str(corpus), "--out", str(tmp_path / wrong)]) == 1
        assert "must end in .jsonl" in capsys.readouterr().err
    assert main(["report", "--corpus", str(corpus), "--recipe", "triples"]) == 1
    assert "triples reads rows of several" in capsys.readouterr().err


def test_several_negatives_and_the_base_s_prompts_are_trained_with(tmp_path: Path) -> None:
    base = tiny_source(tmp_path / "base", prompts={"query": "blue: ", "document": "red: "})
    rows = [{"anchor": a, "positive": b, "negative": [c, f"the {c}"]} for a, b, c in triples()]
    rows[0]["negative"] = rows[0]["negative"][0]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ["train", "triples", "--corpus", str(tmp_path / "t.jsonl"), "--base", str(base), "--steps", "2"]
    given += ["--precision", "fp32", "--data", str(tmp_path)]
    found: list[tuple[int, float]] = []
    for more in ([], ["--negatives", "1"], ["--set", "source.queries=false"]):
        out = tmp_path / f"out{len(found)}"
        assert main([*given, "--out", str(out), *more]) == 0
        described = json.loads((out / "run.json").read_text())["described"]
        found.append((len(described["views"]), events(out, "step")[0]["loss"]))
    assert [views for views, _ in found] == [4, 3, 4]
    assert len({loss for _, loss in found}) == 3, "the second negative and the prompts change the loss"


def test_negatives_are_for_triples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    given = ["train", "simcse-unsup", "--corpus", str(tmp_path / "t.txt"), "--out", str(tmp_path / "out")]
    assert main([*given, "--negatives", "2"]) == 1
    assert "--negatives is for a recipe that reads triples." in capsys.readouterr().err
