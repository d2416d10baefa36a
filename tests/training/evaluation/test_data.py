"""Evaluation sets in both layouts, and the errors for damaged files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.evaldata import FOLDER, needs
from tests.training.evaluation.pairs import write
from training.errors import TrainingError
from training.evaluation.data import Pairs, data_folder, is_absent, load, optional_data_folder
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


def japanese(**changed: object) -> str:
    row = {
        "sentence_pair_id": "0",
        "sentence1": "川べりに牛がいます。",
        "sentence2": "川　の近くの牛",
        "label": 4.4,
    }
    return json.dumps(row | changed, ensure_ascii=False)


def _rows(pairs: Pairs) -> list[tuple[str, str, float, str]]:
    return list(zip(pairs.left, pairs.right, pairs.gold.tolist(), pairs.subset, strict=True))


@pytest.fixture
def sts13(tmp_path: Path) -> Path:
    folder = tmp_path / "STS" / "STS13-en-test"
    content = {
        "FNWN": ("a b\tc \nd\te\n", "1.5\n\n"),
        "headlines": ('"f\tg\n', "5\n"),
        "OnWN": ("h\ti\tx\ty\n", "0\n"),
    }
    for subset, (pairs, gold) in content.items():
        plain(folder / f"STS.input.{subset}.txt", pairs)
        plain(folder / f"STS.gs.{subset}.txt", gold)
    plain(folder / "STS.input.SMT.txt", "its licence\tkeeps it out\n")
    return folder


def test_a_year_is_its_sources_one_after_another(tmp_path: Path, sts13: Path) -> None:
    assert not is_absent("sts13", tmp_path)
    pairs = load("sts13", tmp_path)
    expected = [("a b", "c", 1.5, "FNWN"), ('"f', "g", 5, "headlines"), ("h", "i", 0, "OnWN")]
    assert _rows(pairs) == expected
    assert pairs.unscored == 1


def test_our_own_folder_goes_first(tmp_path: Path, sts13: Path) -> None:
    write(tmp_path / "sts13" / "test.tsv.gz", [("A", 2, "one", "two")])
    assert load("sts13", tmp_path).left == ["one"]


def test_the_benchmark_has_its_score_in_the_fifth_column(tmp_path: Path) -> None:
    folder = tmp_path / "STS" / "STSBenchmark"
    line = 'main-captions\tMSRvid\t2012test\t0024\t{}\tA girl styles her hair.\tA "girl" brushes it.\n'
    plain(
        folder / "sts-test.csv", line.format("2.500") + line.format("3").replace("\n", "\tsource\tlicence\n")
    )
    sentences = ("A girl styles her hair.", 'A "girl" brushes it.')
    assert _rows(load("stsb", tmp_path)) == [(*sentences, 2.5, ""), (*sentences, 3, "")]
    plain(folder / "sts-dev.csv", line.format("1"))
    assert _rows(load("stsb", tmp_path, "dev")) == [(*sentences, 1, "")]


def test_sick_names_its_columns(tmp_path: Path) -> None:
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
    plain(tmp_path / "SICK" / "SICK_test_annotated.txt", f"{header}6\tone\ttwo\t3.165\tNEUTRAL\r\n")
    assert _rows(load("sickr", tmp_path)) == [("one", "two", 3.165, "")]


@pytest.mark.parametrize(
    "name", ["jsts/valid-v1.1.json", "jsts-v1.1/valid-v1.1.json", "jsts/valid.jsonl", "jsts/valid.jsonl.gz"]
)
def test_jsts_is_an_object_in_each_line(tmp_path: Path, name: str) -> None:
    text = f"{japanese()}\n{japanese(label=0)}\n"
    file = plain(tmp_path / name, text)
    if name.endswith(".gz"):
        file.write_bytes(gzip.compress(text.encode()))
    pairs = load("jsts", tmp_path)
    assert (pairs.left[0], pairs.right[0]) == ("川べりに牛がいます。", "川 の近くの牛")
    assert np.array_equal(pairs.gold, [4.4, 0])


def test_a_set_with_no_folder_of_any_kind_is_absent(tmp_path: Path) -> None:
    for name in ("STS", "sts13"):
        (tmp_path / name).mkdir()
    assert all(is_absent(key, tmp_path) for key in ("sts12", "stsb", "sickr", "korsts", "jsts"))
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

    tasks, absent = load_tasks(tmp_path)
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
    assert len(list(load_tasks(tmp_path)[0]["cr"].sentences())) == 3


def test_an_empty_folder_of_data_has_no_tasks(tmp_path: Path) -> None:
    assert load_tasks(tmp_path) == ({}, ["mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc"])


GOOD = "A\t1\tone\ttwo\n"
YEAR = "subset\tscore\tsentence1\tsentence2\n"
PAIRS = b"score\tsentence1\tsentence2\n"
LABELS = "label\ttext\n1\tit is good\n"
FILES = {
    "sts12": "sts12/test.tsv.gz",
    "sickr": "sick/test.tsv.gz",
    "stsb": "stsb/test.tsv.gz",
    "stsb plain": "STS/STSBenchmark/sts-test.csv",
    "sts13 gold": "STS/STS13-en-test/STS.gs.FNWN.txt",
    "sts13 text": "STS/STS13-en-test/STS.input.OnWN.txt",
    "jsts": "jsts/valid.jsonl",
    "mr": "mr/all.tsv.gz",
    "cr": "CR/custrev.pos",
    "trec": "TREC/train_5500.label",
    "sst2": "SST/binary/sentiment-train",
    "mrpc": "MRPC/msr_paraphrase_train.txt",
}


def load_any(name: str, folder: Path) -> None:
    key = name.split(maxsplit=1)[0]
    load_tasks(folder) if key in TITLES else load(key, folder)


@pytest.mark.usefixtures("sts13")
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("sts12", f"{YEAR}{GOOD}A\thigh\tone\ttwo", ", line 3: the score 'high' is not a number."),
        ("sts12", f"{YEAR}A\tnan\tone\ttwo", ", line 2: the score nan is not between 0 and 5."),
        ("sts12", f"{YEAR}A\t5.1\tone\ttwo", ", line 2: the score 5.1 is not between 0 and 5."),
        ("sts12", f"{YEAR}{GOOD}{GOOD}A\t1\tone", ", line 4 has 3 fields; the first row has 4."),
        ("sts12", f"{YEAR}A\t1\tone\ttwo\tmore", ", line 2 has 5 fields; the first row has 4."),
        ("sts12", f"{YEAR}{GOOD}A\t1\t \ttwo", ", line 3: a sentence is empty."),
        ("sts12", "score\tsentence1\n1\tone", " has no column `sentence2`, `subset` in its first row."),
        ("sickr", PAIRS.decode() + "0.5\ta\tb", ", line 2: the score 0.5 is not between 1 and 5."),
        ("stsb", "", " has no column `score`, `sentence1`, `sentence2` in its first row"),
        ("stsb", PAIRS, " is not a whole gzip file: Not a gzipped file"),
        ("stsb", gzip.compress(PAIRS, mtime=0)[:-9], " is not a whole gzip file: Compressed file ended"),
        ("stsb", gzip.compress(PAIRS + b"1\ta\t\xff\n", mtime=0), ", line 2 is not UTF-8 (byte 5)"),
        ("stsb plain", "main\tMSRvid\n", ", line 1: 2 fields between tabs, and 7 are needed."),
        ("sts13 gold", "1.5\n", " do not have the same number of lines."),
        ("sts13 gold", "1.5\n\n3\n", " do not have the same number of lines."),
        ("sts13 gold", "1.5\n9\n", ", line 2: the score 9 is not between 0 and 5."),
        ("sts13 text", "h i\n", " and STS.gs.OnWN.txt, line 1: 1 fields between tabs, and 2 are needed."),
        ("jsts", "[1]", ", line 1 has no text under the name sentence1."),
        ("jsts", japanese(sentence2=None), ", line 1 has no text under the name sentence2."),
        ("jsts", f"{japanese()}\n{japanese(label=6)}\n", ", line 2: the score 6 is not between 0 and 5."),
        ("jsts", japanese(label=True), ", line 1: the score 'True' is not a number."),
        ("jsts", japanese(sentence1="　"), ", line 1: a sentence is empty."),
        ("mr", f"{LABELS}2\tso so", ", line 3: the label '2' is not one of 0, 1."),
        ("mr", f"{LABELS}0\t ", ", line 3: a sentence is empty."),
        ("mr", f"{LABELS}0", ", line 3 has 1 fields; the first row has 2."),
        ("mr", "label\tsentence\n1\tgood", " has no column `text` in its first row."),
        ("mr", "label\ttext\n", ": its 0 examples have no two different labels."),
        ("mr", f"{LABELS}1\tbetter", ": its 2 examples have no two different labels."),
        ("mr", gzip.compress(b"label\ttext\n1\tcaf\xe9\n", mtime=0), ", line 2 is not UTF-8 (byte 6)."),
        ("cr", "good\n\nfine\n", ", line 2: a sentence is empty."),
        ("trec", "LOC:city Where ?\nWhy ?\n", ", line 2: it does not begin with `CLASS:sub"),
        ("trec", "WHY:x Why ?\n", ", line 1: the label 'WHY' is not one of ABBR, DESC"),
        ("trec", "LOC:city\n", ", line 1: a sentence is empty."),
        ("sst2", "good 1\n", ", line 1: there is no tab before the label."),
        ("sst2", "good\t3\n", ", line 1: the label '3' is not one of 0, 1."),
        ("mrpc", "h\th\th\th\th\n1\t2\t3\tone\n", ", line 2: 4 fields where there are 5"),
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
        ("sts13", "STS/STS13-en-test/other.txt", "STS/STS13-en-test/STS.input.FNWN.txt"),
        ("cr", "cr/other", "cr/all.tsv.gz"),
        ("cr", "CR/custrev.pos", "CR/custrev.neg"),
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
