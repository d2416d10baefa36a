"""Builds the ASGI application. Start reading at `create_app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

from models.version import VERSION
from service.api import (
    cohere,
    collections,
    documents,
    events,
    feedback,
    files,
    info,
    mcp,
    models,
    openai,
    openapi,
    rerank,
    search,
    suggest,
    synonyms,
    tei,
    ui,
)
from service.auth.access import Access
from service.http.connections import Connections
from service.http.error_responses import install
from service.http.hosts import Cors, Hosts
from service.http.middleware import Edge, LoadShedder
from service.http.routing import ExactRouter
from service.observability.logs import write_line
from service.runtime.runtime import Runtime
from service.settings import Settings, allowed_hosts, allowed_origins

MODULES = (
    *(tei, openai, cohere, rerank, search, suggest, documents, files, feedback, events),
    *(collections, synonyms, info, models, mcp),
)
SCOPED = (search, suggest, documents, files, feedback, events)  # also below /collections/{collection}


class App(FastAPI):
    """The FastAPI application.

    `Edge` replaces FastAPI's middleware, which would repeat the work of `Edge` and cost each request 20
    microseconds. `Cors` wraps `Edge` if origins are allowed.
    """

    def build_middleware_stack(self) -> ASGIApp:
        runtime: Runtime = self.state.runtime
        settings = runtime.settings
        routes = ExceptionMiddleware(self.router, handlers=self.exception_handlers)
        router = ExactRouter(routes, self.routes)
        shedder = LoadShedder(runtime.batcher.overloaded, self)
        observers = [write_line] if settings.access_log else []
        if runtime.tracing is not None:
            observers.append(runtime.tracing.record)
        edge = Edge(router, settings, runtime.metrics, shedder, observers)
        origins = allowed_origins(settings.cors_origins)
        # Outermost, so that a page can also read errors.
        return Cors(edge, origins, self.state.hosts, openapi.TIMED) if origins else edge


def create_app(settings: Settings) -> FastAPI:
    """Returns the service as an ASGI app.

    The app holds the data directory from its start to its stop. If another process uses the directory, or no
    model can be served, the start fails with StartupError.
    """
    runtime = Runtime(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await runtime.start()
        try:
            yield
        finally:
            await runtime.stop()

    app = App(
        title="Simile",
        version=VERSION,
        description="Sentence embeddings and search that retrain themselves.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # api/openapi.py serves the page.
        redoc_url=None,
        # FastAPI's own traces contain paths and query strings, and so the queries of searches.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.runtime = runtime
    keys = settings.api_keys_file
    app.state.access = None if keys is None else Access(keys, settings, runtime.metrics)
    if app.state.access is not None:
        runtime.trusts = app.state.access.trusts
    names, origins = allowed_hosts(settings.allowed_hosts), allowed_origins(settings.cors_origins)
    app.state.hosts = Hosts(names, settings.host, origins, keys=keys is not None)
    app.state.connections = Connections(settings.max_connections)
    install(app)
    routers = [*(module.router for module in MODULES), collections.map_router, openapi.router]
    if settings.ui:
        routers.append(ui.router)
    scoped = [*(module.router for module in SCOPED), collections.map_router]
    for router in (*routers, *map(collections.in_collections, scoped)):
        # include_router would add lazy layers that each request walks again.
        app.router.routes.extend(router.routes)
    runtime.metrics.routes(
        (method, route.path, getattr(route, "status_code", None) or 200)
        for route in app.router.routes
        if isinstance(route, Route) and route.methods is not None
        for method in sorted({"HEAD", *route.methods} if "GET" in route.methods else route.methods)
    )
    app.openapi = lambda: openapi.build_document(app)  # type: ignore[method-assign]
    return app
