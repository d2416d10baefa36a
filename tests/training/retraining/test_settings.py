"""Search settings that a version learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.manifest import REPORT, SearchDefaults
from models.progress import Say, silent
from models.search.content import Content
from tests.service.lifecycle.test_learned_search import with_search
from tests.training.conftest import WORDS
from tests.training.jobs import configured
from tests.training.retraining.test_auto import documents
from tests.waiting import until
from training.errors import NothingToLearn
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.retraining import settings
from training.retraining.gather import gather
from training.retraining.judgements import Judgment, judged
from training.retraining.one import Job
from training.retraining.publication import Outcome
from training.retraining.searches import Setting
from training.retraining.settings import _learn, choose, choosing, list_settings, tune
from training.text.service import DEFAULT, Searches

Tune = Callable[..., Outcome]
DENSE_LEARNED = {DEFAULT: SearchDefaults(mode="dense", weight=1)}


@pytest.fixture
def tuned(job: Job, tmp_path: Path) -> Tune:
    """A function that runs `tune` on queries that keyword search answers best. Dense search is active."""
    rows = documents(WORDS, 300)
    job.store.request(with_search(job.store, str(job.store.requested()), DENSE_LEARNED))

    def run(judged: int = 60, say: Say = silent, served: Searches | None = None, **changes: Any) -> Outcome:
        """`changes` replace fields of `Judged`."""
        queried = []
        for at, each in enumerate(rows[:judged]):
            words = " ".join(each["text"].split()[4:9])
            queried.append((f"{words} {at}", each["id"]))
        config = configured(tmp_path, rows, queried, held_out=0.3, least=20)
        gathered = gather(config, job.store, silent)
        found = gathered.found._replace(**changes)
        return tune(gathered._replace(found=found, served=served or Searches(), say=say))

    return run


def test_a_version_of_the_same_model_searches_by_words(job: Job, tuned: Tune) -> None:
    active = str(job.store.requested())
    said: list[str] = []
    outcome = tuned(say=said.append)
    assert outcome.published, outcome.reason
    served, made = job.store.verify(active), job.store.verify(str(outcome.version))
    assert job.store.requested() == made.version
    assert (made.fingerprint, made.parent, made.lineage["anchor"]) == (served.fingerprint, active, active)
    assert made.search[DEFAULT].mode in {"hybrid", "lexical"}, "the tiny model's vectors mean nothing"
    report = json.loads((job.store.folder(made.version) / REPORT).read_bytes())
    assert [gain["name"] for gain in report["gains"]] == [
        "own new questions of default",
        "own questions as they come of default",
    ]
    assert report["gains"][1]["shown"]
    assert report["meta"]["learned_for"][DEFAULT][0].startswith(f"Mode {made.search[DEFAULT].mode}")
    assert any(line.startswith("A judged document is first for ") for line in said)
    # With the same judgments, nothing else is better.
    before = job.store.names()
    with pytest.raises(NothingToLearn, match="no other mode"):
        tuned()
    assert job.store.names() == before


def test_what_was_rolled_back_from_is_not_published_again(job: Job, tuned: Tune) -> None:
    active = str(job.store.requested())
    first = str(tuned().version)
    job.store.request(active)
    until(lambda: f"{datetime.now(UTC):%Y%m%dT%H%M%S}" > first[:15])  # Versions are named by the second.
    with pytest.raises(NothingToLearn, match="no judgment changed"):
        tuned()
    with pytest.raises(NothingToLearn, match="is the very same model"):
        tuned(judged=70)
    assert job.store.requested() == active


def test_the_mode_that_the_service_prescribes_is_kept(tuned: Tune) -> None:
    with pytest.raises(NothingToLearn, match="no other mode"):
        tuned(served=Searches(mode="dense", passages=False))


@pytest.mark.parametrize(
    "changes",
    [
        {"judges": frozenset[str]()},
        {"of_use": frozenset(f"{number}" for number in range(60))},
        {"keys": dict.fromkeys(map(str, range(60)), "spam")},
    ],
    ids=["learned", "clicks", "one key"],
)
def test_queries_that_may_not_choose_leave_the_search_as_it_is(
    tuned: Tune, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(found: Any) -> Any:
        """Applies `changes` and calls `choosing`. The number at the end of a query names it in `changes`."""
        names = {query.split()[-1]: query for query in found.answers}
        if "of_use" in changes:
            found = found._replace(of_use=frozenset(names.values()))
        if "keys" in changes:
            found = found._replace(keys={names[number]: key for number, key in changes["keys"].items()})
        return choosing(found)

    monkeypatch.setattr(settings, "choosing", without)
    with pytest.raises(NothingToLearn, match="no collection has 20 judged queries"):
        tuned(**({"judges": changes["judges"]} if "judges" in changes else {}))


def test_judgments_of_one_key_among_others_choose_as_far_as_others_do() -> None:
    said = [Judgment(f"q{at}", f"d{at}", True, "spam" if at % 2 else None) for at in range(80)]
    found = choosing(judged(said, {f"d{at}": f"d{at}" for at in range(80)}, 0.5))
    assert found.answers == {f"q{at}": [f"d{at}"] for at in range(0, 80, 2)} == found.held


@pytest.mark.parametrize(
    ("now", "reads", "mode", "expected"),
    [
        (Setting("hybrid"), 0, None, [("hybrid", None), ("dense", None), ("lexical", None)]),
        (Setting("hybrid"), 64, "hybrid", [("hybrid", None)]),
        (Setting("dense", 64), 256, "dense", [("dense", 64), ("dense", None), ("dense", 256)]),
        (Setting("dense", 64), 0, "dense", [("dense", 64)]),
    ],
)
def test_settings_are_those_that_the_model_and_the_service_allow(
    now: Setting, reads: int, mode: Any, expected: list[tuple[str, int | None]]
) -> None:
    assert [each[:2] for each in list_settings(now, reads, mode)] == expected


def test_only_a_clear_difference_changes_the_setting() -> None:
    random = np.random.default_rng(5)
    base = random.uniform(0.2, 0.4, (100, 1)) + random.normal(0, 0.1, (100, 4))
    assert choose(base + np.array([0, 0.1, 0, 0.2])) == 3
    assert choose(np.tile(base[:, :1], 4)) == 0
    luck = [choose(random.normal(0, 0.3, (40, 4))) for _ in range(50)]
    assert luck.count(0) > 40


# Documents are on a circle. Query n has the vector of document n, and the word of document n + 30.


def search(answer: str) -> tuple[Collection, Scorable]:
    documents = {f"d{at}": Content(f"word{at} other") for at in range(60)}
    queries = {f"q{at}": f"word{(at + 30) % 60} {at}" for at in range(30)}
    right = {f"q{at}": {f"d{at if answer == 'dense' else at + 30}": 1.0} for at in range(30)}
    angles = {content.text: int(id[1:]) for id, content in documents.items()}
    angles |= {text: int(id[1:]) for id, text in queries.items()}

    def encode(texts: list[str]) -> np.ndarray:
        places = np.array([angles[text] for text in texts]) / 20
        return np.stack([np.cos(places), np.sin(places)], axis=1).astype(np.float32)

    model = Scorable(None, None, None, encode, encode, encode, whole, 0)
    return Collection(documents, queries, right, 0), model


@pytest.mark.parametrize(("answer", "now"), [("dense", "lexical"), ("lexical", "dense"), ("dense", "dense")])
def test_the_mode_that_answers_is_found(answer: str, now: Any) -> None:
    queried, model = search(answer)
    said = [Judgment(text, min(queried.relevant[name]), True) for name, text in queried.queries.items()]
    found = choosing(judged(said, {id: id for id in queried.documents}, 0.5))
    learned = _learn(queried, model, list_settings(Setting(now), 0, None), None, found)
    assert (learned is None) == (answer == now)
    if learned is None:
        return
    result = learned.result
    assert isinstance(result, SearchDefaults)
    assert result.mode in {answer, "hybrid"}
    assert learned.reasons == []
    assert learned.told[1] == "A judged document is first for 30 of 30 queries (0 before)."
