"""The scores of the version in service are made once for as long as the same data judge."""

from __future__ import annotations

from models.search.content import Content
from training.evaluation.retrieval import Collection
from training.retraining.one import Job
from training.retraining.scoring import KnownScores, scores_of


def test_the_same_question_is_answered_once(job: Job) -> None:
    documents = {f"d{at}": Content(f"w{at} w{at + 1}") for at in range(6)}
    two = Collection(documents, {"q": "w1 w2"}, {"q": {"d1": 1.0}}, 0)
    active, known, said = str(job.store.wanted()), KnownScores(), list[str]()

    def found(asked: Collection) -> object:
        return known.of(job.store, active, 1, None, {"titles": asked}, {}, {}, say=said.append)["own"]

    def scored() -> int:
        return said.count(f"scoring {active}")

    first = found(two)
    assert first == scores_of(job.store, active, 1, None, {"titles": two}, {}, {}, say=said.append)["own"]
    assert scored() == 2
    assert found(two._replace(queries={"q": "w1 w2"})) == first
    assert scored() == 2, "equal data, another object"
    assert found(two._replace(relevant={"q": {"d5": 1.0}})) != first
    assert scored() == 3
    assert found(two) == first
    assert scored() == 4, "only the last answer is kept"
