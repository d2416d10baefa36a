"""Collections: sets of documents that are searched separately.

These routes work like the routes without a collection, which use the default collection:

    /collections/{collection}/documents  /files  /search  /searches  /feedback  /events  /map

These routes are only about collections:

    GET /collections   DELETE /collections/{collection}   PUT /collections/{collection}/clicked

A collection exists from its first document until the collection is deleted. One model embeds all collections,
and all collections change to another model version at the same moment. `GET /map` returns the map of a
collection, which `simile map` computes.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from models.manifest import Mode, is_version
from models.search.fusion import get_mode
from service.api.openapi import DocumentId, OpenTo, Role, ShownAs, StoredQuery, describe
from service.auth.access import get_scope
from service.auth.audit import audit
from service.corpus.tenants import build_bounds
from service.errors import Empty, NotFound, Storage, Validation
from service.http.bodies import STORED, JsonChunks, Slices, check_parameters, json_response, validated
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service
from service.store.filters.grammar import Predicate
from service.store.values import COLLECTION_NAME, DEFAULT_COLLECTION, NAME_RULE, Selection

PARAMETER = "collection"
DESCRIBED = {
    "in": "path",
    "name": PARAMETER,
    "required": True,
    "schema": {"type": "string", "pattern": f"^{COLLECTION_NAME.pattern}$"},
}

router = APIRouter(prefix="/collections", route_class=RoleRoute, tags=["collections"])
map_router = APIRouter(route_class=RoleRoute, tags=["documents"])
_COMMAND = "While that version is active, `simile map` makes one."


class CollectionOut(BaseModel):
    name: str
    documents: int
    mode: Mode = Field(description="Mode of searches that name neither mode nor min_score")
    ranked: bool = Field(description="Whether hybrid search has a ranking that was learned for it")


class CollectionsOut(BaseModel):
    collections: list[CollectionOut]


class Dropped(BaseModel):
    deleted: int
    sequence: int


def get_collection(request: Request, given: str | None = None) -> str:
    """Returns the name of a request's collection: `given`, else the name in the path, else `default`.

    Raises:
        Validation: The name is not a valid name of a collection.
        NotFound: The collection is outside of the key's scope.

    """
    name: str = request.path_params.get(PARAMETER, DEFAULT_COLLECTION) if given is None else given
    if not COLLECTION_NAME.fullmatch(name):
        raise Validation(f"{name[:80]!r} cannot be a collection. {NAME_RULE}")
    scope = get_scope(request.scope)
    if scope is not None and not scope.allows(name):
        raise _missing(name)
    return name


def find_bounds(request: Request, runtime: Runtime) -> Predicate | None:
    """Returns the filter of the key's scope as a condition, or None if the key sees all documents."""
    return build_bounds(runtime.corpus.store, get_scope(request.scope))


def find_tenant(request: Request) -> str:
    """Returns the tenant whose searches a request may refer to. Empty for keys without a filter.

    Keys with the same filter have the same tenant.
    """
    scope = get_scope(request.scope)
    return scope.tenant if scope is not None and scope.filter else ""


async def existing(request: Request, runtime: Runtime, given: str | None = None) -> str:
    """Returns the name of a request's collection after checking that the collection exists.

    Raises:
        Validation: The name is not a valid name of a collection.
        NotFound: The collection does not exist.

    """
    name = get_collection(request, given)
    if name != DEFAULT_COLLECTION and not await runtime.corpus.store.has_collection(name):
        raise _missing(name)
    return name


def _missing(name: str) -> NotFound:
    """Returns the error for a collection that does not exist, or is outside of the key's scope."""
    return NotFound(
        f"There is no collection {name!r}. GET /collections lists them; its first document makes one."
    )


def in_collections(plain: APIRouter) -> APIRouter:
    """Returns copies of the routes in `plain`, with paths below `/collections/{collection}`."""
    scoped = APIRouter(prefix=f"/collections/{{{PARAMETER}}}", route_class=RoleRoute)
    for route in plain.routes:
        assert isinstance(route, APIRoute)  # noqa: S101  all of ours are
        extra: dict[str, Any] = dict(route.openapi_extra or {})
        extra["parameters"] = [DESCRIBED, *extra.get("parameters", [])]
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


@router.get("", **describe(Role.READ, CollectionsOut, open_to=OpenTo.SCOPED, raises=[Storage]))
async def list_collections(request: Request, runtime: Service) -> Response:
    """List each collection that the key may use, with the number of documents that it may see."""
    check_parameters(request)
    store, scope = runtime.corpus.store, get_scope(request.scope)
    if scope is None:
        found = await store.collections()
    else:
        where = find_bounds(request, runtime)
        names = filter(scope.allows, await store.collection_names())
        found = [(name, await store.count(where, name)) for name in names]
    generation = runtime.active.generation
    ranked = {name for name, _ in generation.rankings.list_own()}
    mode, learned = runtime.settings.search_mode, generation.manifest.search
    collections = [
        {
            "name": name,
            "documents": count,
            "mode": mode or get_mode(learned.get(name)),
            "ranked": runtime.settings.ranking and name in ranked,
        }
        for name, count in found
    ]
    return json_response({"collections": collections})


