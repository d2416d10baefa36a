"""Users' judgements of their hits: stored here, read by a retraining."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel, StrictBool, WithJsonSchema
from starlette.responses import Response

from service.api.body import Slices, parameters, read_body, validated
from service.api.collections import existing
from service.api.contract import Role, describe
from service.api.inference import check_count
from service.api.json_schemas import USER, Count, DocumentId, StoredQuery, User
from service.api.responses import json_response
from service.api.selected import (
    HASHED,
    SELECTS,
    TRUSTED,
    Forgetting,
    Forgotten,
    Listing,
    Selected,
    Sender,
    forget,
    selection_of,
    sender_of,
    shown_as,
    to_forget,
    trusted_now,
)
from service.auth.visitors import Visitors
from service.errors import (
    Conflict,
    Empty,
    NotFound,
    Overloaded,
    ServiceError,
    Storage,
    Validation,
    release_frames,
)
from service.http.routing import Direct
from service.runtime.runtime import runtime_of
from service.store.values import Judgement, Limits

router = APIRouter(prefix="/feedback", route_class=Direct, tags=["feedback"])

NOT_THERE = "There is no document {id!r}: never stored, or deleted since the search. Leave the judgement out."


class JudgementIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: StoredQuery
    id: DocumentId
    relevant: StrictBool
    user: User | None = Field(None, description=USER)


_ONE = JudgementIn.model_json_schema()
_MANY = {"type": "array", "items": _ONE, "minItems": 1}


class JudgementsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted.
    feedback: Annotated[list[Any], WithJsonSchema(_MANY)]


class FeedbackRequest(
    RootModel[Annotated[dict[str, Any], WithJsonSchema({"anyOf": [_ONE, JudgementsIn.model_json_schema()]})]]
):
    """A judgement, or a list of them as `feedback`."""


class Refused(BaseModel):
    index: int = Field(description="Its place in the list, from 0")
    error: str


class Judged(BaseModel):
    stored: int
    sequence: int
    refused: list[Refused] = Field([], description="Of a list, when some were refused")


class JudgementOut(BaseModel):
    collection: str
    query: str
    id: str
    relevant: bool
    key: str = Field(description="The name of the key that judged; empty when there was none")
    user: str = Field(description=HASHED)
    trusted: bool = Field(description=TRUSTED)
    sequence: int


class FeedbackPage(BaseModel):
    feedback: list[JudgementOut]
    next: int | None


@router.post(
    "", **describe(Role.WRITE, FeedbackRequest, Judged, raises=[NotFound, Conflict, Overloaded, Storage])
)
async def judge(request: Request) -> Response:
    """Store one judgement or many: on disk when this answers 200.

    A judgement carries the name of the key that sent it, and replaces that key's earlier one of the same
    query and document, whichever visitor the two name. One of a document that is not there, for example
    because it was deleted since the search, is 404: nothing could be learnt from it. More than a key may
    have, in all, of one query or of one document, is 409, and nothing is stored. Of a list, `refused` says
    which judgements are malformed or of a document that is not there, and the others are stored; when none
    is left, the first refusal is the answer.
    """
    runtime = runtime_of(request)
    body = await read_body(request, FeedbackRequest, stored=True)
    sender, settings = sender_of(request), runtime.settings
    given = await _judgements(body.root, settings.max_inputs, runtime.visitors, sender)
    collection = await existing(request, runtime)
    limits = Limits(settings.feedback_per_key, settings.feedback_per_query, settings.feedback_per_document)
    well_formed = [judgement for judgement in given if isinstance(judgement, Judgement)]
    if not well_formed and isinstance(given[0], ServiceError):
        raise given[0]
    with runtime.queued_rows.admitted(len(well_formed)):
        sequence, unknown = await runtime.corpus.store.judge(well_formed, collection, sender.key, limits)
    stored = [judgement for judgement in well_formed if judgement.id not in unknown]
    for judgement in stored:
        runtime.metrics.feedback.labels(str(judgement.relevant).lower()).inc()
    refused = [
        {"index": at, "error": NOT_THERE.format(id=said.id) if isinstance(said, Judgement) else said.message}
        for at, said in enumerate(given)
        if not isinstance(said, Judgement) or said.id in unknown
    ]
    answer: dict[str, Any] = {"stored": len(stored), "sequence": sequence}
    return json_response(answer | ({"refused": refused} if refused else {}))


async def _judgements(
    body: dict[str, Any], limit: int, visitors: Visitors, sender: Sender
) -> list[Judgement | ServiceError]:
    """The judgements of a request; in a list, an error stands in the place of one that is malformed."""
    if "feedback" not in body:
        return [_judgement(body, "", visitors, sender)]
    many = validated(JudgementsIn, body).feedback
    check_count(many, limit, "feedback")
    found, slices = [], Slices()
    for at, value in enumerate(many):
        found.append(_judgement_or_error(value, f"feedback[{at}]", visitors, sender))
        await slices.rest()
    return found


def _judgement_or_error(
    value: object, name: str, visitors: Visitors, sender: Sender
) -> Judgement | ServiceError:
    try:
        return _judgement(value, name, visitors, sender)
    except (Empty, Validation) as error:
        release_frames(error)
        return error


def _judgement(value: object, name: str, visitors: Visitors, sender: Sender) -> Judgement:
    given = validated(JudgementIn, value, name)
    if not given.query or given.query.isspace():
        field = f"{name}.query".removeprefix(".")
        raise Empty(f"{field} is empty, or white space only. Leave the judgement out.")
    return Judgement(
        given.query,
        given.id,
        given.relevant,
        visitor=visitors.hashed(given.user),
        trusted=sender.trusted,
    )


@router.get("", **describe(Role.READ, None, FeedbackPage, query=Listing, raises=SELECTS))
async def list_feedback(request: Request) -> Response:
    """Judgements in the order in which they came, from the one behind the number `after`.

    `next` is the `after` of the following page. Judgements of deleted documents are left out; they are listed
    again, under their old numbers, when a document is stored under that id again.
    """
    runtime = runtime_of(request)
    asked = parameters(request, Listing)
    selection = await selection_of(request, runtime, asked)
    most = runtime.settings.max_answer_bytes
    shown, more = await runtime.corpus.store.judgements(asked.after, asked.limit, selection, most)
    following = shown[-1][0] if more else None
    rows = [
        shown_as(
            JudgementOut,
            given,
            sequence=number,
            user=given.visitor,
            trusted=trusted_now(request, given),
        )
        for number, given in shown
    ]
    return json_response({"feedback": rows, "next": following})


@router.get("/count", **describe(Role.READ, None, Count, query=Selected, raises=SELECTS))
async def count_feedback(request: Request) -> Response:
    """Number of judgements that are listed in all."""
    runtime = runtime_of(request)
    selection = await selection_of(request, runtime, parameters(request, Selected))
    found = await runtime.corpus.store.count_judgements(selection)
    return json_response({"count": found})


class Summary(BaseModel):
    judgements: int
    relevant: int = Field(description="How many of them say that the document is relevant")
    queries: int = Field(description="Different queries among them")
    answered: int = Field(description="Queries with a relevant document: a retraining can measure by these")


@router.get("/summary", **describe(Role.READ, None, Summary, query=Selected, raises=SELECTS))
async def sum_up_feedback(request: Request) -> Response:
    """Counts of the judgements that are listed, and of the different queries that they are about."""
    runtime = runtime_of(request)
    selection = await selection_of(request, runtime, parameters(request, Selected))
    found = await runtime.corpus.store.sum_up_judgements(selection)
    return json_response(found._asdict())


@router.delete("", **describe(Role.WRITE, None, Forgotten, query=Forgetting, raises=SELECTS))
async def delete_feedback(request: Request) -> Response:
    """Delete the judgements of a query, of a document's id, of a key, of a user, or of these together.

    Also unlisted ones. A key of role write deletes its own, which `key` names; where another key's are among
    them, all stay and the answer is 403. A key of role admin deletes any. In steps, with other writes between
    them: after an error some are deleted, and sending it again deletes the rest.
    """
    runtime = runtime_of(request)
    selection = await to_forget(request, runtime, parameters(request, Forgetting))
    return await forget(request, "delete-feedback", selection, runtime.corpus.store.forget_judgements)
