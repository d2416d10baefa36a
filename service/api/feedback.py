"""What users say of their hits: stored here, read by a retraining."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel, StrictBool, StrictStr, WithJsonSchema
from starlette.responses import Response

from service.api.body import known_parameters, read_body, validated
from service.api.collections import PARAMETER, existing, existing_named
from service.api.contract import Role, describe
from service.api.documents import MAX_ID_CHARACTERS, MAX_PAGE, Count, Limit
from service.api.inference import check_count, runtime_of
from service.api.json_schemas import TEXT
from service.api.responses import json_response
from service.auth.audit import audit
from service.errors import Conflict, Empty, NotFound, Storage, Validation
from service.http.routing import Direct
from service.runtime.runtime import Runtime
from service.store.documents import COLLECTION_NAME
from service.store.feedback import NO_KEY, Judgement, Limits, Selection, count, forget, page, store

router = APIRouter(prefix="/feedback", route_class=Direct, tags=["feedback"])

# Percent-encoded, so long a query still fits a URL of 64 KiB: what can be stored can be deleted.
MAX_QUERY_CHARACTERS = 4096
INT64 = 2**63


class JudgementIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: StrictStr = Field(max_length=MAX_QUERY_CHARACTERS, json_schema_extra=TEXT)
    id: StrictStr = Field(min_length=1, max_length=MAX_ID_CHARACTERS)
    relevant: StrictBool


_ONE = JudgementIn.model_json_schema()
_MANY = {"type": "array", "items": _ONE, "minItems": 1}


class JudgementsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted.
    feedback: Annotated[list[Any], WithJsonSchema(_MANY)]


class FeedbackRequest(
    RootModel[Annotated[dict[str, Any], WithJsonSchema({"anyOf": [_ONE, JudgementsIn.model_json_schema()]})]]
):
    """One judgement, or a list of them as `feedback`."""


class Judged(BaseModel):
    stored: int
    sequence: int


class JudgementOut(BaseModel):
    collection: str
    query: str
    id: str
    relevant: bool
    key: str = Field(description="The name of the key that judged; empty when there was none")
    sequence: int


class FeedbackPage(BaseModel):
    feedback: list[JudgementOut]
    next: int | None


class Forgotten(BaseModel):
    deleted: int


_After = Annotated[int, Query(json_schema_extra={"minimum": 0, "maximum": INT64 - 1})]
_Name = Annotated[str | None, Query(json_schema_extra={"minLength": 1})]
# A text that no key's name and no collection's name can be.
WITHOUT_KEY, EVERY_COLLECTION = "-", "*"
_KEY = {
    "in": "query",
    "name": "key",
    "description": f"The name of the key that judged; {WITHOUT_KEY} for judgements without one",
    "schema": {"type": "string", "minLength": 1},
}
_COLLECTION = {
    "in": "query",
    "name": PARAMETER,
    "description": f"Another collection than `default`; {EVERY_COLLECTION} for all of them",
    "schema": {"type": "string", "pattern": rf"^({COLLECTION_NAME.pattern}|\{EVERY_COLLECTION})$"},
}


@router.post("", **describe(Role.WRITE, FeedbackRequest, Judged, raises=[NotFound, Conflict, Storage]))
async def judge(request: Request) -> Response:
    """Store one judgement or many: on disk when this answers 200.

    A judgement carries the name of the key that sent it, and replaces that key's earlier one of the same
    query and document. One of a document that is not there, for example because it was deleted since the
    search, is 404: nothing could be learnt from it. More than a key may have, in all, of one query or of one
    document, is 409. Of a list, all are stored or none; the 404 names the ids to leave out.
    """
    runtime = runtime_of(request)
    body = await read_body(request, FeedbackRequest)
    judgements = _judgements(body.root, runtime.settings.max_inputs)
    collection = await existing(request, runtime)
    key, settings = _key(request), runtime.settings
    limits = Limits(settings.feedback_per_key, settings.feedback_per_query, settings.feedback_per_document)
    sequence = await runtime.corpus.writer.run(
        lambda transaction: store(transaction, judgements, collection, key, limits)
    )
    for judgement in judgements:
        runtime.metrics.feedback.labels(str(judgement.relevant).lower()).inc()
    return json_response({"stored": len(judgements), "sequence": sequence})


def _judgements(body: dict[str, Any], limit: int) -> list[Judgement]:
    if "feedback" not in body:
        return [_judgement(body, "")]
    many = validated(JudgementsIn, body).feedback
    check_count(many, limit, "feedback")
    return [_judgement(value, f"feedback[{at}]") for at, value in enumerate(many)]


def _judgement(value: object, name: str) -> Judgement:
    given = validated(JudgementIn, value, name)
    if not given.query or given.query.isspace():
        field = f"{name}.query".removeprefix(".")
        raise Empty(f"{field} is empty, or white space only. Leave the judgement out.")
    return Judgement(given.query, given.id, given.relevant)


def _key(request: Request) -> str:
    """The name of the key that a request carries."""
    account = request.scope.get("account")
    return NO_KEY if account is None else str(account.key.name)


async def _selected(request: Request, runtime: Runtime, *names: str) -> Selection:
    """What the query parameters `key` and `collection` leave of the judgements.

    Raises:
        Validation: a parameter that is none of these nor one of `names`.
        Empty: one that names nothing.
        NotFound: there is no such collection.

    """
    in_path = PARAMETER in request.path_params
    known_parameters(request, *names, "key", *(() if in_path else (PARAMETER,)))
    given = request.query_params
    for name in {"query", "id", "key", PARAMETER} & given.keys():
        # An unset variable of the caller's: by the other name alone, more would go than was meant.
        if not given[name]:
            raise Empty(f"{name} is empty, and no judgement is of that. Leave it out, or name one.")
    collection: str | None
    if in_path or PARAMETER not in given:
        collection = await existing(request, runtime)
    elif given[PARAMETER] == EVERY_COLLECTION:
        collection = None
    else:
        collection = await existing_named(given[PARAMETER], runtime)
    key = given.get("key")
    return Selection(collection, given.get("query"), given.get("id"), NO_KEY if key == WITHOUT_KEY else key)


@router.get(
    "",
    **describe(
        Role.READ, None, FeedbackPage, raises=[Empty, NotFound, Storage], parameters=[_KEY, _COLLECTION]
    ),
)
async def list_feedback(request: Request, after: _After = 0, limit: Limit = 100) -> Response:
    """Judgements in the order in which they came, from the one behind the number `after`.

    `next` is the `after` of the following page. Judgements of deleted documents are left out; they are listed
    again, under their old numbers, when a document is stored under that id again.
    """
    runtime = runtime_of(request)
    selection = await _selected(request, runtime, "after", "limit")
    if not 0 <= after < INT64:
        raise Validation("after must be the number of a judgement (its sequence), or 0 to begin.")
    if not 1 <= limit <= MAX_PAGE:
        raise Validation(f"limit must be between 1 and {MAX_PAGE}, not {limit}.")
    found = await runtime.corpus.documents.read(
        lambda connection: page(connection, after, limit + 1, selection)
    )
    shown = found[:limit]
    following = shown[-1][0] if len(found) > limit else None
    rows = [
        {
            "collection": given.collection,
            "query": given.query,
            "id": given.id,
            "relevant": given.relevant,
            "key": given.key,
            "sequence": number,
        }
        for number, given in shown
    ]
    return json_response({"feedback": rows, "next": following})


@router.get(
    "/count",
    **describe(Role.READ, None, Count, raises=[Empty, NotFound, Storage], parameters=[_KEY, _COLLECTION]),
)
async def count_feedback(request: Request) -> Response:
    """How many judgements are listed in all."""
    runtime = runtime_of(request)
    selection = await _selected(request, runtime)
    found = await runtime.corpus.documents.read(lambda connection: count(connection, selection))
    return json_response({"count": found})


@router.delete(
    "",
    **describe(
        Role.WRITE, None, Forgotten, raises=[Empty, NotFound, Storage], parameters=[_KEY, _COLLECTION]
    ),
)
async def delete_feedback(request: Request, query: _Name = None, id: _Name = None) -> Response:
    """Delete the judgements of a query, of a document's id, of a key, or of these together.

    Also unlisted ones. A key of role write deletes its own, which `key` names; where another key's are among
    them, all stay and the answer is 403. A key of role admin deletes any.
    """
    runtime = runtime_of(request)
    selection = await _selected(request, runtime, "query", "id")
    if query is None and id is None and selection.key is None:
        raise Validation("Deleting needs a query, an id or a key: DELETE /feedback?query=…&id=…&key=….")
    account = request.scope.get("account")
    own = None if account is None or Role.ADMIN in account.allows else account.key.name
    deleted = await runtime.corpus.writer.run(lambda transaction: forget(transaction, selection, own))
    audit("delete-feedback", request.scope, deleted=deleted)
    return json_response({"deleted": deleted})
