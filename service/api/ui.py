"""`GET /ui/`: the web page, whose files are in service/ui/. `GET /` redirects browsers to the page.

The page uses only the routes of the API. Users enter an API key in the page, so the files of the page need no
key.
"""

import hashlib
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from models.version import VERSION
from service.api.openapi import describe
from service.errors import NotFound
from service.http.bodies import json_response
from service.http.routing import RoleRoute

FOLDER = Path(__file__).resolve().parent.parent / "ui"
INDEX = "index.html"
# Forbids other hosts, scripts and styles inside the page, frames and forms.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

router = APIRouter(route_class=RoleRoute, tags=["operation"])


class Root(BaseModel):
    name: str
    version: str
    links: dict[Literal["ui", "docs", "openapi"], str]


def _read() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Returns the content and the headers of each file, by path below `/ui/`.

    The page itself has the empty path.
    """
    found = {}
    for path in FOLDER.rglob("*"):
        if path.suffix in _KINDS:
            content = path.read_bytes()
            headers = {
                "content-type": f"{_KINDS[path.suffix]}; charset=utf-8",
                "content-security-policy": PAGE_POLICY,
                "referrer-policy": "no-referrer",
                "cache-control": "no-cache",  # Browsers ask again each time, and mostly get 304.
                "etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
            }
            name = path.relative_to(FOLDER).as_posix()
            found["" if name == INDEX else name] = content, headers
    return found


_files = _read()


@router.get("/", **describe(None, Root, statuses=(200, 307), also=["text/html"]))
async def find_the_page(request: Request) -> Response:
    """Return the service's name, version and links to its pages. Browsers are redirected to `/ui/` (307)."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("ui/")
    links = {"ui": "/ui/", "docs": "/docs", "openapi": "/openapi.json"}
    return json_response({"name": "Simile", "version": VERSION, "links": links})


@router.get("/ui", include_in_schema=False, **describe(None, also=["text/html"]))
async def redirect_to_the_page() -> Response:
    """Redirect `/ui` to `/ui/`.

    The page loads its files by addresses relative to `/ui/`, which also work if a proxy adds a prefix to the
    path.
    """
    return RedirectResponse("ui/")


@router.get(
    "/ui/{file:path}", include_in_schema=False, **describe(None, raises=[NotFound], also=["text/html"])
)
async def read_page_file(request: Request, file: str) -> Response:
    if file not in _files:
        raise NotFound(f"The page has no file {file[:100]!r}. It begins at /ui/.")
    content, headers = _files[file]
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
