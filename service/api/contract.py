"""The promises of a route: its role, what it reads, and all that it may answer, refusals included.

The OpenAPI document is made of these promises, and `make test-contract` holds the running service to them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, WithJsonSchema
from pydantic.json_schema import models_json_schema

from service import errors
from service.api.body import refuses_unknown
from service.api.examples import BODIES, SUMMARIES
from service.api.json_schemas import HOLDS, NAMED, SHAPES
from service.auth.keys import Role as Role  # noqa: PLC0414  routes take it from here, beside describe()
from service.errors import ServiceError
from service.http.error_responses import status_in
from service.http.routing import OPEN

_REFERENCE = "#/components/schemas/{model}"
_IN_COLLECTION = "/collections/{collection}"

# Whatever a route does: a header twice, a wrong host, a bad deadline, a bug, a service that stops, a deadline
# that passed.
_ANY = (
    errors.Malformed,
    errors.Misdirected,
    errors.Validation,
    errors.Internal,
    errors.Unhealthy,
    errors.Timeout,
)
_WITH_A_BODY = (errors.Empty, errors.TooLarge, errors.MediaType, errors.Overloaded)
# When there are keys; Forbidden also for what a page of another site sends.
_WITH_A_ROLE = (errors.Unauthorized, errors.Forbidden, errors.RateLimited)
EMBEDS = (errors.Empty, errors.NotFound, errors.Conflict, errors.Tokenizer, errors.Backend, errors.Overloaded)

_TEXT = {"schema": {"type": "string"}}
COUNT: dict[str, Any] = {"required": True, "schema": {"type": "integer", "minimum": 0}}
_ALWAYS = {"x-request-id": {"description": "The caller's own, or a new one", "required": True, **_TEXT}}
_LATER = {"retry-after": {"description": "Seconds", **COUNT}}
_OF_STATUS: dict[int, Mapping[str, Any]] = {
    401: {"www-authenticate": {"required": True, **_TEXT}},
    429: _LATER,
    503: _LATER,
}
VERSIONED = {"x-model-version": {"description": "The version that answered", "required": True, **_TEXT}}
TIMED = {
    **VERSIONED,
    **dict.fromkeys(("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"), COUNT),
    **dict.fromkeys(("x-compute-tokens", "x-compute-characters"), COUNT),
    "x-truncated": {"description": "How many inputs were cut, if any", "schema": COUNT["schema"]},
}
_IGNORED = {"x-ignored-fields": {"description": "Fields of the body that this route does not know", **_TEXT}}


class Refusal(BaseModel):
    """The body of every failure on native and TEI routes."""

    error: str
    error_type: Annotated[str, WithJsonSchema({"enum": errors.error_types(), "type": "string"})]


class OpenAIProblem(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIRefusal(BaseModel):
    """The body of every failure under /v1."""

    error: OpenAIProblem


class CohereRefusal(BaseModel):
    """The body of every failure under /v2."""

    message: str


_REFUSALS: dict[str, type[BaseModel]] = {
    "native": Refusal,
    "openai": OpenAIRefusal,
    "cohere": CohereRefusal,
}
_bodies: dict[str, type[BaseModel]] = {}


def describe(
    role: Role | None,
    body: type[BaseModel] | None = None,
    answer: Any = None,
    *,
    family: str = "native",
    raises: Sequence[type[ServiceError]] = (),
    statuses: Sequence[int] = (200,),
    also: Sequence[str] = (),
    reads: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
    query: type[BaseModel] | None = None,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Keyword arguments of a route: all that the OpenAPI document says of it.

    Args:
        role: who may call it; None is everybody.
        body: what it reads, as JSON.
        answer: what it answers, as JSON: a model, or a union of some.
        family: whose bodies its refusals have.
        raises: what it refuses with, besides what any route of its kind does.
        statuses: those of its answers.
        also: other media types of its answers.
        reads: the schemas of other media types that it reads, or of all if `body` is None.
        headers: of its answers.
        query: its query parameters, as fields.
        parameters: others, as OpenAPI has them.

    """
    extra: dict[str, Any] = {"x-role": OPEN if role is None else role.value}
    if query is not None or parameters:
        extra["parameters"] = [*_parameters(query), *parameters]
    kinds: set[type[ServiceError]] = {*_ANY, *raises}
    if role is not None:
        kinds.update(_WITH_A_ROLE)
    schemas = dict(reads or {})
    if body is not None:
        _bodies[body.__name__] = body
        schemas = {"application/json": {"$ref": _REFERENCE.format(model=body.__name__)}, **schemas}
    if schemas:
        kinds.update(_WITH_A_BODY)
        content = {kind: {"schema": schema} for kind, schema in schemas.items()}
        extra["requestBody"] = {"required": True, "content": content}
    always = _ALWAYS if body is None or refuses_unknown(body) else {**_ALWAYS, **_IGNORED}
    said: dict[str, Any] = {"description": "What was asked for", "headers": {**always, **(headers or {})}}
    said["content"] = {kind: {"schema": _raw(kind)} for kind in also}
    if answer is not None:
        said["model"] = answer
    responses: dict[int | str, Any] = dict.fromkeys(statuses, said)
    return {"openapi_extra": extra, "responses": responses | refusals(kinds, family)}


