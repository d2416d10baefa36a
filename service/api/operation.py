"""Health, readiness and metrics: open to all, whatever keys there are."""

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from service.api.body import Direct, describe
from service.api.inference import json_response
from service.errors import ServiceError, Unhealthy
from service.runtime import Runtime

router = APIRouter(route_class=Direct, tags=["operation"])


def _runtime(request: Request) -> Runtime:
    """The runtime, also while it is stopping."""
    runtime: Runtime = request.app.state.runtime
    return runtime


@router.get("/health", **describe(None))
async def health(request: Request) -> Response:
    """200 when a real forward pass succeeded since the last failure; after a failure this tries one."""
    runtime = _runtime(request)
    with runtime.live.borrow() as generation:
        if runtime.batcher.failure(generation.encoder) is not None:
            try:
                await runtime.batcher.embed(generation.encoder, ["Is the model well?"])
            except ServiceError as error:
                raise Unhealthy(f"Unhealthy: {error.message}", retry_after_seconds=5) from error
        return json_response({"status": "healthy", "model_version": generation.version})


@router.get("/ready", **describe(None))
async def ready(request: Request) -> Response:
    """200 while new work is taken and the index is whole, else 503 with the reason and the progress."""
    runtime = _runtime(request)
    reason = runtime.not_ready()
    if reason is not None:
        raise Unhealthy(reason, retry_after_seconds=1)
    return json_response({"status": "ready"})


@router.get("/metrics", **describe(None))
async def metrics(request: Request) -> Response:
    """Prometheus text; docs/METRICS.md lists the series."""
    runtime = _runtime(request)
    return Response(generate_latest(runtime.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})
