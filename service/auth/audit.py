"""The audit log `simile.audit`: activations, deletions by filter, and changes of keys.

A line contains the action, its objects, the name of the key ("-" without keys) and the request id.
`collection` is the collection whose data was deleted, and `owner` the key that had stored it. A line never
contains a text, a filter's values, a key or its hash.
"""

import logging

from starlette.types import Scope

log = logging.getLogger("simile.audit")
log.setLevel(logging.INFO)  # SIMILE_LOG_LEVEL does not apply to the audit log.


def audit(action: str, scope: Scope | None = None, **what: str | int) -> None:
    """Writes one line about `action`, with the fields `what`. `scope` is the request, if any."""
    account = None if scope is None else scope.get("account")
    fields: dict[str, str | int] = {"key": "-" if account is None else account.key.name, **what}
    fields["request_id"] = "-" if scope is None else scope["request_id"]
    log.info("%s", action, extra={"fields": fields})
