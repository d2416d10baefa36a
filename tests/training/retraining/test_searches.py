"""Searches made of held-out documents, the scores of versions, and queries whose hits changed."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.manifest import Mode, SearchDefaults
from models.progress import silent
from models.search.content import Content
from tests.parts.json_server import json_server
from tests.training.conftest import WORDS
from tests.training.jobs import configured
from tests.training.retraining.test_auto import documents
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable, build_scorable
from training.methods.recipe import load_recipe
from training.ranking.cross_validation import COMING, NEW
from training.retraining import searches as own
from training.retraining.changes import MAX_ANSWERS, MAX_CHANGED, find_answers, find_changed
from training.retraining.config import GateTable
from training.retraining.documents import Document
from training.retraining.gate.gains import deciding
from training.retraining.gather import gather
from training.retraining.judgements import Judged, Judgment, judged
from training.retraining.one import Job, compute_scores
from training.retraining.plan import build_job
from training.retraining.searches import (
    CANDIDATES,
    MAX_QUERIES,
    MIN_QUERIES,
    build_choose,
    choose_by,
    collections,
    compute_score,
    score,
    withheld,
)
from training.retraining.split import Split, digest_pairs, hold_out
from training.text.service import Searches


def document(id: str, title: str = "", text: str = "") -> Document:
    return Document(id, title, text or f"The text of {id} goes here. And it goes on behind that.")


HELD = tuple(document(f"h{at}", f"Title {at}") for at in range(MIN_QUERIES))
TRAIN = tuple(document(f"t{at}", f"Another {at}") for at in range(30))
SPLIT = Split(TRAIN, HELD, {})


def test_a_title_of_a_document_held_out_finds_its_text_among_all() -> None:
    titles = collections(SPLIT, 1000)["titles"]
    assert titles.queries["h3"] == "Title 3"
    assert titles.relevant["h3"] == {"h3": 1.0}
    assert titles.documents["h3"].text.startswith("The text of h3")
    assert len(titles.queries) == MIN_QUERIES
    assert len(titles.documents) == MIN_QUERIES + 30


def test_a_title_that_several_have_or_that_is_the_text_asks_nothing() -> None:
    twins = (*HELD, document("x", "Same"), document("y", "same "), document("z", "All", "All"))
    assert not {"x", "y", "z"} & set(collections(SPLIT._replace(held=twins), 1000)["titles"].queries)


def test_a_text_that_begins_with_its_title_does_not_give_it_away() -> None:
    held = (*HELD, document("x", "Fuel cells", "Fuel cells: they make power."))
    titles = collections(SPLIT._replace(held=held), 1000)["titles"]
    assert titles.documents["x"] == Content("they make power.")


def test_a_judged_query_looks_among_all_and_its_answers_are_never_left_out() -> None:
    judged = {f"query {at}": [f"t{at}", "h1"] for at in range(MIN_QUERIES)}
    found = own.judged_search(SPLIT, judged, 100)
    assert found.relevant["query\0query 4"] == {"t4": 1.0, "h1": 1.0}
    beside = own.judged_search(SPLIT._replace(dev=(document("dev"),)), judged, 100)
    assert beside.within is not None
    assert beside.documents.keys() == {*found.documents, "dev"}
    assert beside.documents.keys() <= beside.within.keys()
    assert {f"t{at}" for at in range(MIN_QUERIES)} <= set(found.documents)
    fewer = own.judged_search(SPLIT, judged, 1)
    assert set(fewer.documents) == {"h1", *(f"t{at}" for at in range(MIN_QUERIES))}


def judged_ones(queries: int, held: int) -> Judged:
    """Returns judged queries: `query N` has the answer `hN`. The first `held` queries are held out."""
    said = [Judgment(f"query {at}", f"h{at}", True) for at in range(queries)]
    found = judged(said, {document.id: document.id for document in (*HELD, *TRAIN)}, 0.5)
    return found._replace(held={f"query {at}": [f"h{at}"] for at in range(held)})


@pytest.mark.parametrize(("held", "decides"), [(MIN_QUERIES - 1, False), (MIN_QUERIES, True)])
def test_too_few_judged_queries_guard_and_do_not_decide(held: int, decides: bool) -> None:
    found = judged_ones(MIN_QUERIES, held)
    made = {"judged": own.judged_search(SPLIT, found.answers, 1000, found.held)}
    assert {*made["judged"].queries.values()} == found.answers.keys(), "the others fit rankings"
    assert own.can_decide(made, found) == decides
    assert own.can_decide(collections(SPLIT, 1000) | made, found)


def test_the_candidates_are_the_same_whatever_order_the_documents_come_in() -> None:
    few = collections(SPLIT, MIN_QUERIES + 5)["titles"]
    assert len(few.documents) == MIN_QUERIES + 5
    turned = Split(TRAIN[::-1], HELD, {})
    assert set(collections(turned, MIN_QUERIES + 5)["titles"].documents) == set(few.documents)


def test_a_title_that_is_trained_on_as_well_asks_nothing_and_a_very_copy_is_no_candidate() -> None:
    train = (*TRAIN, document("x", "title 3", "Something else."), document("y", "New", HELD[4].text))
    titles = collections(SPLIT._replace(train=train, held=(*HELD, document("z", "Z"))), 1000)["titles"]
    assert "h3" not in titles.queries
    assert "h4" in titles.queries
    assert "y" not in titles.documents


def test_what_judges_is_withheld() -> None:
    found = withheld(SPLIT._replace(held=(document("x", "A  Title", "Some\nText"),)), ["How?"])
    assert found == {"a title", "some text", "how?"}


def test_many_queries_are_a_part_of_them_and_the_same_part() -> None:
    held = tuple(document(f"h{at}", f"Title {at}") for at in range(MAX_QUERIES + 50))
    found = collections(SPLIT._replace(held=held), 10)["titles"]
    assert len(found.queries) == len(found.relevant) == MAX_QUERIES
    again = collections(SPLIT._replace(held=held[::-1]), 10)["titles"]
    assert found.queries == again.queries


def test_too_few_queries_judge_nothing() -> None:
    few = SPLIT._replace(held=HELD[:-1])
    assert collections(few, 1000) == {}
    assert collections(few, 1000, MIN_QUERIES - 1).keys() == {"titles", "known"}


def test_rare_words_of_a_document_ask_for_it() -> None:
    text = "the common words of all and zebra number {0} with giraffe {0} beside a lion {0} or tiger {0}"
    held = tuple(document(f"h{at}", f"T {at}", text.replace(" {0}", f"{at}x")) for at in range(MIN_QUERIES))
    found = collections(SPLIT._replace(held=held), 1000)["known"]
    words = found.queries["h3"].split()
    assert len(words) == 4
    assert {"giraffe3x", "number3x", "lion3x", "tiger3x"} & {*words}
    assert [each for each in held[3].text.split() if each in words] == words, "in the order of the text"
    assert found.relevant["h3"] == {"h3": 1.0}
    assert found.documents["h3"].whole.startswith("T 3\n")
    assert found == collections(SPLIT._replace(held=held[::-1]), 1000)["known"]._replace(
        documents=found.documents
    )


def test_a_query_looks_among_the_documents_of_its_own_collection_only() -> None:
    """Every text has a twin in the other collection, which any encoder would rank equally high."""
    shelves = {"default": "h{}", "tickets": "collection:tickets/h{}"}
    held = tuple(
        Document(
            name.format(at), f"Title {at}", f"The text of h{at} goes here. It is in {shelf} alone.", shelf
        )
        for shelf, name in shelves.items()
        for at in range(MIN_QUERIES)
    )
    judged = {f"query {at}": [f"h{at}", f"collection:tickets/h{at}"] for at in range(MIN_QUERIES)}
    split = Split((), held, {})
    made = collections(split, 1000) | {"judged": own.judged_search(split, judged, 1000)}
    assert len(made["titles"].queries) == len(made["judged"].queries) == 2 * MIN_QUERIES
    assert made["judged"].relevant["query\0query 3"] == {"h3": 1.0}
    assert made["judged"].relevant["query\0query 3\0tickets"] == {"collection:tickets/h3": 1.0}

    def encode(texts: Sequence[str]) -> np.ndarray:
        numbers = [int(re.search(r"\d+", text)[0]) for text in texts]  # type: ignore[index]
        return np.eye(MIN_QUERIES, dtype=np.float32)[numbers]

    model = Scorable(None, None, None, encode, encode, encode, whole, 0)
    found = score({name: made[name] for name in ("titles", "judged")}, model, mode="dense")
    for name, figures in found.items():
        assert figures["each"] == [1.0] * (2 * MIN_QUERIES), name
        for query, hits in zip(made[name].queries, figures["hits"], strict=True):
            of_tickets = [hit.startswith("collection:tickets/") for hit in hits]
            assert all(of_tickets) if "tickets" in query else not any(of_tickets)


def test_the_scores_are_those_of_each_query_and_their_mean() -> None:
    """The encoder knows only the number in a title or text, and ranks every answer second."""
    titles = collections(SPLIT, MIN_QUERIES)["titles"]
    names = sorted(titles.queries, key=lambda name: int(name[1:]))

    def queries(texts: list[str]) -> np.ndarray:
        return np.eye(MIN_QUERIES, dtype=np.float32)[[int(text.split()[1]) for text in texts]]

    def documents(texts: list[str]) -> np.ndarray:
        at = [int(text.split()[3][1:]) for text in texts]
        vectors = np.eye(MIN_QUERIES, dtype=np.float32)[at]
        for row, number in enumerate(at):
            if number % 2:  # its direction belongs more to the document before it
                vectors[row, number], vectors[row, number - 1] = 0.6, 0.8
            else:
                vectors[row, number], vectors[row, number + 1] = 0.6, 0.8
        return vectors

    model = Scorable(None, None, None, queries, queries, documents, whole, 0)
    found = score({"titles": titles}, model, mode="dense")["titles"]
    assert set(names) == set(titles.queries)
    assert found["each"] == pytest.approx([1 / math.log2(3)] * MIN_QUERIES)
    assert found["ndcg10"] == pytest.approx(1 / math.log2(3))
    assert found["queries"] == MIN_QUERIES


DOCUMENTS = {f"d{at}": Content(f"{WORDS[at]} {WORDS[at + 1]}") for at in range(6)}
TWO = Collection(DOCUMENTS, {"q": f"{WORDS[1]} {WORDS[2]}"}, {"q": {"d1": 1.0}}, 0)
OTHER = TWO._replace(relevant={"q": {"d5": 1.0}})


def test_each_setting_of_a_collection_counts(job: Job) -> None:
    """Hits depend on the mode that the collection learned, and on the mode that the service prescribes."""
    active = str(job.store.requested())

    def hits(learned: dict[str, SearchDefaults], served: Searches) -> list[list[str]]:
        given = replace(job, data=None, searches={"titles": TWO}, served=served, active=active)
        found = compute_scores(given, job.store, active, learned, silent)
        return list(found["own"]["titles"]["hits"])

    lexical = {"default": SearchDefaults(mode="lexical", weight=0.5)}
    assert hits(lexical, Searches()) == hits({}, Searches(mode="lexical")) != hits({}, Searches(mode="dense"))


LONG = Content(" ".join([*WORDS[:4] * 16, *WORDS[7:] * 12]))  # Longer than the model reads.
LIKE = Content(" ".join(WORDS[7:] * 3))  # Like the last passage of LONG.


def test_where_no_document_is_split_its_head_alone_is_searched(job: Job) -> None:
    store, active = job.store, str(job.store.requested())
    with closing(store.open(active)) as encoder:
        *_, passage = build_scorable(encoder).split(LONG, None)
        heads = build_scorable(encoder, passages=False)
        assert (heads.split(LONG, None), heads.reads) == ([LONG.whole], 0)
    searched = Collection({"long": LONG, "like": LIKE}, {"q": passage}, {"q": {"long": 1.0}}, 0)
    services = [Searches(mode="dense", passages=passages) for passages in (True, False)]
    given = replace(job, data=None, searches={"titles": searched}, active=active)
    found = [compute_scores(replace(given, served=each), store, active, {}, silent) for each in services]
    assert [each["own"]["titles"]["hits"][0][0] for each in found] == ["long", "like"]


def test_a_job_scores_as_the_service_was_told_to_search(job: Job, tmp_path: Path) -> None:
    config = configured(tmp_path, documents(WORDS, 200), gate=GateTable(data=job.data), least=2)
    gathered = gather(config, job.store, silent)

    recipe = load_recipe("simcse-unsup")
    for served in (Searches(passages=False), Searches(mode="lexical")):
        made = build_job(gathered._replace(served=served), recipe, job.work)
        assert made.served == served


@pytest.mark.parametrize("method", ["simcse-unsup", "pairs"])
def test_fifteen_judged_queries_guard_and_the_text_decides(job: Job, tmp_path: Path, method: str) -> None:
    rows = documents(WORDS, 200)
    queried = [(f"{each['text'].split()[0]} {at}", each["id"]) for at, each in enumerate(rows[:15])]
    config = configured(tmp_path, rows, queried, held_out=0.3, least=2)
    gathered = gather(config, job.store, silent)
    found = build_job(gathered, load_recipe(method), job.work)
    assert found.found is not None
    # simcse-unsup learns from no judged query, so more of them judge, while enough text is left to train.
    judging = found.found.held.keys()
    assert (judging > gathered.found.held.keys()) == (method == "simcse-unsup")
    active = str(job.store.requested())
    scores = compute_scores(found, job.store, active, {}, silent)
    for row in (NEW, COMING):
        few = scores["own"][row]
        assert len(few["groups"]) == len(few["each"]) == len(judging)
    assert deciding(scores["own"]) == [name for name in scores["own"] if name not in {NEW, COMING}]
    assert "groups" not in scores["own"]["titles"]


def numbered(count: int) -> list[Document]:
    draw = random.Random(1)
    texts = [" ".join([*draw.choices(WORDS, k=12), str(at)]) for at in range(count)]
    return [Document(f"d{at}", f"title {at} {draw.choice(WORDS)}", text) for at, text in enumerate(texts)]


class Told:
    """Encodes a text by the number in it. With a `shift`, queries miss their answers. Records all texts."""

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.queried: set[str] = set()
        self.found: set[str] = set()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError(texts)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.queried |= {*texts}
        return self._of(texts, self.shift)

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.found |= {*texts}
        return self._of(texts, 0)

    def _of(self, texts: Sequence[str], shift: int) -> NDArray[np.float32]:
        numbers = [next((int(word) for word in text.split() if word.isdigit()), 2000) for text in texts]
        return np.eye(3000, dtype=np.float32)[[number + shift for number in numbers]]


def told(split: Callable[[Content, int | None], list[str]] = whole) -> Scorable:
    encoder = Told(0)
    return Scorable(
        "told", "one", None, encoder.encode, encoder.encode_queries, encoder.encode_documents, split, 64
    )


def score_by(
    split: Split, judged: Mapping[str, Sequence[str]], mode: Mode | None = None, url: str | None = None
) -> Any:
    return compute_score(build_choose(split, judged, told, {}, mode, url))


def test_titles_and_their_like_choose_without_labelled_queries() -> None:
    split = hold_out(numbered(1000), 0.1)
    made = collections(Split(split.train, split.dev, {}), CANDIDATES, 8)
    score: Any = compute_score(choose_by({"titles": made["titles"]}, told(), {}, "dense"))
    right, wrong = Told(0), Told(1)
    assert score(right) == 1.0
    assert score(wrong) < 0.1
    assert right.queried == {document.title for document in split.dev}
    held = {document.title for document in split.held} | {document.text for document in split.held}
    assert not held & (right.queried | right.found)
    every: Any = score_by(split, {})
    other = Told(0)
    assert every(other) > every(wrong)
    assert other.queried > right.queried, "known items choose, too"


def questions(split: Split) -> dict[str, list[str]]:
    return {f"query {document.id[1:]} asks": [document.id] for document in split.dev}


def test_labelled_queries_choose_alone_where_there_are_enough() -> None:
    split = hold_out(numbered(1000), 0.1)
    score = score_by(split, questions(split))
    right = Told(0)
    assert score(right) == 1.0
    assert right.queried == {*questions(split)}


def test_a_training_is_chosen_by_searches_as_the_service_does_them() -> None:
    """The choice uses the search mode of the service, and the passages of the documents."""
    split = hold_out(numbered(1000), 0.1)
    judged, wrong = questions(split), Told(1)
    assert score_by(split, judged, "dense")(wrong) < 0.1
    assert score_by(split, judged, "hybrid")(wrong) == score_by(split, judged)(wrong) > 0.5, "words are right"
    halves = Told(0)

    def cut(content: Content, tokens: int | None) -> list[str]:
        assert tokens == 32
        first, _, last = content.text.rpartition(" ")
        return [f"{content.title} | {first}", last]

    learned = {"default": SearchDefaults(mode="dense", weight=1, passage_tokens=32)}
    score: Any = compute_score(build_choose(split, judged, lambda: told(cut), learned, None, None))
    assert score(wrong) < 0.1, "the mode that the collection learned"
    assert score(halves) == 1.0
    assert len(halves.found) == 2 * CANDIDATES
    assert {text.isdigit() for text in halves.found} == {True, False}


def test_queries_that_choose_search_what_the_service_finds_for_them() -> None:
    documents = numbered(2000)
    split = hold_out(documents, 0.1)
    judged = dict([*questions(split).items()][:20])
    near = {
        query: [f"d{(int(ids[0][1:]) + step) % 2000}" for step in range(40)] for query, ids in judged.items()
    }
    bodies: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any], _: Mapping[str, str]) -> tuple[int, Any]:
        bodies.append(body | {"path": path})
        number = int(np.argmax(body["queries"][0]))
        found = next(ids for query, ids in near.items() if query.split()[1] == str(number))
        return 200, {"results": [[{"id": id, "score": 1 - at / 40} for at, id in enumerate(found)]]}

    with json_server(answer) as url:
        score = score_by(split, judged, "dense", url)
    assert len(bodies) == 20
    assert {(each["path"], each["mode"], each["model"], len(each["queries"])) for each in bodies} == {
        ("/search", "dense", "told", 1)
    }
    right = Told(0)
    score(right)
    numbers = {f"d{text.split()[-1]}" for text in right.found}
    held = {document.id for document in split.held}
    assert len(numbers) == CANDIDATES
    first = {id for ids in near.values() for id in ids[:20]} - held - {*split.copies}
    assert first <= numbers, "the best of each query"
    assert not numbers & held


@pytest.mark.parametrize(("count", "expected"), [(49, 0), (50, 8), (100, 16), (160, 16), (400, 16)])
def test_dev_has_judged_queries_enough_to_choose_by(count: int, expected: int) -> None:
    """Dev gets up to a third of the queries that do not judge, but none that a version has learned."""
    said = [Judgment(f"query {at * 7919}", f"d{at}", True) for at in range(count)]
    ids = {f"d{at}": f"d{at}" for at in range(count)}
    documents = [Document(id, "", id) for id in ids]
    found = judged(said, ids, 0.5)
    moved = Split(tuple(documents), (), {}).moved(found.parts)
    assert len(found.dev) >= min(expected, (len(found.train) + len(found.dev)) // 3)
    assert not found.train.keys() & found.dev.keys()
    assert {document.id for document in moved.dev} == {id for ids in found.dev.values() for id in ids}
    assert {document.id for document in moved.train} == {id for ids in found.train.values() for id in ids}
    if count >= 100:
        assert len(found.train) >= 2 * len(found.dev) - 2
    known = judged(said, ids, 0.5, learned=digest_pairs(found.train))
    assert known.train.items() >= found.train.items()


def test_queries_that_share_an_answer_choose_together_or_not_at_all() -> None:
    said = [Judgment(f"query {at * 7919}", f"d{at // 3}", True) for at in range(120)]
    ids = {f"d{at}": f"d{at}" for at in range(40)}
    found = judged(said, ids, 0.5)
    moved = Split(tuple(Document(id, "", id) for id in ids), (), {}).moved(found.parts)
    assert len(found.dev) > 8
    answers = [{id for ids in part.values() for id in ids} for part in (found.train, found.dev, found.held)]
    assert sum(map(len, answers)) == len(set.union(*answers))
    assert {document.id for document in moved.dev} == answers[1]


def test_without_searches_nothing_chooses() -> None:
    assert build_choose(Split((), (), {}), {}, told, {}, None, None) is None
    assert compute_score(None) is None


TWO_DOCUMENTS = {"right": "the  right\none " + "x" * 200, "wrong": "the wrong one"}
QUERIES = {f"q{at}": f"question {at}" for at in range(40)}
REQUESTED_TEXTS = {
    "judged": Collection(
        {id: Content(text) for id, text in TWO_DOCUMENTS.items()},
        QUERIES,
        {name: {"right": 1.0} for name in QUERIES},
        0,
    )
}


def scores(
    each: list[float], hits: list[list[str]], queries: Mapping[str, str] = MappingProxyType(QUERIES)
) -> dict[str, Any]:
    return {COMING: {"each": each, "hits": hits, "names": [*queries], "queries": len(each)}}


def test_the_largest_changes_come_first_with_what_both_found() -> None:
    before = scores([0.5] * 40, [["wrong", "right"]] * 40)
    after = scores([at / 40 for at in range(40)], [["right", "wrong"]] * 40)
    found = find_changed(find_answers(REQUESTED_TEXTS, before, after))
    assert [row["query"] for row in found["gained"]] == [f"question {39 - at}" for at in range(MAX_CHANGED)]
    assert [row["query"] for row in found["lost"]] == [f"question {at}" for at in range(MAX_CHANGED)]
    worst = found["lost"][0]
    assert (worst["difference"], worst["relevant"]) == (-0.5, ["right"])
    assert worst["active"][0] == {"id": "wrong", "rank": 1, "text": "the wrong one"}
    assert worst["ranks"] == [2, 1]
    assert worst["candidate"][0]["text"].startswith("the right one xx")
    assert len(worst["candidate"][0]["text"]) == 120


def test_nothing_changed_is_an_empty_list_and_titles_stand_in_by_their_documents() -> None:
    same = scores([0.5] * 40, [["wrong"]] * 40)
    assert find_changed(find_answers(REQUESTED_TEXTS, same, same)) == {"gained": [], "lost": []}
    titles = {"titles": Collection({"a": Content("A text")}, {"a": "A"}, {"a": {"a": 1.0}}, 0)}
    before, after = ({"titles": {"each": [each], "hits": [["a"]], "names": ["a"]}} for each in (0.0, 1.0))
    [row] = find_changed(find_answers(titles, before, after))["gained"]
    assert (row["relevant"], row["candidate"]) == (["a"], [{"id": "a", "rank": 1, "text": "A text"}])


def test_every_query_has_both_answers_the_largest_change_first() -> None:
    hits = [f"d{at}" for at in range(10)]
    documents = {id: Content(id) for id in hits}
    queried = {"judged": Collection(documents, QUERIES, {name: {"d0": 1.0} for name in QUERIES}, 0)}
    before = scores([0.5] * 40, [hits] * 40)
    after = scores([0.5] * 38 + [0.2, 0.7], [hits[::-1]] * 40)
    found = find_answers(queried, before, after)
    assert [row["query"] for row in found[:3]] == ["question 38", "question 39", "question 0"]
    assert len(found) == 40
    assert [hit["id"] for hit in found[0]["active"]] == hits
    assert [hit["id"] for hit in found[0]["candidate"]] == hits[::-1]


def test_of_very_many_queries_those_that_changed_most_are_kept() -> None:
    many = {f"q{at}": f"question {at}" for at in range(MAX_ANSWERS + 5)}
    queried = {"judged": Collection({"a": Content("a")}, many, {name: {"a": 1.0} for name in many}, 0)}
    before = scores([0.0] * len(many), [["a"]] * len(many), many)
    after = scores([0.0] * 5 + [1.0] * MAX_ANSWERS, [["a"]] * len(many), many)
    found = find_answers(queried, before, after)[:MAX_ANSWERS]
    assert {row["difference"] for row in found} == {1.0}
