"""Transfer files: both layouts, what is absent, and the line that an error names."""

import gzip
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.evaldata import FOLDER, needs
from tests.training.evaluation.pairs import write
from training.errors import TrainingError
from training.evaluation.tasks import TITLES, load

TEXTS = [(1, "it  is good"), (0, "it is bad"), (1, "fine \u2028 ")]


def plain(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("key", ["mr", "cr", "subj", "mpqa"])
def test_sets_for_cross_validation_are_one_file(tmp_path: Path, key: str) -> None:
    write(tmp_path / key / "all.tsv.gz", TEXTS, "label text")
    tasks, absent = load(tmp_path)
    assert list(tasks) == [key]
    assert absent == [other for other in TITLES if other not in (key, "sicke")]
    assert tasks[key].splits["all"].sides == (["it is good", "it is bad", "fine"],)
    assert np.array_equal(tasks[key].splits["all"].labels, [1, 0, 1])
    assert list(tasks[key].sentences()) == ["it is good", "it is bad", "fine"]


def test_sst2_says_that_it_was_not_trained_on_phrases(tmp_path: Path) -> None:
    for name, rows in {"train": TEXTS, "dev": TEXTS[:2], "test": TEXTS[1:]}.items():
        write(tmp_path / "sst2" / f"{name}.tsv.gz", rows, "label text")
    tasks, _ = load(tmp_path)
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
    trec = load(tmp_path)[0]["trec"]
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
    mrpc = load(tmp_path)[0]["mrpc"]
    assert mrpc.splits["train"].sides == (["a", "c", "e"], ["b", "d", "f"])
    assert np.array_equal(mrpc.splits["train"].labels, [1, 0, 1])
    assert sorted(mrpc.sentences()) == list("abcdefghij")
    assert mrpc.remarks[0] == "trained on 3 pairs; SentEval's set has 4,076 pairs"


def test_sentevals_own_files_are_read(tmp_path: Path) -> None:
    polarity = {
        "MR": ("rt-polarity.pos", "rt-polarity.neg"),
        "CR": ("custrev.pos", "custrev.neg"),
        "SUBJ": ("subj.objective", "subj.subjective"),
        "MPQA": ("mpqa.pos", "mpqa.neg"),
    }
    for folder, (positive, negative) in polarity.items():
        plain(tmp_path / folder / positive, b"caf\xe9 \x85 ok\r\nwell\n")  # one such byte, and it is latin-1
        plain(tmp_path / folder / negative, "caf\u00e9\n")
    for name in ("train", "dev", "test"):
        plain(tmp_path / "SST" / "binary" / f"sentiment-{name}", "so\tso\t1\nnot at all\t0\n")
    for name in ("train_5500", "TREC_10"):
        plain(tmp_path / "TREC" / f"{name}.label", b"DESC:def What is a na\xefve:one ?\nLOC:city Where ?\n")
    for name in ("train", "test"):
        header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        content = header + '1\t10\t11\tHe said "so .\tSo\r\n0\t12\t13\tOne\tTwo'
        plain(tmp_path / "MRPC" / f"msr_paraphrase_{name}.txt", content)

    tasks, absent = load(tmp_path)
    assert (list(tasks), absent) == (["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"], [])
    for folder in polarity:
        found = tasks[folder.lower()].splits["all"]
        assert found.sides == (["caf\u00e9 ok", "well", "caf\u00e9"],)
        assert np.array_equal(found.labels, [1, 1, 0])
    for name in ("train", "dev", "test"):
        assert tasks["sst2"].splits[name].sides == (["so so", "not at all"],)
        assert np.array_equal(tasks["sst2"].splits[name].labels, [1, 0])
    for name in ("train", "test"):
        assert tasks["trec"].splits[name].sides == (["What is a na\u00efve:one ?", "Where ?"],)
        assert np.array_equal(tasks["trec"].splits[name].labels, [1, 4])
        assert tasks["mrpc"].splits[name].sides == (['He said "so .', "One"], ["So", "Two"])
        assert np.array_equal(tasks["mrpc"].splits[name].labels, [1, 0])


def test_our_own_files_come_before_sentevals(tmp_path: Path) -> None:
    plain(tmp_path / "CR" / "custrev.pos", "theirs\n")
    plain(tmp_path / "CR" / "custrev.neg", "theirs too\n")
    write(tmp_path / "cr" / "all.tsv.gz", TEXTS, "label text")
    assert len(list(load(tmp_path)[0]["cr"].sentences())) == 3


def test_an_empty_folder_of_data_has_no_tasks(tmp_path: Path) -> None:
    assert load(tmp_path) == ({}, ["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"])


def test_a_folder_without_its_file_is_no_absent_set(tmp_path: Path) -> None:
    (tmp_path / "cr").mkdir()
    with pytest.raises(TrainingError, match=r"There is no file .*cr/all\.tsv\.gz\."):
        load(tmp_path)


def test_the_missing_half_of_a_set_is_named(tmp_path: Path) -> None:
    plain(tmp_path / "CR" / "custrev.pos", "good\n")
    with pytest.raises(TrainingError, match=r"There is no file .*CR/custrev\.neg\."):
        load(tmp_path)


@pytest.mark.parametrize(
    ("rows", "header", "reason"),
    [
        ([*TEXTS, (2, "so so")], "label text", ", line 5: the label '2' is not one of 0, 1."),
        ([(1, "good"), (0, " ")], "label text", ", line 3: a sentence is empty."),
        ([(1, "good"), (0,)], "label text", ", line 3 has 1 fields; the first row has 2."),
        ([(1, "good")], "label sentence", " has no column `text` in its first row."),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(
    tmp_path: Path, rows: Sequence[Sequence[object]], header: str, reason: str
) -> None:
    file = write(tmp_path / "mr" / "all.tsv.gz", rows, header)
    with pytest.raises(TrainingError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{file}{reason}"


@pytest.mark.parametrize("rows", [[], [(1, "good"), (1, "better")]])
def test_a_set_needs_two_labels(tmp_path: Path, rows: Sequence[Sequence[object]]) -> None:
    file = write(tmp_path / "mr" / "all.tsv.gz", rows, "label text")
    with pytest.raises(TrainingError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{file}: its {len(rows)} examples have no two different labels."


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("CR/custrev.pos", "good\n\nfine\n", "line 2: a sentence is empty."),
        ("TREC/train_5500.label", "LOC:city Where ?\nWhy ?\n", "line 2: it does not begin with `CLASS:sub"),
        ("TREC/train_5500.label", "WHY:x Why ?\n", "line 1: the label 'WHY' is not one of ABBR, DESC"),
        ("TREC/train_5500.label", "LOC:city\n", "line 1: a sentence is empty."),
        ("SST/binary/sentiment-train", "good 1\n", "line 1: there is no tab before the label."),
        ("SST/binary/sentiment-train", "good\t3\n", "line 1: the label '3' is not one of 0, 1."),
        (
            "MRPC/msr_paraphrase_train.txt",
            "h\th\th\th\th\n1\t2\t3\tone\n",
            "line 2: 4 fields where there are 5",
        ),
    ],
)
def test_a_bad_line_of_sentevals_is_named(tmp_path: Path, name: str, content: str, reason: str) -> None:
    file = plain(tmp_path / name, content)
    with pytest.raises(TrainingError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{file}, {reason}")


def test_our_own_files_are_utf_8(tmp_path: Path) -> None:
    plain(tmp_path / "mr" / "all.tsv.gz", gzip.compress(b"label\ttext\n1\tcaf\xe9\n"))
    with pytest.raises(TrainingError, match=r"all\.tsv\.gz, line 2 is not UTF-8 \(byte 6\)\."):
        load(tmp_path)


@needs("mr")
@needs("sst2")
@needs("trec")
@needs("mrpc")
def test_the_public_sets_have_their_published_sizes() -> None:
    tasks, _ = load(FOLDER)
    assert Counter(tasks["mr"].splits["all"].labels.tolist()) == {0: 5331, 1: 5331}
    assert [len(split.labels) for split in tasks["trec"].splits.values()] == [5452, 500]
    assert [len(split.labels) for split in tasks["mrpc"].splits.values()] == [4076, 1725]
    assert tasks["sst2"].remarks == ["trained on 6,920 sentences; SentEval's set has 67,349 phrases"]
    assert not [remark for key in ("mr", "trec", "mrpc") for remark in tasks[key].remarks]
