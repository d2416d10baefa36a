"""Logs: text or JSON lines, never with texts of users."""

import asyncio
import io
import json
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from models.encoder import Encoder
from service.app import create_app
from service.corpus.corpus import Corpus
from service.observability import logs
from service.observability.metrics import UNMATCHED
from service.server import _welcome
from service.settings import Settings
from tests.parts.places import Place, place
from tests.service.conftest import new_settings, serving, wait_until_ready
from tests.service.process import Service
from tests.waiting import LIMIT

__all__ = ["place"]
E = TypeVar("E", bound=Exception)
MARKER = "zyxwordthatnobodywrites"


@contextmanager
def captured(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """Captures all log lines, formatted by `formatter`."""
    stream, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(lambda record: not record.name.startswith(("httpx2", "httpcore")))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def raised(error: E) -> E:
    """Returns the error with a traceback."""
    try:
        raise error
    except type(error):
        return error


def test_a_line_is_one_json_object_with_its_time_level_logger_and_request() -> None:
    with captured(logs.Objects()) as stream:
        token = logs.request_id.set("the caller's own")
        logging.getLogger("service.somewhere").warning('two\nlines, a "quote" and \ud800')
        logs.request_id.reset(token)
        logging.getLogger("other").debug("%d of %s", 3, "x", extra={"fields": {"route": "/embed"}})
    first, second = objects(stream)
    moment = datetime.fromisoformat(first.pop("time"))
    assert moment.utcoffset() == timedelta(0)
    assert abs((datetime.now(moment.tzinfo) - moment).total_seconds()) < 5
    assert first == {
        "level": "warning",
        "logger": "service.somewhere",
        "message": 'two\nlines, a "quote" and \ud800',
        "request_id": "the caller's own",
    }
    del second["time"]
    assert second == {"level": "debug", "logger": "other", "message": "3 of x", "route": "/embed"}


def test_a_line_for_people_says_the_same() -> None:
    with captured(logs.Lines()) as stream:
        logging.getLogger("a.b").error("it broke", extra={"fields": {"status": 500, "request_id": "r1"}})
    assert stream.getvalue().endswith(" ERROR a.b: it broke status=500 request_id=r1\n")


@pytest.mark.parametrize("formatter", [logs.Objects(), logs.Lines()])
def test_an_exception_is_told_by_its_place_and_its_message_only_where_that_is_no_text(
    formatter: logging.Formatter,
) -> None:
    outer = RuntimeError(f"while reading {MARKER}")
    outer.__cause__ = raised(ValueError(MARKER))
    group = ExceptionGroup(MARKER, [raised(KeyError(MARKER)), raised(OSError(28, "No space left"))])
    with captured(formatter) as stream:
        for error in (outer, group):
            logging.getLogger("x").error("failed", exc_info=raised(error))
    text = stream.getvalue()
    assert MARKER not in text
    assert text.index("ValueError") < text.index("This led to:") < text.index("RuntimeError")
    assert "raise error" in text, "the line of code"
    for words in ("ExceptionGroup", "KeyError", "OSError: [Errno 28] No space left"):
        assert words in text


def test_what_nobody_waited_for_is_logged_without_what_it_held() -> None:
    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(logs.on_loop)
        future = asyncio.get_running_loop().create_future()
        future.set_exception(RuntimeError(MARKER))
        del future
        await asyncio.sleep(0)

    with captured(logs.Objects()) as stream:
        asyncio.run(body())
    [line] = [line for line in objects(stream) if line["logger"] == "service.observability.logs"]
    assert line["message"] == "Future exception was never retrieved"
    assert line["exception"] == "RuntimeError"
    assert MARKER not in stream.getvalue()


def test_a_thread_that_breaks_and_a_line_that_cannot_be_written_show_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks() -> None:
        raise ValueError(MARKER)

    monkeypatch.setattr(threading, "excepthook", logs._on_thread)
    with captured(logs.Objects()) as stream:
        thread = threading.Thread(target=breaks, name="a-worker")
        thread.start()
        thread.join()
    [line] = [line for line in objects(stream) if line["logger"] == "service.observability.logs"]
    assert line["message"] == "The thread a-worker ended by an exception"
    assert line["exception"].endswith("ValueError")
    written = io.StringIO()
    logs.Stderr(written).handle(logging.LogRecord("x", logging.INFO, "", 0, "%d", (MARKER,), None))
    assert written.getvalue() == "A line of x could not be written\n"


BODIES: dict[tuple[str, str], Sequence[object]] = {
    ("POST", "/embed"): [{"inputs": f"a {MARKER}"}, {"inputs": [f"{MARKER} "] * 2, "truncate": False}],
    ("POST", "/"): [{"inputs": MARKER}, {"inputs": {"source_sentence": MARKER, "sentences": [MARKER]}}],
    ("POST", "/similarity"): [{"pairs": [[MARKER, "b"]]}],
    ("POST", "/tokenize"): [{"inputs": MARKER}],
    ("POST", "/decode"): [{"ids": [2, 9, 3]}],
    ("POST", "/v1/embeddings"): [{"input": MARKER, "model": MARKER, "user": MARKER}],
    ("POST", "/embeddings"): [{"input": [MARKER], "model": "m"}],
    ("POST", "/v2/embed"): [{"texts": [MARKER], "model": "m", "input_type": "search_query"}],
    ("POST", "/search"): [{"queries": [MARKER], "filter": {"k": MARKER}}],
    ("POST", "/documents"): [{"documents": [{"id": MARKER, "text": MARKER, "metadata": {MARKER: MARKER}}]}],
    ("POST", "/feedback"): [{"query": MARKER, "id": MARKER, "relevant": True}],
    ("POST", "/events"): [{"search_id": MARKER, "query": MARKER, "id": MARKER, "type": "click"}],
}
BAD: Sequence[tuple[object, bytes]] = [
    (None, f'{{"inputs": "{MARKER}'.encode()),
    (None, f'{{"{MARKER}": 1}}'.encode()),
    (None, f'["{MARKER}"]'.encode()),
    (None, b'{"inputs": "\xff' + MARKER.encode() + b'"}'),
    (None, json.dumps({"inputs": [MARKER, 1], "input": {MARKER: 1}, "texts": MARKER}).encode()),
    (None, json.dumps({"inputs": f"{MARKER} " * 90, "truncate": False}).encode()),
]
QUERIES = [
    f"q={MARKER}&query={MARKER}&after={MARKER}",
    f"{MARKER}={MARKER}",
    f"q=a&k={MARKER}",
    f'q=a&filter={{"{MARKER}": {{"$odd": "{MARKER}"}}}}',
    f'filter={{"f": "{MARKER}"}}',
    f"query={MARKER}",
]


def everywhere(client: TestClient) -> set[tuple[str, str, int]]:
    """Sends the marker to every route in many parts of requests. Returns all (method, route, status)."""
    seen = set()

    def send(method: str, route: str, path: str, **others: Any) -> None:
        answer = client.request(method, path, **others)
        seen.add((method, route, answer.status_code))

    sent = {"x-model-version": MARKER, "accept": MARKER, "user-agent": MARKER, "referer": MARKER}
    json_type = {"content-type": "application/json"}
    for route in client.app.router.routes:  # type: ignore[attr-defined]
        if not isinstance(route, APIRoute) or route.path == "/models/rollback":
            continue
        path = route.path
        for name in ("{id:anything}", "{version}", "{file}"):
            path = path.replace(name, MARKER)
        for method in route.methods or ():
            for body in BODIES.get((method, route.path), [None]):
                send(method, route.path, path, json=body)
                send(method, route.path, path, json=body, headers=sent)
            for query in QUERIES:
                send(method, route.path, f"{path}?{query}")
            for _, content in BAD if method == "POST" else ():
                send(method, route.path, path, content=content, headers=json_type)
                send(method, route.path, path, content=content, headers={"content-type": MARKER})
    send("GET", UNMATCHED, f"/{MARKER}?{MARKER}")
    send("PATCH", "/embed", f"/embed?{MARKER}")
    return seen


@pytest.mark.long
def test_no_text_of_a_user_is_in_the_log_whatever_goes_well_or_wrong(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(new_settings(tmp_path, tiny_models_dir, access_log=True))
    tokenize, forward = Encoder.tokenize, Encoder.forward

    def quoting(self: Encoder, texts: Sequence[str], **options: Any) -> Any:
        if any(MARKER in text for text in texts):
            raise RuntimeError(f"cannot read {texts}")
        return tokenize(self, texts, **options)

    def breaking(self: Encoder, ids: Sequence[Sequence[int]], **options: Any) -> Any:
        if any(len(row) > 5 for row in ids):  # The marker has more tokens.
            raise RuntimeError(f"the model quotes {MARKER}")
        return forward(self, ids, **options)

    async def buggy(self: Corpus, *arguments: Any, **options: Any) -> Any:
        raise KeyError(MARKER)

    with (
        captured(logs.Objects()) as for_programs,
        captured(logs.Lines()) as for_people,
        TestClient(app, raise_server_exceptions=False) as client,
    ):
        wait_until_ready(client)
        well = everywhere(client)
        assert {status for _, _, status in well} >= {200, 400, 404, 405, 415, 422}
        assert {route for _, route, status in well if status == 200} >= {"/embed", "/search", "/documents"}
        with monkeypatch.context() as patch:
            patch.setattr(Encoder, "tokenize", quoting)
            assert ("POST", "/embed", 422) in everywhere(client)
        with monkeypatch.context() as patch:
            patch.setattr(Encoder, "forward", breaking)
            assert ("POST", "/embed", 424) in everywhere(client)
        with monkeypatch.context() as patch:
            patch.setattr(Corpus, "search", buggy)
            assert ("POST", "/search", 500) in everywhere(client)
        scraped = client.get("/metrics").text
    for text in (for_programs.getvalue(), for_people.getvalue()):
        for words in ("tokenizer failed", "failed on one input", "is tried in halves", "KeyError"):
            assert words in text, "the failures were logged"
        assert text.count("simile.access") > 200
        assert MARKER not in text
    assert MARKER not in scraped


def test_a_build_that_fails_on_a_document_logs_its_id_and_not_its_text(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = Encoder.tokenize

    def quoting(self: Encoder, texts: Sequence[str], **options: Any) -> Any:
        if self.manifest.version == place.b and any(MARKER in text for text in texts):
            raise ValueError(f"cannot read {texts}")
        return tokenize(self, texts, **options)

    queries = place.folder / "canary.txt"
    queries.write_text(MARKER, encoding="utf-8")
    with captured(logs.Objects()) as stream, place.serving(canary_file=queries) as client:
        many = [{"id": f"m{at}", "text": f"river {at}"} for at in range(120)]
        documents = [*many, {"id": "the odd one", "text": MARKER}]
        assert client.post("/documents", json={"documents": documents}).status_code == 200
        monkeypatch.setattr(Encoder, "tokenize", quoting)
        place.activate(place.b)
        assert MARKER not in client.get("/models").text
    messages = [line["message"] for line in objects(stream)]
    assert "Document 'the odd one' is left out of the index: Tokenizer" in messages
    assert f"The canary queries could not be asked of {place.b}: Tokenizer" in messages
    assert MARKER not in stream.getvalue()


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    ("origin", "reads"),
    [
        ("all-minilm-l6-v2", "reads English. For other languages see docs/MODELS.md#other-languages"),
        ("BAAI/bge-small-en-v1.5", "reads English. For other languages see docs/MODELS.md#other-languages"),
        ("gte-modernbert-base", "reads English. For other languages see docs/MODELS.md#other-languages"),
        ("intfloat/multilingual-e5-small", "reads many languages"),
        ("paraphrase-multilingual-MiniLM-L12-v2", "reads many languages"),
        ("mine", ""),
    ],
)
def test_the_last_lines_of_a_start_say_what_the_model_reads(
    origin: str, reads: str, style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    generation = SimpleNamespace(
        manifest=SimpleNamespace(origin=origin), version="v", indexes=SimpleNamespace(documents=1)
    )
    runtime: Any = SimpleNamespace(
        settings=Settings(log_format=style), active=SimpleNamespace(generation=generation)
    )
    with captured(logging.Formatter("%(message)s")) as stream:
        _welcome(runtime, 8000)
    said = f"The model {origin} {reads}"
    if style == "text":
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == (f"{said}. " if reads else "") + "Ctrl-C stops it."
    else:
        *others, ready = stream.getvalue().splitlines()
        assert ready.startswith("Simile is ready at http://127.0.0.1:8000")
        assert others == ([said] if reads else [])


def test_a_process_logs_json_alone_its_servers_messages_too_and_each_request_once(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    requested = {"SIMILE_LOG_FORMAT": "json", "SIMILE_ACCESS_LOG": "1", "SIMILE_LOG_LEVEL": "debug"}
    with Service(tmp_path, tiny_models_dir, **requested) as service:
        body = json.dumps({"inputs": ["a river", MARKER]}).encode()
        headers = {"x-request-id": "mine", "content-type": "application/json"}
        answer = service.client.post(f"/embed?{MARKER}=1", content=body, headers=headers)
        version = answer.headers["x-model-version"]
        tokens = int(answer.headers["x-compute-tokens"])
        assert service.client.get(f"/documents/{MARKER}", headers={"x-request-id": "2"}).status_code == 404
        with socket.create_connection(("127.0.0.1", service.port), timeout=LIMIT) as raw:
            raw.sendall(f"{MARKER}\r\n\r\n".encode())
            raw.recv(1000)
        assert service.stop() == 0
        text = service.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert MARKER not in text
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    [ready] = [line for line in lines if line["message"].startswith("Simile is ready at http://127.0.0.1")]
    assert (ready["level"], version in ready["message"]) == ("info", True)
    assert [line["message"] for line in lines if line["logger"] == "uvicorn.error"] == [
        "Malformed HTTP request, or too large a head. The connection is closed."
    ]
    [line] = [line for line in lines if line.get("request_id") == "mine"]
    assert 0 < line.pop("seconds") < 10
    del line["time"]
    assert line == {
        "level": "info",
        "logger": "simile.access",
        "message": "answered",
        "request_id": "mine",
        "method": "POST",
        "route": "/embed",
        "status": 200,
        "bytes": len(body),
        "model_version": version,
        "tokens": tokens,
    }
    [refused] = [line for line in lines if line.get("request_id") == "2"]
    assert (refused["route"], refused["status"]) == ("/documents/{id:anything}", 404)
    assert refused["error_type"] == "NotFound"


def test_without_the_setting_no_request_is_logged(tmp_path: Path, tiny_models_dir: Path) -> None:
    with captured(logs.Objects()) as stream, serving(new_settings(tmp_path, tiny_models_dir)) as client:
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
    assert "simile.access" not in stream.getvalue()
