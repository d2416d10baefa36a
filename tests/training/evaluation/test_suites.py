"""All figures of one encoder: what is measured, what is absent, and how often a sentence is encoded."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.training.evaluation.beir import DOCUMENTS, write_collection
from tests.training.evaluation.pairs import EAST, TWO_SOURCES, TWO_SOURCES_ALL, encode, write
from training.errors import TrainingError
from training.evaluation.encoding import Vectors, encode_once, remembering
from training.evaluation.report.table import table
from training.evaluation.suites import score


def _data(folder: Path, rows: Sequence[tuple[str, object, float]] = TWO_SOURCES) -> Path:
    """STS14 is `rows`; STS-B has three splits with other cosines."""
    write(folder / "sts14" / "test.tsv.gz", [(name, gold, EAST, cosine) for name, cosine, gold in rows])
    for split, cosines in {"train": (0.0,), "dev": (0.5,), "test": (0.5, 0.0, -1.0)}.items():
        stsb = [(gold, EAST, cosine) for gold, cosine in zip((5, 3, 1), cosines, strict=False)]
        write(folder / "stsb" / f"{split}.tsv.gz", stsb, "score sentence1 sentence2")
    return folder


def test_every_suite_is_measured_on_what_is_there_and_the_rest_is_named(tmp_path: Path) -> None:
    found = score(encode, _data(tmp_path))
    assert list(found["sts"]) == ["sts14", "stsb"]
    assert found["sts"]["sts14"]["spearman_all"] == pytest.approx(TWO_SOURCES_ALL)
    assert found["sts"]["stsb"]["spearman_all"] == pytest.approx(1)
    assert found["mean"] == {
        "spearman_all": pytest.approx((TWO_SOURCES_ALL + 1) / 2),
        "sets": ["sts14", "stsb"],
    }
    # Train, dev and test: cosines 0, 0.5 and 0.5 have a gold score of 5, at squared distances 2, 1 and 1.
    assert found["geometry"]["alignment"] == pytest.approx(4 / 3)
    assert found["geometry"]["sentences"] == 4
    assert found["absent"] == ["sts12", "sts13", "sts15", "sts16", "sickr"]


def test_a_suite_that_is_not_asked_for_is_not_measured(tmp_path: Path) -> None:
    data = _data(tmp_path)
    assert "geometry" not in score(encode, data, ["sts"])
    geometric = score(encode, data, ["geometry"])
    assert "sts" not in geometric
    assert geometric["absent"] == []


def test_other_languages_stand_beside_the_mean_and_are_not_missed(tmp_path: Path) -> None:
    before = score(encode, _data(tmp_path))
    korean = [(1, EAST, 0.5), (2, EAST, 0.6), (3, EAST, 0.4)]  # ranks 2 3 1 against 1 2 3
    write(tmp_path / "korsts" / "test.tsv.gz", korean, "score sentence1 sentence2")
    found = score(encode, tmp_path)
    assert found["sts"].pop("korsts")["spearman_all"] == pytest.approx(-0.5)
    assert (found["sts"], found["mean"], found["absent"]) == (before["sts"], before["mean"], before["absent"])
    assert "sts" not in score(encode, tmp_path, ["geometry"])
    found = score(encode, tmp_path)
    assert list(found["sts"]) == ["sts14", "stsb", "korsts"]
    lines = table(found).splitlines()
    assert next(line for line in lines if line.startswith("KorSTS")).split()[1] == "-50.00"


def test_a_folder_with_another_language_alone_is_scored(tmp_path: Path) -> None:
    line = {"sentence1": EAST, "sentence2": "0.5", "label": 3}
    (tmp_path / "jsts").mkdir()
    rows = [json.dumps(line), json.dumps(line | {"sentence2": "0.7", "label": 4})]
    (tmp_path / "jsts" / "valid.jsonl").write_text("\n".join(rows))
    found = score(encode, tmp_path, ["sts"])
    assert found["sts"]["jsts"]["spearman_all"] == pytest.approx(1)
    assert "mean" not in found
    assert "JSTS" in table(found)


def test_every_folder_in_beirs_layout_is_searched(tmp_path: Path) -> None:
    write_collection(tmp_path / "tiny")
    write_collection(_data(tmp_path) / "a-rather-long-name", DOCUMENTS | {"e": ("", "")}, plain=True)
    found = score(encode, tmp_path, ["sts", "retrieval"])
    assert list(found["retrieval"]) == ["a-rather-long-name", "tiny"]
    assert found["retrieval"]["tiny"]["mrr10"] == pytest.approx(0.75)
    assert "retrieval" not in found["absent"]
    assert found["sentences"] == 9  # east, five of STS14 and three of STS-B's test split
    lines = table(found).splitlines()
    tiny = next(line for line in lines if line.startswith("tiny"))
    assert tiny.split()[2:] == ["50.00", "100.00", "100.00", "75.00", "75.00", "2", "4"]
    long = next(line for line in lines if line.startswith("a-rather-long-name "))
    assert long.endswith("2          5  1 without text left out")
    assert "retrieval" not in score(encode, tmp_path)


def test_queries_and_documents_have_their_own_functions(tmp_path: Path) -> None:
    write_collection(tmp_path / "tiny")
    # Documents behind `-` lie west: both lists are d c b a. Queries turned round: d c b a, and a b c d.
    found = score(
        encode, tmp_path, ["retrieval"], encode_documents=lambda texts: encode([f"-{x}" for x in texts])
    )
    assert found["retrieval"]["tiny"]["mrr10"] == 1
    found = score(encode, tmp_path, ["retrieval"], encode_queries=lambda texts: -encode(texts))
    assert found["retrieval"]["tiny"]["mrr10"] == pytest.approx((1 + 1 / 4) / 2)


def test_no_folder_to_search_is_named_and_refused_when_it_is_all(tmp_path: Path) -> None:
    found = score(encode, _data(tmp_path), ["sts", "retrieval"])
    assert found["absent"][-1] == "retrieval"
    assert "SICK-R, retrieval (no such folder" in table(found)
    with pytest.raises(TrainingError, match=r"holds none of retrieval\."):
        score(encode, tmp_path, ["retrieval"])


def test_transfer_is_the_mean_over_the_tasks_that_are_there(tmp_path: Path) -> None:
    # East is 1 and west is 0, in train and in test; two labels of test are wrong.
    rows = [(label, (1 if label else -1) * (1 - at / 1000)) for at in range(30) for label in (0, 1)]
    for split in ("train", "dev"):
        write(tmp_path / "sst2" / f"{split}.tsv.gz", rows, "label text")
    write(tmp_path / "sst2" / "test.tsv.gz", [*rows[:8], (1, -0.5), (0, 0.5)], "label text")
    found = score(encode, tmp_path, ["transfer"])
    assert found["transfer"]["sst2"]["accuracy"] == pytest.approx(0.8)
    assert found["transfer_mean"] == {"accuracy": pytest.approx(0.8), "sets": ["sst2"]}
    assert found["absent"] == ["mr", "cr", "subj", "mpqa", "trec", "mrpc"]
    lines = table(found).splitlines()
    assert next(line for line in lines if line.startswith("SST2")).split()[:3] == ["SST2", "80.00", "10"]
    assert "absent: MR, CR, SUBJ, MPQA, TREC, MRPC" in table(found)
    with pytest.raises(TrainingError, match=r"holds none of mr, cr, subj, mpqa, sst2, trec, mrpc\."):
        score(encode, _data(tmp_path / "other"), ["transfer"])


def test_without_sts_b_there_is_no_geometry(tmp_path: Path) -> None:
    write(tmp_path / "sts12" / "test.tsv.gz", [("A", 1, EAST, 0.5), ("A", 2, EAST, 0.6)])
    found = score(encode, tmp_path)
    assert "geometry" not in found
    assert "stsb" in found["absent"]


def test_a_folder_without_any_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="holds none of sts12, sts13, sts14, sts15, sts16, stsb, sickr"):
        score(encode, tmp_path)
    with pytest.raises(TrainingError, match=r"holds none of stsb\."):
        score(encode, tmp_path, ["geometry"])


@pytest.mark.parametrize(
    ("suites", "reason"),
    [
        (
            ["sts", "stss"],
            r"There is no suite 'stss'\. There are: sts, geometry, retrieval, transfer, clustering\.",
        ),
        ([" "], r"No suite is named\."),
    ],
)
def test_a_suite_that_there_is_not_is_refused_by_name(tmp_path: Path, suites: list[str], reason: str) -> None:
    with pytest.raises(TrainingError, match=reason):
        score(encode, _data(tmp_path), suites)


def test_a_figure_that_is_no_number_is_null_in_json_and_said_in_the_table(tmp_path: Path) -> None:
    found = score(lambda texts: np.zeros((len(texts), 3), np.float32), _data(tmp_path))
    plain = json.loads(json.dumps(found, allow_nan=False))
    assert plain["sts"]["sts14"]["spearman_all"] is None
    assert plain["sts"]["sts14"]["undefined"] == 5
    assert plain["mean"]["spearman_all"] is None
    assert plain["geometry"]["uniformity"] is None
    assert plain["geometry"]["effective_rank"] is None
    lines = table(found).splitlines()
    assert next(line for line in lines if line.startswith("STS14")).split()[1] == "undefined"
    assert any("5 cosines undefined, counted as 0" in line for line in lines)


def test_the_table_gives_hundredths_and_names_what_keeps_a_figure_from_being_compared(tmp_path: Path) -> None:
    rows = [*((name, gold, EAST, cosine) for name, cosine, gold in TWO_SOURCES), ("A", "", EAST, 0.4)]
    write(_data(tmp_path) / "sts14" / "test.tsv.gz", rows)
    lines = table(score(encode, tmp_path)).splitlines()
    sts14 = next(line for line in lines if line.startswith("STS14"))
    assert sts14.split()[:4] == ["STS14", "-60.00", "0.00", "20.00"]
    assert sts14.endswith("5  the published set has 3750; 1 without a gold score left out")
    assert any(line.startswith("absent: STS12, STS13") for line in lines)
    assert next(line for line in lines if line.startswith("mean of 2")).split()[3] == "20.00"
    assert next(line for line in lines if line.startswith("alignment")).split()[1] == "1.3333"
    # East, north, west and the direction at 60°: the six cosines sum to -0.134.
    assert next(line for line in lines if line.startswith("mean cosine")).split()[2] == "-0.0223"
    assert next(line for line in lines if line.startswith("effective rank")).split()[2:4] == ["1.9", "of"]
    assert next(line for line in lines if line.startswith("absent: ")).startswith(
        "absent: STS12, STS13, STS15, STS16, SICK-R"
    )


def test_each_sentence_is_encoded_once(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    def counting(sentences: list[str]) -> Vectors:
        seen.update(sentences)
        return encode(sentences)

    found = score(counting, _data(tmp_path))
    assert set(seen.values()) == {1}
    assert found["sentences"] == len(seen) == 9


def test_many_sentences_keep_their_own_vectors() -> None:
    sentences = [str(number / 3000) for number in range(3000)]
    assert np.array_equal(encode_once(encode, sentences)(sentences), encode(sentences))


def test_a_model_that_gives_another_number_of_vectors_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"gave vectors of shape \(1, 2\) for 2 sentences"):
        encode_once(lambda sentences: encode(sentences)[:1], ["0.1", "0.2"])


def test_a_text_that_was_asked_for_before_is_not_encoded_again() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> Vectors:
        asked.extend(texts)
        return np.array([[float(text), 1.0] for text in texts], np.float32)

    once = remembering(encode)
    assert once(["2", "1", "2"]).tolist() == [[2, 1], [1, 1], [2, 1]]
    assert once(["3", "1"]).tolist() == [[3, 1], [1, 1]]
    assert asked == ["2", "1", "3"]
