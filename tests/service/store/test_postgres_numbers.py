"""Numbers of metadata come back from jsonb as the embedded store answers them."""

import asyncio
import json
from pathlib import Path

import orjson
import pytest

from service.__main__ import parser, run
from service.store.postgres.connection import Connection
from service.store.values import Document, Embedding, json_of
from tests import postgres
from tests.service.process import Service

pytest.importorskip("psycopg", reason="needs the extra postgres")

from tests.service.store.test_postgres import Place, place, unit

__all__ = ["place"]

WRITTEN = (
    "123456789012345678901234567890 -123456789012345678901234567890 1e308 1.7976931348623157e308 1e15 1e16 "
    "-1e17 1.5e19 12345678901234567.0 9007199254740993 9223372036854775807 9223372036854775808 "
    "-9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616 1 1.0 0.1 1e-5 "
    "1.5e-7 1e-400 5e-324"
).split()
GIVEN = '{"a":"1e+17 \\" 2e+18","b":["123456789012345678901234567890",{"c":[' + ",".join(WRITTEN) + "]}]}"


def test_numbers_come_back_byte_for_byte(place: Place) -> None:
    sent = json_of(orjson.loads(GIVEN))
    documents = [Document("a", "text", sent), Document("b", "text", '{"n":-0.0}')]
    rows = {at: Embedding(unit(), truncated=False) for at in range(2)}

    def forget_text(connection: Connection) -> None:
        """As a version stored it that had no columns for the text and for checksums."""
        connection.execute("UPDATE documents SET sent = NULL, checksums = NULL")

    async def stored() -> list[bytes]:
        found, _ = await place.store.page("", 10, None)
        return [record.metadata_json for record in found]

    async def both() -> tuple[list[bytes], list[bytes]]:
        await place.store.put(documents, {place.live: rows})
        today = await stored()
        await place.store.writer.run(forget_text)
        return today, await stored()

    today, before = asyncio.run(both())
    assert today == [sent.encode(), b'{"n":-0.0}']
    assert before[1] == b'{"n": 0.0}', "jsonb knows no -0.0"
    assert orjson.loads(before[0]) == orjson.loads(sent)


@pytest.mark.long
def test_an_export_has_the_numbers_that_were_sent(tmp_path: Path, tiny_models_dir: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Service(tmp_path, tiny_models_dir, SIMILE_DATABASE=postgres.new_database()) as service:
        metadata = orjson.loads(GIVEN)  # those of more than 64 bits are floats now
        body = {"documents": [{"id": "a", "text": "text", "metadata": metadata}]}
        service.client.post("/documents", json=body).raise_for_status()
        run(parser().parse_args(["export", str(out), "--url", str(service.client.base_url)]))
        hit = service.client.get("/search", params={"q": "text"}).json()["hits"][0]
    [line] = out.read_bytes().splitlines()
    expected = json.loads(json_of(orjson.loads(GIVEN)))
    for found in (json.loads(line)["metadata"], hit["metadata"]):
        assert repr(found) == repr(expected)
