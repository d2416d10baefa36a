"""The route `GET /suggest`, which completes what a user types in a search box."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.collections import existing
from service.api.openapi import FilterText, OpenTo, Role, Text, describe
from service.api.search_plan import parse_where
from service.errors import Empty, NotFound, Overloaded, Storage, Validation
from service.http.bodies import json_response
from service.http.routing import RoleRoute
from service.runtime.runtime import Service

router = APIRouter(route_class=RoleRoute, tags=["search"])

MAX_SUGGESTIONS = 50
MAX_CHARACTERS = 256


class SuggestParameters(BaseModel):
    q: Annotated[Text, Field(description=f"What the user has typed, at most {MAX_CHARACTERS} characters")]
    k: int = Field(8, ge=1, le=MAX_SUGGESTIONS)
    filter: FilterText = None


class SuggestionOut(BaseModel):
    text: str = Field(description="The whole text for the search box")
    kind: Literal["title", "term", "query"] = Field(
        description="title: of a document. term: ends with a word of documents. query: others searched for it"
    )


class SuggestAnswer(BaseModel):
    suggestions: list[SuggestionOut] = Field(description="Best first")


@router.get(
    "/suggest",
    **describe(
        Role.READ, SuggestAnswer, open_to=OpenTo.SCOPED, raises=[Empty, NotFound, Overloaded, Storage]
    ),
)
async def suggest_completions(
    request: Request, runtime: Service, params: Annotated[SuggestParameters, Query()]
) -> Response:
    """Suggest completions: titles and words of documents, and queries of several visitors with a click.

    With `filter`, titles and words come from matching documents only, and no query is suggested.
    """
    if not params.q or params.q.isspace():
        raise Empty("q is empty, or white space only. Give the beginning of a text.", param="q")
    if len(params.q) > MAX_CHARACTERS:
        raise Validation(
            f"q has {len(params.q)} characters; at most {MAX_CHARACTERS} are completed. Send the end of the "
            "text, or no request."
        )
    where = parse_where(request, runtime, params.filter)
    collection = await existing(request, runtime)
    found = await runtime.suggestions.suggest(params.q, params.k, where, collection)
    return json_response({"suggestions": [each._asdict() for each in found]})
