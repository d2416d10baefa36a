"""Learning and publishing the ranking of a collection, from a service that explains its hits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightgbm", reason="needs the extra train")

from models.encoder import Encoder
from models.files.retrainings import read_refused
from models.manifest import REPORT, REPORT_PAGE
from models.progress import silent
from models.search.features import FEATURES, MEMORY
from models.search.ranking import Ranking
from models.store import ModelStore
from models.tokens.late import LATE
from service.corpus.query import Search
from service.settings import Settings
from tests.parts.json_server import Answer, json_server
from tests.parts.rerankers import publish_reranker
from tests.training.conftest import WORDS
from training.__main__ import main
from training.errors import NothingToLearn, TrainingError
from training.ranking import late as late_interaction
from training.ranking.cross_validation import Comparison
from training.ranking.examples import Example
from training.ranking.fitting import MIN_QUERIES, Procedure, fit
from training.retraining import advise, auto
from training.retraining import rank as rank_module
from training.retraining.auto import _rank, retrain_auto
from training.retraining.changes import MAX_CHANGED, reordered
from training.retraining.config import Config, CorpusTable, ScheduleTable
from training.retraining.judgements import Clicked, Judged, Judgment, judged
from training.retraining.one import Job
from training.retraining.rank import Labels, forecast, label, rank
from training.text import service as service_module
from training.text.service import fetch_explained, fetch_reranked, qualified

QUERIES, HITS = 30, 12


def build_judged(count: int, collection: str = "default", key: str | None = None) -> Judged:
    """Returns judged queries `WORD WORD N`. Each has one answer, the document `dN`."""
    found = [
        Judgment(f"{WORDS[at % 14]} {WORDS[at // 14]} {at}", qualified(collection, f"d{at}"), True, key)
        for at in range(count)
    ]
    return judged(found, {each.id: each.id for each in found}, 0.5)


def explain(query: str, *, fault: str = "") -> list[dict[str, Any]]:
    """Returns a query's hits with features. The answer's `cover` is 1. With a `fault`, without features."""
    number = int(query.rsplit(maxsplit=1)[-1])
    random = np.random.default_rng(number)
    at = 2 + number % 4
    ids = [f"d{number}" if place == at else f"other{place}" for place in range(HITS)]
    hits = []
    for place, id in enumerate(ids):
        features = dict(zip(FEATURES, random.normal(size=len(FEATURES)).tolist(), strict=True))
        features |= {"hybrid": 1 - place / HITS, "hub": 0.0, "cover": float(place == at)}
        features |= {"memory_best": float(place == at), "memory_sum": 1.0}
        hits.append({"id": id, "score": 0.0} | ({} if fault else {"features": features}))
    return hits[::-1]  # as if the service had ordered them again


@pytest.fixture
def bodies() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def url(bodies: list[dict[str, Any]]) -> Iterator[str]:
    def answer(path: str, body: dict[str, Any], _: Mapping[str, str]) -> tuple[int, Any]:
        if path.endswith("/documents"):
            ids = json.loads(body["filter"])["$ids"]
            return 200, {"documents": [{"id": id, "title": "A title", "text": f"text of {id}"} for id in ids]}
        if body:
            bodies.append({"path": path, **body})
        return 200, {"results": [explain(query) for query in body.get("queries", ())]}

    with json_server(answer) as address:
        yield address


def config_at(url: str | None, **corpus: Any) -> Config:
    place = {"service": url} if url else {"file": Path("unused")}
    return Config(corpus=CorpusTable(**place, **corpus))


def read_ranking(store: ModelStore, version: str, collection: str = "default") -> Ranking:
    text = (store.folder(version) / "ranking" / f"{collection}.json").read_bytes()
    return Ranking.model_validate_json(text)


def test_a_ranking_is_published_with_the_encoder_of_the_active_version(
    job: Job, url: str, bodies: list[dict[str, Any]]
) -> None:
    active = str(job.store.requested())
    said: list[str] = []
    outcome = rank(build_judged(QUERIES), config_at(url), job.store, said.append)
    assert outcome.published, outcome.reason
    version = str(outcome.version)
    assert job.store.requested() == version
    before, after = job.store.verify(active), job.store.verify(version)
    assert after.fingerprint == before.fingerprint
    assert after.files.keys() - before.files.keys() >= {"ranking/default.json", REPORT}
    assert (after.parent, after.gate and after.gate.verdict) == (active, "accepted")
    ranking = read_ranking(job.store, version)
    assert (ranking.queries, ranking.fingerprint) == (QUERIES, before.fingerprint)
    learned = {name: weight for name, weight in ranking.weights.items() if name not in MEMORY}
    assert max(learned, key=lambda name: learned[name]) == "cover"
    assert ranking.weights["memory_best"] > 0
    assert f"A judged document is first for {QUERIES} of {QUERIES} queries (0 before)." in said
    report = json.loads((job.store.folder(version) / REPORT).read_bytes())
    assert [gain["title"] for gain in report["gains"]] == [
        "new questions of default",
        "questions as they come of default",
    ]
    assert all(gain["shown"] for gain in report["gains"])
    assert bodies.pop(0) == {"path": "/collections/default/clicked", "clicked": []}
    assert {(each["path"], each["mode"], each["k"], each["explain"]) for each in bodies} == {
        ("/search", "hybrid", 60, True)
    }
    told, compared, _ = report["summary"]
    assert told == f"A judged document is first for {QUERIES} of {QUERIES} queries (0 before)."
    assert compared.count("better") == 2
    page = (job.store.folder(version) / REPORT_PAGE / "report.md").read_text(encoding="utf-8")
    assert page.split("\n\n")[1] == told, "the page begins with it"
    moved, lost = (report["changed"][word] for word in ("gained", "lost"))
    assert (len(moved), lost) == (MAX_CHANGED, [])
    for row in moved:
        [answer] = row["relevant"]
        before, after = row["ranks"]
        assert (before, after) == (3 + int(answer[1:]) % 4, 1)
        assert [hit["rank"] for hit in row["active"]] == [1, 2, 3, *([before] if before > 3 else [])]
        assert row["active"][before - 1 if before < 4 else 3]["id"] == answer
        assert row["candidate"][0] == {"id": answer, "rank": 1, "text": f"A title text of {answer}"}
    assert f"| {moved[0]['query']} | {moved[0]['ranks'][0]} → 1 |" in page


def test_a_move_below_the_tenth_hit_has_a_row_and_texts_may_be_missing() -> None:
    ids = [f"d{at}" for at in range(20)]
    empty = np.empty(0, np.float32)

    def example(query: str, answer: int) -> Example:
        return Example(query, empty, ids, np.empty(0), {f"d{answer}": 1.0})

    def order(*first: int) -> list[str]:
        return [ids[at] for at in (*first, *(at for at in range(20) if at not in first))]

    examples = [example("up", 15), example("down", 2), example("same", 4)]
    orders = [order(*range(11), 15), order(7, 8, 9), order()]
    score, nothing = np.zeros(3), np.zeros(3, np.int64)
    ranks = np.array([(16, 12), (3, 6), (5, 5)])
    found = Comparison(score, score, score, nothing, ranks, examples, orders)
    requested: list[Any] = []

    def fetch(*arguments: Any) -> dict[str, str]:
        requested.append(arguments)
        return {"d15": "x" * 500}

    rows = reordered({"tickets": found}, fetch)
    [gained], [lost] = rows["gained"], rows["lost"]
    assert (gained["query"], gained["ranks"], lost["query"], lost["ranks"]) == (
        "up",
        [16, 12],
        "down",
        [3, 6],
    )
    assert [hit["rank"] for hit in gained["candidate"]] == [1, 2, 3, 12]
    assert [hit["id"] for hit in lost["candidate"]] == ["d7", "d8", "d9", "d2"]
    assert (len(gained["candidate"][-1]["text"]), gained["candidate"][0]["text"]) == (120, "")
    assert requested == [("tickets", ["d0", "d1", "d15", "d2", "d7", "d8", "d9"])]


def test_the_same_judgments_teach_nothing_twice_and_new_ones_do(job: Job, url: str) -> None:
    first = rank(build_judged(QUERIES), config_at(url), job.store, silent)
    with pytest.raises(NothingToLearn, match="no judgment changed"):
        rank(build_judged(QUERIES), config_at(url), job.store, silent)
    second = rank(build_judged(QUERIES + 5), config_at(url), job.store, silent)
    assert second.published, second.reason
    rankings = [read_ranking(job.store, str(each.version)) for each in (first, second)]
    assert [each.queries for each in rankings] == [QUERIES, QUERIES + 5]
    assert rankings[0].mean_query == rankings[1].mean_query, "the features of the second have the first's"


def test_a_refused_ranking_is_not_learned_again_from_the_same_judgments(
    job: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = job.store.names()
    linear = partial(fit, procedure=Procedure(None, trees=False))
    monkeypatch.setattr(rank_module, "learn", linear)  # in a tenth of the time
    with monkeypatch.context() as patched:
        patched.setattr(rank_module, "judge_first", lambda _: ["A reason."])
        refused = rank(build_judged(QUERIES), config_at(url), job.store, silent)
    assert (refused.published, refused.reason) == (False, "default: A reason.")
    coming = next(one for one in read_refused(job.store.root) if "as they come" in one["name"])
    assert (coming["name"], coming["queries"]) == ("own questions as they come of default", QUERIES)
    assert coming["shown"] in {True, False}
    assert job.store.names() == versions
    with pytest.raises(NothingToLearn, match="no judgment changed"):
        rank(build_judged(QUERIES), config_at(url), job.store, silent)
    assert rank(build_judged(QUERIES + 1), config_at(url), job.store, silent).published


def test_a_service_that_serves_another_version_meanwhile_teaches_nothing(job: Job) -> None:
    def answer(_: str, body: dict[str, Any], __: Mapping[str, str]) -> tuple[int, Any]:
        found = [explain(query) for query in body.get("queries", ())]
        return 200, {"results": found, "model": "another"}

    with json_server(answer) as url, pytest.raises(TrainingError, match="serves another, and not"):
        rank(build_judged(QUERIES), config_at(url), job.store, silent)


def linear(
    examples: list[Example], prior: Mapping[str, float], mean_query: Any = None, *, late: bool = False
) -> Ranking:
    """Fits like `learn`, in a tenth of the time."""
    return fit(examples, prior, Procedure(None, trees=False, late=late), mean_query)


@pytest.mark.parametrize("helps", [True, False])
def test_late_interaction_is_part_of_a_ranking_if_its_gain_is_certain(
    job: Job, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    """Only the text of an answer has the words of its query. In the other case, all texts are equal."""
    monkeypatch.setattr(rank_module, "learn", linear)
    monkeypatch.setattr(late_interaction, "MIN_QUERIES", QUERIES)
    found = build_judged(QUERIES)
    texts = {id: query for query, ids in found.answers.items() for id in ids}

    def answer(path: str, body: dict[str, Any], _: Mapping[str, str]) -> tuple[int, Any]:
        if path.endswith("/documents"):
            ids = json.loads(body["filter"])["$ids"]
            own = texts if helps else {}
            return 200, {"documents": [{"id": id, "text": own.get(id, "engine")} for id in ids]}
        hits = [explain(query) for query in body.get("queries", ())]
        for hit in (hit for each in hits for hit in each):
            hit["features"] |= {"cover": 0.0, "dense": float(hit["id"].startswith("d")) * (not helps)}
        return 200, {"results": hits}

    said: list[str] = []
    with json_server(answer) as url:
        outcome = rank(found, config_at(url), job.store, said.append)
        assert outcome.published, outcome.reason
        ranking = read_ranking(job.store, str(outcome.version))
        assert bool(ranking.late) == helps
        [told] = [line for line in said if line.startswith("Late interaction is")]
        assert told.startswith("Late interaction is used" if helps else "Late interaction is not used")
        report = json.loads((job.store.folder(str(outcome.version)) / REPORT).read_bytes())
        assert told in report["summary"]
        if not helps:
            assert not {*LATE} & ranking.weights.keys()
            return
        assert ranking.projection is not None
        assert max(ranking.weights[name] for name in LATE) > 0.5
        again = rank(build_judged(QUERIES + 5), config_at(url), job.store, silent)
        after = read_ranking(job.store, str(again.version))
        assert after.space == ranking.space, "the stored token vectors stay valid"


def reranking(
    reranker: str, signal: float | None, collections: Sequence[str] = ("default",), scored: int = HITS
) -> Answer:
    """Returns a service in which a reranker orders the hits by default, and scores `scored` of each query.

    Its scores are noise, plus `signal` for answers. None: another reranker answers.
    """

    def answer(path: str, body: dict[str, Any], _: Mapping[str, str]) -> tuple[int, Any]:
        if path == "/info":
            return 200, {"reranker": {"version": reranker, "labels": [], "collections": [*collections]}}
        found = [explain(query) for query in body.get("queries", ())]
        if body.get("rerank"):
            for hits, query in zip(found, body["queries"], strict=True):
                random = np.random.default_rng(len(hits) + int(query.rsplit(maxsplit=1)[-1]))
                for hit in hits[:scored]:
                    logit = random.normal() + (signal or 0) * hit["id"].startswith("d")
                    hit["rerank_score"] = 1 / (1 + math.exp(-logit))
        return 200, {"results": found, "reranker": "another" if signal is None else reranker}

    return answer


@pytest.mark.parametrize(("signal", "used"), [(0.0, True), (1.0, True), (30.0, False), (None, False)])
def test_a_reranker_has_a_weight_if_that_is_certainly_better_than_its_order_alone(
    job: Job, monkeypatch: pytest.MonkeyPatch, signal: float | None, used: bool
) -> None:
    """A ranking finds the answers by their `cover`. A reranker that is always right needs no weight."""
    monkeypatch.setattr(rank_module, "learn", linear)
    version = publish_reranker(job.store.root)
    said: list[str] = []
    with json_server(reranking(version, signal)) as url:
        outcome = rank(build_judged(QUERIES), config_at(url), job.store, said.append)
        assert outcome.published, outcome.reason
        reranker = read_ranking(job.store, str(outcome.version)).reranker
        assert (reranker is not None) == used
        if reranker is not None:
            assert reranker.fingerprint == job.store.verify(version).fingerprint
            assert reranker.weight < 0.5
        told = [line for line in said if line.startswith("The learned weight of the reranker is ")]
        assert len(told) == (signal is not None)
        assert all("is not used" not in line if used else "is not used" in line for line in told)
        if signal is None:
            assert any("does not rerank with" in line for line in said)
            return
        with pytest.raises(NothingToLearn, match="no judgment changed"):
            rank(build_judged(QUERIES), config_at(url), job.store, silent)
    other = publish_reranker(job.store.root, seed=1)
    with json_server(reranking(other, signal)) as url:
        if used:
            assert rank(build_judged(QUERIES), config_at(url), job.store, silent).published, "a new reranker"
            return
        with pytest.raises(NothingToLearn, match="is the very same model"):
            rank(build_judged(QUERIES), config_at(url), job.store, silent)


def test_a_reranker_that_scores_few_hits_keeps_its_weight(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "learn", linear)
    version = publish_reranker(job.store.root)
    more, said = build_judged(QUERIES + 5), list[str]()

    def learn(found: Judged, scored: int) -> Ranking:
        with json_server(reranking(version, 0.0, scored=scored)) as url:
            return read_ranking(job.store, str(rank(found, config_at(url), job.store, said.append).version))

    learned = learn(build_judged(QUERIES), HITS).reranker
    assert learned is not None
    assert learn(more, HITS // 2 - 1).reranker == learned
    assert (
        f"! the weight of the reranker is not learned: {version} scored only 175 of 420 hits in time." in said
    )
    assert learn(more, HITS).reranker not in {None, learned}, "the next run tries it again"


@pytest.mark.parametrize("reason", ["collection", "damaged"])
def test_a_weight_is_learned_only_if_the_collection_reranks_by_default(
    job: Job, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(rank_module, "learn", linear)
    version = publish_reranker(job.store.root)
    if reason == "damaged":
        (job.store.folder(version) / "manifest.json").unlink()
    said: list[str] = []
    service = reranking(version, 0.0, ["others"] if reason == "collection" else ["*"])
    with json_server(service) as url:
        outcome = rank(build_judged(QUERIES), config_at(url), job.store, said.append)
    assert outcome.published
    assert read_ranking(job.store, str(outcome.version)).reranker is None
    assert any("weight of the reranker is not learned" in line for line in said) == (reason == "damaged")


def test_a_late_reranker_is_asked_again_while_it_scores_more_hits_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {"slow": iter([4, 8, 10]), "stuck": iter([3, 3]), "gone": iter([0]), "fast": iter([10])}
    bodies = list[dict[str, Any]]()

    def answer(_: str, body: dict[str, Any], __: Mapping[str, str]) -> tuple[int, Any]:
        bodies.append(body)
        scored = next(counts[body["queries"][0]])
        hits = [{"id": f"d{at}"} | ({"rerank_score": at / 10} if at < scored else {}) for at in range(10)]
        return 200, {"results": [hits], "reranker": "r"}

    with json_server(answer) as url:
        found = [*fetch_reranked(url, "default", [*counts], 60, "r", "v")]
        assert [len(each) for each in found] == [10, 3, 0, 10]
        assert found[0] == {f"d{at}": at / 10 for at in range(10)}
        assert [next(each, None) for each in counts.values()] == [None] * 4
        assert {(each["rerank"], each["rerank_k"], each["k"]) for each in bodies} == {(True, 60, 60)}
        monkeypatch.setattr(service_module, "_RERANK_SECONDS", 0.0)
        assert [*fetch_reranked(url, "default", ["slow", "fast"], 60, "r", "v")] == [{}, {}]


@pytest.mark.parametrize("reason", ["few queries", "no output"])
def test_late_interaction_is_not_tried(
    job: Job, url: str, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(rank_module, "learn", linear)
    if reason == "no output":
        monkeypatch.setattr(late_interaction, "MIN_QUERIES", QUERIES)
        monkeypatch.setattr(Encoder, "has_tokens", False)
    said: list[str] = []
    outcome = rank(build_judged(QUERIES), config_at(url), job.store, said.append)
    assert outcome.published
    assert not read_ranking(job.store, str(outcome.version)).late
    assert not any("ate interaction" in line for line in said)


def test_other_collections_keep_their_ranking(job: Job, url: str, bodies: list[dict[str, Any]]) -> None:
    rank(build_judged(QUERIES), config_at(url), job.store, silent)
    tickets = build_judged(QUERIES, "tickets")
    both = rank(tickets, config_at(url), job.store, silent)
    with pytest.raises(NothingToLearn, match="no judgment changed"):
        rank(build_judged(QUERIES), config_at(url), job.store, silent)
    assert [each["path"] for each in bodies if "queries" in each][-1] == "/collections/tickets/search"
    files = job.store.verify(str(both.version)).files
    assert {"ranking/default.json", "ranking/tickets.json"} <= files.keys()


def test_too_few_judged_queries_say_how_many_are_missing(job: Job, url: str) -> None:
    said: list[str] = []
    with pytest.raises(NothingToLearn, match=r"^default: .* judge 3 more") as raised:
        rank(build_judged(MIN_QUERIES - 3), config_at(url), job.store, said.append)
    assert str(raised.value) not in "\n".join(said), "the command prints it, once"


def test_judgments_of_a_single_key_publish_nothing(job: Job, url: str) -> None:
    with pytest.raises(NothingToLearn, match="no judged query may judge"):
        rank(build_judged(QUERIES, key="robot"), config_at(url), job.store, silent)


CLICKED = {"river 0": Clicked({"d0": 0.6, "collection:tickets/t": 0.5}, frozenset(), {}, {}, 1)}


def test_clicked_answers_are_sent_before_a_ranking_is_learned(
    job: Job, url: str, bodies: list[dict[str, Any]]
) -> None:
    few = build_judged(MIN_QUERIES - 3)._replace(clicked=CLICKED)
    with pytest.raises(NothingToLearn):
        rank(few, config_at(url, collections=("default", "tickets", "empty")), job.store, silent)
    assert {each["path"]: each["clicked"] for each in bodies} == {
        "/collections/default/clicked": [{"query": "river 0", "id": "d0", "gain": 0.6}],
        "/collections/tickets/clicked": [{"query": "river 0", "id": "t", "gain": 0.5}],
        "/collections/empty/clicked": [],
    }


def test_a_service_that_takes_no_clicks_does_not_end_the_run(job: Job) -> None:
    def answer(path: str, body: dict[str, Any], _: Mapping[str, str]) -> tuple[int, Any]:
        if path.endswith("/clicked"):
            return 403, {"error": "This needs a key of role admin."}
        return 200, {"results": [explain(query) for query in body.get("queries", ())]}

    said: list[str] = []
    with json_server(answer) as url:
        assert rank(build_judged(QUERIES), config_at(url), job.store, said.append).published
    assert any("the clicked queries of default are not remembered" in line for line in said)
    assert any("role admin" in line for line in said)


def test_labels_are_judgments_and_graded_clicks() -> None:
    people = [Judgment("both", "a", True), Judgment("both", "b", False), Judgment("both", "c", True)]
    of_use = [Judgment("clicks", "a", True, f"k{at}", of_use=True) for at in range(2)]
    clicked = {
        "both": Clicked({"b": 0.9, "d": 0.4}, frozenset("x"), {"y": 1}, {}, 1),
        "clicks": Clicked({"a": 0.7, "b": 0.3, "c": 0.0}, frozenset("x"), {"x": 1, "z": 0.4}, {}, 1),
    }
    found = judged([*people, *of_use], {id: id for id in "abcdx"}, 0.5, clicked=clicked)
    both, clicks = (label("default", query, found) for query in ("both", "clicks"))
    assert (both.gains, both.wrong) == ({"a": 1, "c": 1, "d": 0.4}, ["b"])
    assert (clicks.gains, clicks.wrong) == ({"a": 0.7, "b": 0.3}, ["c"])
    example = Example("clicks", np.ones(1, np.float32), [*"yxcz"], np.zeros((4, len(FEATURES))), {})
    assert both.apply(example).seen is None
    assert clicks.apply(example).seen == pytest.approx([0, 0, 1, 0.4]), "no page has shown the first hit"
    unrecorded = clicked["clicks"]._replace(unrecorded={"default": 2})
    seen = clicks._replace(clicked=unrecorded).apply(example).seen
    assert seen == pytest.approx([1, 0, 1, 1 - 0.6 * 0.75**2]), "one in four examines the fourth hit"


def test_an_answer_after_a_tie_or_of_a_single_key_is_neither_right_nor_wrong() -> None:
    both = [Judgment("q", "a", True, key) for key in ("x", "y")]
    others = [Judgment("q", "single", True, "x"), Judgment("q", "tie", True, "x")]
    others += [Judgment("q", "tie", False, "y"), Judgment("q", "wrong", False, "x")]
    found = judged([*both, *others], {id: id for id in ("a", "single", "tie", "wrong")}, 0.5)
    assert found.answers == {"q": ["a"]}
    ids = ["tie", "other", "single", "a", "wrong"]
    example = Example("q", np.ones(1, np.float32), ids, np.zeros((5, len(FEATURES))), {})
    labelled = label("default", "q", found).apply(example)
    assert labelled.weights.tolist() == [0, 1, 0, 1, 1]
    scores = np.arange(5, 0, -1, dtype=float)
    alone = labelled._replace(ids=["other", "a", "wrong"], seen=None)
    assert labelled.score(scores) == alone.score(scores[:3])
    assert labelled.chance == pytest.approx(alone.chance)


def test_undecided_answers_do_not_judge_and_unclicked_hits_do(
    job: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = build_judged(QUERIES)
    undecided, clicked = [*found.answers][:2]
    found = found._replace(
        undecided={undecided: ["other0"]},
        clicked={clicked: Clicked({}, frozenset(), {}, {}, 1)},
        stated=found.stated - {(clicked, "default")},
    )
    judging: dict[str, Example] = {}
    training: dict[str, Example] = {}

    def find_reasons(examples: Sequence[Example], *others: Any) -> list[str]:
        training.update({each.query: each for each in examples})
        judging.update({each.query: each for each in others[0]})
        return ["a reason"]

    monkeypatch.setattr(rank_module, "find_reasons", find_reasons)
    rank(found, config_at(url), job.store, silent)
    for examples in (training, judging):
        weights = dict(zip(examples[undecided].ids, examples[undecided].weights, strict=True))
        assert [id for id, weight in weights.items() if not weight] == ["other0"]
    assert sorted(training[clicked].weights) == [0] * (HITS - 1) + [1], "no page has shown the others"
    assert min(judging[clicked].weights) == 1


def test_the_labels_of_a_query_in_one_collection_do_not_depend_on_others() -> None:
    here, there = "here", qualified("tickets", "there")
    people = [Judgment(query, here, True, key) for query in ("clicks", "single") for key in ("x", "y")]
    people.append(Judgment("single", there, True, "x"))
    of_use = [Judgment("clicks", there, True, "x", f"u{at}", of_use=True) for at in range(2)]
    clicked = {
        query: Clicked({there: 0.6}, frozenset(), {there: 1.0}, {}, 1) for query in ("clicks", "single")
    }
    known = {id: id for id in (here, there)}
    found = judged([*people, *of_use], known, 0.5, clicked=clicked)
    clicks, single = (label("tickets", query, found) for query in ("clicks", "single"))
    assert (clicks.gains, clicks.clicked, clicks.single) == ({"there": 0.6}, found.clicked["clicks"], False)
    assert (single.gains, single.clicked, single.single) == ({"there": 1.0}, None, True)
    for query in ("clicks", "single"):
        assert label("default", query, found) == Labels("default", {"here": 1.0}, [], [], None, False)
    assert found.answers["single"] == ["here"], "the answer of a single key judges no encoder"


def test_a_query_whose_answers_in_a_collection_rest_on_a_single_key_does_not_judge_there(
    job: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = build_judged(QUERIES)
    said = [Judgment(query, ids[0], True) for query, ids in found.answers.items()]
    single, *others = found.answers
    vouched = [Judgment(query, qualified("tickets", found.answers[query][0]), True) for query in others]
    alone = Judgment(single, qualified("tickets", found.answers[single][0]), True, "x")
    known = {each.id: each.id for each in (*said, *vouched, alone)}
    judging: list[Example] = []

    def find_reasons(_: Sequence[Example], examples: Sequence[Example], *others: Any) -> list[str]:
        judging.extend(examples)
        return ["a reason"]

    monkeypatch.setattr(rank_module, "find_reasons", find_reasons)
    rank(judged([*said, *vouched, alone], known, 0.5), config_at(url), job.store, silent)
    assert len(judging) == 2 * QUERIES
    assert [each.query for each in judging if not each.judges] == [single]


def test_advise_predicts_what_more_judgments_bring(job: Job, url: str) -> None:
    few, many = build_judged(MIN_QUERIES - 3), build_judged(QUERIES, "tickets")
    [told] = forecast(few, config_at(url), job.store, silent)
    assert told.startswith("Ranking of default: ")
    assert "judge 3 more" in told
    [told] = forecast(many, config_at(url), job.store, silent)
    assert told.startswith("Ranking of tickets: half, three quarters and all of the 30 judged queries gain +")


def test_advise_reads_judgments_by_the_rules_of_a_ranking(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Near copies are different hits, and a ranking needs fewer documents than an encoder."""
    pages = {
        "documents": [{"id": id, "text": "the same text"} for id in ("a", "b")],
        "feedback": [{"query": "q", "id": "b", "relevant": True, "key": ""}],
        "events": [],
    }
    given: list[Judged] = []

    def predict(found: Judged, *_: object) -> Iterator[str]:
        given.append(found)
        yield "Ranking of default: a prediction"

    monkeypatch.setattr(advise, "check", lambda _: None)
    monkeypatch.setattr(advise, "forecast", predict)
    with json_server(lambda path, *_: (200, {path[1:]: pages[path[1:]], "next": None})) as url:
        assert main(["advise", "--from-service", url, "--models-dir", str(job.store.root)]) == 4
    assert [found.answers for found in given] == [{"q": ["b"]}]
    assert (
        "Ranking of default: a prediction\nNothing to learn: Too few documents: 1" in capsys.readouterr().out
    )


