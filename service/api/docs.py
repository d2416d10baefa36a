"""`GET /docs`: Swagger UI over the OpenAPI document, with every file from here.

A script from another host would run in the service's own origin, beside the field for keys. The files come
with a package from PyPI, of which nothing but these two is read.
"""

from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from service.api.contract import describe
from service.errors import NotFound
from service.http.routing import Direct

PACKAGE = "fastapi_offline"
# No other host, no script in a page. Swagger UI sets styles on elements and shows pictures from data: URLs.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}
_KEPT = {"cache-control": "max-age=3600"}

# Addresses are relative, so that a proxy may put the service below a path of its own.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Simile: API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# validatorUrl: Swagger UI would send the document's address to a server of its makers.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  showExtensions: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
});
"""

router = APIRouter(route_class=Direct, include_in_schema=False)


def _folder() -> Path:
    """The folder with Swagger UI's files; the package itself is not imported."""
    found = find_spec(PACKAGE)
    assert found is not None  # noqa: S101  a dependency
    return Path((found.submodule_search_locations or [])[0]) / "static"


@router.get("/docs", **describe(None, also=["text/html"]))
async def page(request: Request) -> Response:
    return Response(_PAGE, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})


@router.get("/docs/{file}", **describe(None, raises=[NotFound], also=["text/javascript", "text/css"]))
async def page_file(request: Request) -> Response:
    file = request.path_params["file"]
    if file == "start.js":
        return Response(_START, media_type="text/javascript")
    if file not in _KINDS:
        raise NotFound(f"The API's page has no file {file[:100]!r}.")
    return FileResponse(_folder() / file, media_type=_KINDS[file], headers=_KEPT)
