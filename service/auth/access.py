"""Checks the API key, the role and the rate limits of a request. Start reading at `Access.admit`.

Access is checked before the body is read (http/routing.py). The number of tokens is known only when the
answer begins, so tokens are charged then (http/middleware.py). Requests that are already running can
therefore push a key beyond its limit. The key is then rejected until the bucket is refilled.

`hash_visitor` hashes the ids of the people who search and click. `hash_filter` salts the ids of
documents that are sent without one.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson
from prometheus_client import Counter
from starlette.types import Scope

from service.auth.key_scope import KeyScope, OpenTo
from service.auth.keys import Key, KeysFile, Role
from service.errors import Forbidden, RateLimited, Unauthorized
from service.observability.metrics import Metrics
from service.settings import PREFIX, Settings

TOKENS_HEADER = b"x-compute-tokens"
SECONDS = 60.0
_CHARACTERS = 32  # hexadecimal: 128 bits


class Account:
    """An API key with its rate limits and usage counters."""

    def __init__(self, key: Key, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._requests, self._tokens = Bucket(0), Bucket(0)
        self._counted_requests: Counter = metrics.key_requests.labels(key.name)
        self._counted_tokens: Counter = metrics.key_tokens.labels(key.name)
        self.update(key)

    def update(self, key: Key) -> None:
        """Applies a changed line of the keys file. Earlier usage still counts."""
        self.key = key
        self.allows = key.role.allows
        settings = self._settings
        for bucket, own, default in (
            (self._requests, key.requests_per_minute, settings.key_requests_per_minute),
            (self._tokens, key.tokens_per_minute, settings.key_tokens_per_minute),
        ):
            limit = default if own is None else own
            if bucket.per_minute != limit:
                bucket.resize(limit)

    def spend(self) -> None:
        """Counts one request of the key.

        Raises:
            RateLimited: The key has used its requests or tokens for this minute.

        """
        for bucket, need, unit in ((self._requests, 1, "requests"), (self._tokens, 0, "tokens")):
            seconds = bucket.wait(need)
            if seconds:
                raise RateLimited(
                    f"The key {self.key.name!r} has used its {bucket.per_minute} {unit} per minute "
                    f"({PREFIX}KEY_{unit.upper()}_PER_MINUTE, or its line in the keys file). Send it later.",
                    retry_after_seconds=seconds,
                )
        self._requests.take(1)
        self._counted_requests.inc()

    def charge(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            if name == TOKENS_HEADER:
                self._tokens.take(int(value))
                self._counted_tokens.inc(int(value))


class Access:
    """The accounts of all keys in the keys file. The file is read again after it changes."""

    def __init__(self, file: Path, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._file = KeysFile(file)
        self._accounts: dict[str, Account] = {}
        self._by_digest: dict[bytes, Account] = {}
        self._open_accounts()

    def _open_accounts(self) -> None:
        before, self._accounts = self._accounts, {}
        for key in self._file.keys:
            account = before.get(key.name) or Account(key, self._settings, self._metrics)
            account.update(key)
            self._accounts[key.name] = account
        self._by_digest = {account.key.digest: account for account in self._accounts.values()}
        self.has_scopes = any(key.scope is not None for key in self._file.keys)

    def identify(self, scope: Scope) -> Account:
        """Returns the account of the API key in a request's headers.

        Raises:
            Unauthorized: The key is missing or unknown.

        """
        if self._file.changed():
            self._open_accounts()
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        given = key.strip()
        if scheme.lower() != b"bearer" or not given:
            raise _unauthorized("This needs a key. Send it in the header `Authorization: Bearer KEY`.")
        # The time of the lookup depends on the hash, from which a guess learns nothing about a key.
        found = self._by_digest.get(hashlib.sha256(given).digest())
        if found is None:
            raise _unauthorized("This key is not known here. Check it, or ask for a new one.")
        return found

    def trusts(self, name: str) -> bool:
        """Returns whether the key named `name` is trusted. Keys that are not in the file count as trusted."""
        account = self._accounts.get(name)
        return account is None or account.key.trusted

    def admit(self, scope: Scope, needed: Role, open_to: OpenTo = OpenTo.UNSCOPED) -> None:
        """Checks the API key of a request, stores the account in `scope`, and counts the request.

        Args:
            scope: ASGI scope of the request.
            needed: The role that the route needs.
            open_to: The scopes that the route keeps to.

        Raises:
            Unauthorized: The key is missing or unknown.
            Forbidden: The role of the key is not sufficient, or the route does not keep to the key's scope.
            RateLimited: The key has used its requests or tokens for this minute.

        """
        account = self.identify(scope)
        scope["account"], scope["key_scope"] = account, account.key.scope
        if needed not in account.allows:
            raise Forbidden(
                f"This needs a key of role {needed}; {account.key.name!r} has the role {account.key.role}."
            )
        if not open_to.admits(account.key.scope):
            raise Forbidden(
                f"The key {account.key.name!r} has a scope, and this goes beyond it. Use a key without one."
            )
        account.spend()


def get_scope(scope: Scope) -> KeyScope | None:
    """Returns the scope of the key that sent a request, or None if the request may see everything."""
    # Not from the account, because the keys file may change during the request.
    found: KeyScope | None = scope.get("key_scope")
    return found


def _unauthorized(message: str) -> Unauthorized:
    return Unauthorized(message, headers={"www-authenticate": "Bearer"})


class Bucket:
    """Token bucket that holds at most `per_minute` units and refills evenly. 0 means no limit."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._level = float(per_minute)
        self._filled = clock()
        self.per_minute = per_minute

    def resize(self, per_minute: int) -> None:
        """Changes the limit. A debt remains, and a bucket that had no limit becomes full."""
        self._fill()
        self._level = min(self._level, float(per_minute)) if self.per_minute else float(per_minute)
        self.per_minute = per_minute

    def wait(self, need: float) -> float:
        """Returns the number of seconds until `need` units are available."""
        if not self.per_minute:
            return 0.0
        self._fill()
        return max(0.0, need - self._level) * SECONDS / self.per_minute

    def take(self, units: float) -> None:
        """Removes units from the bucket. The level may become negative, which is a debt."""
        self._level -= units

    def _fill(self) -> None:
        now = self._clock()
        gained = (now - self._filled) * self.per_minute / SECONDS
        self._level = min(float(self.per_minute), self._level + gained)
        self._filled = now


def hash_visitor(secret: bytes, user: str | None) -> str:
    """Returns a keyed hash of a visitor's id, or an empty string if no id was sent."""
    if user is None:
        return ""
    return hmac.new(secret, user.encode(), hashlib.sha256).hexdigest()[:_CHARACTERS]


def hash_filter(secret: bytes, scope: KeyScope | None) -> str:
    """Returns a keyed hash of the filter of a scope, or an empty string if there is none."""
    if scope is None or not scope.filter:
        return ""
    # No visitor's id in UTF-8 begins with this byte, so no visitor's hash is equal.
    return hmac.new(secret, b"\xff" + orjson.dumps(scope.filter), hashlib.sha256).hexdigest()
