"""A pair in the service: documents keep their vectors, and the student encodes queries."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.engines.opening import INT8
from service.lifecycle.capacity import needed
from tests.models.forms import needs_int8
from tests.parts.faults import before_passes, broken
from tests.parts.places import DOCUMENTS, Place, count_embedded
from tests.service.swapping import QUERIES, TEXTS, published_pair
from tests.tiny import WIDTH
from tests.waiting import until

TEXT = QUERIES[0]
PROMPTS = {"query": "", "title": "the title: "}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("made") / "models"
    return root, published_pair(root, PROMPTS)


@pytest.fixture
def place(tmp_path: Path, made: tuple[Path, list[str]]) -> Place:
    """A place whose version `a` is the teacher, `b` its student, and `c` the pair of both."""
    root, names = made
    shutil.copytree(root, tmp_path / "models")
    place = Place(tmp_path, versions=names)
    place.a, place.b, place.c = names
    return place


def stored(place: Place, version: str) -> dict[str, NDArray[np.float64]]:
    """Returns each document's stored vector by id. A query along each axis gives one component."""
    body = {"queries": np.eye(WIDTH).tolist(), "model": version, "k": 1000, "fields": []}
    answer = place.client.post("/search", json=body, headers={"x-model-version": version}).json()
    columns = [{hit["id"]: hit["score"] for hit in hits} for hits in answer["results"]]
    return {id: np.array([column[id] for column in columns]) for id in columns[0]}


def embedded(place: Place) -> list[float]:
    return list(place.client.post("/embed", json={"inputs": TEXT}).json()[0])


def searched(place: Place, **parameters: str | int) -> dict[str, Any]:
    found: dict[str, Any] = place.client.get(
        "/search", params={"q": TEXT, "mode": "dense", **parameters}
    ).json()
    return found


def test_a_pair_comes_to_live_without_embedding_a_document_and_goes_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.serving():
        place.fill()
        vectors, text, before = stored(place, place.a), embedded(place), searched(place, k=60)
        assert "query_encoder" not in before
        texts = count_embedded(monkeypatch)
        place.activate(place.c)
        assert len(texts) <= 2, "the forward pass that warms it, and no document"
        now = stored(place, place.c)
        assert now.keys() == vectors.keys() == DOCUMENTS.keys()
        assert all((now[id] == vectors[id]).all() for id in vectors)
        assert embedded(place) == text, "the teacher's"
        assert place.everything() == DOCUMENTS  # every score is of the student's query
        after = searched(place, k=60)
        assert (after["model"], after["query_encoder"]) == (place.c, place.b)
        assert [hit["score"] for hit in after["hits"]] != [hit["score"] for hit in before["hits"]]
        assert place.put({"new": TEXTS[0]}).is_success
        assert (stored(place, place.c)["new"] == vectors["d0"]).all()
        place.rollback(place.a)
        assert {hit["id"]: hit["score"] for hit in searched(place, k=60)["hits"]}.items() >= {
            hit["id"]: hit["score"] for hit in before["hits"][:50] if hit["id"] != "d0"
        }.items()
        assert "query_encoder" not in searched(place)


def test_the_student_itself_comes_to_live_as_any_version_and_a_restart_serves_the_pair(place: Place) -> None:
    with place.serving():
        place.fill()
        place.activate(place.b)
        assert place.everything() == DOCUMENTS
        assert "query_encoder" not in searched(place)
        place.activate(place.c)
        assert place.everything() == DOCUMENTS
        text = embedded(place)
    with place.serving():
        assert place.active() == place.c
        assert place.everything() == DOCUMENTS
        assert embedded(place) == text


def test_a_search_says_what_encoded_its_queries(place: Place) -> None:
    place.store.request(place.c)
    with place.serving() as client:
        place.fill()
        for mode in ("dense", "hybrid"):
            assert searched(place, mode=mode)["query_encoder"] == place.b
        assert "query_encoder" not in searched(place, mode="lexical")
        assert "query_encoder" not in client.get("/search", params={"id": "d3"}).json()
        many = client.post("/search", json={"queries": QUERIES, "mode": "dense"}).json()
        assert (many["model"], many["query_encoder"]) == (place.c, place.b)
        assert many["results"][0] == searched(place)["hits"]
        vectors = {"queries": [embedded(place)], "model": place.c}
        assert "query_encoder" not in client.post("/search", json=vectors).json()
        kept = client.get(
            "/search", params={"q": TEXT, "mode": "dense"}, headers={"x-model-version": place.c}
        ).json()
        assert kept["query_encoder"] == place.b
        named = searched(place, prompt_name="query")
        assert named["query_encoder"] == place.b, "its own prompt, by name"


def test_a_query_behind_another_prompt_is_the_teachers(place: Place) -> None:
    place.store.request(place.c)
    with place.serving() as client:
        place.fill()
        found = searched(place, prompt_name="title", k=3)
        assert "query_encoder" not in found
        [vector] = client.post("/embed", json={"inputs": TEXT, "prompt_name": "title"}).json()
        by_vector = client.post("/search", json={"queries": [vector], "model": place.c, "k": 3}).json()
        # Scores have six digits. Rounding errors may change the last one.
        for one, other in zip(by_vector["results"][0], found["hits"], strict=True):
            assert (one["id"], one["score"]) == (other["id"], pytest.approx(other["score"], abs=1.5e-6))


