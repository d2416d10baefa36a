"""Limits of a document's metadata, and the memory of large bodies and answers."""

import asyncio
import contextlib
import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from service import memory
from service.errors import Validation
from service.files.metadata import MAX_DEPTH, check_metadata
from service.http import bodies
from service.http.bodies import CHUNK_BYTES, LARGE_BYTES, in_chunks, json_array
from tests.service.fakes import run

LIMIT = 64 << 10
NDJSON = {"content-type": "application/x-ndjson"}


def of_size(count: int) -> dict[str, str]:
    """Returns metadata with `count` bytes of JSON."""
    return {"a": "x" * (count - len('{"a":""}'))}


def nested(levels: int, end: object) -> Any:
    for _ in range(levels):
        end = [end]
    return end


def post(client: TestClient, *metadata: object) -> Any:
    rows = [{"id": f"m{at}", "text": "a", "metadata": one} for at, one in enumerate(metadata)]
    return client.post("/documents", json={"documents": rows})


def test_what_is_larger_is_refused_and_nothing_of_the_request_is_stored(client: TestClient) -> None:
    before = client.get("/documents/count").json()["count"]
    refused = post(client, {}, of_size(LIMIT + 1))
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("documents[1].metadata has 65537 bytes")
    assert "64 KiB (SIMILE_MAX_METADATA_KB)" in refused.json()["error"]
    assert client.get("/documents/count").json()["count"] == before
    assert post(client, of_size(LIMIT)).status_code == 200


def test_depth_and_null_characters_are_found_and_what_only_looks_like_them_is_not() -> None:
    deep = nested(MAX_DEPTH - 1, 1)
    for metadata in ({"a": deep}, {"[" * 99: '"[{\\' * 99, "b": [{}] * 99, "\\": "[" * 99}):
        assert orjson.loads(check_metadata(metadata, "metadata", 64)) == metadata
    with pytest.raises(Validation, match="32 levels"):
        check_metadata({"a": nested(MAX_DEPTH, 1)}, "metadata", 64)
    for allowed in ("\\u0000", "u0000", "\\\\u0000", "\\"):
        assert orjson.loads(check_metadata({allowed: allowed}, "metadata", 64)) == {allowed: allowed}
    for refused in ({"a": "\0"}, {"\0": 1}, {"a": ["\\\0"]}, {"a": "\\\\\0"}):
        with pytest.raises(Validation, match="null character"):
            check_metadata(refused, "metadata", 64)


class Numbers(BaseModel):
    numbers: list[Any]


def request_of(content: bytes, turn: asyncio.Lock) -> Any:
    async def read() -> bytes:
        return content

    runtime = SimpleNamespace(large_bodies=turn, settings=SimpleNamespace(max_values=2_500_000))
    return SimpleNamespace(
        headers=Headers({"content-type": "application/json"}),
        body=read,
        app=SimpleNamespace(state=SimpleNamespace(runtime=runtime)),
    )


@pytest.mark.parametrize("sound", [True, False])
def test_large_bodies_are_parsed_one_at_a_time_and_small_ones_wait_for_none(sound: bool) -> None:
    large = b'{"numbers":[' + b"1," * LARGE_BYTES + (b"1]}" if sound else b"!")
    inside, most, small = 0, 0, 0

    async def read() -> None:
        nonlocal inside, most, small
        turn = asyncio.Lock()

        async def one(content: bytes) -> None:
            nonlocal inside, most, small
            with contextlib.nullcontext() if sound else pytest.raises(Validation):
                async with bodies.parsed_body(request_of(content, turn), Numbers):
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0)
                    async with bodies.parsed_body(request_of(b'{"numbers":[]}', turn), Numbers):
                        small += 1
                    inside -= 1

        await asyncio.gather(*(one(large) for _ in range(3)))
        assert not turn.locked()

    run(read)
    assert (most, small) == ((1, 3) if sound else (0, 0))


def test_answers_are_cut_into_chunks() -> None:
    values = [b"1" * size for size in (1, 5, CHUNK_BYTES, 7, 3 * CHUNK_BYTES, 2)]
    chunks = in_chunks(json_array([value] for value in values))
    assert b"".join(chunks) == b"[" + b",".join(values) + b"]"
    assert all(chunk in values or len(chunk) <= CHUNK_BYTES for chunk in chunks)
    assert in_chunks([]) == []
    assert in_chunks([b""]) in ([], [b""])
    assert in_chunks(json_array([])) == [b"[]"]


def test_memory_is_given_back_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Timer] = []
    monkeypatch.setattr(memory, "_trim_is_due", threading.Lock())

    def start(timer: threading.Timer) -> None:
        started.append(timer)

    monkeypatch.setattr(threading.Timer, "start", start)
    for _ in range(5):
        memory.give_back()
    [timer] = started
    timer.function()
    memory.give_back()
    assert len(started) == 2


@pytest.mark.parametrize(("chosen", "calls"), [(None, [(-8, 2)]), ("8", [])])
def test_threads_share_arenas_unless_somebody_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, calls: list[object]
) -> None:
    made: list[object] = []
    corpus = SimpleNamespace(mallopt=lambda *given: made.append(given))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: corpus)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if chosen is not None:
        monkeypatch.setenv("MALLOC_ARENA_MAX", chosen)
    memory.limit_arenas(memory.ARENAS)
    assert made == calls
