"""Collections: documents that are searched separately. The plain routes are those of the default collection.

    /collections/{collection}/documents  /search  /feedback  /events      as the plain routes
    GET /collections   DELETE /collections/{collection}

A collection exists from its first document until it is deleted. One model embeds all of them, and all change
to the next model at the same moment.
"""

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from service.api.openapi import Role, describe
from service.auth.audit import audit
from service.errors import NotFound, Storage, Validation
from service.http.bodies import check_parameters, json_response
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service
from service.store.values import COLLECTION_NAME, DEFAULT_COLLECTION

PARAMETER = "collection"
_DESCRIBED = {
    "in": "path",
    "name": PARAMETER,
    "required": True,
    "schema": {"type": "string", "pattern": f"^{COLLECTION_NAME.pattern}$"},
}

router = APIRouter(prefix="/collections", route_class=RoleRoute, tags=["collections"])


class CollectionOut(BaseModel):
    name: str
    documents: int


class CollectionsOut(BaseModel):
    collections: list[CollectionOut]


class Dropped(BaseModel):
    deleted: int
    sequence: int


def collection_of(request: Request) -> str:
    """Returns the collection that the path names.

    Raises:
        Validation: No collection can have such a name.

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
    """Returns the collection that the path names, for a route that only reads.

    Raises:
        NotFound: The collection does not exist.

    """
    return await existing_named(collection_of(request), runtime)


async def existing_named(name: str, runtime: Runtime) -> str:
    """Returns `name`, which a parameter gave.

    Raises:
        Validation: No collection can have such a name.
        NotFound: The collection does not exist.

    """
    _checked(name)
    if name != DEFAULT_COLLECTION and not await runtime.corpus.store.has_collection(name):
        raise NotFound(
            f"There is no collection {name!r}. GET /collections lists them; its first document makes one."
        )
    return name


def in_collections(plain: APIRouter) -> APIRouter:
    """Returns the routes of `plain` for any collection."""
    scoped = APIRouter(prefix=f"/collections/{{{PARAMETER}}}", route_class=RoleRoute)
    for route in plain.routes:
        assert isinstance(route, APIRoute)  # noqa: S101  all of ours are
        extra: dict[str, Any] = dict(route.openapi_extra or {})
        extra["parameters"] = [_DESCRIBED, *extra.get("parameters", [])]
        scoped.add_api_route(
            route.path,
            route.endpoint,
            methods=sorted(route.methods or ()),
            openapi_extra=extra,
            responses=route.responses,
            tags=["collections"],
            summary=f"{route.summary}, in a collection",
        )
    return scoped


@router.get("", **describe(Role.READ, CollectionsOut, raises=[Storage]))
async def list_collections(request: Request, runtime: Service) -> Response:
    """Every collection, and how many documents it has."""
    check_parameters(request)
    found = await runtime.corpus.store.collections()
    return json_response({"collections": [{"name": name, "documents": count} for name, count in found]})


@router.delete(
    f"/{{{PARAMETER}}}",
    **describe(Role.WRITE, Dropped, raises=[Storage], parameters=[_DESCRIBED]),
)
async def delete_collection(request: Request, runtime: Service) -> Response:
    """Delete a collection with its documents, judgements, events and maps; the default one is emptied.

    In steps, as `DELETE /documents`: what is written to it meanwhile stays, and so does the collection then.
    """
    check_parameters(request)
    name = await existing(request, runtime)
    await asyncio.to_thread(_delete_maps, runtime.settings.maps_dir, name)
    deleted, sequence = await runtime.corpus.drop(name)
    audit("delete-collection", request.scope, collection=name, deleted=deleted)
    return json_response({"deleted": deleted, "sequence": sequence})


def _delete_maps(maps: Path, collection: str) -> None:
    """Delete the files of every version's map: they hold ids, words and values of the documents."""
    for file in maps.glob(f"*/{collection}.json"):
        file.unlink(missing_ok=True)
