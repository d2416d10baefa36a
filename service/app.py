"""The application: settings in, routes up, one place where every request begins and ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version as package_version

from fastapi import FastAPI

from service import errors
from service.api import documents, feedback, models, operation, search, tei
from service.api.body import openapi
from service.middleware import Edge
from service.runtime import Runtime
from service.settings import Settings


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
    )
    app.state.runtime = runtime
    app.add_middleware(Edge, settings=settings, metrics=runtime.metrics)
    errors.install(app)
    for module in (tei, search, documents, feedback, models, operation):
        # Not include_router: its lazy layers are walked again for every request.
        app.router.routes.extend(module.router.routes)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app