def _parameters(query: type[BaseModel] | None) -> Iterator[dict[str, Any]]:
    """Fields as OpenAPI has query parameters: one that may be left out is never null."""
    if query is None:
        return
    for name, schema in query.model_json_schema()["properties"].items():
        if "anyOf" in schema:
            [kind] = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
            schema = {**kind, **schema}  # noqa: PLW2901
            del schema["default"]
        words = {"description": schema["description"]} if "description" in schema else {}
        yield {"in": "query", "name": name, "schema": schema, **words}


def _raw(kind: str) -> dict[str, str]:
    binary = {"format": "binary"} if kind == "application/octet-stream" else {}
    return {"type": "string", **binary}


def refusals(kinds: set[type[ServiceError]], family: str) -> dict[int | str, Any]:
    """The `responses` of a route that refuses with `kinds`, worded as a family of routes does."""
    named: dict[int, list[str]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.error_type):
        named.setdefault(status_in(family, kind.status), []).append(kind.error_type)
    return {
        status: {
            "description": f"{', '.join(dict.fromkeys(names))}; see docs/ERRORS.md",
            "model": _REFUSALS[family],
            "headers": {**_ALWAYS, **_OF_STATUS.get(status, {})},
        }
        for status, names in sorted(named.items())
    }


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the schemas of the bodies that routes read themselves."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, bodies = models_json_schema(
            [(model, "validation") for model in _bodies.values()], ref_template=_REFERENCE
        )
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(bodies["$defs"] | SHAPES)
        components["responses"] = {}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _name(operation, method, path)
                _fold(operation, components["responses"])
                if app.state.access is not None and operation["x-role"] != OPEN:
                    operation["security"] = [{"key": []}]
        if app.state.access is not None:  # so that `/docs` and generated clients send a key
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = _finished(document)
    return app.openapi_schema


def _name(operation: dict[str, Any], method: str, path: str) -> None:
    """Give an operation its summary, an id that clients can be generated with, and an example of its body."""
    within = path.removeprefix(_IN_COLLECTION) if path != _IN_COLLECTION else path
    summary = SUMMARIES.get(f"{method} {within}")
    if summary is not None:
        operation["summary"] = summary if within == path else f"{summary}, in a collection"
    words = re.findall(r"[a-z0-9]+", f"{method} {path}")
    operation["operationId"] = "_".join(words)
    content = operation.get("requestBody", {}).get("content", {})
    if within in BODIES and "application/json" in content:
        content["application/json"]["example"] = BODIES[within]


def _fold(operation: dict[str, Any], shared: dict[str, Any]) -> None:
    """Say each refusal once, in the document's components, under a name of its status and its kinds."""
    for status, answer in operation["responses"].items():
        if status >= "400":
            family = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            kinds = answer["description"].partition(";")[0].replace(", ", "")
            name = f"{family}{status}{kinds}"
            shared[name] = answer
            operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}


def _finished(part: Any) -> Any:
    """`part` of the document with what json_schemas.py leaves open."""
    if isinstance(part, list):
        return [_finished(member) for member in part]
    if not isinstance(part, dict):
        return part
    done = {name: _finished(member) for name, member in part.items()}
    if NAMED in done:
        done["$ref"] = _REFERENCE.format(model=done.pop(NAMED))
    if HOLDS in done.get("schema", ()):
        done["content"] = {"application/json": {"schema": done.pop("schema")[HOLDS]}}
    return done
