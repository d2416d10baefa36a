"""Sets of pairs as SentEval and JGLUE give them out: the rows, and the file and line that an error names."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.training.evaluation.pairs import write
from training.errors import TrainingError
from training.evaluation.data import Pairs, is_absent, load

JAPANESE = {
    "sentence_pair_id": "0",
    "sentence1": "川べりに牛がいます。",
    "sentence2": "川　の近くの牛",
    "label": 4.4,
}


def _put(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


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
        _put(folder / f"STS.input.{subset}.txt", pairs)
        _put(folder / f"STS.gs.{subset}.txt", gold)
    _put(folder / "STS.input.SMT.txt", "its licence\tkeeps it out\n")
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


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("STS.gs.FNWN.txt", "1.5\n", "STS.gs.FNWN.txt do not have the same number of lines."),
        ("STS.gs.FNWN.txt", "1.5\n\n3\n", "STS.gs.FNWN.txt do not have the same number of lines."),
        ("STS.gs.FNWN.txt", "1.5\n9\n", "STS.gs.FNWN.txt, line 2: the score 9 is not between 0 and 5."),
        ("STS.input.OnWN.txt", "h i\n", "line 1: 1 fields between tabs, and 2 are needed."),
    ],
)
def test_a_year_that_does_not_fit_together_is_named(
    tmp_path: Path, sts13: Path, name: str, text: str, reason: str
) -> None:
    _put(sts13 / name, text)
    with pytest.raises(TrainingError) as caught:
        load("sts13", tmp_path)
    assert str(sts13) in str(caught.value)
    assert reason in str(caught.value)


def test_a_missing_source_is_an_error(tmp_path: Path, sts13: Path) -> None:
    (sts13 / "STS.input.headlines.txt").unlink()
    with pytest.raises(TrainingError, match=r"There is no file .*STS\.input\.headlines\.txt\."):
        load("sts13", tmp_path)


def test_the_benchmark_has_its_score_in_the_fifth_column(tmp_path: Path) -> None:
    folder = tmp_path / "STS" / "STSBenchmark"
    line = 'main-captions\tMSRvid\t2012test\t0024\t{}\tA girl styles her hair.\tA "girl" brushes it.\n'
    _put(
        folder / "sts-test.csv", line.format("2.500") + line.format("3").replace("\n", "\tsource\tlicence\n")
    )
    sentences = ("A girl styles her hair.", 'A "girl" brushes it.')
    assert _rows(load("stsb", tmp_path)) == [(*sentences, 2.5, ""), (*sentences, 3, "")]
    _put(folder / "sts-dev.csv", line.format("1") + "main\tMSRvid\n")
    with pytest.raises(
        TrainingError, match=r"sts-dev\.csv, line 2: 2 fields between tabs, and 7 are needed\."
    ):
        load("stsb", tmp_path, "dev")


def test_sick_names_its_columns(tmp_path: Path) -> None:
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
    file = _put(tmp_path / "SICK" / "SICK_test_annotated.txt", f"{header}6\tone\ttwo\t3.165\tNEUTRAL\r\n")
    assert _rows(load("sickr", tmp_path)) == [("one", "two", 3.165, "")]
    _put(file, f"{header}6\tone\ttwo\t0.5\tNEUTRAL\r\n")
    with pytest.raises(TrainingError, match=r"annotated\.txt, line 2: the score 0\.5 is not between 1 and 5"):
        load("sickr", tmp_path)


@pytest.mark.parametrize(
    "name", ["jsts/valid-v1.1.json", "jsts-v1.1/valid-v1.1.json", "jsts/valid.jsonl", "jsts/valid.jsonl.gz"]
)
def test_jsts_is_an_object_in_each_line(tmp_path: Path, name: str) -> None:
    text = "".join(json.dumps(JAPANESE | {"label": label}, ensure_ascii=False) + "\n" for label in (4.4, 0))
    file = _put(tmp_path / name, text)
    if name.endswith(".gz"):
        file.write_bytes(gzip.compress(text.encode()))
    pairs = load("jsts", tmp_path)
    assert (pairs.left[0], pairs.right[0]) == ("川べりに牛がいます。", "川 の近くの牛")
    assert np.array_equal(pairs.gold, [4.4, 0])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", " has no text under the name sentence1."),
        (json.dumps(JAPANESE | {"sentence2": None}), " has no text under the name sentence2."),
        (json.dumps(JAPANESE | {"label": 6}), ": the score 6 is not between 0 and 5."),
        (json.dumps(JAPANESE | {"label": True}), ": the score 'True' is not a number."),
        (json.dumps(JAPANESE | {"sentence1": "　"}), ": a sentence is empty."),
    ],
)
def test_a_bad_line_of_jsts_is_named(tmp_path: Path, line: str, reason: str) -> None:
    file = _put(tmp_path / "jsts" / "valid.jsonl", f"{json.dumps(JAPANESE)}\n{line}\n")
    with pytest.raises(TrainingError) as caught:
        load("jsts", tmp_path)
    assert str(caught.value) == f"{file}, line 2{reason}"


def test_a_set_with_no_folder_of_any_kind_is_absent(tmp_path: Path) -> None:
    (tmp_path / "STS").mkdir()
    assert all(is_absent(key, tmp_path) for key in ("sts12", "stsb", "sickr", "korsts", "jsts"))
