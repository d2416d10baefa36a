"""The memory of clicked queries: who may replace it, how it changes searches, and what deletes it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from service.auth.keys import Role
from service.cli.keys import add
from service.corpus import judged
from service.runtime.runtime import Runtime
from service.settings import Settings
from tests import postgres
from tests.parts.places import Place
from tests.service.conftest import HOST, new_settings, serving
from tests.service.corpus.test_ranking import (
    QUERY,
    TEXTS,
    count_reads,
    fill,
    forget,
    hits,
    ids,
    in_hybrid_order,
    judge,
    patient,
)
from tests.service.swapping import published
from tests.waiting import until

__all__ = ["patient"]  # A fixture of all tests here.

PATH = "/collections/default/clicked"


def click(client: TestClient, *clicked: str) -> None:
    events = [{"search_id": "s", "query": QUERY, "id": id, "type": "click"} for id in clicked]
    assert client.post("/events", json={"events": events}).json()["stored"] == len(events)


def replace(
    client: TestClient, gains: dict[str, float], query: str = QUERY, **headers: str
) -> httpx2.Response:
    rows = [{"query": query, "id": id, "gain": gain} for id, gain in gains.items()]
    return client.put(PATH, json={"clicked": rows}, headers=headers)


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    fill(running)


@pytest.fixture
def before(client: TestClient) -> Iterator[list[dict[str, Any]]]:
    """The hits without clicked answers. The first 50 of them have click events."""
    found = hits(client)
    click(client, *(hit["id"] for hit in found[:50]))
    yield found
    forget(client)
    assert client.put(PATH, json={"clicked": []}).json() == {"stored": 0, "left_out": 0}
    assert client.delete("/events", params={"query": QUERY}).status_code == 200


def test_clicked_answers_count_in_the_next_search(client: TestClient, before: list[dict[str, Any]]) -> None:
    last, first = before[49]["id"], before[0]["id"]
    assert replace(client, {last: 0.8, "missing": 1}).json() == {"stored": 1, "left_out": 1}
    assert ids(client)[0] == last
    assert replace(client, {first: 0}).json() == {"stored": 1, "left_out": 0}
    assert ids(client).index(first) > 0
    assert ids(client)[0] != last, "they are replaced as a whole"
    assert replace(client, {}).status_code == 200
    assert hits(client) == before


def test_a_judgment_overrides_the_clicks_on_its_query_and_document(
    client: TestClient, before: list[dict[str, Any]]
) -> None:
    ninth, tenth = before[8]["id"], before[9]["id"]
    replace(client, {ninth: 0.9, tenth: 1})
    assert ids(client)[:2] == [tenth, ninth]
    judge(client, f"  {QUERY} ", tenth, False)
    assert ids(client)[0] == ninth
    assert ids(client).index(tenth) > 9
    assert client.delete("/feedback", params={"id": tenth}).status_code == 200
    assert ids(client)[0] == tenth


def test_the_same_answers_again_change_nothing(
    client: TestClient, runtime: Runtime, before: list[dict[str, Any]]
) -> None:
    assert client.portal is not None
    replace(client, {before[9]["id"]: 1})
    state = client.portal.call(runtime.corpus.store.judgment_state, "default")
    replace(client, {before[9]["id"]: 1})
    assert client.portal.call(runtime.corpus.store.judgment_state, "default") == state
    replace(client, {before[9]["id"]: 0.5})
    assert client.portal.call(runtime.corpus.store.judgment_state, "default") != state


@pytest.mark.parametrize("many", [False, True])
def test_a_deleted_document_is_forgotten_even_if_its_id_returns(
    client: TestClient, before: list[dict[str, Any]], many: bool
) -> None:
    tenth = before[9]["id"]
    replace(client, {tenth: 1})
    assert ids(client)[0] == tenth
    where = {"filter": json.dumps({"$ids": [tenth]})}
    deleted = client.delete("/documents", params=where) if many else client.delete(f"/documents/{tenth}")
    assert deleted.json()["deleted"] == 1
    assert tenth not in ids(client)
    document = {"documents": [{"id": tenth, "text": TEXTS[tenth]}]}
    assert client.post("/documents", json=document).status_code == 200
    assert hits(client) == before
    late = replace(client, {tenth: 1})
    assert late.json() == {"stored": 0, "left_out": 1}, "the clicks were on the deleted document"
    assert hits(client) == before


def test_a_new_text_keeps_the_clicks(client: TestClient, before: list[dict[str, Any]]) -> None:
    tenth = in_hybrid_order(client)[9]  # With its new text, it stays a candidate.
    replace(client, {tenth: 1})
    for text in (f"{TEXTS[tenth]} again", TEXTS[tenth]):
        documents = {"documents": [{"id": tenth, "text": text}]}
        assert client.post("/documents", json=documents).status_code == 200
        assert ids(client)[0] == tenth


@pytest.mark.parametrize(
    ("rows", "status", "said"),
    [
        ([{"query": " ", "id": "d000", "gain": 1}], 400, "clicked[0].query is empty"),
        ([{"query": "q", "id": "d000", "gain": 1.1}], 422, "clicked[0].gain must be"),
        ([{"query": "q", "id": "d000", "gain": "1"}], 422, "clicked[0].gain must be"),
        ([{"query": "q", "id": "d000"}], 422, "clicked[0].gain is missing"),
        ([{}] * 20_001, 422, "clicked has 20001 entries; at most 20000"),
    ],
)
def test_malformed_answers_replace_nothing(
    client: TestClient, before: list[dict[str, Any]], rows: Sequence[Any], status: int, said: str
) -> None:
    replace(client, {before[9]["id"]: 1})
    refused = client.put(PATH, json={"clicked": rows})
    assert (refused.status_code, said in refused.json()["error"]) == (status, True), refused.text
    assert ids(client)[0] == before[9]["id"]


def test_only_an_admin_replaces_the_clicked_answers(tmp_path: Path, tiny_models_dir: Path) -> None:
    file = tmp_path / "keys"
    admin, writer = add(file, "a", Role.ADMIN), add(file, "b", Role.WRITE)
    with serving(new_settings(tmp_path, tiny_models_dir, api_keys_file=file)) as client:
        client.headers["authorization"] = f"Bearer {admin}"
        fill(client)
        click(client, "d009")
        assert replace(client, {"d009": 1}, authorization=f"Bearer {writer}").status_code == 403
        assert replace(client, {"d009": 1}).json()["stored"] == 1
        assert client.put("/collections/other/clicked", json={"clicked": []}).status_code == 404


def test_many_clicked_queries_are_read_once_and_survive_a_restart(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "WAITED", 0)
    monkeypatch.setattr(judged, "TOGETHER", 3)
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        fill(client)
        tenth = ids(client)[9]
        click(client, tenth)
        rows = [{"query": f"q{at}", "id": tenth, "gain": 1} for at in range(10)]
        rows.append({"query": QUERY, "id": tenth, "gain": 1})
        assert client.put(PATH, json={"clicked": rows}).json()["stored"] == 11
    reads = count_reads(monkeypatch)
    with serving(settings) as client:
        until(lambda: ids(client)[0] == tenth)
        assert len(reads) == 1


def test_a_new_encoder_has_the_memory_from_its_first_search_on(tmp_path: Path) -> None:
    place = Place(tmp_path, published(tmp_path / "models", 2))
    [first, second] = [manifest.version for manifest in place.store.versions()]
    place.store.request(first)
    with place.serving() as client:
        fill(client)
        found = in_hybrid_order(client)
        click(client, found[9])
        replace(client, {found[9]: 1})
        answer = in_hybrid_order(client, "bridge letter")[9]
        judge(client, "bridge letter", answer, True)
        place.activate(second)
        assert ids(client)[0] == found[9]
        assert ids(client, "bridge letter")[0] == answer
        place.rollback(first)
        assert ids(client)[0] == found[9]


def test_replicas_have_the_same_memory(tmp_path: Path, tiny_models_dir: Path) -> None:
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    settings = new_settings(tmp_path, tiny_models_dir)
    place: dict[str, Any] = {"database": postgres.new_database(), "models_dir": settings.models_dir}
    names = ("a", "b")
    both = [Settings(data_dir=tmp_path / name, allowed_hosts=HOST, cache_mb=0, **place) for name in names]
    with serving(both[0]) as one, serving(both[1]) as other:
        fill(one)
        before = hits(one)
        until(lambda: hits(other) == before)
        tenth = before[9]["id"]
        click(one, tenth)
        replace(one, {tenth: 1})
        assert ids(other)[0] == ids(one)[0] == tenth
        judge(other, QUERY, tenth, False)
        judge(other, QUERY, before[8]["id"], True)
        assert ids(one) == ids(other)
        assert ids(one)[0] == before[8]["id"]
        judge(one, QUERY, before[-1]["id"], True)
        assert {*ids(other)[:2]} == {before[8]["id"], before[-1]["id"]}
        assert one.delete(f"/documents/{tenth}").status_code == 200
        forget(one)
        assert ids(other) == ids(one)
        assert tenth not in ids(other)
