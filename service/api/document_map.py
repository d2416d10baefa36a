"""`GET /map`: the places of documents in the plane, as `python -m service map` made them."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from models.manifest import is_version
from service.api.collections import existing
from service.api.openapi import Role, describe
from service.errors import NotFound, Storage
from service.http.routing import RoleRoute
from service.runtime.runtime import Service

router = APIRouter(route_class=RoleRoute, tags=["documents"])

_COMMAND = "While that version is live, `python -m service map` makes one."


class MapParameters(BaseModel):
    version: str | None = Field(None, description="Absent: the live one's, else the latest version's")


class Group(BaseModel):
    words: list[str] = Field(description="That name it, most telling first")
    x: int
    y: int
    size: int


class Colouring(BaseModel):
    values: list[Any]
    of: list[int] = Field(description="For each document the place of its value, -1 for none")


class Map(BaseModel):
    version: str
    collection: str
    made: str
    aligned_to: str | None = Field(description="The version whose map it was laid over; null: none")
    ids: list[str]
    x: list[int] = Field(description="From 0 to 65535, one for each id; so is y")
    y: list[int]
    cluster: list[int] = Field(description="For each id the place of its group in clusters")
    clusters: list[Group]
    fields: dict[str, Colouring] = Field(description="Metadata fields of few values")
    strays: list[int] = Field(description="Places in ids of documents that are near to no other")
    copies: list[tuple[int, int]] = Field(description="Places in ids of pairs that nearly repeat")


class WholeFile(FileResponse):
    """Always the whole file: a part of it is no JSON, and a refused range would be no error of ours."""

    def __init__(self, path: Path) -> None:
        headers = {"accept-ranges": "none", "cache-control": "no-cache"}  # it may be made anew
        super().__init__(path, headers=headers, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        others = [(name, value) for name, value in scope["headers"] if name != b"range"]
        await super().__call__({**scope, "headers": others}, receive, send)


@router.get("/map", **describe(Role.READ, Map, raises=[NotFound, Storage]))
async def read_map_of_the_documents(
    request: Request, runtime: Service, params: Annotated[MapParameters, Query()]
) -> Response:
    """The places of a collection's documents in the plane, as they were when the map was made.

    A map belongs to a version. Documents that came later are not on it, and deleted ones still are.
    """
    collection = await existing(request, runtime)
    maps = runtime.settings.maps_dir
    version = params.version or runtime.live.generation.version
    if not is_version(version):
        raise NotFound(f"There is no version {version[:100]!r}. GET /models lists them.")
    file = maps / version / f"{collection}.json"
    made = [] if params.version else await asyncio.to_thread(lambda: [*maps.glob(f"*/{collection}.json")])
    for found in (file, *sorted(made, key=lambda one: one.parent.name, reverse=True)):
        if await asyncio.to_thread(found.is_file):
            return WholeFile(found)
    raise NotFound(f"There is no map of {version} in the collection {collection!r}. {_COMMAND}")
