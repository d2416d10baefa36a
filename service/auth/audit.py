"""The audit: one line for each act that changes what is served, deletes by a filter, or changes the keys.

The logger is `simile.audit`. A line says what was done, by which key (its name, "-" when there are no keys),
to what, in which request. `collection` is the collection whose data was deleted, `owner` the key that had
stored it. Never a text, never a filter's values, never a key or its hash.
"""

import logging

from starlette.types import Scope

log = logging.getLogger("simile.audit")
log.setLevel(logging.INFO)  # whatever SIMILE_LOG_LEVEL is


def audit(action: str, scope: Scope | None = None, **what: str | int) -> None:
    """Write one line about `action`, done by the request of `scope`, or by no request.

    `what` names things: a version, a count, a key.
    """
    account = None if scope is None else scope.get("account")
    fields: dict[str, str | int] = {"key": "-" if account is None else account.key.name, **what}
    fields["request_id"] = "-" if scope is None else scope["request_id"]
    log.info("%s", action, extra={"fields": fields})
