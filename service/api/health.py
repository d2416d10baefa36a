"""Health, readiness and metrics: open to all, whatever keys there are."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from service.api.contract import describe
from service.api.responses import json_response
from service.errors import Unhealthy
from service.http.routing import Direct
from service.runtime.runtime import Runtime

router = APIRouter(route_class=Direct, tags=["operation"])


class Health(BaseModel):
    model_config = ConfigDict(protected_namespaces=())
    status: Literal["healthy"]
    model_version: str


class Ready(BaseModel):
    status: Literal["ready"]


@router.get("/health", **describe(None, None, Health))
async def health(request: Request) -> Response:
    """200 when a real forward pass succeeded since the last failure and nothing hangs; within a second."""
    runtime: Runtime = request.app.state.runtime
    illness = await runtime.health.ask()
    if illness is not None:
        raise Unhealthy(f"Unhealthy: {illness}", retry_after_seconds=5)
    return json_response({"status": "healthy", "model_version": runtime.live.generation.version})


@router.get("/ready", **describe(None, None, Ready))
async def ready(request: Request) -> Response:
    """200 while new work is taken and the index is whole, else 503 with the reason and the progress."""
    runtime: Runtime = request.app.state.runtime
    reason = runtime.not_ready()
    if reason is not None:
        raise Unhealthy(reason, retry_after_seconds=1)
    return json_response({"status": "ready"})


@router.get("/metrics", **describe(None, also=["text/plain"]))
async def metrics(request: Request) -> Response:
    """Prometheus text; docs/METRICS.md lists the series."""
    text = await asyncio.to_thread(request.app.state.runtime.scrape)  # holds up no request meanwhile
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
