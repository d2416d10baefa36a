"""In both stores, a value comes back unchanged, or is rejected with the name of its field."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from models.files import exact_json
from service.api.openapi import StoredQuery, StoredText, StoredTitle
from service.settings import Settings
from tests.service.conftest import new_settings, serving

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
NULL = "it has the character U+0000, which cannot be stored. Leave it out."
HALF = "has half of a surrogate pair (U+D800). Leave it out."
WHOLE = "Whole numbers are stored from -9223372036854775808 to 18446744073709551615. Send it as a text."
TWICE = "comes twice in one object. Send each name once."


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[TestClient]:
    with serving(new_settings(tmp_path_factory.mktemp("values"), tiny_models_dir)) as client:
        yield client


def put(client: TestClient, document: str) -> str | None:
    """Sends these JSON fields of a document as JSON and as NDJSON. Returns the error message, or None."""
    one = "{" + document + "}"
    body = client.post("/documents", content=f'{{"documents":[{one}]}}'.encode(), headers=JSON)
    line = client.post("/documents", content=one.encode(), headers=NDJSON)
    if body.status_code == 200:
        assert line.json()["upserted"] == 1
        return None
    assert body.status_code == 422, body.text
    said: str = body.json()["error"]
    [of_line] = [error["error"] for error in line.json()["errors"]]
    assert said in {f"documents[0].{of_line}", of_line.replace("The body", "documents[0]")}
    return said


def read(client: TestClient, id: str) -> str:
    """Returns the unparsed page of a document, because parsing could hide a change."""
    return client.get("/documents", params={"id": id}).text


METADATA = {
    "beyond a float": "9007199254740993",
    "the largest signed": "9223372036854775807",
    "the largest": "18446744073709551615",
    "the least": "-9223372036854775808",
    "minus zero": "-0.0",
    "a whole float": "1.0",
    "one": "1",
    "a sum": "0.30000000000000004",
    "subnormal": "5e-324",
    "the largest float": "1.7976931348623157e+308",
    "large floats": "[1e+16,1e+22,1.5e+300]",
    "the order of names": '{"z":1,"a":2,"aa":{"z":1,"b":2},"ccc":0}',
    "names that differ by their form": '{"e\u0301":1,"\u00e9":2}',
    "empty values": '["",null,[],{},false]',
    "a long text": '"' + "x" * 30_000 + '"',
    "line ends": '"\\r\\n\\t\\u001f\u007f\u2028"',
    "a mark": '"\ufeff"',
    "an emoji": '"😀"',
    "no escape": '"\\\\u0000 \\\\ud800"',
    "a colon that is escaped": '"a:b"',
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_come_back_byte_for_byte(stored: TestClient, name: str) -> None:
    assert put(stored, f'"id":"k","text":"t","metadata":{{"a":{METADATA[name]}}}') is None
    assert f'"metadata":{{"a":{METADATA[name]}}}' in read(stored, "k")


def test_a_number_of_another_kind_is_a_change(stored: TestClient) -> None:
    """PostgreSQL considers 1, 1.0 and 1.00 equal."""
    for number in ("1.0", "1", "-0.0", "0", "0.0"):
        assert put(stored, f'"id":"n","text":"t","metadata":{{"a":{number}}}') is None
        assert f'{{"a":{number}}}' in read(stored, "n")


TEXTS = [" x ", "\r\nx\r\n", "\ufeffx", "\tx", "e\u0301", "\u200b", "x\u2028", "x" * 100_000, '"\\u0000"']
TITLES = [" x ", "\u00a0x", "a\nb", "x\r\n", "\u200b"]
IDS = [
    " ",
    " x",
    "x ",
    "a/b",
    ".",
    "..",
    "e\u0301",
    "\u00e9",
    "\n",
    "a?b#c%41",
    "count",
    "\ufeffx",
    "\x01" * 512,
]


def test_texts_titles_and_ids_come_back_unchanged(stored: TestClient) -> None:
    rows: list[dict[str, Any]] = [
        *({"id": f"text {at}", "text": text, "metadata": {}} for at, text in enumerate(TEXTS)),
        *({"id": f"title {at}", "title": it, "text": "t", "metadata": {}} for at, it in enumerate(TITLES)),
        *({"id": id, "text": f"of {at}", "metadata": {}} for at, id in enumerate(IDS)),
    ]
    assert stored.post("/documents", json={"documents": rows}).status_code == 200
    for row in rows:
        assert stored.get("/documents", params={"id": row["id"]}).json()["documents"] == [row]


REFUSED = {
    "a larger whole number": (
        '"text":"t","metadata":{"a":18446744073709551616}',
        f"metadata.a is 18446744073709551616. {WHOLE}",
    ),
    "a smaller one": (
        '"text":"t","metadata":{"a":[-9223372036854775809]}',
        f"metadata.a[0] is -9223372036854775809. {WHOLE}",
    ),
    "thirty digits": ('"text":"t","metadata":{"a":123456789012345678901234567890}', WHOLE),
    "five thousand digits": ('"text":"t","metadata":{"a":%s}' % ("9" * 5000), WHOLE),
    "infinity": ('"text":"t","metadata":{"a":1e400}', "metadata.a is 1e400, which is too large for"),
    "what becomes 0": ('"text":"t","metadata":{"a":{"b":1e-400}}', "metadata.a.b is 1e-400, which a 64-bit"),
    "many digits": ('"text":"t","metadata":{"a":0.%s1}' % ("0" * 400), "which a 64-bit float rounds to 0"),
    "NaN": ('"text":"t","metadata":{"a":NaN}', "metadata.a is NaN, which JSON does not have"),
    "-Infinity": ('"text":"t","metadata":{"a":-Infinity}', "metadata.a is -Infinity"),
    "equal names": ('"text":"t","metadata":{"a":1,"b":{"c":1,"c":2}}', f"metadata.b.c {TWICE}"),
    "equal names, escaped": ('"text":"t","metadata":{"a":1,"\\u0061":"\\u003a"}', f"metadata.a {TWICE}"),
    "two texts": ('"text":"t","text":"u"', f"text {TWICE}"),
    "half a pair in metadata": ('"text":"t","metadata":{"a":["\\ud800"]}', f"metadata.a[0] {HALF}"),
    "half a pair in a name": ('"text":"t","metadata":{"\\ud800":1}', "metadata has a name with half of"),
    "half a pair in a text": ('"text":"\\ud800"', f"text {HALF}"),
    "half a pair in a title": ('"text":"t","title":"\\ud800"', f"title {HALF}"),
    "U+0000 in metadata": ('"text":"t","metadata":{"a":"\\u0000"}', "metadata holds a null character"),
    "U+0000 in a name": ('"text":"t","metadata":{"\\u0000":1}', "metadata holds a null character"),
    "U+0000 in a text": ('"text":"a\\u0000b"', f"text: {NULL}"),
    "U+0000 alone": ('"text":"\\u0000"', f"text: {NULL}"),
    "U+0000 in a title": ('"text":"t","title":"\\u0000"', f"title: {NULL}"),
    "U+0000 in an id": ('"text":"t","id":"a\\u0000b"', f"id: {NULL}"),
    "a title of white space": ('"text":"t","title":" \\u00a0\\n"', "title is white space only. Leave it"),
    "no metadata": ('"text":"t","metadata":null', "metadata must be an object, not null."),
    "an empty id": ('"text":"t","id":""', "id must be a text of at least 1 character"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused_by_its_field(stored: TestClient, name: str) -> None:
    document, reason = REFUSED[name]
    before = stored.get("/documents/count").json()
    assert f"documents[0].{reason}" in (said := str(put(stored, document))) or reason in said
    assert said.startswith("documents[0].")
    assert stored.get("/documents/count").json() == before


JUDGED = {"query": "q", "id": "k", "relevant": True}
CLICK = {"search_id": "s", "id": "k", "type": "click", "query": "q", "event_id": "e"}


def test_judgments_and_events_come_back_unchanged_or_are_refused(stored: TestClient) -> None:
    assert put(stored, '"id":"k","text":"t"') is None
    for query in (" x ", "\r\n x", "\ufeffq", "e\u0301", "q\u200b", "".join(map(chr, range(0x4E00, 0x5E00)))):
        assert stored.post("/feedback", json=JUDGED | {"query": query}).status_code == 200
        assert stored.get("/feedback").json()["feedback"][-1]["query"] == query
        event = CLICK | {"query": query, "event_id": query[:64], "at": "2026-11-20T08:30:00.123456Z"}
        if stored.post("/events", json=event).status_code != 409:  # 409: too old to be kept
            shown = stored.get("/events").json()["events"][-1]
            assert {name: shown[name] for name in event} == event
    for path, base in (("/feedback", JUDGED), ("/events", CLICK)):
        for field in {"query", "id", "search_id", "event_id"} & base.keys():
            refused = stored.post(path, json=base | {field: "a\0"})
            assert (refused.status_code, refused.json()["error"]) == (422, f"{field}: {NULL}")
            half = json.dumps(base | {field: "\ud800"})
            refused = stored.post(path, content=half.encode(), headers=JSON)
            assert (refused.status_code, refused.json()["error"]) == (422, f"{field} {HALF}")
        twice = json.dumps(base)[:-1] + ',"id":"other"}'
        assert stored.post(path, content=twice.encode(), headers=JSON).json()["error"] == f"id {TWICE}"
    refused = stored.post("/events", json=CLICK | {"shown": ["k", "\0"]})
    assert refused.json()["error"] == f"shown[1]: {NULL}"


def test_a_search_for_a_null_character_leaves_no_event_that_cannot_be_stored(stored: TestClient) -> None:
    assert put(stored, '"id":"k","text":"t"') is None
    found = stored.get("/search", params={"q": "a\0b"}).json()
    event = {"search_id": found["search_id"], "id": "k", "type": "click"}
    refused = stored.post("/events", json=event)
    assert refused.status_code == 422
    assert "U+0000" in refused.json()["error"]


characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
documents = st.fixed_dictionaries(
    {"id": texts, "text": texts, "metadata": st.dictionaries(texts, values, max_size=4)},
    optional={"title": texts},
)


@settings(
    max_examples=60, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(document=documents)
def test_any_document_comes_back_or_names_its_field(stored: TestClient, document: dict[str, Any]) -> None:
    sent = json.dumps({"documents": [document]})
    answer = stored.post("/documents", content=sent.encode(), headers=JSON)
    if answer.status_code != 200:
        assert answer.status_code in {400, 422}, answer.text
        assert answer.json()["error"].startswith("documents[0].")
        return
    [found] = json.loads(read(stored, document["id"]))["documents"]
    # -0 as a whole number is 0. repr distinguishes 1 from 1.0 and different orders of names.
    assert repr(found) == repr({name: document[name] for name in found})
    assert not document.get("title") or "title" in found


@pytest.mark.parametrize("kind", [StoredText, StoredTitle, StoredQuery])
def test_the_openapi_document_describes_texts_without_null_characters(kind: Any) -> None:
    pattern = TypeAdapter(kind).json_schema()["pattern"]
    for allowed in ("A", " A ", "a\nb", "ß"):
        assert re.search(pattern, allowed)
    for refused in ("\0", "A\0", "\0A", " \0 ", "A\0B"):
        assert not re.search(pattern, refused)


def test_numbers_are_read_at_the_edges_of_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_json, "_SLICE_BYTES", 7)
    good = b'{"a":"\\\\\\"99999999999999999999","b":[0.12345678901234567890,1e-12,-9223372036854775808]}'
    assert exact_json.loads(good) == orjson.loads(good)
    with pytest.raises(exact_json.Inexact, match=r"^b\[1\] is 99999999999999999999\."):
        exact_json.loads(b'{"a":"\\\\\\"9","b":[1,99999999999999999999]}')


# A new process, because other threads of this one would be measured.
MEASURE = """
import json, sys, tracemalloc
from service.api.openapi import StoredQuery, StoredText, StoredTitle
from models.files import exact_json
for body in map(str.encode, json.load(sys.stdin)):
    tracemalloc.start()
    try:
        exact_json.loads(body)
    except exact_json.Inexact as error:
        print(json.dumps([tracemalloc.get_traced_memory()[1] / len(body), str(error)]))
    tracemalloc.stop()
