"""The application: settings in, routes up, one place where every request begins and ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version as package_version

from fastapi import FastAPI
from starlette.routing import Route

from service import errors
from service.access import Access
from service.api import cohere, documents, feedback, models, openai, operation, search, tei, tokens
from service.api.contract import openapi
from service.cors import Cors
from service.middleware import Edge
from service.runtime import Runtime
from service.seen import write_line
from service.settings import Settings, allowed_origins


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI app. Its lifespan opens the data directory and closes it again.

    Raises (at start-up, through the lifespan):
        StartupError: the data directory is taken, or there is no model to serve.
    """
    runtime = Runtime(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await runtime.start()
        try:
            yield
        finally:
            await runtime.stop()

    app = FastAPI(
        title="Simile",
        version=package_version("simile"),
        description="Sentence embeddings and search that retrain themselves.",
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        # FastAPI's own traces hold paths and query strings, and with them what people search for.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.runtime = runtime
    keys = settings.api_keys_file
    app.state.access = None if keys is None else Access(keys, settings, runtime.metrics)
    tellers = [write_line] if settings.access_log else []
    if runtime.tracing is not None:
        tellers.append(runtime.tracing.tell)
    app.add_middleware(Edge, settings=settings, metrics=runtime.metrics, tellers=tellers)
    if origins := allowed_origins(settings.cors_origins):
        app.add_middleware(Cors, allow_origins=origins)  # the outermost, so that refusals can be read too
    errors.install(app)
    for module in (tei, tokens, openai, cohere, search, documents, feedback, models, operation):
        # Not include_router: its lazy layers are walked again for every request.
        app.router.routes.extend(module.router.routes)
    runtime.metrics.routes(
        (method, route.path, getattr(route, "status_code", None) or 200)
        for route in app.router.routes
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    )
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app
