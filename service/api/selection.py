"""Functions that `/feedback` and `/events` share. They parse, select, list and delete rows.

A row is a judgment or an event.
"""

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.collections import existing
from service.api.embedding import check_count
from service.api.openapi import Limit, Role, User
from service.auth.access import Account, get_scope
from service.auth.audit import audit
from service.errors import Empty, NotFound, Storage, Validation
from service.http.bodies import Slices, collect_fields, json_response, validated
from service.runtime.runtime import Runtime
from service.store.values import COLLECTION_NAME, NO_KEY, Event, Judgment, Selection

T = TypeVar("T")
INT64 = 2**63
_Name = Annotated[str | None, Field(json_schema_extra={"minLength": 1})]  # An empty name has its own message.
# Keys and collections cannot have these names.
WITHOUT_KEY, EVERY_COLLECTION, EVERY_KEY = "-", "*", "*"
SELECTS = (Empty, NotFound, Storage)  # errors of a route that selects
HASHED = "The hash of the visitor's id, or empty"
TRUSTED = "True if a retraining may learn from it: its key was trusted, and is not marked untrusted now"


class Sender(NamedTuple):
    """The API key of a request: its name, and whether retraining may learn from rows sent with the key."""

    key: str
    trusted: bool


class Selected(BaseModel):
    key: _Name = Field(
        None, description=f"The name of the key that sent the row, or {WITHOUT_KEY} for rows without a key"
    )
    collection: str | None = Field(
        None,
        description=f"Another collection than `default`, or {EVERY_COLLECTION} for all collections",
        json_schema_extra={"pattern": rf"^({COLLECTION_NAME.pattern}|\{EVERY_COLLECTION})$"},
    )

    user: User | None = Field(None, description="The id of the visitor, as sent")


class Listing(Selected):
    after: int = Field(0, ge=0, le=INT64 - 1)
    limit: Limit = 100


class Forgetting(Selected):
    query: _Name = None
    id: _Name = None


class Forgotten(BaseModel):
    deleted: int


async def parse_each(
    body: dict[str, Any], name: str, many: type[BaseModel], limit: int, parse: Callable[[object, str], T]
) -> list[T]:
    """Parses a body that is either one row, or an object with a list of rows in the field `name`.

    Args:
        body: The parsed JSON.
        name: The field that holds the list.
        many: The Pydantic model of a body with a list.
        limit: Maximum number of rows.
        parse: Parses one row. The second argument is the row's name for error messages, which is empty if the
            body is a single row.

    """
    if name not in body:
        return [parse(body, "")]
    values: list[Any] = getattr(validated(many, body), name)
    check_count(values, limit, name)
    found, slices = [], Slices()
    for at, value in enumerate(values):
        found.append(parse(value, f"{name}[{at}]"))
        await slices.rest()
    return found


def get_sender(request: Request) -> Sender:
    """Returns the sender of a request. Without API keys, every sender is trusted."""
    account = request.scope.get("account")
    return Sender(NO_KEY, True) if account is None else Sender(account.key.name, account.key.trusted)


def trusted_now(request: Request, row: Event | Judgment) -> bool:
    """Returns whether retraining may learn from a stored row.

    Two conditions must hold: the row's key was trusted when the row was stored, and no key of this name is
    marked untrusted now. Marking a key untrusted therefore also excludes old rows. Removing a key from the
    keys file changes nothing. Adding a key with an old name does not make untrusted rows trusted.
    """
    access = request.app.state.access
    return row.trusted and (access is None or access.trusts(row.key))


