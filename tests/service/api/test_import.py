"""NDJSON over HTTP: all valid lines are stored, for bodies of any size."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from models.encoder import Encoder
from service.api import bulk_import
from service.api.bulk_import import GROUP_DOCUMENTS, UNDER_WAY
from service.corpus.corpus import Corpus, Stored
from service.errors import Overloaded, ServiceError, Timeout, Unhealthy
from service.http import middleware
from service.http.bodies import Slices, StreamedBody
from tests.parts.faults import before_passes, broken
from tests.service.fakes import sqlite_of
from tests.service.one_gib import resident
from tests.service.placed import Ids, serving
from tests.service.process import Service
from tests.service.raw import Answer, Wire, chunked
from tests.service.swapping import TEXTS
from tests.waiting import LIMIT, until

NDJSON = {"Content-Type": "application/x-ndjson"}
VARIABLES = {"SIMILE_MAX_BODY_MB": "1", "SIMILE_MAX_QUEUE_TOKENS": "1200"}
pytestmark = pytest.mark.usefixtures("_emptied")
HEAD = b"\r\n".join(
    [
        b"POST /documents HTTP/1.1",
        b"Host: localhost",
        b"Content-Type: application/x-ndjson",
        b"Transfer-Encoding: chunked",
    ]
)


def line(id: str, text: str, **metadata: object) -> bytes:
    return orjson.dumps({"id": id, "text": text, "metadata": metadata}) + b"\n"


def begin(*headers: bytes) -> bytes:
    """Returns the head of an HTTP request for a chunked import."""
    return b"\r\n".join([HEAD, *headers, b"", b""])


def chunk(piece: bytes) -> bytes:
    return next(iter(chunked([piece])))


def said(answer: Answer) -> dict[str, object]:
    found: dict[str, object] = orjson.loads(answer.body)
    return found


def test_bad_lines_are_reported_with_their_numbers_and_the_others_are_stored(service: Service) -> None:
    body = [
        line("a", "red river", color="red"),
        b"\n",
        b'{"id": "b", "text": \n',
        b'{"id": "c", "text": "\xff\xfe"}\n',
        b"[1, 2]\r\n",
        b'{"id": "d"}\n',
        b'{"id": "e", "text": "  "}\n',
        line("f", "x" * (2 << 20)),
        b'{"id": "g", "text": "green", "txet": 1}\n',
        b'{"id": "h", "text": "stone", "metadata": {"a": "\\u0000"}}\n',
        line("i", "stone", a="x" * (64 << 10)),
        b'{"text": "no id"}\n',
        b'{"id": "last", "text": "green garden"}',
    ]
    with Wire(service) as wire:
        answer = wire.send(begin(), chunked(body)).answer()
    assert answer.status == 200, answer.body
    found = said(answer)
    errors = found.pop("errors")
    assert isinstance(errors, list)
    assert found == {
        "upserted": 3,
        "documents": 3,
        "created": 3,
        "failed": 9,
        "truncated": 0,
        "unknown": 0,
        "sequence": service.client.delete("/documents/nobody").json()["sequence"],
    }
    told = {error["line"]: error["error"] for error in errors}
    assert list(told) == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    words = {3: "JSON", 4: "UTF-8", 5: "object", 6: "text is missing", 7: "white space", 8: "1 MiB"}
    words |= {9: "txet", 10: "null character", 11: "SIMILE_MAX_METADATA_KB"}
    for number, word in words.items():
        assert word in told[number]
    stored = service.stored()
    assert {"a", "last"} < stored.keys()
    assert sorted(stored.values()) == ["green garden", "no id", "red river"]
    assert answer.headers["x-model-version"] == service.client.get("/info").json()["model_version"]


def test_many_documents_go_in_through_a_small_queue_and_of_equal_ids_the_last_wins(service: Service) -> None:
    """Sends more documents than the queue holds and more bytes than a body may have, with repeated ids."""
    count = 40 * GROUP_DOCUMENTS
    rows = [(f"d{at % 700}", f"{TEXTS[at % len(TEXTS)]} {at}") for at in range(count)]
    body = b"".join(line(id, text, padding="x" * 600) for id, text in rows)
    assert len(body) > 1 << 20
    answer = service.client.post("/documents", content=body, headers=NDJSON)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["upserted"], answer.json()["failed"]) == (count, 0)
    assert service.stored() == dict(rows)
    assert int(answer.headers["x-compute-tokens"]) > count

    again = service.client.post(
        "/documents", content=b"".join(line(id, text) for id, text in dict(rows).items()), headers=NDJSON
    )
    assert again.json()["upserted"] == 700
    assert again.headers["x-compute-tokens"] == "0", "text that is stored was embedded again"


def test_only_the_first_hundred_errors_are_listed_and_all_are_counted(service: Service) -> None:
    body = b"".join(b"nonsense\n" if at % 2 else line(f"{at}", TEXTS[at]) for at in range(300))
    answer = service.client.post("/documents", content=body, headers=NDJSON).json()
    assert (answer["upserted"], answer["failed"]) == (150, 150)
    assert [error["line"] for error in answer["errors"]] == list(range(2, 202, 2))


def test_a_body_without_a_line_is_refused(service: Service) -> None:
    answer = service.client.post("/documents", content=b"\n \n", headers=NDJSON)
    assert (answer.status_code, answer.json()["error_type"]) == (400, "Empty")


@pytest.mark.long
def test_what_a_slow_writer_sent_is_stored_while_it_pauses_and_only_silence_ends_it(service: Service) -> None:
    with Wire(service) as wire:
        wire.send(begin(b"x-timeout-ms: 3000"))
        for at in range(4):  # longer than the deadline in total
            whole = chunk(line(f"slow-{at}", TEXTS[at]))
            wire.send(whole[:20])
            time.sleep(0.45)
            wire.send(whole[20:])
            time.sleep(0.45)
        until(lambda: len(service.stored()) >= 4)
        hits = service.client.get("/search", params={"q": TEXTS[3], "k": 1}).json()["hits"]
        assert [hit["id"] for hit in hits] == ["slow-3"]
        answer = wire.answer()  # Waits without sending more data.
    message = answer.refused("/documents", 504, "Timeout")
    assert "3 s" in message
    assert "4 rows were stored" in message
    assert len(service.stored()) == 4


def test_a_client_that_hangs_up_keeps_what_was_stored_and_half_a_line_is_none(service: Service) -> None:
    whole = b"".join(line(f"w{at}", TEXTS[at]) for at in range(2 * GROUP_DOCUMENTS))
    with Wire(service) as wire:
        wire.send(begin(), chunk(whole + b'{"id": "half", "text": "half"}'))
        until(lambda: len(service.stored()) >= 2 * GROUP_DOCUMENTS)
    time.sleep(0.2)
    assert service.stored() == {f"w{at}": TEXTS[at] for at in range(2 * GROUP_DOCUMENTS)}
    until(lambda: "simile_admitted_bytes 0.0" in service.client.get("/metrics").text)


@pytest.mark.long
def test_two_hundred_megabytes_take_no_memory(service: Service) -> None:
    """Repeats lines that are stored already, so nothing is embedded and the test takes only seconds."""
    rows = b"".join(line(f"m{at}", TEXTS[at % len(TEXTS)], note="n" * 4000) for at in range(8 * 64))
    assert service.client.post("/documents", content=rows, headers=NDJSON).json()["failed"] == 0
    before, peak = resident(service.process.pid), 0
    repeats = (200 << 20) // len(rows)

    def pieces() -> Iterator[bytes]:
        nonlocal peak
        for _ in range(repeats):
            yield rows
            peak = max(peak, resident(service.process.pid))

    answer = service.client.post("/documents", content=pieces(), headers=NDJSON, timeout=LIMIT)
    assert answer.json()["upserted"] == repeats * 8 * 64
    assert peak - before < 40 << 20


@pytest.mark.long
def test_a_stop_signal_in_the_middle_refuses_the_rest_and_keeps_what_was_stored(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with Service(tmp_path, tiny_models_dir) as service:
        with Wire(service) as wire:
            wire.send(begin(), chunk(b"".join(line(f"s{at}", TEXTS[at]) for at in range(100))))
            until(lambda: len(service.stored()) >= 100)
            service.process.terminate()
            answer = wire.answer()
            message = answer.refused("/documents", 503, "Unhealthy")
            assert "stopping" in message
            assert "100 rows were stored" in message
            assert answer.headers["retry-after"]
        assert service.process.wait(LIMIT) == 0
        service.start()
        assert service.stored() == {f"s{at}": TEXTS[at] for at in range(100)}


def test_a_text_that_the_model_fails_on_is_one_line_s_failure(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, tiny_models_dir) as place:
        [poison] = [row.ids for row in place.encoder.tokenize(["stone market stone"])]

        def fails(_: Encoder, rows: Ids) -> None:
            if any(list(row) == list(poison) for row in rows):
                raise RuntimeError("poison")

        before_passes(monkeypatch, fails)
        texts = {f"p{at}": TEXTS[at] for at in range(3 * GROUP_DOCUMENTS)} | {"p77": "stone market stone"}
        body = b"".join(line(id, text) for id, text in texts.items())
        answer = place.client.post("/documents", content=body, headers=NDJSON).json()
        assert (answer["upserted"], answer["failed"]) == (3 * GROUP_DOCUMENTS - 1, 1)
        assert [error["line"] for error in answer["errors"]] == [78]
        assert place.client.get("/documents/p77").status_code == 404
        assert place.client.get("/documents/count").json()["count"] == 3 * GROUP_DOCUMENTS - 1

        before_passes(monkeypatch, broken)
        new = b"".join(line(f"q{at}", f"{at} new") for at in range(300))
        refused = place.client.post("/documents", content=new, headers=NDJSON)
        assert (refused.status_code, refused.json()["error_type"]) == (424, "Backend")
        assert "Nothing of the import was stored" in refused.json()["error"]
        monkeypatch.undo()
        until(lambda: place.metric("simile_healthy") == 1)


@pytest.mark.parametrize(
    ("fault", "known"),
    [(Unhealthy("A fault."), False), (Timeout("Late."), False), (Overloaded("Full."), True)],
)
def test_what_may_have_been_stored_by_an_attempt_that_failed_is_not_counted_as_stored_before(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, fault: ServiceError, known: bool
) -> None:
    put = Corpus.put
    faults: list[ServiceError] = []

    async def fails(self: Corpus, *given: Any) -> Stored:
        refused = faults.pop() if faults else None
        if refused is not None and known:
            raise refused
        stored = await put(self, *given)
        if refused is not None:
            raise refused
        return stored

    with serving(tmp_path, tiny_models_dir) as place:
        monkeypatch.setattr(Corpus, "put", fails)
        faults[:] = [fault]
        lines = place.client.post("/documents", content=line("a", "red"), headers=NDJSON).json()
        assert (lines["documents"], lines["created"]) == (1, 1 if known else None)
        faults[:] = [fault]
        raw = {"Content-Type": "application/octet-stream"}
        rows = b"id,text\na,red\nb,blue\n"
        found = place.client.post("/files", params={"name": "x.csv"}, content=rows, headers=raw).json()
        counted = (1, 1, "2 rows stored; 1 of them had been stored before.")
        assert (found["created"], found["replaced"], found["summary"]) == (
            counted if known else (None, None, "2 rows stored.")
        )


def test_of_equal_ids_the_last_wins_also_when_its_group_is_embedded_first(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, tiny_models_dir, workers=2) as place:
        [slow] = [row.ids for row in place.encoder.tokenize(["stone market stone"])]

        def lingers(_: Encoder, rows: Ids) -> None:
            if any(list(row) == list(slow) for row in rows):
                time.sleep(1)

        before_passes(monkeypatch, lingers)
        texts = ["stone market stone"] * GROUP_DOCUMENTS + ["red river"] * GROUP_DOCUMENTS
        body = b"".join(line(f"{at % GROUP_DOCUMENTS}", text) for at, text in enumerate(texts))
        assert place.client.post("/documents", content=body, headers=NDJSON).json()["upserted"] == len(texts)
        stored = place.client.get("/documents", params={"limit": 1000}).json()["documents"]
        assert {document["text"] for document in stored} == {"red river"}


@pytest.mark.sqlite("a full disk is injected into its writer")
def test_a_disk_that_fails_in_the_middle_is_507_and_says_what_was_stored(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with serving(tmp_path, tiny_models_dir) as place:
        connection = sqlite_of(place.runtime.corpus).connection
        first = b"".join(line(f"a{at}", TEXTS[at]) for at in range(GROUP_DOCUMENTS * UNDER_WAY))

        def body() -> Iterator[bytes]:
            yield first
            stored = GROUP_DOCUMENTS * UNDER_WAY
            until(lambda: place.runtime.active.generation.indexes.documents == stored)
            connection.execute("PRAGMA query_only = 1")
            for at in range(300):
                yield line(f"b{at}", TEXTS[at])

        answer = place.client.post("/documents", content=body(), headers=NDJSON)
        connection.execute("PRAGMA query_only = 0")
        assert (answer.status_code, answer.json()["error_type"]) == (507, "Storage")
        assert f"{GROUP_DOCUMENTS * UNDER_WAY} rows were stored" in answer.json()["error"]
        assert f"up to {GROUP_DOCUMENTS * UNDER_WAY}" in answer.json()["error"]
        assert place.client.get("/documents/count").json()["count"] == GROUP_DOCUMENTS * UNDER_WAY
        until(lambda: place.metric("simile_admitted_bytes") == 0)


def test_an_import_waits_while_other_bodies_fill_the_room(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, tiny_models_dir, max_admitted_mb=1) as place:
        release = threading.Event()
        before_passes(monkeypatch, lambda *_: release.wait(LIMIT))
        large = threading.Thread(target=place.embed, args=["word " * ((1 << 20) // 5 - 10)])
        large.start()
        until(lambda: place.metric("simile_admitted_bytes") > 1_000_000)
        answers = []

        def send() -> None:
            body = b"".join(line(f"{at}", "red river", note="n" * 40_000) for at in range(60))
            answers.append(place.client.post("/documents", content=body, headers=NDJSON))

        sender = threading.Thread(target=send)
        sender.start()
        time.sleep(0.5)
        assert not answers
        assert place.metric("simile_admitted_bytes") < 1.5 * (1 << 20), "it was read all the same"
        release.set()
        sender.join(LIMIT)
        large.join(LIMIT)
        assert answers[0].status_code == 200
        assert answers[0].json()["upserted"] == 60


@pytest.mark.long
def test_what_holds_no_document_takes_no_room(tmp_path: Path, tiny_models_dir: Path) -> None:
    """Each part of the body exceeds the memory limit, but lines without a document do not occupy memory."""
    with serving(tmp_path, tiny_models_dir, max_admitted_mb=1) as place:
        body = (
            (b"nonsense" + b" " * 92 + b"\n") * 30_000
            + b"\n" * (3 << 20)
            + b"e" * (3 << 20)
            + b"\n"
            + line("a", "red river")
        )
        answer = place.client.post("/documents", content=body, headers=NDJSON).json()
        assert (answer["upserted"], answer["failed"]) == (1, 30_001)
        until(lambda: place.metric("simile_admitted_bytes") == 0)


@pytest.mark.parametrize("ends", [b"{}\n" * 2000, b"\n" * 200_000], ids=["no documents", "empty lines"])
def test_others_have_a_turn_while_lines_come_that_hold_nothing(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, ends: bytes
) -> None:
    rests: list[None] = []

    class Counted(Slices):
        async def rest(self) -> None:
            rests.append(None)
            await super().rest()

    moved: list[None] = []

    class Moving(StreamedBody):
        def moved(self) -> None:
            moved.append(None)
            super().moved()

    monkeypatch.setattr(bulk_import, "Slices", Counted)
    monkeypatch.setattr(middleware, "StreamedBody", Moving)
    with serving(tmp_path, tiny_models_dir) as place:
        body = ends + line("a", "red river")
        answer = place.client.post("/documents", content=body, headers=NDJSON).json()
    assert (answer["upserted"], answer["failed"]) == (1, ends.count(b"{"))
    assert len(rests) > max(ends.count(b"{"), len(ends) // 4097)
    assert len(moved) > len(ends) // 4097, "a long piece would pass its deadline"


@pytest.mark.long
def test_a_slice_that_is_over_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.001, 0.1, 0.1, 0.101])
    monkeypatch.setattr("service.http.bodies.time", SimpleNamespace(perf_counter=lambda: next(now)))
    turns: list[None] = []

    async def work() -> None:
        slices = Slices()
        other = asyncio.ensure_future(wait())
        await slices.rest()
        assert not turns
        await slices.rest()
        assert turns
        await other

    async def wait() -> None:
        turns.append(None)

    asyncio.run(work())
