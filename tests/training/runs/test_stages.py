"""Stages of a recipe: each begins where the previous one ended. Their folder is a run like any other."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from models.manifest import Manifest
from models.sources.folder import read_source
from tests.tiny import tiny_source as make_tiny_source
from tests.training.recipe_cases import triples
from tests.training.run_cases import stop_after, weights
from training.__main__ import main
from training.methods.stages import find_stages
from training.model.encoder import compute_digest
from training.runs.options import Options
from training.runs.stages import build_parts, read_corpora

RECIPE = """
vocabulary = 20
minutes = 1.0
[[stages]]
recipe = "simcse-unsup"
share = 0.75
set = { "optim.batch" = 16 }
[[stages]]
recipe = "pairs"
share = 0.15
[[stages]]
recipe = "triples"
share = 0.25
set = { "optim.batch" = 16, "optim.epochs" = 2 }
"""


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    base = make_tiny_source(tmp_path / "base")
    (tmp_path / "mine.toml").write_text(RECIPE, encoding="utf-8")
    texts = [f"한국어 {row[0]}" for row in triples()]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    lines = ["anchor\tpositive\tnegative", *("\t".join(row) for row in triples())]
    (tmp_path / "triples.tsv").write_text("\n".join(lines), encoding="utf-8")
    corpora = ["--corpus", str(tmp_path / "texts.txt"), "--corpus", str(tmp_path / "triples.tsv")]
    fixed = ["--precision", "fp32", "--device", "cpu", "--threads", "1", "--data", str(tmp_path)]
    return ["train", str(tmp_path / "mine.toml"), "--base", str(base), *corpora, *fixed]


def test_each_stage_begins_where_the_last_one_ended(given: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([*given, "--out", str(out)]) == 0
    first, second = (
        json.loads((out / name / "run.json").read_text()) for name in ("1-simcse-unsup", "2-triples")
    )
    assert first["base"] == compute_digest(read_source(out / "0-vocabulary"))
    assert second["base"] == compute_digest(read_source(out / "1-simcse-unsup" / "last"))
    plan = json.loads((out / "steps.json").read_text())
    assert plan == {"1-simcse-unsup": 4, "2-triples": 8}, "a minute is more than the texts need"
    whole = json.loads((out / "run.json").read_text())
    assert (whole["method"], whole["texts"]) == ("mine", 128)
    assert whole["base"] == compute_digest(read_source(tmp_path / "base"))
    assert [(stage["method"], stage["steps"]) for stage in whole["stages"]] == [
        ("simcse-unsup", 4),
        ("triples", 8),
    ]
    store = tmp_path / "models"
    assert main(["export", str(out), "--models-dir", str(store)]) == 0
    (folder,) = (path for path in store.iterdir() if path.is_dir() and (path / "manifest.json").is_file())
    lineage = Manifest.read(folder).lineage
    assert lineage["steps"] == 12
    assert [stage["method"] for stage in lineage["stages"]] == ["simcse-unsup", "triples"]
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert unicodedata.normalize("NFD", "한국어") in vocabulary


@pytest.mark.parametrize("step", [2, 6])
def test_a_stop_in_any_stage_is_resumed(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main([*given, "--out", str(straight)]) == 0
    stopped.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("training.runs.stages._TRIAL", 1)  # The trial ends before the stop.
        stop_after(patched, step)
        assert main([*given, "--out", str(stopped)]) == 130
    assert not (stopped / "best").exists()
    assert main([*given, "--out", str(stopped), "--resume"]) == 0
    assert weights(stopped / "last") == weights(straight / "last")
    assert main([*given, "--out", str(stopped), "--resume"]) == 0


def test_with_the_precision_left_open_each_stage_goes_on_in_the_one_that_the_run_was_begun_in(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is stopped in its first stage on a machine with fast bf16, and resumed on one without."""
    out, requested = tmp_path / "out", ["auto" if word == "fp32" else word for word in given]
    use_bf16 = "training.runs.loop.use_bf16"
    with monkeypatch.context() as patched:
        patched.setattr(use_bf16, lambda precision, _: precision in {"auto", "bf16"})
        patched.setattr("training.runs.stages._TRIAL", 1)  # The trial ends before the stop.
        stop_after(patched, 2)
        assert main([*requested, "--out", str(out)]) == 130
    monkeypatch.setattr(use_bf16, lambda precision, _: precision == "bf16")
    assert main([*requested, "--out", str(out), "--resume"]) == 0
    runs = [json.loads(file.read_text()) for file in sorted(out.glob("**/run.json"))]
    assert [run["precision"] for run in runs] == ["bf16"] * 3


def test_another_recipe_does_not_resume_it(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([*given, "--out", str(out)]) == 0
    (tmp_path / "mine.toml").write_text(RECIPE.replace("vocabulary = 20", "vocabulary = 10"))
    assert main([*given, "--out", str(out), "--resume"]) == 1
    assert "holds a run with another recipe" in capsys.readouterr().err


def test_minutes_decide_the_steps(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.runs.stages._rate", lambda _: 0.8)  # Rows per second.
    out = tmp_path / "out"
    assert main([*given, "--out", str(out), "--minutes", "2"]) == 0
    # 2 minutes of 0.8 rows/s are 96 rows: 72 of simcse-unsup, whose texts are 4 batches, and 24 of triples
    assert json.loads((out / "steps.json").read_text()) == {"1-simcse-unsup": 4, "2-triples": 1}


def test_a_corpus_is_read_by_the_stage_of_its_kind(given: list[str], tmp_path: Path) -> None:
    stages = find_stages(str(tmp_path / "mine.toml"))
    assert stages
    said: list[str] = []
    files = [tmp_path / "triples.tsv", tmp_path / "texts.txt"]
    parts = build_parts(stages, read_corpora(stages, files), Options(say=said.append))
    assert [(part.name, part.corpus.columns) for part in parts] == [("1-simcse-unsup", 1), ("2-triples", 3)]
    assert [part.minutes for part in parts] == [0.75, 0.25]
    assert said == ["stage pairs is left out: no corpus has the rows that it reads"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("vocabulary = 20", "vocabulry = 20"), "'vocabulary' is"),
        (("share = 0.75", "share = 0.0"), "must be above 0"),
        (('recipe = "pairs"', 'recipe = "pears"'), "There is no recipe 'pears'"),
        (('recipe = "simcse-unsup"', 'recipe = "mlm"'), "would lose the base's pooling"),
    ],
)
def test_what_is_wrong_with_it_is_named(
    given: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    message: str,
) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE.replace(*change))
    assert main([*given, "--out", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_does_not_go_with_stages_is_refused(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, "--out", str(tmp_path / "out"), "--steps", "3"]) == 1
    assert "neither --set nor --steps" in capsys.readouterr().err


def test_the_shipped_one_is_read() -> None:
    stages = find_stages("adapt")
    assert stages
    assert [recipe.name for recipe in stages.recipes()] == ["mlm", "simcse-unsup", "pairs", "triples"]
    assert find_stages("simcse-unsup") is None
