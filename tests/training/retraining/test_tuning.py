"""The learned search: values by hand, and queries that one ranking, or short passages, answer."""

import numpy as np
import pytest

from models.manifest import SearchDefaults
from models.search.content import Content
from models.search.fusion import DENSE_WEIGHT
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.retraining.tuning import LEAST_QUERIES, WEIGHTS, Setting, choose, lengths_of, tune

LENGTHS = lengths_of(256)  # of the default model
rng = np.random.default_rng(5)


def _scores(means: dict[float, float], spread: float, queries: int, shorter: float = -0.2) -> np.ndarray:
    """(q, lengths, weights): each query has its own level, and noise of `spread` of its own at each setting.

    shorter: what passages of another length than the usual add.
    """
    of_settings = [[means[weight] + (shorter if tokens else 0.0) for weight in WEIGHTS] for tokens in LENGTHS]
    noise = rng.normal(0, spread, (queries, len(LENGTHS), len(WEIGHTS)))
    return np.array([of_settings]) + rng.uniform(0.2, 0.4, (queries, 1, 1)) + noise


@pytest.mark.parametrize(
    ("reads", "lengths"),
    [
        (0, (None,)),
        (64, (None,)),
        (128, (None, 128)),
        (256, (None, 64, 256)),
        (512, (None, 64, 128, 512)),
        (8192, (None, 64, 128, 512, 8192)),
    ],
)
def test_lengths_are_those_that_the_model_reads_and_no_two_are_the_same(
    reads: int, lengths: tuple[int | None, ...]
) -> None:
    assert lengths_of(reads) == lengths


def test_a_difference_that_may_be_luck_leaves_the_usual_weight() -> None:
    means = dict.fromkeys(WEIGHTS, 0.30) | {0.3: 0.301}
    chosen = [choose(_scores(means, 0.2, 40), LENGTHS).chosen.weight for _ in range(100)]
    assert sum(abs(weight - DENSE_WEIGHT) < 0.21 for weight in chosen) > 60
    same = np.tile(rng.uniform(0, 1, (30, 1, 1)), (1, len(LENGTHS), len(WEIGHTS)))
    assert choose(same, LENGTHS).chosen == SearchDefaults(mode="hybrid", weight=DENSE_WEIGHT)
    one = choose(_scores(means, 0.2, 1), LENGTHS).chosen
    assert one == SearchDefaults(mode="hybrid", weight=DENSE_WEIGHT), "one query has no spread"


@pytest.mark.parametrize(("best", "mode"), [(0.0, "lexical"), (0.4, "hybrid"), (1.0, "dense")])
def test_a_clear_difference_is_followed(best: float, mode: str) -> None:
    means = {weight: 0.5 - 0.4 * abs(weight - best) for weight in WEIGHTS}
    found = choose(_scores(means, 0.01, 200), LENGTHS)
    assert found.chosen.mode == mode
    assert found.chosen.weight == best
    assert found.queries == 200
    assert max(found.ndcg10, key=lambda setting: found.ndcg10[setting]) == str(Setting(best))


def test_shorter_passages_are_taken_where_they_clearly_find_more() -> None:
    means = dict.fromkeys(WEIGHTS, 0.3)
    clear = [choose(_scores(means, 0.1, 200, shorter=0.1), LENGTHS).chosen.passage_tokens for _ in range(50)]
    assert clear.count(None) < 10, "words alone, by luck"
    longer = _scores(means, 0.05, 200, shorter=0.1)
    longer[:, LENGTHS.index(256)] += 0.02
    assert choose(longer, LENGTHS).chosen.passage_tokens == 256, "the better of both"
    luck = [choose(_scores(means, 0.3, 40, shorter=0.01), LENGTHS).chosen.passage_tokens for _ in range(50)]
    assert luck.count(None) > 35


def test_a_length_counts_for_dense_and_hybrid_search_although_another_weight_is_served() -> None:
    """Words alone find everything whatever the passages are; a query that asks for dense search gains."""
    scores = np.full((100, len(LENGTHS), len(WEIGHTS)), 0.5) + rng.normal(0, 0.05, (100, 1, 1))
    scores[:, :, WEIGHTS.index(0.2)] = 0.9
    scores[:, LENGTHS.index(64), WEIGHTS.index(1.0)] += 0.1
    chosen = choose(scores, LENGTHS).chosen
    assert chosen == SearchDefaults(mode="hybrid", weight=0.2, passage_tokens=64)


# Documents n are on a circle; a query's vector points at `near`, its words are those of `worded`.


