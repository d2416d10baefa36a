"""Query parameters of `/feedback` and `/events`: which rows to list, count or delete."""

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, NamedTuple

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.collections import existing, existing_named
from service.api.contract import Role
from service.api.json_schemas import Limit, User
from service.api.responses import json_response
from service.auth.audit import audit
from service.errors import Empty, NotFound, Storage, Validation
from service.runtime.runtime import Runtime
from service.store.values import COLLECTION_NAME, NO_KEY, Event, Judgement, Selection

INT64 = 2**63
_Name = Annotated[str | None, Field(json_schema_extra={"minLength": 1})]
# A text that no key's name and no collection's name can be.
WITHOUT_KEY, EVERY_COLLECTION, EVERY_KEY = "-", "*", "*"
SELECTS = (Empty, NotFound, Storage)  # refusals of a route that selects
HASHED = "The hash of the visitor's id; empty if none was given"
TRUSTED = "Whether a retraining may learn from it: its key was trusted, and is not marked untrusted now"


class Sender(NamedTuple):
    """The key that a request carries, by its name, and whether a retraining learns from it."""

    key: str
    trusted: bool


class Selected(BaseModel):
    key: _Name = Field(
        None, description=f"The name of the key that sent it; {WITHOUT_KEY} for those without one"
    )
    collection: str | None = Field(
        None,
        description=f"Another collection than `default`; {EVERY_COLLECTION} for all of them",
        json_schema_extra={"pattern": rf"^({COLLECTION_NAME.pattern}|\{EVERY_COLLECTION})$"},
    )

    user: User | None = Field(None, description="The id of the visitor, as it was sent")


class Listing(Selected):
    after: int = Field(0, ge=0, le=INT64 - 1)
    limit: Limit = 100


class Forgetting(Selected):
    query: _Name = None
    id: _Name = None


class Forgotten(BaseModel):
    deleted: int


def shown_as(model: type[BaseModel], row: object, **others: object) -> dict[str, object]:
    """The fields of `model`, out of `others` or else of a stored row."""
    return {name: others[name] if name in others else getattr(row, name) for name in model.model_fields}


def sender_of(request: Request) -> Sender:
    """The sender of a request. A service without keys trusts its callers."""
    account = request.scope.get("account")
    return Sender(NO_KEY, True) if account is None else Sender(account.key.name, account.key.trusted)


def trusted_now(request: Request, row: Event | Judgement) -> bool:
    """Whether a retraining may learn from a row.

    Its key must have been trusted when the row was stored, and must not be marked untrusted now. Marking a
    key untrusted therefore covers its old rows. Removing a key changes nothing. A new key with an old name
    brings no untrusted row back.
    """
    access = request.app.state.access
    return row.trusted and (access is None or access.trusts(row.key))


def own_only(request: Request) -> str | None:
    """The name of the key whose rows alone the request may delete; None: it may delete all."""
    account = request.scope.get("account")
    return None if account is None or Role.ADMIN in account.allows else account.key.name


async def selection_of(request: Request, runtime: Runtime, asked: Selected) -> Selection:
    """The rows that query parameters select.

    Raises:
        Empty: a parameter that names nothing.
        NotFound: there is no such collection.

    """
    for name in asked.model_fields_set:
        # An unset variable of the caller's: by the other name alone, more would go than was meant.
        if getattr(asked, name) == "":
            raise Empty(f"{name} is empty, and nothing stored has that. Leave it out, or name one.")
    collection: str | None = None
    if asked.collection is None:
        collection = await existing(request, runtime)
    elif asked.collection != EVERY_COLLECTION:
        collection = await existing_named(asked.collection, runtime)
    key = NO_KEY if asked.key == WITHOUT_KEY else asked.key
    visitor = None if asked.user is None else runtime.visitors.hashed(asked.user)
    if isinstance(asked, Forgetting):
        return Selection(collection, asked.query, asked.id, key, visitor)
    return Selection(collection, None, None, key, visitor)


async def to_forget(request: Request, runtime: Runtime, asked: Forgetting) -> Selection:
    """The rows to delete. Raises as `selection_of`, and Validation where none are named."""
    selection = await selection_of(request, runtime, asked)
    if selection == Selection(selection.collection):
        route = request.url.path.rpartition("/")[2]
        raise Validation(
            f"Deleting needs a query, an id, a key or a user: DELETE /{route}?query=…&id=…&key=…&user=…."
        )
    return selection


async def forget(
    request: Request, action: str, selection: Selection, work: Callable[..., Awaitable[Mapping[str, int]]]
) -> Response:
    """Delete rows by `work` of the store, and write a line of the audit log for each key whose rows went.

    Also where it fails or is cancelled after some steps.
    """
    deleted: Counter[str] = Counter()
    ended, lock = False, threading.Lock()

    def tell(step: Mapping[str, int]) -> None:
        with lock:
            if not ended:
                deleted.update(step)
                return
        _audit_deleted(request, action, selection, step)  # the deadline came while it was under way

    try:
        done = await work(selection, own_only(request), tell)
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
