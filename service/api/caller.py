"""`GET /me`: whose key a request carries, and what it may do."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.body import known_parameters
from service.api.contract import Role, describe
from service.api.responses import json_response
from service.auth.access import Account
from service.http.routing import Direct

router = APIRouter(route_class=Direct, tags=["operation"])


class Caller(BaseModel):
    name: str | None = Field(description="Of the key; null on a service without keys")
    role: Role = Field(description="On a service without keys everybody may do all: admin")


@router.get("/me", **describe(Role.READ, None, Caller))
async def me(request: Request) -> Response:
    """The name and the role of the key that was sent."""
    known_parameters(request)
    account: Account | None = request.scope.get("account")
    if account is None:
        return json_response({"name": None, "role": Role.ADMIN.value})
    return json_response({"name": account.key.name, "role": account.key.role.value})
