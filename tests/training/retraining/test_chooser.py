"""Documents that choose the share of a training: which they are, and what their searches say."""

from __future__ import annotations

import numpy as np
import pytest

from training.evaluation.encoding import Vectors
from training.retraining.chooser import LEAST_QUERIES, MOST_QUERIES, MOST_TEXTS, Searches, SetAside, set_aside
from training.retraining.documents import Document


def documents(count: int, first: int = 0) -> tuple[Document, ...]:
    """Text n has word n in its title and in every sentence."""
    return tuple(
        Document(f"d{n}", f"title x{n}", f"title x{n}. the x{n} is here now. x{n} again")
        for n in range(first, first + count)
    )


def test_about_a_tenth_is_set_aside_the_same_each_time_and_no_more_than_needed() -> None:
    found = set_aside(documents(1000))
    assert 70 <= len(found.chooses) <= 130
    assert sorted([*found.train, *found.chooses]) == sorted(documents(1000))
    assert set_aside(documents(1000)[::-1]).chooses == found.chooses[::-1]
    many = set_aside(documents(20_000))
    assert 0.8 * MOST_QUERIES <= len(many.chooses) <= 1.2 * MOST_QUERIES
    assert set_aside(()) == SetAside((), ())


def test_few_documents_choose_nothing() -> None:
    assert not Searches(SetAside(documents(50), documents(LEAST_QUERIES - 1, 50))).enough()
    assert Searches(SetAside(documents(50), documents(LEAST_QUERIES, 50))).enough()


def one_hot(texts: list[str], wrong: frozenset[int] = frozenset()) -> Vectors:
    """The direction of a text is its number; of those in `wrong` it is the next one's."""
    numbers = [int(text.split("x")[1].split()[0].strip(".")) for text in texts]
    return np.eye(80, dtype=np.float32)[[n + (n in wrong) for n in numbers]]


def test_a_figure_is_the_mean_of_dense_and_hybrid_of_each_query() -> None:
    searches = Searches(SetAside(documents(20), documents(LEAST_QUERIES, 20)))
    assert searches.queries[0] == "title x20"
    assert searches(one_hot, one_hot).tolist() == [1.0] * LEAST_QUERIES
    found = searches(lambda texts: one_hot(texts, frozenset({25})), one_hot)
    # Query 25 is as near as can be to text 26, and to all others alike. Dense: behind 26 come those of equal
    # cosines by place, so its own (5) is the seventh. Hybrid: 26 has 0.8; it has 0.4 and 0.2 for its words.
    assert found[5] == pytest.approx((1 / np.log2(8) + 1 / np.log2(3)) / 2)
    assert np.delete(found, 5).tolist() == [1.0] * (LEAST_QUERIES - 1)


def test_a_query_looks_among_a_bounded_number_of_texts() -> None:
    asked: list[int] = []

    def count(texts: list[str]) -> Vectors:
        asked.append(len(texts))
        return np.ones((len(texts), 2), np.float32)

    searches = Searches(SetAside(documents(MOST_TEXTS), documents(LEAST_QUERIES, MOST_TEXTS)))
    assert searches(count, count).shape == (LEAST_QUERIES,)
    assert sorted(asked) == [LEAST_QUERIES, MOST_TEXTS]
