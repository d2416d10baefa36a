"""Scores of evaluation suites, similarity and geometry, compared with values worked out by hand."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from tests.training.evaluation.beir import DOCUMENTS, write_collection
from tests.training.evaluation.pairs import EAST, TWO_SOURCES, TWO_SOURCES_ALL, encode, pairs_of, write
from training.errors import TrainingError
from training.evaluation.encoding import Vectors, encode_once, remembering
from training.evaluation.geometry import alignment, geometry, spread, uniformity
from training.evaluation.modes import whole
from training.evaluation.report.table import table
from training.evaluation.scorable import Scorable
from training.evaluation.sts import cosines, pearson, similarity, spearman
from training.evaluation.suites import score


def _data(folder: Path, rows: Sequence[tuple[str, object, float]] = TWO_SOURCES) -> Path:
    """Writes STS14 with `rows`, and STS-B with different cosines in each split. Returns `folder`."""
    write(folder / "sts14" / "test.tsv.gz", [(name, gold, EAST, cosine) for name, cosine, gold in rows])
    for split, found in {"train": (0.0,), "dev": (0.5,), "test": (0.5, 0.0, -1.0)}.items():
        stsb = [(gold, EAST, cosine) for gold, cosine in zip((5, 3, 1), found, strict=False)]
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
    korean = [(3, EAST, "0.5"), (4, EAST, "0.7")]
    write(tmp_path / "korsts" / "test.tsv.gz", korean, "score sentence1 sentence2")
    found = score(encode, tmp_path, ["sts"])
    assert found["sts"]["korsts"]["spearman_all"] == pytest.approx(1)
    assert "mean" not in found
    assert "KorSTS" in table(found)


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
    # Documents with `-` lie west, so both lists are d c b a. Negated queries find d c b a, and a b c d.
    model = Scorable(None, None, None, encode, encode, encode, whole, 0)
    west = model._replace(encode_documents=lambda texts: encode([f"-{x}" for x in texts]))
    assert score(encode, tmp_path, ["retrieval"], model=west)["retrieval"]["tiny"]["mrr10"] == 1
    negated = model._replace(encode_queries=lambda texts: -encode(texts))
    found = score(encode, tmp_path, ["retrieval"], model=negated)
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


def test_a_folder_without_any_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="holds none of sts12, sts13, sts14, sts15, sts16, stsb, sickr"):
        score(encode, tmp_path)
    with pytest.raises(TrainingError, match=r"holds none of stsb\."):
        score(encode, tmp_path, ["geometry"])


def test_a_suite_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    known = r"There are: sts, geometry, retrieval, transfer, clustering\."
    with pytest.raises(TrainingError, match=rf"There is no suite 'stss'\. {known}"):
        score(encode, _data(tmp_path), ["sts", "stss"])
    with pytest.raises(TrainingError, match=r"No suite is named\."):
        score(encode, tmp_path, [" "])


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
    assert any(line.startswith("absent: STS12, STS13, STS15, STS16, SICK-R") for line in lines)
    assert next(line for line in lines if line.startswith("mean of 2")).split()[3] == "20.00"
    assert next(line for line in lines if line.startswith("alignment")).split()[1] == "1.3333"
    # East, north, west and the direction at 60°: the six cosines sum to -0.134.
    assert next(line for line in lines if line.startswith("mean cosine")).split()[2] == "-0.0223"
    assert next(line for line in lines if line.startswith("effective rank")).split()[2:4] == ["1.9", "of"]


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
    requested: list[str] = []

    def encode(texts: list[str]) -> Vectors:
        requested.extend(texts)
        return np.array([[float(text), 1.0] for text in texts], np.float32)

    once = remembering(encode)
    assert once(["2", "1", "2"]).tolist() == [[2, 1], [1, 1], [2, 1]]
    assert once(["3", "1"]).tolist() == [[3, 1], [1, 1]]
    assert sorted(requested) == ["1", "2", "3"]


def test_a_years_subsets_are_ranked_together_and_not_averaged() -> None:
    found = similarity(pairs_of(TWO_SOURCES), encode)
    assert found["spearman_all"] == pytest.approx(TWO_SOURCES_ALL)
    assert found["spearman_mean"] == pytest.approx(0)
    assert found["spearman_wmean"] == pytest.approx((3 - 2) / 5)
    assert found["pairs"] == 5
    assert found["undefined"] == 0


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    # Ranks 1 2.5 2.5 4 against 1 2 3 4: 4.5 / sqrt(4.5 * 5). Ranks in order of arrival would give 1.
    rows = [("", 0.1, 1.0), ("", 0.2, 2.0), ("", 0.2, 3.0), ("", 0.4, 4.0)]
    assert similarity(pairs_of(rows), encode)["spearman_all"] == pytest.approx(4.5 / math.sqrt(22.5))


def test_only_the_order_counts_for_spearman_and_the_distances_for_pearson() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 9.0])
    assert spearman(x, y) == pytest.approx(1)
    assert pearson(x, y) == pytest.approx(8 / math.sqrt(2 * 38))


def test_a_vector_without_a_direction_counts_as_cosine_0_and_is_told() -> None:
    found = similarity(pairs_of([("", -0.5, 1.0), ("", "nowhere", 2.0), ("", 0.5, 3.0)]), encode)
    assert found["spearman_all"] == pytest.approx(1)
    assert found["undefined"] == 1


def test_a_cosine_does_not_depend_on_the_vectors_lengths() -> None:
    left = np.array([[3, 0], [0, 0], [np.inf, 1], [1, 1]], np.float32)
    right = np.array([[2, 2], [1, 0], [1, 0], [-2, -2]], np.float32)
    found, undefined = cosines(left, right)
    assert found == pytest.approx([math.sqrt(0.5), 0, 0, -1])
    assert undefined == 2


def test_a_model_that_gives_one_vector_for_everything_has_no_spearman() -> None:
    found = similarity(pairs_of(TWO_SOURCES), lambda texts: np.ones((len(texts), 2), np.float32))
    assert math.isnan(found["spearman_all"])
    assert math.isnan(found["pearson_all"])


def test_uniformity_is_the_log_of_one_mean_over_all_pairs() -> None:
    vectors = np.random.default_rng(0).normal(0.3, 1, (1100, 4)).astype(np.float32)  # three parts of its loop
    unit = vectors.astype(float) / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    expected = math.log(np.exp(-2 * pdist(unit, "sqeuclidean")).mean())
    assert uniformity(vectors) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([[1, 0], [0, 1]], -4.0),
        ([[1, 0], [-3, 0]], -8.0),
        ([[1, 0], [2, 0], [5, 0]], 0.0),
        ([[1, 0], [0, 1], [-1, 0]], math.log((2 * math.exp(-4) + math.exp(-8)) / 3)),
        ([[1, 1]], math.nan),
    ],
)
def test_uniformity_runs_from_minus_8_to_0(vectors: list[list[float]], expected: float) -> None:
    assert uniformity(np.array(vectors, np.float32)) == pytest.approx(expected, nan_ok=True)


def test_alignment_is_the_mean_squared_distance_at_length_1() -> None:
    left = np.array([[1, 0], [7, 0], [2, 0]], np.float32)
    right = np.array([[0, 2], [-1, 0], [9, 0]], np.float32)
    assert alignment(left, right) == pytest.approx((2 + 4 + 0) / 3)


def test_alignment_takes_pairs_above_4_only() -> None:
    splits = [pairs_of([("", 0.5, 4.0), ("", 0.0, 4.2)]), pairs_of([("", -1.0, 5.0), ("", 0.9, 0.0)])]
    found = geometry(splits, encode)
    assert found["alignment"] == pytest.approx((2 + 4) / 2)
    assert found["pairs"] == 2


def test_a_sentence_that_occurs_often_counts_once() -> None:
    found = geometry([pairs_of([("", 0.0, 1.0), ("", 0.0, 2.0)]), pairs_of([("", -1.0, 3.0)])], encode)
    assert found["sentences"] == 3
    # East, north and west: cosines 0, 0 and -1.
    assert found["uniformity"] == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))
    assert found["mean_cosine"] == pytest.approx(-1 / 3)
    assert found["top_energy"] == pytest.approx(2 / 3)
    assert math.isnan(found["alignment"])  # no pair is above 4


@pytest.mark.parametrize("shape", [(60, 7), (5, 9)])
def test_spread_is_that_of_every_pair_and_of_numpys_singular_values(shape: tuple[int, int]) -> None:
    vectors = np.random.default_rng(1).normal(0.4, 1, shape).astype(np.float32)
    found = spread(vectors)
    assert found["mean_cosine"] == pytest.approx(1 - pdist(vectors.astype(float), "cosine").mean())
    values = np.linalg.svd(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), compute_uv=False)
    assert found["directions"] == min(shape)
    shares = [float(value) ** 2 / shape[0] for value in values]
    assert found["top_energy"] == pytest.approx(shares[0])
    assert found["effective_rank"] == pytest.approx(math.prod(share**-share for share in shares), rel=1e-5)


def test_a_pair_without_a_cosine_leaves_no_geometry() -> None:
    found = geometry([pairs_of([("", "nowhere", 5.0), ("", 0.5, 5.0), ("", 0.5, 2.0)])], encode)
    for figure in ("alignment", "uniformity", "mean_cosine", "top_energy", "effective_rank"):
        assert math.isnan(found[figure]), figure
