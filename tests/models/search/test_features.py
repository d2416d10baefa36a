"""Features of search candidates against values worked out by hand."""

import numpy as np
import pytest

from models.search import terms
from models.search.features import COVER_CHARACTERS, FEATURES, WINDOW, Candidates, Memory, build, get_cover

QUERY = np.array([1, 0, 0], np.float32)


def unit(*components: float) -> np.ndarray:
    vector = np.array(components, np.float32)
    return vector / np.linalg.norm(vector)


@pytest.fixture
def candidates() -> Candidates:
    return Candidates(
        hybrid=np.array([0.9, 0.5, 0.1]),
        bm25=np.array([2.0, 0.0, 1.0]),
        passages=[
            np.stack([unit(1, 1, 0), unit(1, 0, 0), unit(0, 1, 0)]),
            unit(0, 0, 1)[None],
            np.empty((0, 3), np.float32),
        ],
        titles=["Running dogs", "", "The dog"],
        texts=["A dog runs fast in the park.", "Nothing.", "running a dog"],
    )


def column(features: np.ndarray, name: str) -> list[float]:
    found: list[float] = features[:, FEATURES.index(name)].tolist()
    return found


def test_the_features_are_those_by_hand(candidates: Candidates) -> None:
    found = build("the dogs run", QUERY, candidates, unit(0, 0, 1))
    root = 1 / np.sqrt(2)
    expected = {
        "dense": [1, 0, 0],
        "second": [root, 0, 0],
        "bm25": [2, 0, 1],
        "hybrid": [0.9, 0.5, 0.1],
        "cover": [1, 0, 1],  # `the` does not count
        "bigram": [1 / 2, 0, 1],  # The last one across title and text.
        "title_cover": [1, 0, 1],
        "length": np.log1p([9, 1, 5]).tolist(),
        "hub": [0, 1, 0],
        "proximity": [1, 0, 1],
        "memory_best": [0, 0, 0],
        "memory_sum": [0, 0, 0],
        "memory_not": [0, 0, 0],
    }
    for name, values in expected.items():
        assert column(found, name) == pytest.approx(values, abs=1e-6), name
    heads = np.stack([unit(1, 1, 0), unit(0, 0, 1), np.zeros(3)])
    moved = QUERY + heads.mean(axis=0)
    assert column(found, "feedback") == pytest.approx((heads @ (moved / np.linalg.norm(moved))).tolist())
    assert set(expected) | {"feedback"} == set(FEATURES)


def test_terms_that_are_close_together_count_by_their_rarity(candidates: Candidates) -> None:
    apart = " ".join(["dog", *["word"] * (WINDOW - 1), "cat"])
    texts = [apart, "dog " + apart.removeprefix("dog word "), "dog", "dog, cat, dog"]
    vectors = [np.empty((0, 3), np.float32)] * 4
    given = Candidates(np.zeros(4), np.zeros(4), vectors, [""] * 4, texts)
    dog, cat = (np.log1p((4 - count + 0.5) / (count + 0.5)) for count in (4, 3))
    larger = max(dog, cat) / (dog + cat)
    expected = [larger, 1, dog / (dog + cat), 1]
    assert column(build("the dog and the cat", QUERY, given, None), "proximity") == pytest.approx(expected)


def test_a_text_that_keywords_found_covers_at_least_one_term() -> None:
    assert get_cover("Where is the searching fox?", "A fox SEARCHED.") == 1
    assert get_cover("a fox hunts by night", "one fox, two foxes") == 1 / 3
    assert get_cover("東", "東京の夜") == 1, "the start of a pair"
    assert get_cover("a fox hunts by night", "x " * COVER_CHARACTERS + "fox") == 1 / 3


def test_a_query_of_function_words_is_covered_by_them(candidates: Candidates) -> None:
    assert column(build("in the", QUERY, candidates, None), "cover") == [1, 0, 1 / 2]


def test_no_candidates_have_no_features() -> None:
    none = Candidates(np.empty(0), np.empty(0), [], [], [])
    assert build("dog", QUERY, none, None).shape == (0, len(FEATURES))


def test_names_and_units_count_as_terms_of_the_query(candidates: Candidates) -> None:
    assert get_cover("WHO guidelines", "guidelines of the WHO") == 1
    assert get_cover("WHO guidelines", "guidelines of others") == 1 / 2
    assert get_cover("who wrote guidelines", "guidelines were wrote") == 1


def test_stems_that_do_not_fit_in_memory_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "_MAX_STEMS", 2)
    for _ in range(3):
        assert terms.get_words("walk walm waln walp walq walks") == "walk walm waln walp walq walk".split()
        assert terms.get_words("walking walked") == ["walk", "walk"]
    assert len(terms._stems) <= 2


@pytest.fixture
def memory() -> Memory:
    vectors = np.stack([unit(1, 0, 0), unit(1, 1, 0), unit(1, 0, 1), unit(0, 1, 0)])
    return Memory(vectors, [{"a": 1, "b": 0}, {"a": 1}, {"c": 1}, {"c": 1}])


def test_memory_recalls_the_answers_of_similar_queries(memory: Memory) -> None:
    root = 1 / np.sqrt(2)
    similarity = (root - 0.5) / 0.5
    found = memory.recall(QUERY, ["a", "b", "c", "d"], 0.5)
    expected = [[1, 1 + similarity, 0], [0, 0, 1], [similarity, similarity, 0], [0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert memory.recall(QUERY, ["c"], 0.8).tolist() == [[0, 0, 0]]


def test_a_memory_is_the_same_as_if_each_query_was_looked_at_alone() -> None:
    random = np.random.default_rng(0)
    vectors = np.stack([unit(*random.normal(size=3)) for _ in range(40)])
    answers = [
        {f"d{id}": float(random.integers(3)) / 2 for id in random.integers(8, size=3)} for _ in vectors
    ]
    found = Memory(vectors, answers, 0.2).recall(QUERY, [f"d{id}" for id in range(9)], 0.25)
    expected = np.zeros((9, 3))
    for vector, gains in zip(vectors, answers, strict=True):
        similarity = ((vector @ QUERY - 0.2) / 0.8 - 0.25) / 0.75
        for id, gain in gains.items():
            row = expected[int(id[1:])]
            if similarity > 0:
                row[:] = (
                    max(row[0], similarity * gain),
                    row[1] + similarity * gain,
                    max(row[2], similarity * (gain == 0)),
                )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (found > 0).any(axis=0).all()


@pytest.mark.parametrize(("unrelated", "similarity"), [(0.0, 0.8), (0.5, 0.6), (0.8, 0.0), (0.9, 0.0)])
def test_a_threshold_is_relative_to_the_cosine_of_unrelated_texts(
    unrelated: float, similarity: float
) -> None:
    """A cosine of 0.9 means similar texts if unrelated texts have 0, but nothing if those have 0.8."""
    near = unit(0.9, np.sqrt(1 - 0.9**2), 0)
    memory = Memory(near[None], [{"a": 1}], unrelated)
    assert memory.recall(QUERY, ["a"], 0.5)[0, 0] == pytest.approx(similarity, abs=1e-6)


def test_a_query_can_be_left_out_of_its_memory(memory: Memory) -> None:
    found = memory.recall(QUERY, ["a", "b"], 0.8, without=frozenset({0}))
    assert found.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_an_empty_memory_recalls_nothing() -> None:
    assert Memory(np.empty((0, 3), np.float32), []).recall(QUERY, ["a"], 0.5).tolist() == [[0, 0, 0]]
