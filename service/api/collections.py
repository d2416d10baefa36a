"""Collections: documents that are searched apart from all others. The plain routes are the default one's.

    /collections/{collection}/documents  /search  /feedback  /events      as the plain routes
    GET /collections   DELETE /collections/{collection}

A collection is there from its first document until it is deleted. All of them are embedded by one model and
change to the next one in the same moment.
"""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from service.api.body import known_parameters
from service.api.contract import Role, describe, refusals
from service.api.responses import json_response
from service.auth.audit import audit
from service.errors import NotFound, Storage, Validation
from service.http.routing import Direct
from service.runtime.runtime import Runtime, runtime_of
from service.store.values import COLLECTION_NAME, DEFAULT_COLLECTION

PARAMETER = "collection"
_DESCRIBED = {
    "in": "path",
    "name": PARAMETER,
    "required": True,
    "schema": {"type": "string", "pattern": f"^{COLLECTION_NAME.pattern}$"},
}

router = APIRouter(prefix="/collections", route_class=Direct, tags=["collections"])


class CollectionOut(BaseModel):
    name: str
    documents: int


class CollectionsOut(BaseModel):
    collections: list[CollectionOut]


class Dropped(BaseModel):
    deleted: int
    sequence: int


def collection_of(request: Request) -> str:
    """The collection that the path names.

    Raises:
        Validation: no collection can have such a name.

    """
    name: str = request.path_params.get(PARAMETER, DEFAULT_COLLECTION)
    return _checked(name)


def _checked(name: str) -> str:
    if not COLLECTION_NAME.fullmatch(name):
        raise Validation(
            f"A collection's name is up to 64 letters, digits, points, hyphens and underscores, not "
            f"{name[:80]!r}; a letter, a digit or an underscore comes first."
        )
    return name


async def existing(request: Request, runtime: Runtime) -> str:
    """The collection that the path names, for a route that only reads.

    Raises:
        NotFound: there is no such collection.

    """
    return await existing_named(collection_of(request), runtime)


async def existing_named(name: str, runtime: Runtime) -> str:
    """`name`, which a parameter gave.

    Raises:
        Validation: no collection can have such a name.
        NotFound: there is no such collection.

    """
    _checked(name)
    if name != DEFAULT_COLLECTION and not await runtime.corpus.store.has_collection(name):
        raise NotFound(
            f"There is no collection {name!r}. GET /collections lists them; its first document makes one."
        )
    return name


def in_collections(plain: APIRouter) -> APIRouter:
    """The routes of `plain`, for any collection."""
    scoped = APIRouter(prefix=f"/collections/{{{PARAMETER}}}", route_class=Direct)
    for route in plain.routes:
        assert isinstance(route, APIRoute)  # noqa: S101  all of ours are
        extra: dict[str, Any] = dict(route.openapi_extra or {})
        others = [given for given in extra.get("parameters", []) if given["name"] != PARAMETER]
        extra["parameters"] = [_DESCRIBED, *others]
        scoped.add_api_route(
            route.path,
            route.endpoint,
            methods=sorted(route.methods or ()),
            openapi_extra=extra,
            responses={**route.responses, **refusals({NotFound}, "native")},
            tags=["collections"],
            summary=f"{route.summary or route.name.replace('_', ' ').capitalize()}, in a collection",
        )
    return scoped


@router.get("", **describe(Role.READ, None, CollectionsOut, raises=[Storage]))
async def list_collections(request: Request) -> Response:
    """Every collection, and how many documents it has."""
    known_parameters(request)
    found = await runtime_of(request).corpus.store.collections()
    return json_response({"collections": [{"name": name, "documents": count} for name, count in found]})


@router.delete(
    f"/{{{PARAMETER}}}",
    **describe(Role.WRITE, None, Dropped, raises=[NotFound, Storage], parameters=[_DESCRIBED]),
)
async def delete_collection(request: Request) -> Response:
    """Delete a collection with its documents, judgements, events and maps; the default one is emptied.

    In steps, as `DELETE /documents`: what is written to it meanwhile stays, and so does the collection then.
    """
    runtime = runtime_of(request)
    known_parameters(request)
    name = await existing(request, runtime)
    await asyncio.to_thread(_delete_maps, runtime.settings.maps_dir, name)
    deleted, sequence = await runtime.corpus.drop(name)
    audit("delete-collection", request.scope, collection=name, deleted=deleted)
    return json_response({"deleted": deleted, "sequence": sequence})


def _delete_maps(maps: Path, collection: str) -> None:
    """Delete the files of every version's map: they hold ids, words and values of the documents."""
    for file in maps.glob(f"*/{collection}.json"):
        file.unlink(missing_ok=True)
