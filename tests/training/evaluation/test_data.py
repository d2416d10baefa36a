"""Evaluation sets, and the errors for damaged files."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.evaldata import FOLDER, needs
from tests.training.evaluation.pairs import write
from training.errors import TrainingError
from training.evaluation.data import data_folder, is_absent, load, optional_data_folder
from training.evaluation.tasks import TITLES
from training.evaluation.tasks import load as load_tasks


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


def test_a_set_without_a_scored_pair_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "stsb" / "test.tsv.gz", [], "score sentence1 sentence2")
    with pytest.raises(TrainingError, match=rf"{tmp_path}/stsb \(test\) holds no scored pair\."):
        load("stsb", tmp_path)


@pytest.mark.parametrize("folder", ["sick", "sickr"])
def test_sick_may_lie_under_either_name(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder / "test.tsv.gz", [(1, "one", "two")], "score sentence1 sentence2")
    assert load("sickr", tmp_path).left == ["one"]


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
    for find in (data_folder, optional_data_folder):
        with pytest.raises(TrainingError, match=r"nowhere is not a folder"):
            find(None, {"SIMILE_EVAL_DATA": str(tmp_path / "nowhere")})


def test_a_set_with_no_folder_of_any_kind_is_absent(tmp_path: Path) -> None:
    (tmp_path / "sts13").mkdir()
    assert all(is_absent(key, tmp_path) for key in ("sts12", "stsb", "sickr", "korsts"))
    assert not is_absent("sts13", tmp_path)


TEXTS = [(1, "it  is good"), (0, "it is bad"), (1, "fine \u2028 ")]


def plain(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("key", ["mr", "cr", "subj", "mpqa"])
def test_sets_for_cross_validation_are_one_file(tmp_path: Path, key: str) -> None:
    write(tmp_path / key / "all.tsv.gz", TEXTS, "label text")
    tasks, absent = load_tasks(tmp_path)
    assert list(tasks) == [key]
    assert absent == [other for other in TITLES if other not in (key, "sicke")]
    assert tasks[key].splits["all"].sides == (["it is good", "it is bad", "fine"],)
    assert np.array_equal(tasks[key].splits["all"].labels, [1, 0, 1])
    assert list(tasks[key].sentences()) == ["it is good", "it is bad", "fine"]


def test_sst2_says_that_it_was_not_trained_on_phrases(tmp_path: Path) -> None:
    for name, rows in {"train": TEXTS, "dev": TEXTS[:2], "test": TEXTS[1:]}.items():
        write(tmp_path / "sst2" / f"{name}.tsv.gz", rows, "label text")
    tasks, _ = load_tasks(tmp_path)
    assert [*tasks["sst2"].splits] == ["train", "dev", "test"]
    assert tasks["sst2"].splits["test"].sides == (["it is bad", "fine"],)
    assert tasks["sst2"].remarks == [
        "trained on 3 sentences; SentEval's set has 67,349 phrases",
        "chosen on 2 sentences; SentEval's set has 872 sentences",
        "tested on 2 sentences; SentEval's set has 1,821 sentences",
    ]


def test_trec_has_its_coarse_classes(tmp_path: Path) -> None:
    rows = [("NUM", "date", "when ?"), ("ABBR", "exp", "what is GE ?"), ("HUM", "ind", "who ?")]
    for name in ("train", "test"):
        write(tmp_path / "trec" / f"{name}.tsv.gz", rows, "coarse fine text")
    trec = load_tasks(tmp_path)[0]["trec"]
    assert trec.classes == ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    assert np.array_equal(trec.splits["train"].labels, [5, 0, 3])
    assert trec.splits["train"].sides == (["when ?", "what is GE ?", "who ?"],)


def test_mrpc_trains_on_train_and_val(tmp_path: Path) -> None:
    rows = {
        "train": [(1, 7, 8, "a", "b"), (0, 7, 9, "c", "d")],
        "val": [(1, 1, 2, "e", "f")],
        "test": [(0, 1, 2, "g", "h"), (1, 3, 4, "i", "j")],
    }
    for name, some in rows.items():
        write(tmp_path / "mrpc" / f"{name}.tsv.gz", some, "label id1 id2 sentence1 sentence2")
    mrpc = load_tasks(tmp_path)[0]["mrpc"]
    assert mrpc.splits["train"].sides == (["a", "c", "e"], ["b", "d", "f"])
    assert np.array_equal(mrpc.splits["train"].labels, [1, 0, 1])
    assert sorted(mrpc.sentences()) == list("abcdefghij")
    assert mrpc.remarks[0] == "trained on 3 pairs; SentEval's set has 4,076 pairs"


GOOD = "A\t1\tone\ttwo\n"
YEAR = "subset\tscore\tsentence1\tsentence2\n"
PAIRS = b"score\tsentence1\tsentence2\n"
LABELS = "label\ttext\n1\tit is good\n"
FILES = {
    "sts12": "sts12/test.tsv.gz",
    "sickr": "sick/test.tsv.gz",
    "stsb": "stsb/test.tsv.gz",
    "mr": "mr/all.tsv.gz",
}


def load_any(key: str, folder: Path) -> None:
    load_tasks(folder) if key in TITLES else load(key, folder)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("sts12", f"{YEAR}{GOOD}A\thigh\tone\ttwo", ", line 3: the score 'high' is not a number."),
        ("sts12", f"{YEAR}A\tnan\tone\ttwo", ", line 2: the score nan is not between 0 and 5."),
        ("sts12", f"{YEAR}A\t5.1\tone\ttwo", ", line 2: the score 5.1 is not between 0 and 5."),
        ("sts12", f"{YEAR}{GOOD}{GOOD}A\t1\tone", ", line 4 has 3 fields; the first row has 4."),
        ("sts12", f"{YEAR}{GOOD}A\t1\t \ttwo", ", line 3: a sentence is empty."),
        ("sts12", "score\tsentence1\n1\tone", " has no column `sentence2`, `subset` in its first row."),
        ("sickr", PAIRS.decode() + "0.5\ta\tb", ", line 2: the score 0.5 is not between 1 and 5."),
        ("stsb", "", " has no column `score`, `sentence1`, `sentence2` in its first row"),
        ("stsb", PAIRS, " is not a whole gzip file: Not a gzipped file"),
        ("stsb", gzip.compress(PAIRS, mtime=0)[:-9], " is not a whole gzip file: Compressed file ended"),
        ("stsb", gzip.compress(PAIRS + b"1\ta\t\xff\n", mtime=0), ", line 2 is not UTF-8 (byte 5)"),
        ("mr", f"{LABELS}2\tso so", ", line 3: the label '2' is not one of 0, 1."),
        ("mr", f"{LABELS}0\t ", ", line 3: a sentence is empty."),
        ("mr", "label\tsentence\n1\tgood", " has no column `text` in its first row."),
        ("mr", "label\ttext\n", ": its 0 examples have no two different labels."),
        ("mr", f"{LABELS}1\tbetter", ": its 2 examples have no two different labels."),
        ("mr", gzip.compress(b"label\ttext\n1\tcaf\xe9\n", mtime=0), ", line 2 is not UTF-8 (byte 6)."),
    ],
)
def test_what_is_damaged_is_named_by_file_and_line(
    tmp_path: Path, name: str, content: str | bytes, reason: str
) -> None:
    if isinstance(content, str):
        content = gzip.compress(content.encode()) if FILES[name].endswith(".gz") else content.encode()
    file = plain(tmp_path / FILES[name], content)
    with pytest.raises(TrainingError) as caught:
        load_any(name, tmp_path)
    assert str(caught.value).startswith(str(file.parent))
    assert f"{file.name}{reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "there", "missing"),
    [
        ("stsb", "stsb/dev.tsv.gz", "stsb/test.tsv.gz"),
        ("cr", "cr/other", "cr/all.tsv.gz"),
    ],
)
def test_the_missing_part_of_a_set_is_named(tmp_path: Path, key: str, there: str, missing: str) -> None:
    plain(tmp_path / there, "good\n")
    with pytest.raises(TrainingError) as caught:
        load_any(key, tmp_path)
    assert str(caught.value).startswith(f"There is no file {tmp_path / missing}.")


@needs("mr")
@needs("sst2")
@needs("trec")
@needs("mrpc")
def test_the_public_sets_have_their_published_sizes() -> None:
    tasks, _ = load_tasks(FOLDER)
    assert Counter(tasks["mr"].splits["all"].labels.tolist()) == {0: 5331, 1: 5331}
    assert [len(split.labels) for split in tasks["trec"].splits.values()] == [5452, 500]
    assert [len(split.labels) for split in tasks["mrpc"].splits.values()] == [4076, 1725]
    assert tasks["sst2"].remarks == ["trained on 6,920 sentences; SentEval's set has 67,349 phrases"]
    assert not [remark for key in ("mr", "trec", "mrpc") for remark in tasks[key].remarks]