def test_a_dry_run_publishes_nothing(job: Job, url: str, bodies: list[dict[str, Any]]) -> None:
    before = {each.version for each in job.store.versions()}
    given = build_judged(QUERIES)._replace(clicked=CLICKED)
    outcome = rank(given, config_at(url), job.store, silent, publishing=False)
    assert not any("clicked" in each for each in bodies)
    assert outcome.verdict is not None
    assert outcome.verdict.accepted
    assert not outcome.published
    assert {each.version for each in job.store.versions()} == before


def test_queries_are_embedded_on_as_many_threads_as_are_asked_for(
    job: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, original = list[int](), ModelStore.open

    def watched(self: ModelStore, version: str, threads: int, **others: Any) -> Encoder:
        opened.append(threads)
        return original(self, version, threads, **others)

    monkeypatch.setattr(ModelStore, "open", watched)
    monkeypatch.setattr("models.cpus.available", lambda: 7)
    limited = config_at(url).model_copy(update={"schedule": ScheduleTable(threads=3)})
    rank(build_judged(QUERIES), limited, job.store, silent, publishing=False)
    assert {*opened} == {3}


def test_a_service_that_explains_nothing_is_named(job: Job) -> None:
    def answer(_: str, body: dict[str, Any], __: Mapping[str, str]) -> tuple[int, Any]:
        return 200, {"results": [explain(query, fault="old") for query in body.get("queries", ())]}

    with json_server(answer) as url, pytest.raises(TrainingError, match="does not explain its hits"):
        rank(build_judged(QUERIES), config_at(url), job.store, silent)


def test_hits_that_only_a_judgment_made_candidates_teach_nothing() -> None:
    features = dict.fromkeys(FEATURES, 0.0)
    hits = [
        {"id": f"d{at}", "score": 2.0, "features": features | {"hybrid": 1 - at / 99}} for at in range(60)
    ]
    rest = [{"id": f"e{at}"} for at in range(8)]
    order = [57, 3, 55, *range(3), *range(4, 50)]
    shown = [*(hits[at] for at in order), *rest]

    with json_server(lambda *_: (200, {"results": [shown]})) as url:
        [found] = fetch_explained(url, "default", ["a query"], 50, "a-version")
    assert [hit["id"] for hit in found] == [f"d{at}" for at in order if at < 50], (
        "in the order that users see"
    )


def test_no_reranker_orders_the_hits_to_learn_from_and_every_service_allows_the_queries() -> None:
    features = dict.fromkeys(FEATURES, 0.0)
    bodies = list[dict[str, Any]]()

    def answer(_: str, body: dict[str, Any], __: Mapping[str, str]) -> tuple[int, Any]:
        bodies.append(body)
        return 200, {"results": [[{"id": "d", "features": features}] for _ in body["queries"]]}

    with json_server(answer) as url:
        assert len([*fetch_explained(url, "default", ["a query"] * 50, 1, "a-version")]) == 50
    [least] = Settings.model_fields["max_candidates"].metadata
    for body in bodies:
        assert body["fields"] == [], "terms are not looked up"
        search = Search(mode=body["mode"], k=body["k"], columns=(), explain=True, compares_tokens=True)
        assert body["rerank"] is False
        assert len(body["queries"]) * search.cost <= least.ge


def test_a_file_has_no_searches_to_learn_from(job: Job) -> None:
    with pytest.raises(NothingToLearn, match=r"corpus\.service"):
        rank(build_judged(QUERIES), config_at(None), job.store, silent)


def test_encoders_wait_until_the_service_serves_the_new_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that serves an older version refuses vectors of the new one."""
    monkeypatch.setattr(auto, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(auto, "_LOOKS", 4)
    served = ["old", "old", "", "new"]
    looks = iter(served * 2)

    def answer(path: str, _: dict[str, Any], __: Mapping[str, str]) -> tuple[int, Any]:
        version = next(looks)
        return (200 if version else 503), {"model_version": version, "path": path}

    with json_server(answer) as url:
        assert auto._is_served(url, "new")
        assert not auto._is_served(url, "other")
    assert not [*looks], "one look for each answer"


@pytest.mark.parametrize(("least", "status"), [(20, 200), (100, 200), (20, 500)])
def test_auto_learns_the_ranking_before_any_encoder(
    job: Job, tmp_path: Path, least: int, status: int
) -> None:
    """It does so with too few documents for an encoder, too, and if these cannot be read."""
    found = build_judged(QUERIES)
    rows = [
        {"query": query, "id": id, "relevant": True, "key": key}
        for query, ids in found.answers.items()
        for id in ids
        for key in ("ann", "ben")
    ]
    documents = [{"id": f"d{at}", "text": f"{WORDS[at % 14]} {WORDS[at // 14]} {at}"} for at in range(60)]
    pages = {"documents": documents, "feedback": rows, "events": []}
    faults: list[int] = []
    paths: list[str] = []

    def answer(path: str, body: dict[str, Any], _: Mapping[str, str]) -> tuple[int, Any]:
        paths.append(path)
        if path == "/search":
            if faults:
                return faults.pop(), {"error": "no such field: explain"}
            return 200, {"results": [explain(query) for query in body["queries"]]}
        name = path.removeprefix("/")
        if name == "documents" and status != 200:
            return status, {"error": "no documents"}
        return 200, {name: pages[name], "next": None} if name in pages else {}

    with json_server(answer) as url:
        config = config_at(url, least=least)
        faults.append(422)
        said: list[str] = []
        with pytest.raises(NothingToLearn, match="no such field"):  # an encoder can still be trained
            _rank(config, job.store, said.append)
        assert any(line.startswith("! ranking failed: ") for line in said)
        del said[:], paths[:]
        outcome = retrain_auto(config, job.store, tmp_path / "work", {}, said.append)
        few = [line for line in said if line.startswith("nothing to train: ") and "100" in line]
        assert bool(few) == (least == 100)
        again = "at least 100.*ranking: .*no judgment changed" if few else "ranking: .*no judgment changed"
        kind: type[TrainingError] = NothingToLearn
        if status != 200:
            again, kind = "no documents", TrainingError
        with pytest.raises(kind, match=again):
            retrain_auto(config, job.store, tmp_path / "work", {}, silent)
    assert outcome.published
    assert read_ranking(job.store, str(outcome.version)).queries == QUERIES
    assert paths.index("/search") < paths.index("/documents")
