"""Pairs without labels, from hand-made vectors and titles."""

from tests.training.evaluation.pairs import encode
from training.mining.pairs import Pair, neighbour_pairs, title_pairs


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


def test_neighbours_that_have_each_other_as_the_nearest_are_pairs() -> None:
    # Texts are their cosines with one direction: at 0, 25.8, 36.9, 60, 84.3 and 90 degrees.
    texts = ["1", "0.9", "0.5", "0.8", "0", "0.1", "0.9"]
    found = list(neighbour_pairs(texts, encode, min_score=0.9))
    assert [pair[:2] for pair in found] == [("0.9", "0.8"), ("0", "0.1")]
    # cos(a - b) = ab + sin a sin b
    assert [round(pair.score_positive or 0, 4) for pair in found] == [0.9815, 0.995]
    assert {pair.source for pair in found} == {"neighbours"}
    below = neighbour_pairs(texts, encode, min_score=0.9, max_score=0.99)
    assert [pair[:2] for pair in below] == [("0.9", "0.8")]


def test_a_near_duplicate_is_not_the_nearest_neighbour() -> None:
    text = "a text that is long enough for one more full stop to be one shingle of very many in all of it"
    longer = f"{text}."
    directions = {text: "1", longer: "0.999", "another": "0.95", "far": "-0.5"}

    pairs = neighbour_pairs(list(directions), lambda texts: encode([directions[text] for text in texts]))
    assert [pair[:2] for pair in pairs] == [(text, "another")]