@router.delete(
    f"/{{{PARAMETER}}}",
    **describe(
        Role.WRITE,
        Dropped,
        open_to=OpenTo.COLLECTIONS,
        raises=[Storage],
        parameters=[DESCRIBED],
    ),
)
async def delete_collection(request: Request, runtime: Service) -> Response:
    """Delete a collection with all documents, judgments, events, remembered searches and maps.

    The default collection is only emptied.

    The deletion runs in steps, as `DELETE /documents` does. Documents that are written during the deletion
    stay, and then the collection also stays.
    """
    check_parameters(request)
    name = await existing(request, runtime)
    await asyncio.to_thread(_delete_maps, runtime.settings.maps_dir, name)
    deleted, sequence = await runtime.corpus.drop(name)
    if runtime.searches is not None:
        runtime.searches.forget(Selection(name))
    audit("delete-collection", request.scope, collection=name, deleted=deleted)
    return json_response({"deleted": deleted, "sequence": sequence})


MAX_CLICKED = 20_000  # Maximum answers in one request.


class ClickedAnswer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: StoredQuery
    id: DocumentId
    gain: float = Field(
        strict=True, ge=0, le=1, description="How relevant the document is. 0: users passed it over"
    )


class ClickedRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # The handler counts the items first, and then validates each.
    clicked: Annotated[list[Any], ShownAs(Annotated[list[ClickedAnswer], Field(max_length=MAX_CLICKED)])]


class Remembered(BaseModel):
    stored: int
    left_out: int = Field(description="Answers about documents without events, such as deleted ones")


@router.put(
    f"/{{{PARAMETER}}}/clicked",
    **describe(Role.ADMIN, Remembered, raises=[Empty, NotFound, Storage], parameters=[DESCRIBED]),
)
async def replace_clicked_answers(
    request: Request, runtime: Service, body: Annotated[ClickedRequest, STORED]
) -> Response:
    """Replace all answers that were derived from the clicks in a collection.

    An answer says how relevant a document is to a query. A retraining sends the answers after it has
    aggregated the events. Hybrid search remembers them like judgments, but a judgment overrides the clicks on
    the same query and document. The answers of a document are deleted with the document. An empty list
    deletes all answers.
    """
    check_parameters(request)
    if len(body.clicked) > MAX_CLICKED:
        raise Validation(f"clicked has {len(body.clicked)} entries; at most {MAX_CLICKED} are remembered.")
    answers: dict[str, dict[str, float]] = {}
    slices = Slices()
    for at, value in enumerate(body.clicked):
        given = validated(ClickedAnswer, value, f"clicked[{at}]")
        query = " ".join(given.query.split())
        if not query:
            raise Empty(f"clicked[{at}].query is empty, or white space only. Leave the answer out.")
        answers.setdefault(given.id, {})[query] = given.gain
        await slices.rest()
    collection = await existing(request, runtime)
    stored = await runtime.corpus.store.replace_clicked(answers, collection)
    audit("replace-clicked", request.scope, collection=collection, stored=stored)
    count = sum(map(len, answers.values()))
    return json_response({"stored": stored, "left_out": count - stored})


def _delete_maps(maps: Path, collection: str) -> None:
    """Deletes the maps of a collection for every version.

    Maps must not outlive a collection, because they contain ids, words and values of documents.
    """
    for file in maps.glob(f"*/{collection}.json"):
        file.unlink(missing_ok=True)


class MapParameters(BaseModel):
    version: str | None = Field(
        None, description="Absent: the active version, else the latest one with a map"
    )


class Group(BaseModel):
    words: list[str] = Field(description="Words that describe the group, best first")
    x: int
    y: int
    size: int


class Coloring(BaseModel):
    values: list[Any]
    of: list[int] = Field(description="For each document the index of its value, -1 if it has none")


class Map(BaseModel):
    version: str
    collection: str
    made: str
    aligned_to: str | None = Field(description="The version whose map it was aligned to, or null")
    ids: list[str]
    x: list[int] = Field(description="From 0 to 65535, for each id. The same holds for y")
    y: list[int]
    cluster: list[int] = Field(description="For each id the index of its group in clusters")
    clusters: list[Group]
    fields: dict[str, Coloring] = Field(description="Metadata fields with few values")
    strays: list[int] = Field(description="Indexes in ids of documents that are far from all others")
    copies: list[tuple[int, int]] = Field(description="Indexes in ids of pairs of near-duplicates")


@map_router.get("/map", **describe(Role.READ, Map, open_to=OpenTo.SCOPED, raises=[NotFound, Storage]))
async def read_map_of_the_documents(
    request: Request, runtime: Service, params: Annotated[MapParameters, Query()]
) -> Response:
    """Return the map of a collection: a point in the plane for each document.

    A map belongs to one model version, and shows the documents as they were when the map was computed.
    Without `version`, the answer is the map of the active version, or of the latest version with a map if the
    active one has none. Keys with a filter get no map, because it shows all documents.
    """
    collection = await existing(request, runtime)
    maps, tenant = runtime.settings.maps_dir, find_tenant(request)
    version = params.version or runtime.active.generation.version
    if not is_version(version):
        raise NotFound(f"There is no version {version[:100]!r}. GET /models lists them.")
    file = maps / version / f"{collection}.json"
    made = (
        []
        if params.version or tenant
        else await asyncio.to_thread(lambda: [*maps.glob(f"*/{collection}.json")])
    )
    for found in () if tenant else (file, *sorted(made, key=lambda one: one.parent.name, reverse=True)):
        if await asyncio.to_thread(found.is_file):
            content = await asyncio.to_thread(found.read_bytes)
            return JsonChunks([content], {"cache-control": "no-cache"})  # A new map may replace the file.
    raise NotFound(f"There is no map of {version} in the collection {collection!r}. {_COMMAND}")
