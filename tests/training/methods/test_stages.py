"""Several recipes in one command, a run as the base of another, and `--set`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.sources.folder import read_source
from tests.training.recipe_cases import raw_source, triples
from tests.training.run_cases import stop_after, weights
from training.__main__ import main
from training.model.encoder import compute_digest


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return raw_source(tmp_path / "raw")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(row[0] for row in triples()), encoding="utf-8")
    return file


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "triples.tsv"
    lines = ["anchor\tpositive\tnegative", *("\t".join(row) for row in triples())]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def given(recipe: str, base: Path, out: Path, *more: str) -> list[str]:
    fixed = ["--data", str(base.parent), "--precision", "fp32", "--device", "cpu", "--threads", "1"]
    return ["train", recipe, "--base", str(base), "--out", str(out), "--steps", "3", *fixed, *more]


def test_each_recipe_begins_where_the_last_one_ended(
    raw: Path, texts: Path, rows: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    corpora = ["--corpus", str(texts), "--corpus", str(rows)]
    assert main(given("tsdae,simcse-sup", raw, out, *corpora, "--batch", "16")) == 0
    first, second = (
        json.loads((out / name / "run.json").read_text()) for name in ("1-tsdae", "2-simcse-sup")
    )
    assert first["base_name"] == "raw"
    assert second["base_name"] == "raw, tsdae"
    assert second["base"] == compute_digest(read_source(out / "1-tsdae" / "best"))
    assert (first["texts"], second["texts"]) == (64, 64)
    alone = tmp_path / "alone"
    assert main(given("simcse-sup", out / "1-tsdae", alone, "--corpus", str(rows), "--batch", "16")) == 0
    assert weights(alone / "last") == weights(out / "2-simcse-sup" / "last")


def test_a_stop_in_the_first_recipe_is_resumed_and_the_second_follows(
    raw: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    corpus = ["--corpus", str(texts), "--batch", "16"]
    assert main(given("tsdae,simcse-unsup", raw, straight, *corpus)) == 0
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        assert main(given("tsdae,simcse-unsup", raw, stopped, *corpus)) == 130
    assert not (stopped / "2-simcse-unsup").exists()
    assert main(given("tsdae,simcse-unsup", raw, stopped, *corpus, "--resume")) == 0
    last = "2-simcse-unsup/last"
    assert weights(stopped / last) == weights(straight / last)


def test_recipe_and_corpora_must_agree(
    raw: Path, texts: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    three = ["--corpus", str(texts)] * 3
    for arguments, message in (
        (given("tsdae,simcse-sup", raw, out, *three), "There are 3 corpora for 2 recipes"),
        (given("simcse-sup", raw, out, "--corpus", str(texts)), "reads rows of anchor, positive, negative"),
        (
            given("tsdae,mlm", raw, out, "--corpus", str(texts), "--set", "dropout=0.0"),
            "--set changes one recipe",
        ),
        (given("simcse-sup", raw, out, "--from-service", "http://127.0.0.1:1"), "A service has single texts"),
    ):
        assert main(arguments) == 1
        assert message in capsys.readouterr().err
        assert not out.exists()


def test_a_backbone_is_no_version_to_serve(
    raw: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given("mlm", raw, tmp_path / "run", "--corpus", str(texts), "--batch", "16")) == 0
    store = ["--models-dir", str(tmp_path / "models")]
    assert main(["export", str(tmp_path / "run"), *store]) == 1
    assert "made a backbone to train from" in capsys.readouterr().err
    assert main(["retrain", "--recipe", "mlm", "--corpus", str(texts), *store]) == 1
    assert "no encoder to serve" in capsys.readouterr().err
