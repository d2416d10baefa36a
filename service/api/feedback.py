"""Users' judgements of their hits: stored here, read by a retraining."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel, StrictBool
from starlette.responses import Response

from service.api.collections import existing
from service.api.embedding import check_count
from service.api.openapi import USER, Count, DocumentId, Role, ShownAs, StoredQuery, User, describe, example
from service.api.selection import (
    HASHED,
    SELECTS,
    TRUSTED,
    Forgetting,
    Forgotten,
    Listing,
    Selected,
    Sender,
    forget,
    list_rows,
    selection_of,
    sender_of,
    to_forget,
)
from service.auth.access import Visitors
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
from service.http.bodies import STORED, Slices, json_response, validated
from service.http.routing import RoleRoute
from service.runtime.runtime import Service
from service.store.values import Judgement, Limits

router = APIRouter(prefix="/feedback", route_class=RoleRoute, tags=["feedback"])

NOT_THERE = "There is no document {id!r}: never stored, or deleted since the search. Leave the judgement out."


class JudgementIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: StoredQuery
    id: DocumentId
    relevant: StrictBool
    user: User | None = Field(None, description=USER)


class JudgementsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted.
    feedback: Annotated[list[Any], ShownAs(Annotated[list[JudgementIn], Field(min_length=1)])]


class FeedbackRequest(RootModel[Annotated[dict[str, Any], ShownAs(JudgementIn | JudgementsIn)]]):
    """A judgement, or a list of them as `feedback`."""

    model_config = example({"query": "how do I get my money back", "id": "refund", "relevant": True})


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


@router.post("", **describe(Role.WRITE, Judged, raises=[NotFound, Conflict, Overloaded, Storage]))
async def store_judgments(
    request: Request, runtime: Service, body: Annotated[FeedbackRequest, STORED]
) -> Response:
    """Store one judgement or many: on disk when this answers 200.

    A judgement carries the name of the key that sent it, and replaces that key's earlier one of the same
    query and document, whichever visitor the two name. One of a document that is not there, for example
    because it was deleted since the search, is 404: nothing could be learnt from it. More than a key may
    have, in all, of one query or of one document, is 409, and nothing is stored. Of a list, `refused` says
    which judgements are malformed or of a document that is not there, and the others are stored; when none
    is left, the first refusal is the answer.
    """
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
    """Returns the judgments of a request. In a list, an error replaces each malformed judgment."""
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


@router.get("", **describe(Role.READ, FeedbackPage, raises=SELECTS))
async def list_judgments(request: Request, runtime: Service, params: Annotated[Listing, Query()]) -> Response:
    """Judgements in the order in which they came, from the one after the number `after`.

    `next` is the `after` of the following page. Judgements of deleted documents are left out; they are listed
    again, under their old numbers, when a document is stored under that id again.
    """
    read = runtime.corpus.store.judgements
    return await list_rows(request, runtime, params, "feedback", read, JudgementOut)


@router.get("/count", **describe(Role.READ, Count, raises=SELECTS))
async def count_judgments(
    request: Request, runtime: Service, params: Annotated[Selected, Query()]
) -> Response:
    """Number of judgements that are listed in all."""
    selection = await selection_of(request, runtime, params)
    found = await runtime.corpus.store.count_judgements(selection)
    return json_response({"count": found})


class Summary(BaseModel):
    judgements: int
    relevant: int = Field(description="How many of them say that the document is relevant")
    queries: int = Field(description="Different queries among them")
    answered: int = Field(description="Queries with a relevant document: a retraining can measure by these")


@router.get("/summary", **describe(Role.READ, Summary, raises=SELECTS))
async def sum_up_judgments(
    request: Request, runtime: Service, params: Annotated[Selected, Query()]
) -> Response:
    """Counts of the judgements that are listed, and of the different queries that they are about."""
    selection = await selection_of(request, runtime, params)
    found = await runtime.corpus.store.sum_up_judgements(selection)
    return json_response(found._asdict())


@router.delete("", **describe(Role.WRITE, Forgotten, raises=SELECTS))
async def delete_judgments(
    request: Request, runtime: Service, params: Annotated[Forgetting, Query()]
) -> Response:
    """Delete the judgements of a query, of a document's id, of a key, of a user, or of these together.

    Also unlisted ones. A key of role write deletes its own, which `key` names; where another key's are among
    them, all stay and the answer is 403. A key of role admin deletes any. In steps, with other writes between
    them: after an error some are deleted, and sending it again deletes the rest.
    """
    selection = await to_forget(request, runtime, params)
    return await forget(request, "delete-feedback", selection, runtime.corpus.store.forget_judgements)
