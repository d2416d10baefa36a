"""`python -m training retrain`: its exit status and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.jobs import noised
from training.__main__ import main
from training.retraining.one import Job


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--steps", "-1"], ["--seed", "-1"], ["--threads", "0"]])
def test_a_number_that_makes_no_sense_is_wrong_usage(job: Job, tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(job, tmp_path / "corpus.txt", *wrong)
    assert caught.value.code == 2


def run(job: Job, corpus: Path, *more: str) -> int:
    given = [
        "retrain",
        "--corpus",
        str(corpus),
        "--recipe",
        "simcse-unsup",
        "--steps",
        "3",
        "--least",
        "2",
        "--models-dir",
        str(job.store.root),
    ]
    return main([*given, "--precision", "fp32", "--data", str(job.data), *more])


def test_the_command_answers_0_3_and_4(
    job: Job, tmp_path: Path, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(job.corpus.texts), encoding="utf-8")
    bad = noised(tmp_path / "bad", tiny_source, 0.5)
    assert run(job, corpus, "--base", str(bad)) == 3
    said = capsys.readouterr().out
    assert "REFUSED" in said
    assert "is kept, not wanted" in said
    assert run(job, corpus) == 0
    assert "is published and wanted" in capsys.readouterr().out
    assert run(job, corpus) == 4
    assert "Nothing to learn" in capsys.readouterr().out
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n")
    assert run(job, empty) == 4


def test_without_an_active_version_or_data_the_command_says_what_is_missing(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(job.corpus.texts), encoding="utf-8")
    assert run(job, corpus, "--data", str(tmp_path / "nowhere")) == 1
    assert "--data" in capsys.readouterr().err
    (job.store.root / "wanted").unlink()
    assert run(job, corpus) == 1
    assert "no active version" in capsys.readouterr().err