def _model(vectors: dict[str, np.ndarray]) -> Scorable:
    def encode(texts: list[str]) -> np.ndarray:
        return np.array([vectors[text] for text in texts], np.float32)

    return Scorable(None, None, None, encode, encode, encode, whole, 256)


def _angle(at: int) -> np.ndarray:
    return np.array([np.cos(at / 20), np.sin(at / 20)])


def search(answer: str) -> tuple[Collection, Scorable]:
    """Each query's vector is that of document n, and its word that of document n + 30, of 60."""
    documents = {f"d{at}": Content(f"word{at} other") for at in range(60)}
    queries = {f"q{at}": f"word{(at + 30) % 60}" for at in range(LEAST_QUERIES)}
    right = {
        f"q{at}": {f"d{at if answer == 'dense' else (at + 30) % 60}": 1.0} for at in range(LEAST_QUERIES)
    }
    vectors = {content.text: _angle(int(id[1:])) for id, content in documents.items()}
    vectors |= {text: _angle(int(id[1:])) for id, text in queries.items()} | {"word1": _angle(31)}
    return Collection(documents, queries, right, 0), _model(vectors)


@pytest.mark.parametrize("answer", ["dense", "lexical"])
def test_the_ranking_that_answers_is_found(answer: str) -> None:
    asked, model = search(answer)
    found = tune([asked], model)["default"]
    good, bad = (1.0, 0.0) if answer == "dense" else (0.0, 1.0)
    assert found.ndcg10[str(Setting(good))] == found.ndcg10[str(Setting(found.chosen.weight))] == 1.0
    assert found.ndcg10[str(Setting(bad))] < 0.7
    assert (found.chosen.weight == DENSE_WEIGHT) == (answer == "dense"), "the nearest of those that are right"
    assert found.queries == LEAST_QUERIES


def test_an_answer_that_stands_first_gains_nothing_where_nothing_tells_documents_apart() -> None:
    """Equal vectors, and no word in common: words alone find nothing, and vectors no answer but by luck."""
    texts = [f"a{at:02}" for at in range(LEAST_QUERIES)] + [f"z{at:02}" for at in range(LEAST_QUERIES)]
    documents = {text: Content(text) for text in texts}  # the answers first, as searches.py has them
    queries = {f"q{at}": f"ask{at}" for at in range(LEAST_QUERIES)}
    right = {f"q{at}": {f"a{at:02}": 1.0} for at in range(LEAST_QUERIES)}
    model = _model(dict.fromkeys([*texts, *queries.values()], _angle(0)))
    found = tune([Collection(documents, queries, right, 0)], model)["default"]
    assert set(found.ndcg10.values()) == {0.0}


def test_each_collection_learns_its_own_and_one_with_few_queries_learns_nothing() -> None:
    dense, model = search("dense")
    within = dict.fromkeys((*dense.documents, *dense.queries), "a")
    few = {f"few{at}": "word1" for at in range(LEAST_QUERIES - 1)}
    both = dense._replace(
        documents=dense.documents | {"x": Content("word1 other")},
        queries=dense.queries | few,
        relevant=dense.relevant | {name: {"x": 1.0} for name in few},
        within=within | {"x": "b"} | dict.fromkeys(few, "b"),
    )
    assert [name for name, _ in both.parts()] == ["a", "b"]
    assert {name: [*part.documents] for name, part in both.parts()}["b"] == ["x"]
    assert set(tune([both], model)) == {"a"}


def test_passages_of_a_length_are_asked_for_and_searched() -> None:
    """An answer in the middle of a text that only short passages show; words find nothing."""
    documents = {f"d{at}": Content(f"start{at} {at}") for at in range(60)}
    queries = {f"q{at}": f"ask{at}" for at in range(LEAST_QUERIES)}
    right = {f"q{at}": {f"d{at}": 1.0} for at in range(LEAST_QUERIES)}
    vectors = {content.text: _angle(at + 31) for at, content in enumerate(documents.values())}
    vectors |= {str(at): _angle(at) for at in range(60)}
    vectors |= {query: _angle(int(id[1:])) for id, query in queries.items()}

    def split(content: Content, passage_tokens: int | None) -> list[str]:
        return content.text.split()[1:] if passage_tokens == LENGTHS[-1] else [content.text]

    found = tune([Collection(documents, queries, right, 0)], _model(vectors)._replace(split=split))["default"]
    assert found.chosen.passage_tokens == LENGTHS[-1]
    assert found.ndcg10[str(Setting(DENSE_WEIGHT, LENGTHS[-1]))] == 1.0
    assert found.ndcg10[str(Setting(DENSE_WEIGHT))] < 0.5