def test_the_service_says_which_student_there_is(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        assert client.get("/info").json()["query_encoder"] is None
        place.activate(place.c)
        info = client.get("/info").json()
        said = place.store.verify(place.c).query_encoder
        assert said is not None
        assert info["fingerprint"] == place.store.verify(place.a).fingerprint
        assert info["query_encoder"] == {
            "version": place.b,
            "fingerprint": place.store.verify(place.b).fingerprint,
            "form": "fp32/onnxruntime",
            "texts": 320,
            "cosine_mean": said.cosine_mean,
            "cosine_least": said.cosine_least,
            "same_neighbours": said.same_neighbours,
        }
        encoders = [place.state(name)["query_encoder"] for name in (place.a, place.b, place.c)]
        assert encoders == [None, None, place.b]
        client.get("/metrics")  # from now on the student's tokens are counted, too
        searched(place)
        series = f'simile_tokens_total{{lane="interactive",version="{place.b}"}}'
        assert series in client.get("/metrics").text


def test_equal_texts_of_queries_and_documents_do_not_share_a_vector(place: Place) -> None:
    place.store.request(place.c)
    with place.serving() as client:
        place.fill()
        cold = embedded(place)
        searched(place)
    with place.serving(cache_mb=1) as client:
        assert client.get("/info").json()["cache"]["limit_bytes"]
        first = searched(place)["hits"]
        assert embedded(place) == cold
        assert searched(place)["hits"] == first


def test_a_student_that_fails_is_no_healthy_pair_and_embeds_as_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.store.request(place.c)
    with place.serving() as client:
        place.fill()
        student = place.app.state.runtime.active.generation.encoder.queries
        assert client.get("/health").status_code == 200
        monkeypatch.setattr(student, "forward", broken)
        assert client.get("/search", params={"q": TEXT}).status_code == 424
        assert client.get("/health").status_code == 503
        assert client.post("/embed", json={"inputs": TEXT}).status_code == 200
        assert client.get("/search", params={"q": TEXT, "mode": "lexical"}).status_code == 200
        assert client.get("/health").status_code == 503, "the teacher's pass does not speak for the student"
        monkeypatch.undo()
        place.until(lambda: client.get("/health").status_code == 200)
        assert searched(place)["query_encoder"] == place.b


def test_a_pair_whose_student_fails_is_not_live(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(encoder: Encoder, _: object) -> None:
        if encoder.manifest.version == place.b and "golden" in done:
            raise RuntimeError("no")

    done: set[str] = set()
    with place.serving() as client:
        place.fill()
        before_passes(monkeypatch, failing)
        begin = type(place.app.state.runtime.corpus.store).begin

        async def begun(store: Any, *args: Any) -> int:
            done.add("golden")  # The golden texts are compared before `begin`.
            return int(await begin(store, *args))

        monkeypatch.setattr(type(place.app.state.runtime.corpus.store), "begin", begun)
        fails(place, client, "The model failed on this input")


def fails(place: Place, client: TestClient, reason: str) -> None:
    """Checks that the pair cannot be activated because of `reason`, and that nothing else changes."""
    assert client.post(f"/models/{place.c}/activate").status_code == 202
    place.until_state(place.c, "failed")
    assert reason in place.state(place.c)["reason"]
    assert place.active() == place.a
    assert place.everything() == DOCUMENTS


def test_the_canary_compares_the_pair_as_it_would_answer(place: Place) -> None:
    with place.serving(canary_queries=10):
        place.fill()
        place.activate(place.c)
        canary = place.state(place.c)["canary"]
        assert canary["overlap_at_10"] < 1, "the teacher's own queries would find the same"


def test_memory_is_counted_for_both_models(place: Place) -> None:
    teacher, student, both = (
        needed([1000], WIDTH, place.store.folder(name), alone=True) for name in (place.a, place.b, place.c)
    )
    rows = needed([1000], WIDTH, place.folder, alone=True)  # a folder without a model
    assert both - rows == pytest.approx(teacher + student - 2 * rows, abs=3)


@needs_int8
def test_a_pair_is_served_in_int8(place: Place) -> None:
    place.store.request(place.c)
    with place.serving(precision="int8") as client:
        place.fill()
        info = client.get("/info").json()
        assert (info["form"], info["query_encoder"]["form"]) == (str(INT8), str(INT8))
        exact = place.store.open(place.c, form=INT8)
        hit = searched(place, k=1)["hits"][0]
        expected = exact.encode([hit["text"]]).vectors[0] @ exact.for_queries.encode([TEXT]).vectors[0]
        assert hit["score"] == pytest.approx(float(expected), abs=2e-6)


def test_lone_queries_of_a_pair_are_computed_by_all_threads_too(place: Place) -> None:
    """Only the student gets single texts, and so a second session."""
    place.store.request(place.c)
    with place.serving(workers=2, single_text_threads=2):
        place.fill()
        encoder = place.app.state.runtime.active.generation.encoder
        until(lambda: searched(place) and encoder.queries.has_single_text, pause=0)
        assert not encoder.has_single_text
        assert place.everything() == DOCUMENTS
