"""Writes the audit log `simile.audit`: activations, deletions, and changes of keys.

A line contains the action, the objects of the action, the name of the key that sent the request ("-" without
a key) and the request id. In lines about deletions, `collection` is the collection whose data was deleted,
and `owner` is the key that had stored the data. A line never contains a text, the values of a filter, a key
or the hash of a key.
"""

import logging

from starlette.types import Scope

log = logging.getLogger("simile.audit")
log.setLevel(logging.INFO)  # SIMILE_LOG_LEVEL does not apply to the audit log.


def audit(action: str, scope: Scope | None = None, **what: str | int) -> None:
    """Writes a line about `action` to the audit log.

    Args:
        action: Name of the action.
        scope: ASGI scope of the request, or None if no request caused the action.
        what: Further fields of the line.

    """
    account = None if scope is None else scope.get("account")
    fields: dict[str, str | int] = {"key": "-" if account is None else account.key.name, **what}
    fields["request_id"] = "-" if scope is None else scope["request_id"]
    log.info("%s", action, extra={"fields": fields})
