"""Builds `GET /openapi.json`, which describes every route, and serves `GET /docs`, a page that shows it.

FastAPI describes the parameters that an endpoint declares. `describe` adds what a signature does not contain:
the role, the answers and the errors. `build_document` combines both. The types above `describe` are
fields that several routes use. `make test-contract` compares the running service with the document.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    Json,
    RootModel,
    StrictInt,
    StrictStr,
    TypeAdapter,
)
from pydantic.json_schema import JsonSchemaValue, models_json_schema
from pydantic_core import CoreSchema, PydanticCustomError
from starlette.responses import FileResponse, Response

from service import errors
from service.auth.key_scope import OpenTo as OpenTo  # noqa: PLC0414  routes import it with describe()
from service.auth.keys import Role as Role  # noqa: PLC0414
from service.errors import NotFound, ServiceError
from service.http.bodies import refuses_unknown
from service.http.error_responses import family, status_in
from service.http.routing import OPEN, RoleRoute
from service.store.filters.grammar import OPERATORS
from service.store.values import MAX_ID_CHARACTERS, MAX_QUERY_CHARACTERS

# Fields that routes share. The routes check limits that depend on the model (vocabulary, prompts, dimension)
# or on a setting. The document does not contain these.

MAX_NAME_CHARACTERS = 64  # of a search_id or an event_id
MAX_K = 1000  # hits of a search
MAX_OFFSET = 10_000
MAX_PAGE = 1000


_REFERENCE = "#/components/schemas/{model}"


class ShownAs:
    """Annotation that describes a field in the document as another type.

    Routes check such fields themselves, for better error messages or less work.
    """

    def __init__(self, type: Any) -> None:
        self._type = type

    @cached_property
    def _schema(self) -> CoreSchema:
        return TypeAdapter(self._type).core_schema

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(self._schema)


def _described(**schema: Any) -> Any:
    return Field(json_schema_extra=schema)


def example(body: dict[str, Any], **schema: Any) -> ConfigDict:
    """Returns the configuration of a Pydantic model with an example body.

    The page `/docs` sends this example. `schema` adds keywords to the model's JSON schema.
    """
    return ConfigDict(json_schema_extra={**schema, "examples": [body]})


def exactly_one(**types: str) -> dict[str, Any]:
    """Returns a JSON schema that requires exactly one of several fields.

    `types` maps each field to its JSON type.
    """
    return {
        "oneOf": [
            {
                "required": [name],
                "properties": {other: {"type": types[other] if other == name else "null"} for other in types},
            }
            for name in types
        ]
    }


# Any character except white space by str.isspace(). `\S` differs between languages.
_INK = r"[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_PATTERN = r"^[^\x00]*$"  # SQLite's functions end a text at U+0000, and PostgreSQL does not store it.
_VISIBLE = re.compile(r"^[^\x00-\x20\x7f-\xa0]{1,128}$")

Text = Annotated[StrictStr, _described(pattern=_INK)]
Texts = Annotated[list[Text], Field(min_length=1)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
TokenRows = Annotated[list[TokenIds], Field(min_length=1)]
Inputs = Annotated[Any, ShownAs(Text | Texts | TokenIds | TokenRows)]
Dimensions = Annotated[StrictInt, _described(minimum=1)]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE)]  # of a page
Warnings = Annotated[
    list[str], Field(description="Possible mistakes in a filter without matching documents. Absent otherwise")
]


class Count(BaseModel):
    count: int


def _check_user(value: str) -> str:
    # The message does not repeat the value, which may be in a log of the client.
    if not _VISIBLE.fullmatch(value):
        raise ValueError(
            "an id of a visitor has 1 to 128 characters, none of them a space or a control character"
        )
    return value


_MAX_EXACT = 2**53 - 1  # The largest whole number that all JSON libraries read exactly.


def number_as_text(value: object) -> object:
    """Returns a whole number as text, as `import` does with ids. Returns other values unchanged.

    Numbers beyond `_MAX_EXACT` are unchanged as well, because many JSON libraries round them.
    """
    return str(value) if type(value) is int and abs(value) <= _MAX_EXACT else value


def _without_null(text: str) -> str:
    if "\0" in text:
        message = "It has the character U+0000, which cannot be stored. Leave it out"
        raise PydanticCustomError("null_character", message)
    return text


# A visitor's opaque id as the client knows it. Only its hash is stored (auth/access.py).
User = Annotated[StrictStr, AfterValidator(_check_user), _described(pattern=_VISIBLE.pattern)]
USER = "An opaque id of the visitor; only a keyed hash of it is stored"
# Texts that the store keeps unchanged.
_STORED = AfterValidator(_without_null)
_STORABLE_INK = rf"{_INK[:-1]}\x00]"
_STORED_INK = rf"^[^\x00]*{_STORABLE_INK}[^\x00]*$"
StoredText = Annotated[StrictStr, _STORED, _described(pattern=_STORED_INK)]
StoredTitle = Annotated[StrictStr, _STORED, _described(pattern=rf"^([^\x00]*{_STORABLE_INK}[^\x00]*)?$")]
StoredQuery = Annotated[
    StrictStr, Field(max_length=MAX_QUERY_CHARACTERS), _STORED, _described(pattern=_STORED_INK)
]
_TextId = Annotated[
    StrictStr, Field(min_length=1, max_length=MAX_ID_CHARACTERS), _STORED, _described(pattern=_PATTERN)
]
NumberId = Annotated[int, Field(ge=-_MAX_EXACT, le=_MAX_EXACT)]
DocumentId = Annotated[_TextId, BeforeValidator(number_as_text), ShownAs(_TextId | NumberId)]
EventName = Annotated[
    StrictStr, Field(min_length=1, max_length=MAX_NAME_CHARACTERS), _STORED, _described(pattern=_PATTERN)
]

_CLOSED = _described(additionalProperties=False)
_Plain = Annotated[str, Field(pattern=_PATTERN)]
# A name, or several joined by dots. At the top level it does not begin as an operator of filters does.
_DOTTED = r"(\.[^.\x00]+){0,15}"
_InnerName = Annotated[str, _described(pattern=rf"^[^.\x00]+{_DOTTED}$")]
_Name = Annotated[str, _described(pattern=rf"^[^$.\x00][^.\x00]*{_DOTTED}$")]


class MetadataValue(
    RootModel[
        float
        | bool
        | None
        | _Plain
        | list["MetadataValue"]
        | Annotated[dict[_InnerName, "MetadataValue"], _CLOSED]
    ]
):
    """A value within the metadata of a document."""


Metadata = Annotated[dict[str, Any], ShownAs(Annotated[dict[_Name, MetadataValue], _CLOSED])]

_FIELD = r"[^$.\x00][^.\x00]*(\.[^.\x00]+){0,511}"
# If a field has several types, each keyword applies to one of them.
_SCALAR: dict[str, Any] = {
    "type": ["string", "number", "boolean", "null"],
    "pattern": _PATTERN,
    "minimum": -(2**63),
    "exclusiveMaximum": 2**63,
}
_OPERANDS: dict[str, Any] = {
    "scalar": _SCALAR,
    "scalars": {"type": "array", "items": _SCALAR},
    "bound": {"type": ["string", "number"], "pattern": _PATTERN},
    "boolean": {"type": "boolean"},
}
_CONDITION: dict[str, Any] = {
    **_SCALAR,
    "type": [*_SCALAR["type"], "object"],
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {name: _OPERANDS[operator.operand] for name, operator in OPERATORS.items()},
}
_NOT_EMPTY = {"minProperties": 1}
_Filters = Annotated[list[Annotated["Filter", _described(**_NOT_EMPTY)]], Field(min_length=1)]


class Filter(BaseModel):
    """A filter: conditions that must all hold. A condition is a field's value, or operators on the field."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "patternProperties": {rf"^{_FIELD}$": _CONDITION},
            "examples": [{"$or": [{"topic": {"$in": ["owl", "hawk"]}}, {"year": {"$gte": 1990}}]}],
        },
    )
    every: _Filters = Field(default_factory=list, alias="$and")
    some: _Filters = Field(default_factory=list, alias="$or")
    ids: list[_Plain] = Field(default_factory=list, alias="$ids")


