"""A pinned version answers with its own vectors while it is in memory. Otherwise the answer is 409."""

import base64
import threading
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.parts.faults import broken
from tests.parts.places import DOCUMENTS, Place, place
from tests.service.swapping import QUERIES, TEXTS, TOLERANCE

HEADER = "x-model-version"
TEXT, OTHER = TEXTS[0], TEXTS[1]
UNKNOWN = "20260101T000000-other-00000000"

__all__ = ["place"]


BODIES: dict[str, dict[str, Any]] = {
    "/": {"inputs": TEXT},
    "/embed": {"inputs": TEXT},
    "/similarity": {"pairs": [[TEXT, OTHER]]},
    "/tokenize": {"inputs": TEXT},
    "/decode": {"ids": [5]},
    "/v1/embeddings": {"input": TEXT, "encoding_format": "base64"},
    "/embeddings": {"input": TEXT},
    "/v2/embed": {"texts": [TEXT]},
    "/search": {"queries": [QUERIES[0]], "mode": "dense", "k": 1000},
}


def check(place: Place, path: str, answer: Any, version: str) -> None:
    """Checks that the vectors or scores in `answer`, a response of `path`, are those of `version`."""
    known = place.oracle.of(version)
    if path in {"/", "/embed"}:
        place.oracle.check_vector(version, TEXT, answer[0])
    elif path == "/similarity":
        assert answer[0] == pytest.approx(float(known[TEXT] @ known[OTHER]), abs=TOLERANCE)
    elif path == "/v1/embeddings":
        assert answer["model"] == version
        vector = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
        place.oracle.check_vector(version, TEXT, list(vector))
    elif path == "/embeddings":
        assert answer["model"] == version
        place.oracle.check_vector(version, TEXT, answer["data"][0]["embedding"])
    elif path == "/v2/embed":
        place.oracle.check_vector(version, TEXT, answer["embeddings"]["float"][0])
    elif path == "/search":
        assert answer["model"] == version
        place.oracle.check_search({"model": version, "query": QUERIES[0], "hits": answer["results"][0]})


def test_the_version_before_answers_while_a_rollback_could_go_to_it(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        place.activate(place.b)
        client.post("/documents", json={"documents": [{"id": "since", "text": TEXTS[100]}]})
        for path, body in BODIES.items():
            by_header = client.post(path, json=body, headers={HEADER: place.a})
            by_model = client.post(path, json={**body, "model": place.a})
            both = client.post(path, json={**body, "model": place.c}, headers={HEADER: place.a})
            for response in (by_header, by_model, both):
                assert response.status_code == 200, f"{path}: {response.text}"
                assert response.headers[HEADER] == place.a
                check(place, path, response.json(), place.a)
            for named in ({}, {"model": place.b}, {"model": "text-embedding-3-small"}):
                response = client.post(path, json=body | named)
                assert response.headers[HEADER] == place.b
                check(place, path, response.json(), place.b)
        one = client.get(
            "/search", params={"q": QUERIES[1], "mode": "dense", "k": 1000}, headers={HEADER: place.a}
        ).json()
        assert one["model"] == place.a
        place.oracle.check_search(one)
        assert {hit["id"] for hit in one["hits"]} == {*DOCUMENTS, "since"}, "its index follows every write"


def test_a_version_that_is_not_kept_is_409_on_every_route(place: Place) -> None:
    with place.serving() as client:
        for path, body in BODIES.items():
            refusals = [
                client.post(path, json=body, headers={HEADER: place.c}),  # published but not in memory
                client.post(path, json={**body, "model": place.c}),
                client.post(path, json=body, headers={HEADER: UNKNOWN}),
                client.post(path, json={**body, "model": place.a}, headers={HEADER: "none-such"}),
            ]
            for response in refusals:
                assert response.status_code == 409, f"{path}: {response.text}"
                assert "is not loaded" in response.text
                assert place.a in response.text, "which one can be asked"
            unknown = client.post(path, json={**body, "model": UNKNOWN})
            assert unknown.status_code == 404, "it looks like a version"
            assert f"There is no version '{UNKNOWN}'." in unknown.text
        assert (
            client.get("/search", params={"q": "a", "mode": "dense"}, headers={HEADER: place.c}).status_code
            == 409
        )
        stored = client.post("/documents", json={"documents": [{"text": "a"}]}, headers={HEADER: place.c})
        assert stored.status_code == 200, "documents are not of a version"


def test_a_version_that_waits_for_its_activation_can_be_tried(place: Place) -> None:
    with place.serving(activate="manual") as client:
        place.fill()
        place.store.request(place.b)
        place.until(lambda: place.state(place.b)["state"] == "ready")
        for path in ("/embed", "/search"):
            response = client.post(path, json=BODIES[path], headers={HEADER: place.b})
            assert response.headers[HEADER] == place.b
            check(place, path, response.json(), place.b)
        assert place.active() == place.a


def test_a_kept_version_with_a_gap_is_not_searched(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.serving() as client:
        place.fill()
        place.activate(place.b)
        [kept] = [g for g in place.app.state.runtime.active.followers if g.version == place.a]

        with monkeypatch.context() as patch:
            patch.setattr(kept.encoder, "forward", broken)
            assert place.put({"since": TEXTS[100]}).status_code == 200
            pinned = {HEADER: place.a}  # While the model fails, the gap stays.
            refused = client.post("/search", json=BODIES["/search"], headers=pinned)
        assert refused.status_code == 409
        assert "does not hold every document" in refused.json()["error"]
        assert client.post("/embed", json=BODIES["/embed"], headers=pinned).status_code == 200
        assert client.post("/search", json=BODIES["/search"]).status_code == 200
        client.delete("/documents/since")
        answer = client.post("/search", json=BODIES["/search"], headers=pinned)
        assert answer.status_code == 200
        check(place, "/search", answer.json(), place.a)


def test_vector_queries_are_compared_with_the_version_that_made_them(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        place.activate(place.b)
        vector = [float(x) for x in place.oracle.of(place.a)[QUERIES[0]]]
        body = {"queries": [vector], "k": 1000, "model": place.a}
        assert client.post("/search", json=body).status_code == 409, "it is not the active one"
        mixed = client.post("/search", json={**body, "model": place.b}, headers={HEADER: place.a})
        assert mixed.status_code == 409
        answer = client.post("/search", json=body, headers={HEADER: place.a})
        assert answer.status_code == 200
        check(place, "/search", answer.json(), place.a)


def test_through_swaps_a_pinned_request_is_answered_by_its_version_or_not_at_all(place: Place) -> None:
    outcomes: set[tuple[int, str]] = set()
    failures: list[str] = []
    done = threading.Event()

    def ask(client: TestClient, version: str) -> None:
        while not done.is_set():
            response = client.post("/search", json=BODIES["/search"], headers={HEADER: version})
            outcomes.add((response.status_code, version))
            try:
                if response.status_code == 200:
                    check(place, "/search", response.json(), version)
                assert response.status_code in {200, 409}, response.text
            except AssertionError as error:
                failures.append(str(error))

    with place.serving() as client:
        place.fill()
        threads = [threading.Thread(target=ask, args=(client, version)) for version in (place.a, place.b)]
        for thread in threads:
            thread.start()
        for version in (place.b, place.a, place.b, place.a):
            place.activate(version)
        done.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[:3]
    assert {(200, place.a), (200, place.b), (409, place.b)} <= outcomes
    assert (409, place.a) not in outcomes, "it was live, or kept for a rollback, all along"