async def build_selection(request: Request, runtime: Runtime, params: Selected) -> Selection:
    """Returns the selection of rows that the query parameters describe.

    A key with a filter selects only rows that it sent itself, because the other rows of a shared collection
    may be of other tenants.

    Raises:
        Empty: A parameter is empty.
        Validation: The name of the collection is invalid, or the selection reaches beyond the key's scope.
        NotFound: The collection does not exist.

    """
    for name in params.model_fields_set:
        # Probably an unset variable of the client. The other parameters may select more rows than intended.
        if getattr(params, name) == "":
            raise Empty(f"{name} is empty, and nothing stored has that. Leave it out, or name one.")
    collection: str | None = None
    account: Account | None = request.scope.get("account")
    scope = get_scope(request.scope)
    if params.collection != EVERY_COLLECTION:
        collection = await existing(request, runtime, params.collection)
    elif scope is not None:
        raise Validation("The key has a scope, so name one of its collections; GET /collections lists them.")
    key = NO_KEY if params.key == WITHOUT_KEY else params.key
    visitor = None if params.user is None else runtime.hash_visitor(params.user)
    if account is not None and scope is not None and scope.filter:
        if key not in {None, account.key.name}:
            raise Validation("The key has a filter, so it selects only what it sent itself. Leave key out.")
        key = account.key.name
    query, id = (params.query, params.id) if isinstance(params, Forgetting) else (None, None)
    return Selection(collection, query, id, key, visitor)


async def list_rows(
    request: Request,
    runtime: Runtime,
    params: Listing,
    name: str,
    read: Callable[[int, int, Selection, float], Awaitable[tuple[Sequence[tuple[int, Any]], bool]]],
    model: type[BaseModel],
    **computed: Callable[[Any], object],
) -> Response:
    """Answers with one page of rows.

    Args:
        request: The request.
        runtime: The service.
        params: Query parameters that select the rows and the page.
        name: The field of the answer that holds the rows.
        read: Reads a page of rows from the store.
        model: The Pydantic model of a row. Only the fields of this model are sent.
        computed: Functions that compute a field from a row, by the name of the field.

    Raises:
        Empty: A parameter is empty.
        NotFound: The collection does not exist.

    """
    selection = await build_selection(request, runtime, params)
    found, more = await read(params.after, params.limit, selection, runtime.settings.max_answer_bytes)
    rows = [
        collect_fields(
            model,
            row,
            sequence=number,
            user=row.visitor,
            trusted=trusted_now(request, row),
            **{field: compute(row) for field, compute in computed.items()},
        )
        for number, row in found
    ]
    return json_response({name: rows, "next": found[-1][0] if more else None})


async def to_forget(request: Request, runtime: Runtime, params: Forgetting) -> Selection:
    """Returns the selection of rows to delete.

    Raises:
        Validation: The request does not name a query, an id, a key or a user.
        Empty: A parameter is empty.
        NotFound: The collection does not exist.

    """
    selection = await build_selection(request, runtime, params)
    if not {"query", "id", "key", "user"} & params.model_fields_set:
        route = request.url.path.rpartition("/")[2]
        raise Validation(
            f"Deleting needs a query, an id, a key or a user: DELETE /{route}?query=…&id=…&key=…&user=…."
        )
    return selection


async def forget(
    request: Request, action: str, selection: Selection, work: Callable[..., Awaitable[Mapping[str, int]]]
) -> Response:
    """Deletes the selected rows, and writes one audit line for each key whose rows were deleted.

    A key without the role admin may delete only rows that it sent itself. If the deletion fails or is
    cancelled, the audit lines of the completed steps are still written.

    Args:
        request: The request.
        action: Name of the action in the audit log.
        selection: The rows to delete.
        work: The store's function that deletes the rows.

    """
    deleted: Counter[str] = Counter()
    ended, lock = False, threading.Lock()

    def tell(step: Mapping[str, int]) -> None:
        with lock:
            if not ended:
                deleted.update(step)
                return
        _audit_deleted(request, action, selection, step)  # The deadline passed during this step.

    account: Account | None = request.scope.get("account")
    own = None if account is None or Role.ADMIN in account.allows else account.key.name
    try:
        done = await work(selection, own, tell)
    except BaseException:
        with lock:
            ended = True
        _audit_deleted(request, action, selection, deleted)
        raise
    nothing = {EVERY_KEY if selection.key is None else selection.key: 0}
    _audit_deleted(request, action, selection, done or nothing)
    return json_response({"deleted": sum(done.values())})


def _audit_deleted(request: Request, action: str, selection: Selection, deleted: Mapping[str, int]) -> None:
    collection = EVERY_COLLECTION if selection.collection is None else selection.collection
    for owner, count in sorted(deleted.items()):
        audit(action, request.scope, collection=collection, owner=owner or WITHOUT_KEY, deleted=count)