FilterText = Annotated[str | None, ShownAs(Json[Filter])]  # a query parameter
FILTER_WITH_A_CONDITION: dict[str, Any] = {
    "in": "query",
    "name": "filter",
    "required": True,
    "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Filter"), **_NOT_EMPTY}}},
}

# Answers and errors of routes.

_IN_COLLECTION = "{collection}"
_RAISES = "x-raises"  # of an operation, until the document is complete

# Any route: a repeated header, a wrong host, a bad deadline, a bug, a service that stops, a deadline that
# passed.
_ANY = (
    errors.Malformed,
    errors.Misdirected,
    errors.Validation,
    errors.Internal,
    errors.Unhealthy,
    errors.Timeout,
)
_WITH_A_BODY = (errors.Empty, errors.TooLarge, errors.MediaType, errors.Overloaded)
# Of a service with keys. Forbidden is also the answer to a page of another site.
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
    "x-unknown-texts": {
        "description": "How many inputs have unknown tokens, if any",
        "schema": COUNT["schema"],
    },
    "x-unknown-tokens": {"description": "Their number in all inputs, if any", "schema": COUNT["schema"]},
}
_IGNORED = {"x-ignored-fields": {"description": "Fields of the body that this route does not know", **_TEXT}}


class Refusal(BaseModel):
    """The body of every error answer on native and TEI routes."""

    error: str
    error_type: str = Field(json_schema_extra={"enum": [*errors.error_types()]})


