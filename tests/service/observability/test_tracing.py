"""Spans as a collector receives them over OTLP and HTTP."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from service.app import create_app
from service.errors import StartupError
from service.settings import Settings, otlp_endpoints, read
from tests.parts.faults import before_passes
from tests.service.conftest import new_settings, serving, wait_until_ready
from tests.service.keyed import KEYS, bearer, keys_file
from tests.service.process import plain_environment

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MARKER = "zyxwordthatnobodywrites"
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "SIMILE_OTEL")


class Collector:
    """An OTLP receiver on loopback that keeps the received bytes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Any]:
        """Returns all spans as protocol messages, and checks the service's name."""
        messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        found: list[Any] = []
        for body in self.bodies:
            for resource in messages.ExportTraceServiceRequest.FromString(body).resource_spans:
                names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                assert names["service.name"] == "simile"
                found += [span for scope in resource.scope_spans for span in scope.spans]
        return found


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.sdk.trace", reason="the extra `otel` is not installed")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")  # Its spans contain paths and query strings.
    yield collector
    collector.close()


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def named(spans: list[Any], name: str) -> Any:
    [span] = [span for span in spans if span.name == name]
    return span


def test_a_request_is_a_span_of_its_callers_trace_with_what_its_texts_waited_for(
    tmp_path: Path, tiny_models_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = Encoder.tokenize

    def slow_too(self: Encoder, texts: Any, **options: Any) -> Any:
        time.sleep(0.06)
        return tokenize(self, texts, **options)

    began = time.time_ns()
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        before_passes(monkeypatch, lambda *_: time.sleep(0.1))
        monkeypatch.setattr(Encoder, "tokenize", slow_too)
        headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "mine"}
        answer = client.post(f"/embed?{MARKER}", json={"inputs": [MARKER, "a river"]}, headers=headers)
        assert answer.status_code == 200
    ended = time.time_ns()
    spans = collector.spans()
    request = named(spans, "POST /embed")
    assert request.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == CALLER
    assert request.kind == 2, "SERVER"
    assert request.status.code == 0
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": "/embed",
        "http.response.status_code": 200,
        "http.request.body.size": len(json.dumps({"inputs": [MARKER, "a river"]}, separators=(",", ":"))),
        "simile.request_id": "mine",
        "simile.model_version": answer.headers["x-model-version"],
        "simile.tokens": int(answer.headers["x-compute-tokens"]),
        "gen_ai.operation.name": "embeddings",
        "gen_ai.provider.name": "simile",
        "gen_ai.request.model": answer.headers["x-model-version"],
        "gen_ai.response.model": answer.headers["x-model-version"],
        "gen_ai.usage.input_tokens": int(answer.headers["x-compute-tokens"]),
    }
    children = [span for span in spans if span.parent_span_id == request.span_id]
    assert [span.name for span in children] == ["queue", "tokenize", "inference"]
    seconds = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in children}
    for name, header in (("inference", "x-inference-time"), ("queue", "x-queue-time")):
        assert seconds[name] == pytest.approx(int(answer.headers[header]) / 1000, abs=0.002)
    assert 0.1 <= seconds["inference"] < 10
    assert 0.03 <= seconds["tokenize"] < 10, "half of what the two texts took together"
    assert 0.03 <= seconds["queue"] < 10, "the other half"
    assert began <= request.start_time_unix_nano <= children[0].start_time_unix_nano
    for first, second in pairwise(children):
        assert abs(second.start_time_unix_nano - first.end_time_unix_nano) < 1e6
    assert children[-1].end_time_unix_nano <= request.end_time_unix_nano <= ended
    assert all(MARKER.encode() not in body for body in collector.bodies)


def test_a_failure_and_a_search_are_told_by_template_and_type_and_a_key_by_its_name(
    tmp_path: Path, tiny_models_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, api_keys_file=keys_file(tmp_path))

    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(MARKER)

    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        wait_until_ready(client)
        client.headers.update(bearer(KEYS["reader"]))
        assert client.get("/search", params={"q": MARKER}).status_code == 200
        assert client.get(f"/documents/{MARKER}").status_code == 404
        assert client.get(f"/{MARKER}").status_code == 404
        monkeypatch.setattr(app.state.runtime.corpus, "search", broken)
        assert client.get("/search", params={"q": "again"}).status_code == 500
    spans = collector.spans()
    roots = [span for span in spans if span.kind == 2]
    assert len({span.trace_id for span in roots}) == len(roots), "no caller's trace: one each"
    found, broke = (span for span in roots if span.name == "GET /search")
    assert attributes(found)["simile.key"] == "reader"
    children = [span.name for span in spans if span.parent_span_id == found.span_id]
    assert children == ["queue", "tokenize", "inference"]
    assert (attributes(broke)["error.type"], broke.status.code) == ("Internal", 2)
    absent = named(roots, "GET /documents/{id:anything}")
    assert (attributes(absent)["error.type"], absent.status.code) == ("NotFound", 0)
    assert named(roots, "GET unmatched")
    assert all(MARKER.encode() not in body for body in collector.bodies)


