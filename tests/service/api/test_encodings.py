"""Encodings of request bodies: compression, charsets, and bytes that are not UTF-8."""

import codecs
import gzip
import json
import zlib

import pytest
from starlette.testclient import TestClient

NDJSON = "application/x-ndjson"
BODIES = {
    "/embed": {"inputs": "größe"},
    "/": {"inputs": "größe"},
    "/similarity": {"pairs": [["größe", "a"]]},
    "/v1/embeddings": {"input": "größe", "model": "m"},
    "/v2/embed": {"texts": ["größe"], "input_type": "search_query"},
    "/documents": {"documents": [{"id": "encoded", "text": "größe"}]},
    "/search": {"queries": ["größe"]},
    "/feedback": {"query": "größe", "id": "encoded", "relevant": True},
}
JSON_ROUTES = [(path, "application/json", value) for path, value in BODIES.items()]
ROUTES = [*JSON_ROUTES, ("/documents", NDJSON, {"id": "encoded", "text": "größe"})]


def message(answer: object) -> str:
    said = answer["error"] if isinstance(answer, dict) and "error" in answer else answer
    return str(said["message"] if isinstance(said, dict) else said)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "x-gzip", "identity, gzip"])
def test_a_compressed_body_is_refused_by_its_header(client: TestClient, encoding: str) -> None:
    for path, kind, value in ROUTES:
        content = json.dumps(value).encode()
        packed = zlib.compress(content) if encoding == "deflate" else gzip.compress(content)
        headers = {"content-type": kind, "content-encoding": encoding}
        answer = client.post(path, content=packed, headers=headers)
        assert answer.status_code == 415
        assert message(answer.json()).startswith(f"Content-Encoding {encoding} is not supported.")


@pytest.mark.parametrize(
    ("path", "kind", "value"), [*ROUTES, ("/files?name=a.txt", "application/octet-stream", 1)]
)
def test_a_body_marked_as_plain_is_read(client: TestClient, path: str, kind: str, value: object) -> None:
    content = json.dumps(value).encode()
    for encoding in ("identity", ""):
        headers = {"content-type": kind, "content-encoding": encoding}
        assert client.post(path, content=content, headers=headers).status_code == 200
    headers["content-encoding"] = "gzip"
    assert client.post(path, content=content, headers=headers).status_code == 415


@pytest.mark.parametrize(
    "charset", ["utf-16", "UTF-16LE", "latin-1", "iso-8859-1", '"windows-1252"', "shift_jis", "klingon"]
)
def test_another_charset_is_refused(client: TestClient, charset: str) -> None:
    for path, kind, value in ROUTES:
        headers = {"content-type": f"{kind}; charset={charset}"}
        answer = client.post(path, content=json.dumps(value).encode("latin-1"), headers=headers)
        assert answer.status_code == 415
        name = charset.strip('"')
        assert message(answer.json()) == f"The charset {name} is not supported. Send the body in UTF-8."


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", '"utf-8"', "us-ascii", "utf-8; more=1"])
def test_names_of_utf_8_are_accepted(client: TestClient, charset: str) -> None:
    for path, kind, value in ROUTES:
        headers = {"content-type": f"{kind};charset={charset}"}
        assert client.post(path, content=json.dumps(value).encode(), headers=headers).status_code == 200


TEXT = json.dumps(BODIES["/embed"], ensure_ascii=False)
FOREIGN = [
    (TEXT.encode("latin-1"), TEXT.index("ö")),
    (TEXT.encode("cp1252"), TEXT.index("ö")),
    (TEXT.encode("utf-16"), 0),
    (TEXT.encode("utf-16-le"), 1),
    (TEXT.encode("utf-16-be"), 0),
    (TEXT.encode("utf-32-le"), 1),
    (gzip.compress(TEXT.encode()), 1),
    (b'{"inputs": "\xc3"}', 12),
    (b'{"inputs": "\xed\xa0\x80"}', 12),
    (b"[" * 300_000 + b"\xff", 300_000),
]


@pytest.mark.parametrize(("content", "byte"), FOREIGN, ids=range(len(FOREIGN)))
def test_bytes_that_are_not_utf_8_are_named(client: TestClient, content: bytes, byte: int) -> None:
    for path in ("/embed", "/v1/embeddings", "/v2/embed", "/documents"):
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == (400 if path.startswith("/v") else 422)
        assert message(answer.json()) == f"The body is not UTF-8 (byte {byte}). Send UTF-8, uncompressed."


@pytest.mark.parametrize(("content", "byte"), FOREIGN[:-1], ids=range(len(FOREIGN) - 1))
def test_a_line_that_is_not_utf_8_is_named(client: TestClient, content: bytes, byte: int) -> None:
    lines = b'{"id": "plain", "text": "a"}\n' + content.replace(b"\n", b" ")
    answer = client.post("/documents", content=lines, headers={"content-type": NDJSON}).json()
    assert (answer["upserted"], answer["failed"]) == (1, 1)
    said = f"The line is not UTF-8 (byte {byte}). Send UTF-8, uncompressed."
    assert answer["errors"] == [{"line": 2, "error": said}]


@pytest.mark.parametrize(("path", "kind", "value"), ROUTES)
def test_a_byte_order_mark_is_accepted(client: TestClient, path: str, kind: str, value: object) -> None:
    content = codecs.BOM_UTF8 + json.dumps(value, ensure_ascii=False).encode()
    headers = {"content-type": kind}
    assert client.post(path, content=content, headers=headers).status_code == 200
    twice = client.post(path, content=codecs.BOM_UTF8 + content, headers=headers)
    assert twice.status_code in {400, 422} or twice.json()["failed"] == 1
    empty = client.post(path, content=codecs.BOM_UTF8, headers=headers)
    assert "empty" in empty.text or "no line" in empty.text
