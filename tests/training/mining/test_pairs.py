"""Pairs from files in all layouts, and pairs found in text without labels."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.training.evaluation.pairs import encode
from training.errors import NothingToLearn, TrainingError
from training.mining.pairs import Labelled, Pair, neighbor_pairs, read_beir, read_labelled_pairs, title_pairs


def test_a_title_stands_for_its_text_unless_others_share_it() -> None:
    documents = [
        ("Cats", "They  sleep."),
        ("Notes", "One."),
        ("Notes", "Two."),
        ("Cats", "They sleep."),  # the same document again
        ("Same", " Same"),
        ("", "No title."),
        ("Dogs", "They run."),
        ("Birds fly", "birds fly: high and low."),
        ("Fish", "Fish."),
        ("VPN", "VPNs need a token."),
    ]
    assert list(title_pairs(documents)) == [
        Pair("Cats", "They sleep.", None, "title"),
        Pair("Dogs", "They run.", None, "title"),
        Pair("Birds fly", "high and low.", None, "title"),  # else the title would find itself
        Pair("VPN", "VPNs need a token.", None, "title"),  # a word is not cut
    ]


def test_neighbors_that_have_each_other_as_the_nearest_are_pairs() -> None:
    # Texts are their cosines with one direction: at 0, 25.8, 36.9, 60, 84.3 and 90 degrees.
    texts = ["1", "0.9", "0.5", "0.8", "0", "0.1", "0.9"]
    found = list(neighbor_pairs(texts, encode, min_score=0.9))
    assert [pair[:2] for pair in found] == [("0.9", "0.8"), ("0", "0.1")]
    # cos(a - b) = ab + sin a sin b
    assert [round(pair.score_positive or 0, 4) for pair in found] == [0.9815, 0.995]
    assert {pair.source for pair in found} == {"neighbours"}
    below = neighbor_pairs(texts, encode, min_score=0.9, max_score=0.99)
    assert [pair[:2] for pair in below] == [("0.9", "0.8")]


def test_a_near_duplicate_is_not_the_nearest_neighbor() -> None:
    text = "a text that is long enough for one more full stop to be one shingle of very many in all of it"
    longer = f"{text}."
    directions = {text: "1", longer: "0.999", "another": "0.95", "far": "-0.5"}

    pairs = neighbor_pairs(list(directions), lambda texts: encode([directions[text] for text in texts]))
    assert [pair[:2] for pair in pairs] == [(text, "another")]


def beir(folder: Path, qrels: str = "qrels.train.tsv", suffix: str = "") -> Path:
    corpus = [
        {"_id": "d1", "title": "Cats", "text": "They sleep."},
        {"_id": "d2", "title": "", "text": "Dogs run."},
        {"_id": "d3", "text": "  "},
        {"_id": "d4", "text": "Stones lie."},
    ]
    queries = [{"_id": "q1", "text": "what sleeps"}, {"_id": "q2", "text": "what runs"}]
    judged = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\nq2\td3\t1\n"
    contents = {
        "corpus.jsonl": "\n".join(map(json.dumps, corpus)),
        "queries.jsonl": "\n".join(map(json.dumps, queries)),
        qrels: judged,
    }
    for name, content in contents.items():
        file = folder / (name + suffix)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("qrels", ["qrels.train.tsv", "qrels/train.tsv"])
def test_a_folder_gives_queries_with_their_relevant_documents(
    tmp_path: Path, qrels: str, suffix: str
) -> None:
    assert read_beir(beir(tmp_path, qrels, suffix), "train") == Labelled(
        {"what sleeps": ["Cats They sleep."], "what runs": ["Dogs run."]},
        ["Cats They sleep.", "Dogs run.", "Stones lie."],
        blank=1,  # d3 has no text
        repeated=0,
    )


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    beir(tmp_path)
    with pytest.raises(TrainingError, match=r"has no qrels\.dev\.tsv or qrels/dev\.tsv, plain or as \.gz"):
        read_beir(tmp_path, "dev")
    file = tmp_path / "qrels.train.tsv"
    file.write_text(file.read_text() + "q1\td9\t1\n")
    with pytest.raises(TrainingError, match=r"qrels\.train\.tsv, line 6: there is no document 'd9' in"):
        read_beir(tmp_path, "train")
    file.write_text("query-id\tcorpus-id\tscore\nq1\td1\thigh\n")
    with pytest.raises(TrainingError, match=r"line 2: the score 'high' is not a number"):
        read_beir(tmp_path, "train")
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(TrainingError, match=r"has no corpus\.jsonl, plain or as \.gz"):
        read_beir(tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", "n\tsent0\tsent1\n1\ta  b\tx\n2\ta b\ty\n3\ta b \tx\n4\tc\tc\n5\td\t \n6\te\tx\n"),
        ("p.tsv", "anchor\tpositive\na b\tx\na b\ty\na b\tx\nc\t c\n\td\ne\tx\n"),
        (
            "p.jsonl",
            (
                '{"anchor": "a\\nb", "positive": "x"}\n{"query": "a b", "sent1": "y"}\n\n'
                '{"anchor": "a b", "positive": "x"}\n{"anchor": "c", "positive": "c"}\n'
                '{"anchor": "", "positive": "d"}\n{"anchor": "e", "positive": "x", "score": 1}\n'
            ),
        ),
    ],
)
def test_pairs_of_one_anchor_are_brought_together(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    expected = Labelled({"a b": ["x", "y"], "e": ["x"]}, ["x", "y"], blank=1, repeated=2)
    assert read_labelled_pairs(tmp_path / name) == expected
    given = read_labelled_pairs(tmp_path / name, ["m", " y", "m ", " "])
    assert given == expected._replace(candidates=["m", "y"])


def test_what_is_no_pair_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"anchor": "a", "positive": "a "}\n')
    with pytest.raises(NothingToLearn, match="holds no pair of two different texts"):
        read_labelled_pairs(file)
    (tmp_path / "p.txt").write_text("a\tb\n")
    with pytest.raises(TrainingError, match=r"holds no pairs: name a \.jsonl or \.tsv"):
        read_labelled_pairs(tmp_path / "p.txt")