def test_a_search_is_a_retrieval_in_its_collection_without_the_text_of_its_query(
    tmp_path: Path, tiny_models_dir: Path, collector: Collector
) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        client.post("/collections/birds/documents", json={"documents": [{"text": "an owl"}]})
        found = client.get("/search", params={"q": MARKER})
        assert client.post("/collections/birds/search", json={"queries": [MARKER]}).status_code == 200
        assert client.get(f"/collections/{MARKER}/search", params={"q": "a"}).status_code == 404
        assert client.post("/tokenize", json={"inputs": MARKER}).status_code == 200
        assert client.get("/").status_code == 200
    spans = collector.spans()
    default = attributes(named(spans, "GET /search"))
    assert {name: value for name, value in default.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.provider.name": "simile",
        "gen_ai.request.model": found.headers["x-model-version"],
        "gen_ai.data_source.id": "default",
    }
    birds = attributes(named(spans, "POST /collections/{collection}/search"))
    assert birds["gen_ai.data_source.id"] == "birds"
    absent = attributes(named(spans, "GET /collections/{collection}/search"))
    assert absent["gen_ai.operation.name"] == "retrieval"
    assert "gen_ai.data_source.id" not in absent
    for name in ("POST /tokenize", "GET /", "POST /collections/{collection}/documents"):
        assert not [key for key in attributes(named(spans, name)) if key.startswith("gen_ai.")]
    assert all(MARKER.encode() not in body for body in collector.bodies)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{CALLER}-01",
        "ü" * 9,
    ],
)
def test_an_invalid_context_of_a_caller_is_ignored(
    traceparent: str, tmp_path: Path, tiny_models_dir: Path, collector: Collector
) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        headers = {b"traceparent": traceparent.encode("latin-1"), b"tracestate": b"=,=;\xff"}
        assert client.post("/tokenize", json={"inputs": "a"}, headers=headers).status_code == 200
    span = named(collector.spans(), "POST /tokenize")
    assert span.trace_id.hex() not in {TRACE, "0" * 32}
    assert not span.parent_span_id


def test_a_page_of_an_allowed_origin_may_send_its_trace(
    tmp_path: Path, tiny_models_dir: Path, collector: Collector
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, cors_origins="https://shop.example")
    with serving(settings) as client:
        asks = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "traceparent,tracestate",
        }
        allowed = client.options("/tokenize", headers=asks | {"origin": "https://shop.example"})
        assert allowed.status_code == 200
        assert {"traceparent", "tracestate"} <= {
            name.strip() for name in allowed.headers["access-control-allow-headers"].split(",")
        }
        assert (
            client.options("/tokenize", headers=asks | {"origin": "https://other.example"}).status_code == 403
        )
        sent = {"origin": "https://shop.example", "traceparent": f"00-{TRACE}-{CALLER}-01"}
        assert client.post("/tokenize", json={"inputs": "a"}, headers=sent).status_code == 200
    span = named(collector.spans(), "POST /tokenize")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CALLER)


def test_a_collector_that_is_down_delays_no_answer_and_no_stop(
    tmp_path: Path, tiny_models_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # a closed port
    monkeypatch.setattr("service.observability.tracing.CLOSE_SECONDS", 0.5)
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        began = time.monotonic()
        assert client.post("/embed", json={"inputs": "a river"}).status_code == 200
        assert time.monotonic() - began < 5
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("OtelBatch")]


def test_standard_variables_turn_it_on_and_off_and_ours_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*VARIABLES, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SIMILE_DATA_DIR", str(tmp_path))
    assert (read().otel, otlp_endpoints()) == (False, [])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert read().otel
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        monkeypatch.setenv(name, value)
        assert not read().otel
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(StartupError, match="http/protobuf only"):
        read()
    monkeypatch.setenv("SIMILE_OTEL", "0")
    assert not read().otel
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    monkeypatch.setenv("SIMILE_OTEL", "1")
    assert read().otel


def test_asked_for_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # simulates a missing package
    with pytest.raises(StartupError, match=r"pip install -c \S+ -e '?\S+\[otel\]"):
        create_app(Settings(data_dir=tmp_path / "never-made", otel=True))


def test_unasked_for_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from service.app import create_app; from service.settings import Settings; "
        "create_app(Settings(data_dir='never-made')); "
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exp'))])"
    )
    environment = plain_environment()
    for name in [name for name in environment if name.startswith("OTEL_")]:
        del environment[name]
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"
    assert not os.path.exists("never-made")  # noqa: PTH110
