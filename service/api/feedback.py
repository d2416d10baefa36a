"""Routes for judgments: users say whether a hit is relevant. Retraining learns from the stored judgments."""

import logging
import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel, StrictBool
from starlette.responses import Response

from service.api.collections import existing, find_bounds, find_tenant
from service.api.events import EventIn, complete_event
from service.api.openapi import (
    USER,
    Count,
    DocumentId,
    EventName,
    OpenTo,
    Role,
    ShownAs,
    StoredQuery,
    User,
    describe,
    example,
)
from service.api.selection import (
    HASHED,
    SELECTS,
    TRUSTED,
    Forgetting,
    Forgotten,
    Listing,
    Selected,
    build_selection,
    forget,
    get_sender,
    list_rows,
    parse_each,
    to_forget,
)
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
from service.http.bodies import STORED, json_response, validated
from service.http.routing import RoleRoute
from service.observability.logs import safe_message
from service.runtime.runtime import Runtime, Service
from service.store.values import EventLimits, Judgment, Limits

log = logging.getLogger(__name__)
router = APIRouter(prefix="/feedback", route_class=RoleRoute, tags=["feedback"])

NOT_THERE = "There is no document {id!r}: never stored, or deleted since the search. Leave the judgment out."


class JudgmentIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    query: StoredQuery
    id: DocumentId
    relevant: StrictBool
    user: User | None = Field(None, description=USER)
    search_id: EventName | None = Field(
        None, description="Of the answer that had the hit. If a live test runs, the judgment counts in it"
    )


class JudgmentsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted.
    feedback: Annotated[list[Any], ShownAs(Annotated[list[JudgmentIn], Field(min_length=1)])]


class FeedbackRequest(RootModel[Annotated[dict[str, Any], ShownAs(JudgmentIn | JudgmentsIn)]]):
    """A single judgment, or a list of judgments in the field `feedback`."""

    LIST_FIELD: ClassVar[str] = "feedback"

    model_config = example({"query": "how do I get my money back", "id": "refund", "relevant": True})


class Refused(BaseModel):
    index: int = Field(description="Index in the list, from 0")
    error: str


class Judged(BaseModel):
    stored: int
    sequence: int
    refused: list[Refused] = Field([], description="Rejected judgments of a list, if any")


class JudgmentOut(BaseModel):
    collection: str
    query: str
    id: str
    relevant: bool
    key: str = Field(description="The name of the key that judged, or empty")
    user: str = Field(description=HASHED)
    trusted: bool = Field(description=TRUSTED)
    sequence: int


class FeedbackPage(BaseModel):
    feedback: list[JudgmentOut]
    next: int | None


@router.post(
    "",
    **describe(Role.WRITE, Judged, open_to=OpenTo.SCOPED, raises=[NotFound, Conflict, Overloaded, Storage]),
)
async def store_judgments(
    request: Request, runtime: Service, body: Annotated[FeedbackRequest, STORED]
) -> Response:
    """Store one judgment or a list of judgments. After the answer 200 the judgments are on disk.

    A judgment is stored under the name of the key that sent it. A new judgment replaces the key's earlier
    judgment of the same query and document, even if that named another user. A judgment of a missing document
    is answered with 404, because retraining could not learn from it. The document may have been deleted since
    the search.

    The answer is 409, and nothing is stored, if a key exceeds a limit: in total, for one query, or for one
    document. If only some judgments of a list are malformed or name missing documents, `refused` lists them,
    and the others are stored. If all of them are rejected, the answer is the error of one of them.
    """
    sender, settings = get_sender(request), runtime.settings
    given = await parse_each(body.root, "feedback", JudgmentsIn, settings.max_inputs, _parse_judgment)
    collection = await existing(request, runtime)
    limits = Limits(settings.feedback_per_key, settings.feedback_per_query, settings.feedback_per_document)
    well_formed = [judgment for judgment in given if isinstance(judgment, JudgmentIn)]
    if not well_formed and isinstance(given[0], ServiceError):
        raise given[0]
    judgments = [
        Judgment(
            each.query,
            each.id,
            each.relevant,
            visitor=runtime.hash_visitor(each.user),
            trusted=sender.trusted,
        )
        for each in well_formed
    ]
    with runtime.queued_rows.admitted(len(judgments)):
        sequence, unknown = await runtime.corpus.store.judge(
            judgments, collection, sender.key, limits, find_bounds(request, runtime)
        )
    stored = [judgment for judgment in well_formed if judgment.id not in unknown]
    await _record_outcomes(request, runtime, stored, collection)
    for judgment in stored:
        runtime.metrics.feedback.labels(str(judgment.relevant).lower()).inc()
    refused = [
        {"index": at, "error": NOT_THERE.format(id=said.id) if isinstance(said, JudgmentIn) else said.message}
        for at, said in enumerate(given)
        if not isinstance(said, JudgmentIn) or said.id in unknown
    ]
    answer: dict[str, Any] = {"stored": len(stored), "sequence": sequence}
    return json_response(answer | ({"refused": refused} if refused else {}))


