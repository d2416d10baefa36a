"""`/feedback`: an accepted judgment stays stored, once per query and document, until it is deleted."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from service.api.feedback import NOT_THERE
from service.runtime.runtime import Runtime
from service.store.filters.grammar import Predicate
from service.store.sql.feedback import store_judgments
from service.store.sqlite.writer import Transaction
from service.store.values import DEFAULT_COLLECTION, Judgment
from tests.service.api.test_http_errors import refused
from tests.service.deleting import delete
from tests.service.fakes import sqlite_of
from tests.waiting import LIMIT

TEXTS = {"a": "red river", "b": "green garden", "c": "blue bridge"}
ODD = ["emoji 🙂", "two\nlines", " spaces kept ", "100%25 & ?q=1#x", "'; DROP TABLE feedback; --"]


@pytest.fixture(autouse=True)
def _three_documents_and_no_judgments(request: pytest.FixtureRequest) -> None:
    if "client" in request.fixturenames:
        client: TestClient = request.getfixturevalue("client")
        documents = [{"id": id, "text": text} for id, text in TEXTS.items()]
        assert client.post("/documents", json={"documents": documents}).status_code == 200
        for id in TEXTS:
            client.delete("/feedback", params={"id": id})
        assert client.get("/feedback").json() == {"feedback": [], "next": None}


def said(query: str, id: str, relevant: bool = True) -> dict[str, Any]:
    return {"query": query, "id": id, "relevant": relevant}


GOOD = said("q", "a")


def judge(client: TestClient | httpx2.Client, *judgements: dict[str, Any]) -> int:
    """Stores judgments in one request, and returns the sequence number from the answer."""
    response = client.post("/feedback", json={"feedback": list(judgements)})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert set(answer) == {"stored", "sequence"}
    assert answer["stored"] == len(judgements)
    return int(answer["sequence"])


def pages(client: TestClient | httpx2.Client, limit: int, after: int | None = 0) -> Iterator[list[Any]]:
    while after is not None:
        answer = client.get("/feedback", params={"after": after, "limit": limit}).json()
        assert set(answer) == {"feedback", "next"}
        yield answer["feedback"]
        after = answer["next"]


def listed(client: TestClient | httpx2.Client, after: int = 0) -> list[tuple[str, str, bool]]:
    """Returns (query, id, relevant) of all judgments with a sequence number above `after`, in order."""
    return [(row["query"], row["id"], row["relevant"]) for rows in pages(client, 1000, after) for row in rows]


def test_a_judgment_is_listed_as_it_was_sent_under_the_number_that_was_answered(client: TestClient) -> None:
    answer = client.post("/feedback", json=said("Red  River ", "a", relevant=False)).json()
    assert answer == {"stored": 1, "sequence": answer["sequence"]}
    assert client.get("/feedback").json() == {
        "feedback": [
            {
                "collection": "default",
                "query": "Red  River ",
                "id": "a",
                "relevant": False,
                "key": "",
                "user": "",
                "trusted": True,
                "sequence": answer["sequence"],
            }
        ],
        "next": None,
    }
    assert client.get("/feedback/count").json() == {"count": 1}


def test_a_list_is_stored_in_its_order_and_the_last_of_two_about_one_pair_wins(client: TestClient) -> None:
    before = judge(client, said("before", "a"))
    last = judge(client, said("q", "b"), said("q", "a"), said("r", "b"), said("q", "b", relevant=False))
    assert listed(client, before) == [("q", "a", True), ("r", "b", True), ("q", "b", False)]
    numbers = [row["sequence"] for [row] in pages(client, 1)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == last


def test_the_newest_judgment_of_a_pair_replaces_the_earlier(client: TestClient) -> None:
    judge(client, said("q", "a"), said("q", "b"), said("Q", "a"))
    seen = judge(client, said("r", "c"))
    again = judge(client, said("q", "a", relevant=False))
    assert again > seen
    left = [("q", "b", True), ("Q", "a", True), ("r", "c", True), ("q", "a", False)]
    assert listed(client) == left
    assert listed(client, after=seen) == [("q", "a", False)], "who follows the numbers must meet it"
    assert client.get("/feedback/count").json() == {"count": 4}
    documents = {"documents": [{"id": "a", "text": "red river, mended"}]}
    assert client.post("/documents", json=documents).status_code == 200
    assert listed(client) == left


def test_a_number_is_never_used_twice(client: TestClient) -> None:
    newest = judge(client, said("q", "a"))
    assert client.delete("/feedback", params={"query": "q"}).json() == {"deleted": 1}
    assert judge(client, said("q", "a")) > newest


@pytest.mark.parametrize("odd", ODD)
def test_any_query_and_id_are_kept_to_the_character_and_can_be_deleted(client: TestClient, odd: str) -> None:
    assert client.post("/documents", json={"documents": [{"id": odd, "text": "red"}]}).status_code == 200
    judge(client, said(odd, "a"), said("other", odd))
    assert listed(client) == [(odd, "a", True), ("other", odd, True)]
    for named in ("query", "id"):
        assert client.delete("/feedback", params={named: odd}).json() == {"deleted": 1}


def test_judgments_are_counted_by_what_they_say(client: TestClient) -> None:
    def counted() -> list[float]:
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
        return [float(lines[f'simile_feedback_total{{relevant="{word}"}}']) for word in ("true", "false")]

    before = counted()
    judge(client, said("q", "a"), said("q", "b"), said("q", "c", relevant=False))
    client.post("/feedback", json={"feedback": [said("q", "a"), said("q", "nobody")]})
    assert [after - was for after, was in zip(counted(), before, strict=True)] == [3, 1]


@pytest.mark.parametrize("limit", [1, 4, 6, 12, 13])
def test_pages_hold_every_judgment_once_in_order(client: TestClient, limit: int) -> None:
    sent = [said(f"q{at % 4}", id, at % 3 == 0) for at, id in enumerate("abc" * 4)]
    for judgment in sent:
        judge(client, judgment)
    found = list(pages(client, limit))
    assert [len(rows) for rows in found] == [limit] * (12 // limit) + [12 % limit] * (12 % limit > 0)
    rows = [row for rows in found for row in rows]
    assert [{name: row[name] for name in ("query", "id", "relevant")} for row in rows] == sent
    assert [row["sequence"] for row in rows] == sorted({row["sequence"] for row in rows})


def test_what_comes_while_somebody_reads_is_on_a_later_page(client: TestClient) -> None:
    judge(client, *(said(f"q{at}", "a") for at in range(4)))
    reading = pages(client, 2)
    first = next(reading)
    judge(client, said("q0", "a", relevant=False), said("new", "b"))
    rest = [row for rows in reading for row in rows]
    assert [row["query"] for row in first] == ["q0", "q1"]
    assert [row["query"] for row in rest] == ["q2", "q3", "q0", "new"]
    assert [row["relevant"] for row in rest] == [True, True, False, True]


def test_judgments_of_a_deleted_document_are_listed_when_it_is_back(client: TestClient) -> None:
    judge(client, said("q", "a"), said("q", "b"))
    rows = client.get("/feedback").json()["feedback"]
    client.delete("/documents/a")
    assert client.get("/feedback").json() == {"feedback": rows[1:], "next": None}
    assert client.get("/feedback", params={"limit": 1}).json() == {"feedback": rows[1:], "next": None}
    assert client.get("/feedback/count").json() == {"count": 1}
    client.post("/documents", json={"documents": [{"id": "a", "text": "red river"}]})
    assert client.get("/feedback").json() == {"feedback": rows, "next": None}
    assert client.get("/feedback/count").json() == {"count": 2}
    client.delete("/documents/a")
    assert client.delete("/feedback", params={"query": "q"}).json() == {"deleted": 2}
    client.post("/documents", json={"documents": [{"id": "a", "text": "red river"}]})
    assert listed(client) == []


@pytest.mark.sqlite("its jobs run one after another")
def test_a_judgment_behind_a_delete_in_one_commit_is_refused(client: TestClient, runtime: Runtime) -> None:
    writer = sqlite_of(runtime.corpus).writer
    gate = threading.Event()

    def hold(transaction: Transaction) -> None:
        assert gate.wait(LIMIT)

    def of(id: str) -> Judgment:
        return Judgment("q", id, relevant=True)

    held = writer.submit(hold)
    early = writer.submit(
        lambda transaction: store_judgments(transaction.connection, [of("a")], DEFAULT_COLLECTION)
    )
    gone = writer.submit(lambda transaction: delete(transaction, Predicate("id = ?", ["a"])))
    late = writer.submit(
        lambda transaction: store_judgments(transaction.connection, [of("b"), of("a")], DEFAULT_COLLECTION)
    )
    other = writer.submit(
        lambda transaction: store_judgments(transaction.connection, [of("c")], DEFAULT_COLLECTION)
    )
    gate.set()
    held.result(LIMIT)
    assert other.result(LIMIT)[0] == early.result(LIMIT)[0] + 2, "what was refused took a number"
    assert gone.result(LIMIT)[0] == 1
    assert late.result(LIMIT) == (other.result(LIMIT)[0] - 1, {"a"}), "the document went first"
    assert listed(client) == [("q", "b", True), ("q", "c", True)]


@pytest.mark.parametrize(
    ("requested", "left"),
    [
        ({"query": "q"}, [("r", "a"), ("r", "b")]),
        ({"id": "a"}, [("q", "b"), ("r", "b")]),
        ({"query": "q", "id": "a"}, [("q", "b"), ("r", "a"), ("r", "b")]),
        ({"query": "Q"}, [("q", "a"), ("q", "b"), ("r", "a"), ("r", "b")]),
        ({"query": "q", "id": "c"}, [("q", "a"), ("q", "b"), ("r", "a"), ("r", "b")]),
    ],
)
def test_a_delete_takes_what_it_names_and_nothing_else(
    client: TestClient, requested: dict[str, str], left: list[tuple[str, str]]
) -> None:
    judge(client, *(said(query, id) for query in "qr" for id in "ab"))
    assert client.delete("/feedback", params=requested).json() == {"deleted": 4 - len(left)}
    assert [(query, id) for query, id, _ in listed(client)] == left
    assert client.delete("/feedback", params=requested).json() == {"deleted": 0}


def test_of_a_list_each_bad_judgment_is_reported_and_the_others_are_stored(client: TestClient) -> None:
    sent = [GOOD, said("q", "nobody"), said(" ", "a"), GOOD | {"relevant": "yes"}, "q", said("q", "b")]
    answer = client.post("/feedback", json={"feedback": sent}).json()
    assert answer["stored"] == 2
    told = {refusal["index"]: refusal["error"] for refusal in answer["refused"]}
    assert told == {
        1: NOT_THERE.format(id="nobody"),
        2: "feedback[2].query is empty, or white space only. Leave the judgment out.",
        3: "feedback[3].relevant must be true or false, not 'yes'.",
        4: "feedback[4] must be an object, not 'q'.",
    }
    assert listed(client) == [("q", "a", True), ("q", "b", True)]
    assert answer["sequence"] == client.get("/feedback").json()["feedback"][-1]["sequence"]


@pytest.mark.parametrize(
    ("body", "status", "error_type", "word"),
    [
        (said(" \t\n", "a"), 400, "Empty", "query is empty"),
        ({"feedback": []}, 400, "Empty", "feedback is an empty list"),
        ({"feedback": [said("", "a"), said("q", "nobody")]}, 404, "NotFound", "'nobody'"),
        ({"feedback": [said("", "a"), GOOD | {"rating": 5}]}, 400, "Empty", "feedback[0].query"),
        (said("q", "nobody"), 404, "NotFound", "no document 'nobody'"),
        ({"feedback": [said("q", "x"), said("r", "x"), said("q", "y")]}, 404, "NotFound", "'x', 'y':"),
        ({"feedback": [said("q", f"x{at}") for at in range(12)]}, 404, "NotFound", "'x9' and 2 more"),
        ({}, 422, "Validation", "query"),
        ([GOOD], 422, "Validation", "the body"),
        (GOOD | {"relevant": None}, 422, "Validation", "relevant"),
        (GOOD | {"id": ""}, 422, "Validation", "id"),
        (GOOD | {"id": "i" * 513}, 422, "Validation", "id"),
        (GOOD | {"query": "q" * 4097}, 422, "Validation", "4096"),
        (GOOD | {"feedback": [GOOD]}, 422, "Validation", "query"),
        ({"feedback": GOOD}, 422, "Validation", "feedback"),
        ({"feedback": ["q"]}, 422, "Validation", "feedback[0]"),
        ({"feedback": [GOOD | {"rating": 5}]}, 422, "Validation", "no field 'rating' in feedback[0]"),
        ({"feedback": [GOOD] * 2049}, 422, "Validation", "SIMILE_MAX_INPUTS"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_stored(
    client: TestClient, body: object, status: int, error_type: str, word: str
) -> None:
    refused(client.post("/feedback", json=body), status, error_type, word)
    assert listed(client) == []


@pytest.mark.parametrize(
    ("method", "path", "status", "error_type", "word"),
    [
        ("GET", f"/feedback?after={2**63}", 422, "Validation", "after"),
        ("DELETE", "/feedback", 422, "Validation", "a query, an id, a key or a user"),
        ("DELETE", "/feedback?queries=q", 422, "Validation", "queries"),
        ("DELETE", "/feedback?query=&id=a", 400, "Empty", "query"),
        ("DELETE", "/feedback?query=q&id=", 400, "Empty", "id"),
        ("DELETE", "/feedback?query=q&key=", 400, "Empty", "key"),
        ("DELETE", "/feedback?collection=*", 422, "Validation", "a query, an id, a key or a user"),
        ("DELETE", "/feedback?query=q&collection=", 400, "Empty", "collection"),
        ("DELETE", "/feedback?query=q&collection=nowhere", 404, "NotFound", "nowhere"),
        ("GET", "/feedback?key=", 400, "Empty", "key"),
        ("GET", "/feedback?collection=nowhere", 404, "NotFound", "nowhere"),
        ("GET", "/feedback?collection=.x", 422, "Validation", "collection"),
        ("GET", "/collections/default/feedback?collection=*", 422, "Validation", "collection"),
        ("GET", "/feedback/count?key=a&key=b", 422, "Validation", "more than once"),
    ],
)
def test_a_wrong_parameter_is_refused_and_deletes_nothing(
    client: TestClient, method: str, path: str, status: int, error_type: str, word: str
) -> None:
    judge(client, GOOD)
    refused(client.request(method, path), status, error_type, word)
    assert listed(client) == [("q", "a", True)]


def test_the_greatest_number_of_all_is_a_cursor_with_nothing_behind_it(client: TestClient) -> None:
    judge(client, GOOD)
    assert client.get("/feedback", params={"after": 2**63 - 1}).json() == {"feedback": [], "next": None}


def test_the_summary_counts_what_is_listed(client: TestClient) -> None:
    judge(
        client, said("q", "a"), said("q", "b", relevant=False), said("r", "b", relevant=False), said("s", "c")
    )
    found = client.get("/feedback/summary").json()
    assert found == {"judgements": 4, "relevant": 2, "queries": 3, "answered": 2}
    client.delete("/documents/c")
    found = client.get("/feedback/summary").json()
    assert found == {"judgements": 3, "relevant": 1, "queries": 2, "answered": 1}
    none = {"judgements": 0, "relevant": 0, "queries": 0, "answered": 0}
    assert client.get("/feedback/summary", params={"key": "ada"}).json() == none
