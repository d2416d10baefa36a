"""`GET /examples`: the example corpus, as `POST /documents` takes it."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from service.api.body import known_parameters
from service.api.contract import Role, describe
from service.api.responses import json_response
from service.corpus.examples import example_rows
from service.http.routing import Direct

router = APIRouter(route_class=Direct, tags=["documents"])


class Example(BaseModel):
    id: str
    text: str
    metadata: dict[str, Any]


class Examples(BaseModel):
    documents: list[Example]


@router.get("/examples", **describe(Role.READ, None, Examples))
async def examples(request: Request) -> Response:
    """A few hundred short texts to try the search with. Each has `metadata.example = true`."""
    known_parameters(request)
    return json_response({"documents": await asyncio.to_thread(example_rows)})
