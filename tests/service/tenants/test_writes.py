"""What keys with a scope write: stamped documents, within their scope and their quota."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.auth.key_scope import KeyScope
from service.corpus.tenants import Tenants
from service.errors import Conflict, Timeout
from service.store.values import Document, Usage
from tests.service.tenants.conftest import World

TAKEN = (
    "The key may not write one of these ids. Tenants share the ids of a collection, so begin each id with a "
    "prefix of your own."
)


def metadata_of(world: World, id: str) -> Any:
    return world.boss.get(f"@/documents/{id}")["metadata"]


def test_documents_are_stamped_on_every_way_in(world: World) -> None:
    world.acme.put(
        {"id": "w1", "text": "One"}, {"id": "w2", "text": "Two", "metadata": {"tenant": "acme", "n": 1}}
    )
    lines = (
        b'{"id":"w3","text":"Three","metadata":{"n":12345678901234567890123}}\n{"id":"w4","text":"Four"}\n'
    )
    headers = {"content-type": "application/x-ndjson"}
    answer = world.acme.send("POST", "@/documents", content=lines, headers=headers)
    assert answer.json()["upserted"] + answer.json()["failed"] == 2
    raw = {"content-type": "application/octet-stream"}
    table = b"id,text,tenant\nw5,Five,acme\nw6,Six,rival\n"
    told = world.acme.send("POST", "@/files?name=t.csv&metadata=*", content=table, headers=raw).json()
    assert told["rows"] == 1
    assert told["failed"] == 1
    assert "metadata.tenant" in told["errors"][0]["error"]
    for id in ("w1", "w2", "w4", "w5"):
        assert metadata_of(world, id)["tenant"] == "acme"
    assert metadata_of(world, "w2") == {"tenant": "acme", "n": 1}
    assert world.boss.send("GET", "@/documents/w6").status_code == 404
    world.acme.send(
        "DELETE", "@/documents", params={"filter": json.dumps({"$ids": [f"w{n}" for n in range(9)]})}
    )


@pytest.mark.parametrize("value", ["rival", ["acme"], ["acme", "rival"], None, {"a": 1}, 1, True])
def test_another_value_than_that_of_the_filter_is_refused(world: World, value: Any) -> None:
    body = {
        "documents": [{"id": "v1", "text": "ok"}, {"id": "v", "text": "t", "metadata": {"tenant": value}}]
    }
    answer = world.acme.send("POST", "@/documents", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"] == (
        "The document 'v' must have metadata.tenant = \"acme\", the value of the key's filter. Leave the "
        "field out, and it is added."
    )
    assert world.boss.send("GET", "@/documents/v1").status_code == 404


@pytest.mark.parametrize("id", ["rival-0", "plain"])
def test_a_document_of_others_is_never_replaced(world: World, id: str) -> None:
    before = world.boss.get(f"@/documents/{id}")
    body = {"documents": [{"id": "mine", "text": "mine"}, {"id": id, "text": before["text"]}]}
    answer = world.acme.send("POST", "@/documents", json=body)
    assert answer.status_code == 403
    assert answer.json() == {"error": TAKEN, "error_type": "Forbidden"}
    lines = "".join(json.dumps(document) + "\n" for document in body["documents"])
    headers = {"content-type": "application/x-ndjson"}
    told = world.acme.send("POST", "@/documents", content=lines.encode(), headers=headers).json()
    assert told["upserted"] == 1
    assert told["errors"] == [{"line": 2, "error": TAKEN}]
    assert world.boss.get(f"@/documents/{id}") == before
    assert world.acme.send("DELETE", "@/documents/mine").json()["deleted"] == 1


def test_two_tenants_store_the_same_text_without_an_id(world: World) -> None:
    """Its id would tell that another tenant has the text, and keep it from the second one."""
    text = "The terms of payment are thirty days."
    lines = {
        "content": json.dumps({"text": text}).encode(),
        "headers": {"content-type": "application/x-ndjson"},
    }
    raw = {"content": text.encode(), "headers": {"content-type": "application/octet-stream"}}
    ids = {}
    for caller in (world.acme, world.rival, world.boss):
        [ids[caller]] = caller.put({"text": text})["ids"]
        assert caller.put({"text": text})["ids"] == [ids[caller]], "stored only once"
        for path, way in (("@/documents", lines), ("@/files?name=x.txt", raw)):
            told = caller.send("POST", path, **way).json()
            assert (told["failed"], told["created"]) == (0, 0), told
    assert len({*ids.values()}) == 3
    assert world.acme.send("DELETE", f"@/documents/{ids[world.rival]}").json()["deleted"] == 0
    for caller, id in ids.items():
        assert caller.send("DELETE", f"@/documents/{id}").json()["deleted"] == 1


def test_two_tenants_that_write_one_new_id_at_once_do_not_replace_each_other(world: World) -> None:
    def write(at: int) -> tuple[str, int]:
        name = ("acme", "rival")[at % 2]
        body = {"documents": [{"id": f"race-{at // 2}", "text": f"By {name}"}]}
        return name, getattr(world, name).send("POST", "@/documents", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(write, range(40)))
    for at in range(20):
        pair = answers[2 * at : 2 * at + 2]
        assert sorted(status for _, status in pair) == [200, 403]
        [winner] = [name for name, status in pair if status == 200]
        assert metadata_of(world, f"race-{at}") == {"tenant": winner}
    for caller in (world.acme, world.rival):
        ids = [id for id in caller.ids(limit=1000) if id.startswith("race-")]
        caller.send("DELETE", "@/documents", params={"filter": json.dumps({"$ids": ids})})


def test_a_key_makes_collections_below_its_prefix_only(world: World) -> None:
    body = {"documents": [{"id": "x", "text": "A new collection"}]}
    assert world.acme.send("POST", "/collections/acme-new/documents", json=body).status_code == 200
    assert world.acme.send("POST", "/collections/acm/documents", json=body).status_code == 404
    assert world.solo.send("POST", "/collections/solo-new/documents", json=body).status_code == 200
    assert world.solo.send("DELETE", "/collections/solo-new").json()["deleted"] == 1
    assert world.boss.send("DELETE", "/collections/acme-new").json()["deleted"] == 1


def stored(world: World) -> int:
    return int(world.boss.get("@/documents/count", filter='{"tenant":"small"}')["count"])


def test_a_quota_of_documents_holds_before_anything_is_embedded(world: World) -> None:
    world.small.put(*({"id": f"q{at}", "text": "t"} for at in range(3)))
    body = {"documents": [{"id": "q7", "text": "t"}, {"id": "q8", "text": "t"}]}
    answer = world.small.send("POST", "@/documents", json=body)
    assert answer.status_code == 409
    assert answer.json()["error_type"] == "Conflict"
    assert "quota: 4 documents and 900 bytes. It has 3 documents" in answer.json()["error"]
    assert stored(world) == 3
    world.small.put({"id": "q3", "text": "t"})
    world.small.put({"id": "q0", "text": "changed"}, {"id": "q3", "text": "t"})  # Replacing needs no room.
    lines = b"".join(b'{"id":"q%d","text":"t"}\n' % at for at in range(4, 9))
    headers = {"content-type": "application/x-ndjson"}
    told = world.small.send("POST", "@/documents", content=lines, headers=headers)
    assert told.status_code == 409
    assert "Nothing of the import was stored." in told.json()["error"]
    assert world.small.send("DELETE", "@/documents/q1").json()["deleted"] == 1
    world.small.put({"id": "q9", "text": "t"})  # The room of a deleted document is free at once.
    assert stored(world) == 4
    world.small.send("DELETE", "@/documents", params={"filter": '{"tenant":"small"}'})


def test_a_quota_of_bytes_counts_titles_texts_and_metadata(world: World) -> None:
    world.small.put({"id": "b1", "text": "é" * 300})
    for part in (
        {"text": "é" * 150},
        {"text": "t", "title": "T" * 300},
        {"text": "t", "metadata": {"m": "M" * 300}},
    ):
        assert (
            world.small.send("POST", "@/documents", json={"documents": [{"id": "b2", **part}]}).status_code
            == 409
        )
    world.small.put({"id": "b1", "text": "x" * 800})
    world.small.send("DELETE", "@/documents", params={"filter": '{"tenant":"small"}'})


def test_writers_at_once_do_not_exceed_a_quota(world: World) -> None:
    def write(at: int) -> int:
        body = {"documents": [{"id": f"c{at}", "text": f"text {at}"}]}
        return world.small.send("POST", "@/documents", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(write, range(24)))
    assert answers.count(200) == stored(world) == 4
    assert set(answers) == {200, 409}
    world.small.send("DELETE", "@/documents", params={"filter": '{"tenant":"small"}'})


def test_replacing_at_a_full_quota_succeeds_also_at_once(world: World) -> None:
    world.small.put(*({"id": f"r{at}", "text": "t"} for at in range(4)))

    def replace(at: int) -> int:
        body = {"documents": [{"id": f"r{at % 4}", "text": f"text {at}"}]}
        return world.small.send("POST", "@/documents", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(replace, range(24))} == {200}
    world.small.send("DELETE", "@/documents", params={"filter": '{"tenant":"small"}'})


def test_an_import_can_be_repeated_at_a_full_quota(world: World) -> None:
    for turn in ("first", "second"):
        lines = b"".join(b'{"id":"m%d","text":"%s %d"}\n' % (at, turn.encode(), at) for at in range(300))
        headers = {"content-type": "application/x-ndjson"}
        told = world.many.send("POST", "@/documents", content=lines, headers=headers)
        assert told.status_code == 200, told.text
        assert told.json()["upserted"] == 300
    one_more = {"documents": [{"id": "more", "text": "t"}]}
    assert world.many.send("POST", "@/documents", json=one_more).status_code == 409
    world.boss.send("DELETE", "/collections/many")


def test_a_key_cannot_use_up_the_collections_of_all(world: World) -> None:
    body = {"documents": [{"id": "x", "text": "t"}]}

    def make(at: int) -> int:
        return world.few.send("POST", f"/collections/few-{at}/documents", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(make, range(8)))
    made = [at for at, status in enumerate(answers) if status == 200]
    assert len(made) == 2
    assert answers.count(409) == 6
    answer = world.few.send("POST", "/collections/few-9/documents", json=body)
    assert answer.status_code == 409
    assert "its quota: 2 collections" in answer.json()["error"]
    assert make(made[0]) == 200, "an existing collection needs no room"
    assert len(world.few.get("/collections")["collections"]) == 2
    world.few.send("DELETE", f"/collections/few-{made[0]}")
    assert make(9) == 200
    for name in (made[1], 9):
        world.few.send("DELETE", f"/collections/few-{name}")


class CountsOnce:
    """A store with ten documents, of which a count fails while `fault` is set."""

    others = 0
    fault: Exception | None = None

    async def measure(self, _: object, __: object, writes: list[object]) -> tuple[Usage, list[Usage]]:
        if self.fault is not None:
            raise self.fault
        return Usage(10, 10), [Usage(0, 0)] * len(writes)


@pytest.mark.anyio
async def test_a_count_that_fails_does_not_make_room() -> None:
    scope, documents = KeyScope(("a",), max_documents=10), [Document("d", "t", "{}", "")]
    store = CountsOnce()
    tenants = Tenants(store)  # type: ignore[arg-type]
    for fault, refusal in ((Timeout("slow"), Timeout), (None, Conflict), (None, Conflict)):
        store.fault = fault
        with pytest.raises(refusal):
            async with tenants.reserved(scope, documents, "a"):
                pass
