"""Sends OpenTelemetry traces: a span for each request, with child spans for the steps of embedding.

    POST /embed ──▶ queue, tokenize, inference

Spans are created after the answer, and the SDK sends them on a separate thread, so tracing never delays a
request. The SDK reads the standard OTEL_ variables. The tracer provider is not registered globally. Otherwise
other libraries would also create spans, and these might contain texts of users, such as query strings.
"""

import threading
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from models.errors import install_command
from models.version import VERSION
from service.errors import StartupError
from service.observability.logs import RequestRecord

# Operations by method and route, named by the semantic conventions for generative AI (version 1.44, status
# development). Attributes with texts of queries and documents, which they allow, are never set.
_EMBEDDINGS, _RETRIEVAL = "embeddings", "retrieval"
_EMBEDDING_ROUTES = ("/", "/embed", "/similarity", "/embeddings", "/v1/embeddings", "/v2/embed")
_SEARCH_ROUTES = ("/search", "/collections/{collection}/search")
_OPERATIONS = {
    **{("POST", route): _EMBEDDINGS for route in _EMBEDDING_ROUTES},
    **{(method, route): _RETRIEVAL for method in ("GET", "POST") for route in _SEARCH_ROUTES},
}
CLOSE_SECONDS = 5.0  # time to send the last spans when the service stops


class Tracing:
    """Sends the traces of a service. Call `start`, then `record` after each request, then `stop`.

    Raises:
        StartupError: The extra `otel` is not installed.

    """

    def __init__(self) -> None:
        try:
            import opentelemetry.exporter.otlp.proto.http  # noqa: PLC0415
            import opentelemetry.sdk.trace  # noqa: F401, PLC0415
        except ImportError as error:
            raise StartupError(
                "Traces are turned on (SIMILE_OTEL, or OTEL_EXPORTER_OTLP_ENDPOINT), but OpenTelemetry is "
                f"not installed. Set SIMILE_OTEL=0, or install it: {install_command('otel')}"
            ) from error
        self._exporter: Any = None
        self._provider: Any = None
        self._tracer: trace.Tracer = trace.NoOpTracer()
        self._propagator = TraceContextTextMapPropagator()

    def start(self) -> None:
        """Reads the OTEL_ variables and starts to send traces.

        Raises:
            StartupError: The SDK rejects the value of a variable.

        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        try:
            resource = Resource.create()
            if str(resource.attributes["service.name"]).startswith("unknown_service"):
                resource = resource.merge(Resource({"service.name": "simile"}))
            self._exporter = OTLPSpanExporter()
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except ValueError as error:
            raise StartupError(f"An OTEL_ variable has a value that cannot be used: {error}") from error
        self._tracer = self._provider.get_tracer("simile", VERSION)

    def record(self, record: RequestRecord) -> None:
        """Creates the spans of an answered request. If the client sent a span, it becomes their parent."""
        carrier = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        epoch = time.time() - time.monotonic()
        attributes: dict[str, str | int | None] = {
            "http.request.method": record.method,
            "http.route": record.route,
            "http.response.status_code": record.status,
            "http.request.body.size": record.bytes,
            "simile.request_id": record.request_id,
            "error.type": record.error_type,
            "simile.key": record.key,
            "simile.model_version": record.model_version,
            "simile.tokens": record.tokens,
            **_describe_operation(record),
        }
        span = self._tracer.start_span(
            f"{record.method} {record.route}",
            self._propagator.extract(carrier),
            trace.SpanKind.SERVER,
            {name: value for name, value in attributes.items() if value is not None},
            start_time=_nanoseconds(epoch + record.started),
        )
        if record.status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        within = trace.set_span_in_context(span)
        for step in record.steps:
            began = epoch + step.started
            child = self._tracer.start_span(step.name, within, start_time=_nanoseconds(began))
            child.end(_nanoseconds(began + step.seconds))
        span.end(_nanoseconds(epoch + record.started + record.seconds))

    def stop(self) -> None:
        """Sends the remaining spans. Blocks for about `CLOSE_SECONDS` at most."""
        if self._provider is None:
            return
        # An unavailable collector must not delay the stop. A closed exporter does not retry.
        timer = threading.Timer(CLOSE_SECONDS, self._exporter.shutdown)
        timer.daemon = True
        timer.start()
        self._provider.shutdown()
        timer.cancel()


def _describe_operation(record: RequestRecord) -> dict[str, str | int | None]:
    """Returns the attributes `gen_ai.*` of a request that embeds or searches, or an empty dictionary."""
    operation = _OPERATIONS.get((record.method, record.route))
    if operation is None:
        return {}
    described: dict[str, str | int | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "simile",
        "gen_ai.request.model": record.model_version,
    }
    if operation != _RETRIEVAL:
        described["gen_ai.response.model"] = record.model_version
        described["gen_ai.usage.input_tokens"] = record.tokens
    elif record.status == 200:  # A collection that does not exist is a text of the client.
        described["gen_ai.data_source.id"] = record.collection or "default"
    return described


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