"""


def test_a_deep_value_among_many_takes_the_memory_of_its_body() -> None:
    many, levels = 2000, 200  # Equal names are detected up to depth 254.
    refused = {
        "[" + "0," * many + "1e400]": r"\[2000\] is 1e400, which is too large",
        "[" + '"",' * many + "NaN]": r"\[2000\] is NaN, which JSON does not have",
        "[" + "[]," * many + r'"\ud800"]': r"\[2000\] has half of a surrogate pair",
        "[" + "{}," * many + '{"a":1,"a":2}]': r"\[2000\]\.a comes twice",
        "{" + "".join(f'"{at}":"",' for at in range(many)) + '"b":1e-999}': r"\.b is 1e-999, which",
        "[" * 100 + "0," * many + "1e400" + "]" * 100: r"(\[0\]){9}\[2000\] is 1e400",
    }
    bodies = [f'{{"{"n" * 80}":' * levels + inner + "}" * levels for inner in refused]
    measure = [sys.executable, "-c", MEASURE]
    done = subprocess.run(measure, input=json.dumps(bodies), capture_output=True, text=True, check=True)
    measured = list(map(json.loads, done.stdout.splitlines()))
    assert max(times for times, _ in measured) < 50, "times the bytes of the body"
    for (_, message), pattern in zip(measured, refused.values(), strict=True):
        assert re.match(rf"…(\.n{{80}})*{pattern}", message), message


@pytest.mark.sqlite("PostgreSQL never stored one")
def test_old_documents_with_null_characters_can_be_deleted(tmp_path: Path, tiny_models_dir: Path) -> None:
    where: Settings = new_settings(tmp_path, tiny_models_dir)
    with serving(where) as client:
        rows = [{"id": f"{at}", "text": f"t{at}", "metadata": {"n": at}} for at in range(3)]
        assert client.post("/documents", json={"documents": rows}).status_code == 200
    with closing(sqlite3.connect(where.data_dir / "simile.db", isolation_level=None)) as connection:
        connection.execute("UPDATE documents SET checksums = NULL")  # as older versions stored them
        connection.execute("UPDATE documents SET id = ? WHERE id = '1'", ("a\0b",))
        connection.execute("UPDATE documents SET text = ?, title = ? WHERE id = '2'", ("t\0", "\0"))
    with serving(where) as client:
        assert client.get("/documents/a%00b").json() == {"id": "a\0b", "text": "t1", "metadata": {"n": 1}}
        page = client.get("/documents").json()["documents"]
        assert [(row["id"], row["text"]) for row in page] == [("0", "t0"), ("2", "t\0"), ("a\0b", "t1")]
        assert client.get("/documents", params={"after": "a"}).json()["documents"] == page[2:]
        assert client.get("/documents/count", params={"filter": '{"n":1}'}).json() == {"count": 1}
        assert client.get("/search", params={"q": "t1", "k": 3}).status_code == 200
        assert client.delete("/documents/a%00b").json()["deleted"] == 1
        assert client.post("/documents", json={"documents": [rows[2]]}).status_code == 200
        assert client.get("/documents/2").json() == rows[2]