class OpenAIProblem(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIRefusal(BaseModel):
    """The body of every error answer under `/v1`."""

    error: OpenAIProblem
    detail: str = Field("", description="The message again, on `/v1/rerank` alone, for clients of Jina")


class CohereRefusal(BaseModel):
    """The body of every error answer under `/v2`."""

    message: str


_REFUSALS: dict[str, type[BaseModel]] = {"native": Refusal, "openai": OpenAIRefusal, "cohere": CohereRefusal}
_read_by_hand: set[type[BaseModel]] = set()


def describe(
    role: Role | None,
    answer: Any = None,
    *,
    open_to: OpenTo = OpenTo.UNSCOPED,
    raises: Sequence[type[ServiceError]] = (),
    statuses: Sequence[int] = (200,),
    also: Sequence[str] = (),
    reads: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Returns keyword arguments for a route. They describe what the signature does not contain.

    Args:
        role: The role that the route needs. None means that no key is needed.
        answer: The Pydantic model of JSON answers, or a union of models.
        open_to: The scopes of keys that the endpoint keeps to.
        raises: Errors in addition to those that every route of this kind can raise.
        statuses: Status codes of successful answers.
        also: Other media types of the answers.
        reads: Media types of bodies that the endpoint parses itself, each with a schema or a model.
        headers: Headers of the answers.
        parameters: Parameters that the endpoint parses itself.

    """
    needed = OPEN if role is None else role.value
    extra: dict[str, Any] = {"x-role": needed, "x-open-to": open_to.value}
    extra[_RAISES] = [kind.__name__ for kind in raises]
    if parameters:
        extra["parameters"] = [*parameters]
    if reads is not None:
        extra["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": _build_schema(read)} for kind, read in reads.items()},
        }
    said: dict[str, Any] = {"description": "The requested result", "headers": {**_ALWAYS, **(headers or {})}}
    said["content"] = {kind: {"schema": _raw(kind)} for kind in also}
    if answer is not None:
        said["model"] = answer
    # Without a 422, FastAPI would describe its own. `build_document` replaces this one.
    return {"openapi_extra": extra, "responses": {**dict.fromkeys(statuses, said), 422: {}}}


def _build_schema(read: Any) -> Any:
    if not isinstance(read, type):
        return read
    _read_by_hand.add(read)
    return {"$ref": _REFERENCE.format(model=read.__name__)}


def _raw(kind: str) -> dict[str, str]:
    return {"type": "string"} | ({"format": "binary"} if kind == "application/octet-stream" else {})


def build_document(app: FastAPI) -> dict[str, Any]:
    """Returns the OpenAPI document. The first call builds the document."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    models = (*_REFUSALS.values(), *_read_by_hand)
    _, described = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    components = document["components"]
    components["schemas"].update(described["$defs"])
    components["responses"] = {}
    for route in app.routes:
        if isinstance(route, RoleRoute) and route.include_in_schema:
            for method in route.methods or ():
                verb, path = method.lower(), route.path_format
                operation = document["paths"][path][verb]
                operation["operationId"] = "_".join(re.findall(r"[a-z0-9]+", f"{verb} {path}"))
                _correct_parameters(operation)
                _add_refusals(operation, route, components["responses"])
                if app.state.access is not None and route.role is not None:
                    operation["security"] = [{"key": []}]
    if app.state.access is not None:  # `/docs` and generated clients then send a key.
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    app.openapi_schema = document
    return document


def _correct_parameters(operation: dict[str, Any]) -> None:
    """Corrects the query parameters of an operation.

    Removes null from their types, marks parameters that contain JSON, and removes query parameters whose name
    is also in the path.
    """
    kept = [each for each in operation.get("parameters", ()) if each["in"] == "path"]
    in_path = {each["name"] for each in kept}
    for each in operation.get("parameters", ()):
        if each["in"] == "path" or each["name"] in in_path:
            continue
        schema = each.get("schema", {})
        for kind in schema.pop("anyOf", ()):
            schema.update({} if kind == {"type": "null"} else kind)
        if "contentSchema" in schema:
            each["content"] = {"application/json": {"schema": each.pop("schema")["contentSchema"]}}
        kept.append(each)
    if kept:
        operation["parameters"] = kept


def _add_refusals(operation: dict[str, Any], route: RoleRoute, shared: dict[str, Any]) -> None:
    """Adds the error answers of a route to an operation. Equal answers are stored once, in `shared`."""
    responses = operation["responses"]
    del responses["422"]
    kinds: set[type[ServiceError]] = {*_ANY, *(getattr(errors, name) for name in operation.pop(_RAISES))}
    if route.role is not None:
        kinds.update(_WITH_A_ROLE)
    if "requestBody" in operation:
        kinds.update(_WITH_A_BODY)
    if _IN_COLLECTION in route.path:
        kinds.add(NotFound)
    if route.body is not None and not refuses_unknown(route.body):
        for answer in responses.values():
            answer["headers"].update(_IGNORED)
    who = family(route.path)
    names: dict[int, dict[str, None]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.error_type):
        names.setdefault(status_in(who, kind.status), {})[kind.error_type] = None
    for status, types in sorted(names.items()):
        model = _REFUSALS[who].__name__
        name = f"{model}{status}{''.join(types)}"
        shared[name] = {
            "description": f"{', '.join(types)}; see docs/ERRORS.md",
            "headers": {**_ALWAYS, **_OF_STATUS.get(status, {})},
            "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model)}}},
        }
        responses[str(status)] = {"$ref": f"#/components/responses/{name}"}


# `GET /docs`: Swagger UI over the document, with files from here and from a package. A script from another
# host would run in the service's own origin, next to the field for keys.

PACKAGE = "fastapi_offline"
# No other host, no script in a page. Swagger UI sets styles on elements and shows pictures from data: URLs.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_OWN = Path(__file__).parent / "docs"
_SCRIPT = "text/javascript"
_KINDS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": _SCRIPT, "start.js": _SCRIPT}

router = APIRouter(route_class=RoleRoute, include_in_schema=False)


@router.get("/docs", **describe(None, also=["text/html"]))
async def show_page() -> Response:
    headers = {"content-security-policy": PAGE_POLICY}
    return FileResponse(_OWN / "index.html", media_type="text/html", headers=headers)


@router.get("/docs/{file}", **describe(None, raises=[NotFound], also=["text/javascript", "text/css"]))
async def read_page_file(file: str) -> Response:
    if file not in _KINDS:
        raise NotFound(f"The API's page has no file {file[:100]!r}.")
    package = find_spec(PACKAGE)
    assert package is not None and package.origin is not None  # noqa: S101, PT018  a dependency
    folder = _OWN if file == "start.js" else Path(package.origin).parent / "static"
    return FileResponse(folder / file, media_type=_KINDS[file], headers={"cache-control": "max-age=3600"})
