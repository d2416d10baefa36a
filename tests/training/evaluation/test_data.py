"""Evaluation files: what is read, what is left out, and the line that an error names."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.training.evaluation.pairs import write
from training.errors import TrainingError
from training.evaluation.data import data_folder, is_absent, load, optional_data_folder

GOOD = ("A", 1, "one", "two")
HEADER = b"score\tsentence1\tsentence2\n"


def test_a_row_without_a_gold_score_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [("A", 2.5, "one", "two"), ("A", "", "three", "four"), ("B", 5, "five", "six")]
    write(tmp_path / "sts12" / "test.tsv.gz", rows)
    pairs = load("sts12", tmp_path)
    assert (pairs.left, pairs.right) == (["one", "five"], ["two", "six"])
    assert np.array_equal(pairs.gold, [2.5, 5])
    assert pairs.subset == ["A", "B"]
    assert pairs.unscored == 1


def test_quotes_are_text_and_white_space_is_one_space(tmp_path: Path) -> None:
    # A line separator of Unicode is white space in a sentence, not the end of a row.
    write(tmp_path / "sts12" / "test.tsv.gz", [('"', 1, ' "He\u2028said  so\u00a0', "\u5929\u5730 ok\r")])
    assert load("sts12", tmp_path).left == ['"He said so']
    assert load("sts12", tmp_path).right == ["\u5929\u5730 ok"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([GOOD, ("A", "high", "one", "two")], "line 3: the score 'high' is not a number."),
        ([("A", "nan", "one", "two")], "line 2: the score nan is not between 0 and 5."),
        ([("A", 5.1, "one", "two")], "line 2: the score 5.1 is not between 0 and 5."),
        ([GOOD, GOOD, ("A", 1, "one")], "line 4 has 3 fields; the first row has 4."),
        ([("A", 1, "one", "two", "more")], "line 2 has 5 fields; the first row has 4."),
        ([GOOD, ("A", 1, " ", "two")], "line 3: a sentence is empty."),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, rows: list[tuple[object]], reason: str) -> None:
    file = write(tmp_path / "sts12" / "test.tsv.gz", rows)
    with pytest.raises(TrainingError) as caught:
        load("sts12", tmp_path)
    assert str(caught.value) == f"{file}, {reason}"


def test_sick_starts_at_1(tmp_path: Path) -> None:
    write(tmp_path / "sick" / "test.tsv.gz", [(0.5, "one", "two")], "score sentence1 sentence2")
    with pytest.raises(TrainingError, match=r"test\.tsv\.gz, line 2: the score 0\.5 is not between 1 and 5"):
        load("sickr", tmp_path)


@pytest.mark.parametrize("folder", ["sick", "sickr"])
def test_sick_may_lie_under_either_name(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder / "test.tsv.gz", [(1, "one", "two")], "score sentence1 sentence2")
    assert load("sickr", tmp_path).left == ["one"]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    write(tmp_path / "sts12" / "test.tsv.gz", [(1, "one")], "score sentence1")
    with pytest.raises(
        TrainingError, match=r"test\.tsv\.gz has no column `sentence2`, `subset` in its first"
    ):
        load("sts12", tmp_path)


def test_a_missing_split_is_an_error_and_a_missing_folder_is_an_absent_set(tmp_path: Path) -> None:
    (tmp_path / "stsb").mkdir()
    assert not is_absent("stsb", tmp_path)
    assert is_absent("sts13", tmp_path)
    with pytest.raises(TrainingError, match=r"There is no file .*stsb/dev\.tsv\.gz\."):
        load("stsb", tmp_path, "dev")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (HEADER, "is not a whole gzip file: Not a gzipped file"),
        (
            gzip.compress(HEADER + b"1\ta\tb\n", mtime=0)[:-9],
            "not a whole gzip file: Compressed file ended",
        ),
        (gzip.compress(HEADER + b"1\ta\t\xff\n", mtime=0), ", line 2 is not UTF-8 (byte 5)"),
        (gzip.compress(HEADER), "holds no scored pair"),
        (gzip.compress(b""), " has no column `score`, `sentence1`, `sentence2` in its first row"),
    ],
    ids=["plain text", "cut off", "latin-1", "header only", "empty"],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "stsb").mkdir()
    (tmp_path / "stsb" / "test.tsv.gz").write_bytes(content)
    with pytest.raises(TrainingError) as caught:
        load("stsb", tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "stsb"))
    assert reason in str(caught.value)


def test_the_data_folder_is_the_named_one_then_the_one_of_the_settings_and_there_is_no_default(
    tmp_path: Path,
) -> None:
    named, configured = tmp_path / "named", tmp_path / "configured"
    for folder in (named, configured):
        folder.mkdir()
    environ = {"SIMILE_EVAL_DATA": str(configured)}
    assert data_folder(str(named), environ) == named
    assert data_folder(None, environ) == configured
    assert optional_data_folder(None, environ) == configured
    assert optional_data_folder(None, {}) is None
    with pytest.raises(TrainingError, match=r"No evaluation data is named\. .* --data or SIMILE_EVAL_DATA"):
        data_folder(None, {})
    with pytest.raises(TrainingError, match=r"nowhere is not a folder"):
        data_folder(None, {"SIMILE_EVAL_DATA": str(tmp_path / "nowhere")})
    with pytest.raises(TrainingError, match=r"nowhere is not a folder"):
        optional_data_folder(None, {"SIMILE_EVAL_DATA": str(tmp_path / "nowhere")})