def _parse_judgment(value: object, name: str) -> JudgmentIn | ServiceError:
    """Parses a judgment.

    Args:
        value: The parsed JSON.
        name: Name of the judgment in a list, for error messages. Empty if the body is a single judgment.

    Returns:
        The judgment. If a judgment of a list is malformed, the error.

    Raises:
        Empty: A single judgment has an empty query.
        Validation: A single judgment is malformed.

    """
    try:
        given = validated(JudgmentIn, value, name)
        if not given.query or given.query.isspace():
            field = f"{name}.query".removeprefix(".")
            raise Empty(f"{field} is empty, or white space only. Leave the judgment out.")  # noqa: TRY301
    except (Empty, Validation) as error:
        if not name:
            raise
        release_frames(error)
        return error
    return given


async def _record_outcomes(
    request: Request, runtime: Runtime, judgments: Sequence[JudgmentIn], collection: str
) -> None:
    """Stores relevant hits of tested searches as events too, so that they count in the live test.

    As events they expire, and an outcome has one order for clicks and judgments. Hits that are not relevant
    do not count. A visitor who judges all hits from the top would first judge the one that a coin put there.
    """
    if runtime.searches is None or not runtime.live_tests.is_running:
        return
    sender, settings, now = get_sender(request), runtime.settings, time.time()
    outcomes = []
    for each in judgments:
        if each.search_id is not None and each.relevant:
            search = runtime.searches.get(each.search_id, find_tenant(request))
            given = EventIn(
                search_id=each.search_id, id=each.id, type="convert", query=each.query, user=each.user
            )
            # Hits of neither side too: clients can read events, and must not learn the sides from them.
            outcomes.append(complete_event(given, runtime, search, collection, sender, now))
    if not outcomes:
        return
    limits = EventLimits(settings.events_per_key, settings.events_per_document, settings.max_events)
    try:
        with runtime.queued_rows.admitted(len(outcomes)):
            await runtime.corpus.store.record_events(outcomes, limits, find_bounds(request, runtime))
    except ServiceError as error:  # The judgments are stored.
        log.warning("Judgments do not count in the live test: %s", safe_message(error))


@router.get("", **describe(Role.READ, FeedbackPage, open_to=OpenTo.SCOPED, raises=SELECTS))
async def list_judgments(request: Request, runtime: Service, params: Annotated[Listing, Query()]) -> Response:
    """List judgments in the order of their arrival, after the judgment number `after`.

    Send `next` as `after` to get the next page. Judgments of deleted documents are not listed. If a document
    is stored again under the same id, its judgments are listed again with their old numbers.
    """
    read = runtime.corpus.store.judgements
    return await list_rows(request, runtime, params, "feedback", read, JudgmentOut)


@router.get("/count", **describe(Role.READ, Count, open_to=OpenTo.SCOPED, raises=SELECTS))
async def count_judgments(
    request: Request, runtime: Service, params: Annotated[Selected, Query()]
) -> Response:
    """Count the judgments that `GET /feedback` lists with the same parameters, on all pages together."""
    selection = await build_selection(request, runtime, params)
    return json_response({"count": await runtime.corpus.store.count_judgments(selection)})


class Summary(BaseModel):
    judgements: int
    relevant: int = Field(description="Judgments that say that the document is relevant")
    queries: int = Field(description="Different queries of the judgments")
    answered: int = Field(description="Queries with a relevant document, which a retraining can measure with")


@router.get("/summary", **describe(Role.READ, Summary, open_to=OpenTo.SCOPED, raises=SELECTS))
async def sum_up_judgments(
    request: Request, runtime: Service, params: Annotated[Selected, Query()]
) -> Response:
    """Count the judgments that `GET /feedback` lists with the same parameters, and their queries."""
    selection = await build_selection(request, runtime, params)
    found = await runtime.corpus.store.sum_up_judgments(selection)
    return json_response(found._asdict())


@router.delete("", **describe(Role.WRITE, Forgotten, open_to=OpenTo.SCOPED, raises=SELECTS))
async def delete_judgments(
    request: Request, runtime: Service, params: Annotated[Forgetting, Query()]
) -> Response:
    """Delete the judgments of a query, a document's id, a key, a user, or a combination of these.

    Judgments that are not listed, because their document is deleted, are deleted as well. A key of role write
    may delete only judgments that were sent with the same key. To select these judgments, send the name of
    the key as `key`. If the selection contains judgments of another key, the answer is 403, and nothing is
    deleted. A key of role admin may delete any judgments. Judgments are deleted in steps, and other writes
    may run between the steps. After an error, only some judgments are deleted. Send the request again to
    delete the rest.
    """
    selection = await to_forget(request, runtime, params)
    return await forget(request, "delete-feedback", selection, runtime.corpus.store.forget_judgments)
