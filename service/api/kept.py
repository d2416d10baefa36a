"""`POST /models/{version}/keep`: a version that is asked beside the live one for some time."""

import asyncio

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from models.errors import Damaged, UnknownVersion, Unreadable
from models.seal import read_manifest
from service.api.body import parameters
from service.api.contract import Role, describe
from service.api.inference import runtime_of
from service.api.responses import json_response
from service.auth.audit import audit
from service.errors import Conflict, NotFound, Storage
from service.http.routing import Direct

MOST_SECONDS = 86_400
router = APIRouter(route_class=Direct, tags=["models"])


class KeepParameters(BaseModel):
    seconds: int = Field(3600, ge=0, le=MOST_SECONDS, description="From now on; 0 lets it go")


class Kept(BaseModel):
    version: str
    seconds: int
    loaded: bool = Field(description="It can be asked now; else GET /models shows how far it is")


@router.post(
    "/models/{version}/keep",
    status_code=202,
    **describe(
        Role.ADMIN,
        None,
        Kept,
        query=KeepParameters,
        statuses=(200, 202),
        raises=(NotFound, Conflict, Storage),
    ),
)
async def keep(request: Request) -> Response:
    """Open a version to be asked by the header `x-model-version`: 200 when it can be, else 202.

    What it has no vectors of is embedded in the background, as for a version that is to go live, and it takes
    as much memory. One version is kept at a time: the last one that was asked for. It never goes live by
    this, and what is wanted takes its place.
    """
    runtime, version = runtime_of(request), request.path_params["version"]
    asked = parameters(request, KeepParameters)
    try:
        await asyncio.to_thread(lambda: read_manifest(runtime.store.folder(version)))
    except UnknownVersion as error:
        raise NotFound(f"There is no version {version[:100]!r}. GET /models lists them.") from error
    except Damaged as error:
        raise Conflict(str(error)) from error
    except (Unreadable, OSError) as error:
        raise Storage(f"{error} Repair it, then ask again.") from error
    loaded = runtime.controller.keep(version, asked.seconds)
    audit("keep", request.scope, version=version)
    return json_response(
        {"version": version, "seconds": asked.seconds, "loaded": loaded}, status=200 if loaded else 202
    )
