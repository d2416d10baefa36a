"""Pairs from files in all layouts, and pairs found in text without labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.evaluation.pairs import encode
from training.errors import NothingToLearn, TrainingError
from training.mining.pairs import Labelled, Pair, neighbor_pairs, read_labelled_pairs, title_pairs


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
    above = neighbor_pairs(texts, encode, min_score=0.99)
    assert [pair[:2] for pair in above] == [("0", "0.1")]


def test_a_near_duplicate_is_not_the_nearest_neighbor() -> None:
    text = "a text that is long enough for one more full stop to be one shingle of very many in all of it"
    longer = f"{text}."
    directions = {text: "1", longer: "0.999", "another": "0.95", "far": "-0.5"}

    pairs = neighbor_pairs(list(directions), lambda texts: encode([directions[text] for text in texts]))
    assert [pair[:2] for pair in pairs] == [(text, "another")]


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
