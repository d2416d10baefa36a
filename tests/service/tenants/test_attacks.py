"""What a tenant learns of another one's documents in a shared collection: nothing."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.service.tenants.conftest import SECRETS, Caller, World

FILTERS: tuple[dict[str, Any], ...] = (
    {"tenant": "rival"},
    {"tenant": {"$ne": "acme"}},
    {"tenant": {"$in": ["rival", "acme"]}},
    {"tenant": {"$exists": False}},
    {"tenant": {"$gte": ""}},
    {"$or": [{"tenant": "rival"}, {"tenant": "acme"}]},
    {"$or": [{"no": {"$gte": 0}}, {"quasar": {"$exists": True}}]},
    {"$and": [{"$or": [{"no": {"$gte": 0}}, {"tenant": "rival"}]}]},
    {"quasar": {"$exists": True}},
    {"$ids": ["rival-0", "rival-1", "plain", "a0"]},
    {"$or": [{"$ids": ["rival-0"]}, {"$ids": ["a0"]}]},
    {},
)
OWN = {"a0", "a1", "a2"}


def is_clean(text: str) -> bool:
    return not any(secret in text.lower() for secret in SECRETS)


def nested(depth: int) -> dict[str, Any]:
    conditions: dict[str, Any] = {"no": {"$gte": 0}}
    for at in range(depth):
        conditions = {
            "$or" if at % 2 else "$and": [conditions, {"tenant": "rival"} if at % 2 else {"no": {"$gte": 0}}]
        }
    return conditions


@pytest.mark.parametrize("conditions", [*FILTERS, nested(15)], ids=lambda it: json.dumps(it)[:60])
def test_no_filter_reaches_documents_of_another_tenant(world: World, conditions: dict[str, Any]) -> None:
    given = {"filter": json.dumps(conditions)}
    every = set(world.boss.ids(**given))
    expected = every & OWN
    for caller in (world.acme, world.acme2):
        assert {*caller.ids(**given)} == expected
        assert caller.get("@/documents/count", **given)["count"] == len(expected)
        for mode in ("dense", "lexical", "hybrid"):
            found = caller.get("@/search", q="window door tile number quasar", k=100, mode=mode, **given)
            assert {hit["id"] for hit in found["hits"]} <= expected
            if mode != "lexical":
                assert {hit["id"] for hit in found["hits"]} == expected
        body = {"queries": ["window", "zebrafish"], "k": 50, "filter": conditions}
        for hits in caller.post("@/search", body)["results"]:
            assert {hit["id"] for hit in hits} <= expected
    if conditions and not expected:
        assert world.acme.send("DELETE", "@/documents", params=given).json()["deleted"] == 0
        assert {*world.boss.ids(**given)} == every


def test_a_search_has_only_own_hits_facets_corrections_and_explanations(world: World) -> None:
    facets = "metadata.no,metadata.tenant,metadata.quasar"
    more = {"explain": "true", "highlight": "true", "facets": facets, "k": 100}
    for query in ("zebrafish", "quasar", "zebrafis", "quasr window", "window", "zebrafish quasar"):
        for mode in ("lexical", "hybrid"):
            found = world.acme.get("@/search", q=query, mode=mode, **more)
            assert {hit["id"] for hit in found["hits"]} <= OWN
            assert "corrections" not in found or is_clean(json.dumps(found["corrections"]))
            shown = {name: part for name, part in found.items() if name not in {"query", "facets"}}
            for hit in shown["hits"]:  # The terms are those of the query.
                assert all(set(term) <= {"term", "in", "from"} for term in hit["explanation"]["terms"])
                hit.pop("explanation")
            assert is_clean(json.dumps(shown))
            counts = found["facets"]
            assert sum(each["count"] for each in counts["metadata.no"].get("values", [])) <= 3
            assert [each["value"] for each in counts["metadata.tenant"].get("values", [])] in ([], ["acme"])
            assert counts["metadata.quasar"].get("values", []) == []
    assert "corrections" in world.rival.get("@/search", q="zebrafis", mode="lexical"), "the rival's own word"


def test_warnings_name_no_field_or_value_of_others(world: World) -> None:
    for conditions in ({"quasr": "x"}, {"tenat": "x"}, {"quasar": "quasar 1"}, {"no": "1"}):
        given = {"filter": json.dumps(conditions)}
        for found in (
            world.acme.get("@/documents", **given),
            world.acme.get("@/documents/count", **given),
            world.acme.get("@/search", q="door", facets="metadata.quasr", **given),
            world.acme.send("DELETE", "@/documents", params=given).json(),
        ):
            assert "warnings" not in found
    assert "warnings" in world.boss.get("@/documents", filter='{"quasr":"x"}'), "others are told"


@pytest.mark.parametrize("id", ["rival-0", "plain"])
def test_a_document_of_others_cannot_be_told_from_one_that_does_not_exist(world: World, id: str) -> None:
    """Status and body are equal, apart from the id that was sent."""
    absent = "x" * len(id)

    def both(method: str, path: str, body: object = None) -> None:
        answers = []
        for name in (id, absent):
            sent = None if body is None else json.loads(json.dumps(body).replace("{id}", name))
            answer = world.acme.send(method, path.replace("{id}", quote(name)), json=sent)
            said = answer.json()
            for part in ("took_ms", "sequence", "search_id", "search_ids"):
                said.pop(part, None)
            answers.append((answer.status_code, json.dumps(said).replace(name, "ID")))
        assert answers[0] == answers[1]

    both("GET", "@/documents/{id}")
    both("GET", "@/documents?id={id}")
    both("DELETE", "@/documents/{id}")
    both("GET", "@/search?id={id}")
    both("POST", "@/search", {"queries": [{"id": "{id}"}]})
    both("POST", "@/search", {"queries": [{"id": "a0"}, {"id": "{id}"}]})
    both("POST", "@/feedback", {"query": "door", "id": "{id}", "relevant": True})
    both("POST", "@/feedback", {"feedback": [{"query": "door", "id": "{id}", "relevant": True}] * 2})
    both("POST", "@/events", {"search_id": "s", "query": "door", "id": "{id}", "type": "click"})
    both("POST", "@/events", {"events": [{"search_id": "s", "query": "door", "id": "{id}", "type": "click"}]})
    assert id in world.boss.ids(limit=1000)


def test_similar_documents_are_own_ones(world: World) -> None:
    found = world.acme.get("@/search", id="a0", k=100)
    assert {hit["id"] for hit in found["hits"]} == OWN - {"a0"}
    assert world.boss.send("GET", "@/search", params={"id": "rival-0"}).status_code == 200


def test_pages_and_exports_have_own_documents_only(world: World) -> None:
    for after in ("", "a0", "plain", "rival-0", "zzz"):
        seen, at = [], after
        while at is not None:
            page = world.acme.get("@/documents", after=at, limit=1)
            seen += [document["id"] for document in page["documents"]]
            assert page["next"] is None or page["next"] in OWN
            at = page["next"]
        assert seen == sorted(id for id in OWN if id > after)


def test_suggestions_come_from_own_documents(world: World) -> None:
    for typed in ("z", "ze", "zebrafish", "q", "quas", "window", "w", "the z", "a", "zebrafish quas"):
        found = world.acme.get("@/suggest", q=typed, k=50)
        assert is_clean(json.dumps(found)), found
        assert all(each["kind"] != "query" for each in found["suggestions"])
    assert not is_clean(json.dumps(world.rival.get("@/suggest", q="ze")))


OTHERS = ("default", "rival-own", "solo", "nowhere")


@pytest.mark.parametrize("name", OTHERS)
def test_other_collections_cannot_be_told_from_ones_that_do_not_exist(world: World, name: str) -> None:
    document = {"documents": [{"id": "x", "text": "intruder"}]}
    judgment = {"query": "q", "id": "r", "relevant": True}
    event = {"search_id": "s", "query": "q", "id": "r", "type": "click"}
    raw = {"content": b"intruder", "headers": {"content-type": "application/octet-stream"}}
    lines = {
        "content": b'{"id":"x","text":"intruder"}\n',
        "headers": {"content-type": "application/x-ndjson"},
    }
    requests: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("GET", "/search?q=quasar", {}),
        ("POST", "/search", {"json": {"queries": ["quasar"]}}),
        ("GET", "/search?id=r", {}),
        ("GET", "/suggest?q=qu", {}),
        ("GET", "/documents", {}),
        ("GET", "/documents?id=r", {}),
        ("GET", "/documents/count", {}),
        ("GET", "/documents/r", {}),
        ("POST", "/documents", {"json": document}),
        ("POST", "/documents", lines),
        ("DELETE", "/documents/r", {}),
        ("DELETE", "/documents?filter=" + quote('{"$ids":["r"]}'), {}),
        ("POST", "/files?name=x.txt", raw),
        ("GET", "/feedback", {}),
        ("GET", "/feedback/count", {}),
        ("GET", "/feedback/summary", {}),
        ("POST", "/feedback", {"json": judgment}),
        ("DELETE", "/feedback?id=r", {}),
        ("GET", "/events", {}),
        ("GET", "/events/count", {}),
        ("POST", "/events", {"json": event}),
        ("DELETE", "/events?id=r", {}),
        ("GET", "/map", {}),
        ("GET", "/synonyms", {}),
    )
    for method, path, more in requests:
        answer = world.acme.send(method, f"/collections/{name}{path}", **more)
        assert answer.status_code == 404, (method, path, answer.text)
        told = f"There is no collection {name!r}. GET /collections lists them; its first document makes one."
        assert answer.json() == {"error": told, "error_type": "NotFound"}, (method, path)
        if name == "default":
            assert world.acme.send(method, path, **more).status_code in {404, 405}, (method, path)
    for path in ("feedback", "feedback/count", "feedback/summary", "events", "events/count"):
        assert world.acme.send("GET", f"/{path}", params={"collection": name}).status_code == 404
        assert world.acme.send("GET", f"/{path}", params={"collection": "*"}).status_code == 422
    for path in ("feedback", "events"):
        assert (
            world.acme.send("DELETE", f"/{path}", params={"collection": name, "id": "r"}).status_code == 404
        )
    names = {each["name"] for each in world.boss.get("/collections")["collections"]}
    assert "nowhere" not in names
    assert {"rival-own", "solo"} <= names


def test_the_list_of_collections_has_own_ones_with_own_counts(world: World) -> None:
    for client, documents in (
        (world.acme, {"shared": 3}),
        (world.rival, {"rival-own": 1, "shared": 6}),
        (world.solo, {"solo": 2}),
    ):
        listed = client.get("/collections")["collections"]
        assert {each["name"]: each["documents"] for each in listed} == documents


def test_a_shared_collection_and_its_settings_cannot_be_changed(world: World) -> None:
    for method, path, more in (
        ("DELETE", "/collections/shared", {}),
        ("PUT", "@/synonyms", {"json": {"groups": [["door", "window"]]}}),
        ("DELETE", "@/synonyms", {}),
    ):
        assert world.acme.send(method, path, **more).status_code == 403
    assert world.acme.get("@/synonyms")["groups"] == []
    assert world.boss.get("@/documents/count")["count"] == 10


def test_operator_routes_are_closed_to_every_key_with_a_scope(world: World) -> None:
    version = world.boss.get("/models")["active"]
    for caller in (world.acme, world.solo):
        for method, path in (
            ("GET", f"/models/{version}/report"),
            ("GET", f"/models/{version}/report/answers.jsonl"),
            ("GET", "/retraining"),
            ("GET", "/searches"),
            ("POST", "/retraining"),
            ("PUT", "@/clicked"),
            ("GET", "/metrics"),
        ):
            assert caller.send(method, path).status_code == 403, (method, path)


def test_the_metrics_need_a_key_without_a_scope(world: World) -> None:
    assert world.client.get("/metrics").status_code == 401
    answer = world.boss.send("GET", "/metrics")
    assert answer.status_code == 200
    assert "simile_" in answer.text


def test_service_and_models_tell_nothing_about_the_documents_of_others(world: World) -> None:
    for caller in (world.acme, world.solo):
        info = caller.get("/info")
        assert info["index"] is None
        assert info["cache"] is None
        assert info["models_dir"] is None
        models = caller.get("/models")
        assert models["schedule"] is None
        assert all(
            each["canary"] is each["total"] is None and each["scores"] == {} for each in models["models"]
        )
        one = caller.get(f"/models/{models['active']}")
        assert one["live_test"] is one["total"] is None
        assert is_clean(json.dumps([info, models, one, caller.get("/v1/models")]))
    assert world.boss.get("/info")["index"]["documents"] >= 13


def test_a_key_tells_its_scope(world: World) -> None:
    me = world.acme2.get("/me")
    assert me["name"] == "acme2"
    assert me["scope"]["filter"] == {"tenant": "acme"}
    assert me["scope"]["collections"] == ["shared", "acme-*"]
    assert world.boss.get("/me")["scope"] is None


def test_judgments_and_events_are_those_of_the_key(world: World) -> None:
    world.acme.post("@/feedback", {"query": "window", "id": "a0", "relevant": True})
    found = world.acme.get("@/search", q="window")
    world.acme.post("@/events", {"search_id": found["search_id"], "id": "a0", "type": "click"})
    for path, field in (("feedback", "feedback"), ("events", "events")):
        rows = world.acme.get(f"@/{path}")[field]
        assert {(row["key"], row["id"]) for row in rows} == {("acme", "a0")}
        assert not rows[0]["trusted"], "a tenant of a shared collection teaches nobody"
        assert world.acme.get(f"@/{path}/count")["count"] == 1
        assert world.acme2.get(f"@/{path}/count")["count"] == 0
        assert world.rival.get(f"@/{path}/count")["count"] >= 2
        for key in ("rival", "boss", "nobody", "-"):
            listed = world.acme.send("GET", f"@/{path}", params={"key": key})
            deleted = world.acme.send("DELETE", f"@/{path}", params={"key": key})
            assert listed.status_code == deleted.status_code == 422
            assert listed.json()["error"].startswith("The key has a filter")
        # Of the same query and the same user, only the own rows are deleted.
        before = world.rival.get(f"@/{path}/count")["count"]
        assert world.acme.send("DELETE", f"@/{path}", params={"query": "window"}).json() == {"deleted": 1}
        assert world.acme.send("DELETE", f"@/{path}", params={"id": "rival-0"}).json() == {"deleted": 0}
        assert world.acme.send("DELETE", f"@/{path}").status_code == 422
        assert world.rival.get(f"@/{path}/count")["count"] == before
    assert world.acme.get("@/feedback/summary")["judgements"] == 0


@pytest.mark.parametrize("who", ["rival", "boss"])
def test_the_search_of_another_tenant_is_unknown(world: World, who: str) -> None:
    caller: Caller = getattr(world, who)
    foreign = caller.get("@/search", q="quasar zebrafish")["search_id"]
    answers = [
        world.acme.send("POST", "@/events", json={"search_id": name, "id": "a0", "type": "click"})
        for name in (foreign, "x" * len(foreign))
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json()["error"].replace(foreign, "") == answers[1].json()["error"].replace("x" * 12, "")
    event = {"search_id": foreign, "query": "tile", "id": "a0", "type": "open"}
    world.acme.post("@/events", event)
    [stored] = world.acme.get("@/events")["events"]
    assert stored["query"] == "tile"
    assert stored["shown"] == []
    assert stored["user"] == ""
    world.acme.send("DELETE", "@/events", params={"id": "a0"})


def use_tool(caller: Caller, name: str, **arguments: Any) -> dict[str, Any]:
    """Returns the result of a tool for agents."""
    params = {"name": name, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"accept": "application/json, text/event-stream"}
    answer = caller.send("POST", "/mcp", json=message, headers=headers)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()["result"]
    return result


def test_the_tools_of_agents_keep_to_the_scope(world: World) -> None:
    found = use_tool(world.acme, "search", query="quasar zebrafish", collection="shared", top_k=50)
    assert {hit["id"] for hit in found["structuredContent"]["documents"]} == {"a0", "a1", "a2"}
    listed = use_tool(world.acme, "list_collections")
    assert [each["name"] for each in listed["structuredContent"]["collections"]] == ["shared"]
    hidden = use_tool(world.acme, "read_document", collection="shared", id="rival-0")
    missing = use_tool(world.acme, "read_document", collection="shared", id="nobody-0")
    assert hidden["isError"]
    assert str(hidden).replace("rival-0", "nobody-0") == str(missing)
    for arguments in ({"collection": "rival-own"}, {"collection": "solo"}, {}):
        assert use_tool(world.acme, "search", query="quasar", **arguments)["isError"]
    document = {"id": "rival-0", "text": "Mine now"}
    assert use_tool(world.acme, "add_documents", documents=[document], collection="shared")["isError"]
    assert world.rival.get("@/documents/rival-0")["text"] != "Mine now"
    assert is_clean(json.dumps([found, listed]))


def test_a_map_is_not_shown_to_keys_with_a_filter(world: World) -> None:
    runtime = world.client.app.state.runtime  # type: ignore[attr-defined]
    version = runtime.active.generation.version
    for name in ("shared", "solo"):
        file = runtime.settings.maps_dir / version / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"version": version, "ids": ["rival-0"], "words": ["quasar"]}))
    assert world.boss.send("GET", "@/map").status_code == 200
    assert world.solo.send("GET", "@/map").status_code == 200
    for params in ({}, {"version": version}):
        answer = world.acme.send("GET", "@/map", params=params)
        assert answer.status_code == 404
        assert is_clean(answer.text)


def test_the_audit_log_names_only_the_own_collection(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.acme.put({"id": "gone", "text": "Soon deleted", "metadata": {"gone": True}})
    caplog.clear()
    world.acme.send("DELETE", "@/documents", params={"filter": '{"gone":true}'})
    world.acme.send("DELETE", "@/events", params={"query": "window"})
    world.acme.send("DELETE", "@/feedback", params={"query": "window"})
    fields = [record.fields for record in caplog.records if record.name == "simile.audit"]  # type: ignore[attr-defined]
    assert [each["deleted"] for each in fields] == [1, 0, 0]
    assert {each["key"] for each in fields} == {"acme"}
    assert is_clean(json.dumps(fields))
