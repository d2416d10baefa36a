"""Searches over the team's own text: who asks, who answers, and among what."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest

from models.search.content import Content
from training.evaluation.modes import whole
from training.retraining.documents import Document
from training.retraining.heldout import Split
from training.retraining.searches import (
    LEAST_GUARDING,
    LEAST_QUERIES,
    MOST_QUERIES,
    collections,
    dev_collections,
    evidence,
    guarding,
    overlap,
    score,
    withheld,
)


def document(id: str, title: str = "", text: str = "") -> Document:
    return Document(id, title, text or f"The text of {id} goes here. And it goes on behind that.")


HELD = tuple(document(f"h{at}", f"Title {at}") for at in range(LEAST_QUERIES))
TRAIN = tuple(document(f"t{at}", f"Another {at}") for at in range(30))
SPLIT = Split(TRAIN, HELD, {})


def test_a_title_of_a_document_held_out_finds_its_text_among_all() -> None:
    titles = collections(SPLIT, {}, 1000)["titles"]
    assert titles.queries["h3"] == "Title 3"
    assert titles.relevant["h3"] == {"h3\0text": 1.0}
    assert titles.documents["h3\0text"].text.startswith("The text of h3")
    assert len(titles.queries) == LEAST_QUERIES
    assert len(titles.documents) == LEAST_QUERIES + 30


def test_a_title_that_several_have_or_that_is_the_text_asks_nothing() -> None:
    twins = (*HELD, document("x", "Same"), document("y", "same "), document("z", "All", "All"))
    assert not {"x", "y", "z"} & set(collections(SPLIT._replace(held=twins), {}, 1000)["titles"].queries)


def test_a_text_that_begins_with_its_title_does_not_give_it_away() -> None:
    held = (*HELD, document("x", "Fuel cells", "Fuel cells: they make power."))
    titles = collections(SPLIT._replace(held=held), {}, 1000)["titles"]
    assert titles.documents["x\0text"] == Content("they make power.")


def test_a_sentence_finds_the_one_behind_it() -> None:
    held = (*HELD, document("x", "", "One two three four. Short. Five six seven eight!"))
    found = collections(SPLIT._replace(held=held), {}, 1000)["neighbours"]
    assert found.queries["x"] == "One two three four."
    assert found.documents["x\0next"] == Content("Five six seven eight!")
    assert found.relevant["x"] == {"x\0next": 1.0}
    assert "x" not in collections(SPLIT, {}, 1000)["neighbours"].queries


def test_sentences_of_a_script_without_spaces_are_found() -> None:
    held = (*HELD, document("x", "", "これは最初の文です。これは二番目の文です。"))
    found = collections(SPLIT._replace(held=held), {}, 1000)["neighbours"]
    assert found.queries["x"] == "これは最初の文です。"


def test_a_judged_query_looks_among_all_and_its_answers_are_never_left_out() -> None:
    judged = {f"query {at}": [f"t{at}", "h1"] for at in range(LEAST_QUERIES)}
    found = collections(SPLIT, judged, 100)["judged"]
    assert found.relevant["query\0query 4"] == {"t4": 1.0, "h1": 1.0}
    beside = collections(SPLIT._replace(dev=(document("dev"),)), judged, 100)["judged"]
    assert beside.within is not None
    assert beside.documents.keys() == {*found.documents, "dev"}
    assert beside.documents.keys() <= beside.within.keys()
    assert {f"t{at}" for at in range(LEAST_QUERIES)} <= set(found.documents)
    fewer = collections(SPLIT, judged, 1)["judged"]
    assert set(fewer.documents) == {"h1", *(f"t{at}" for at in range(LEAST_QUERIES))}


@pytest.mark.parametrize(
    ("queries", "names"),
    [
        (LEAST_GUARDING - 1, []),
        (LEAST_GUARDING, ["few"]),
        (LEAST_QUERIES - 1, ["few"]),
        (LEAST_QUERIES, []),
    ],
)
def test_judged_queries_that_are_too_few_to_decide_guard(queries: int, names: list[str]) -> None:
    judged = {f"query {at}": [f"h{at}"] for at in range(queries)}
    groups = {query: at for at, query in enumerate(judged)}
    found = guarding(SPLIT, judged, groups, 1000)
    assert list(found) == names
    assert not guarding(SPLIT, judged, dict.fromkeys(groups, 1), 1000), "all on one answer are one piece"
    assert "few" not in collections(SPLIT, judged, 1000)
    for few in found.values():
        assert few == collections(SPLIT, judged, 1000, least=1)["judged"]
        assert evidence(found, groups, {"query 1": "shop"}) == {
            "groups": [groups[query] for query in few.queries.values()],
            "keys": ["shop" if query == "query 1" else None for query in few.queries.values()],
        }


def test_the_candidates_are_the_same_whatever_order_the_documents_come_in() -> None:
    few = collections(SPLIT, {}, LEAST_QUERIES + 5)["titles"]
    assert len(few.documents) == LEAST_QUERIES + 5
    turned = Split(TRAIN[::-1], HELD, {})
    assert set(collections(turned, {}, LEAST_QUERIES + 5)["titles"].documents) == set(few.documents)


def test_a_title_that_is_trained_on_as_well_asks_nothing_and_a_very_copy_is_no_candidate() -> None:
    train = (*TRAIN, document("x", "title 3", "Something else."), document("y", "New", HELD[4].text))
    titles = collections(SPLIT._replace(train=train, held=(*HELD, document("z", "Z"))), {}, 1000)["titles"]
    assert "h3" not in titles.queries
    assert "h4" in titles.queries
    assert "y\0text" not in titles.documents


def test_what_judges_is_withheld() -> None:
    found = withheld(SPLIT._replace(held=(document("x", "A  Title", "Some\nText"),)), ["How?"])
    assert found == {"a title", "some text", "how?"}


def test_many_queries_are_a_part_of_them_and_the_same_part() -> None:
    held = tuple(document(f"h{at}", f"Title {at}") for at in range(MOST_QUERIES + 50))
    found = collections(SPLIT._replace(held=held), {}, 10)["titles"]
    assert len(found.queries) == len(found.relevant) == MOST_QUERIES
    again = collections(SPLIT._replace(held=held[::-1]), {}, 10)["titles"]
    assert found.queries == again.queries


def test_too_few_queries_judge_nothing() -> None:
    few = SPLIT._replace(held=HELD[:-1])
    assert collections(few, {"q": ["h1"]}, 1000) == {}
    dev = few._replace(held=(), dev=HELD[:-1])
    assert dev_collections(dev, {}, 1000).keys() == {"titles", "neighbours", "known"}


def test_rare_words_of_a_document_ask_for_it() -> None:
    text = "the common words of all and zebra number {0} with giraffe {0} beside a lion {0} or tiger {0}"
    held = tuple(document(f"h{at}", f"T {at}", text.replace(" {0}", f"{at}x")) for at in range(LEAST_QUERIES))
    found = collections(SPLIT._replace(held=held), {}, 1000)["known"]
    words = found.queries["h3"].split()
    assert len(words) == 4
    assert {"giraffe3x", "number3x", "lion3x", "tiger3x"} & {*words}
    assert [each for each in held[3].text.split() if each in words] == words, "in the order of the text"
    assert found.relevant["h3"] == {"h3\0whole": 1.0}
    assert found.documents["h3\0whole"].whole.startswith("T 3\n")
    assert found == collections(SPLIT._replace(held=held[::-1]), {}, 1000)["known"]._replace(
        documents=found.documents
    )


def test_a_query_looks_among_the_documents_of_its_own_collection_only() -> None:
    """Every text has a twin in another collection that any encoder would rank as high."""
    shelves = {"default": "h{}", "tickets": "collection:tickets/h{}"}
    held = tuple(
        Document(
            name.format(at), f"Title {at}", f"The text of h{at} goes here. It is in {shelf} alone.", shelf
        )
        for shelf, name in shelves.items()
        for at in range(LEAST_QUERIES)
    )
    judged = {f"query {at}": [f"h{at}", f"collection:tickets/h{at}"] for at in range(LEAST_QUERIES)}
    made = collections(Split((), held, {}), judged, 1000)
    assert len(made["titles"].queries) == len(made["judged"].queries) == 2 * LEAST_QUERIES
    assert made["judged"].relevant["query\0query 3"] == {"h3": 1.0}
    assert made["judged"].relevant["query\0query 3\0tickets"] == {"collection:tickets/h3": 1.0}

    def encode(texts: Sequence[str]) -> np.ndarray:
        numbers = [int(re.search(r"\d+", text)[0]) for text in texts]  # type: ignore[index]
        return np.eye(LEAST_QUERIES, dtype=np.float32)[numbers]

    found = score({name: made[name] for name in ("titles", "judged")}, encode, encode, whole)
    for name, figures in found.items():
        assert figures["each"] == [1.0] * (2 * LEAST_QUERIES), name
        for query, hits in zip(made[name].queries, figures["hits"], strict=True):
            of_tickets = [hit.startswith("collection:tickets/") for hit in hits]
            assert all(of_tickets) if "tickets" in query else not any(of_tickets)


def test_the_scores_are_those_of_each_query_and_their_mean() -> None:
    """An encoder that knows one thing only: the number in a title or text. Odd ones are wrong by one rank."""
    titles = collections(SPLIT, {}, LEAST_QUERIES)["titles"]
    names = sorted(titles.queries, key=lambda name: int(name[1:]))

    def queries(texts: list[str]) -> np.ndarray:
        return np.eye(LEAST_QUERIES, dtype=np.float32)[[int(text.split()[1]) for text in texts]]

    def documents(texts: list[str]) -> np.ndarray:
        at = [int(text.split()[3][1:]) for text in texts]
        vectors = np.eye(LEAST_QUERIES, dtype=np.float32)[at]
        for row, number in enumerate(at):
            if number % 2:  # its direction belongs more to the document before it
                vectors[row, number], vectors[row, number - 1] = 0.6, 0.8
            else:
                vectors[row, number], vectors[row, number + 1] = 0.6, 0.8
        return vectors

    found = score({"titles": titles}, queries, documents, whole)["titles"]
    assert set(names) == set(titles.queries)
    assert found["each"] == pytest.approx([1 / math.log2(3)] * LEAST_QUERIES)
    assert found["ndcg10"] == pytest.approx(1 / math.log2(3))
    assert found["queries"] == LEAST_QUERIES


def test_the_overlap_is_the_share_of_first_hits_that_both_have() -> None:
    def asked(*lists: str) -> dict[str, list[list[str]]]:
        return {"hits": [list(found) for found in lists]}

    before = {"titles": asked("abcdefghij", "abcdefghij"), "judged": asked("ab"), "neighbours": asked("ab")}
    after = {"titles": asked("jihgfedcba", "abcdeVWXYZ"), "judged": asked("cd")}
    after["neighbours"] = asked("ab", "c")
    # The order of the ten does not count: (10 + 5) of 20. Searches with other queries are not compared.
    assert overlap(before, after) == {"titles": 0.75, "judged": 0.0}
