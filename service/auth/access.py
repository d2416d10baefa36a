"""Callers: the keys, roles, rate limits and counters of one service.

A request is let in by `Access.admit` before anything of its body is read (`http/routing.py`); its tokens are
charged to its key when the answer begins (`middleware.py`), since they are not known sooner. So a key may go
into debt, by what it has in hand at that moment, and is refused until the debt has dropped in again.
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Counter
from starlette.types import Scope

from service.auth.keys import Key, KeysFile, Role
from service.auth.rate_limit import Bucket
from service.errors import Forbidden, RateLimited, Unauthorized
from service.observability.metrics import Metrics
from service.settings import PREFIX, Settings

TOKENS_HEADER = b"x-compute-tokens"


class Account:
    """A key, what it may still use, and what it used."""

    def __init__(self, key: Key, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self.key = key
        self.allows = key.role.allows
        self._requests = Bucket(self._limits[0])
        self._tokens = Bucket(self._limits[1])
        self._counted_requests: Counter = metrics.key_requests.labels(key.name)
        self._counted_tokens: Counter = metrics.key_tokens.labels(key.name)

    @property
    def _limits(self) -> tuple[int, int]:
        key, settings = self.key, self._settings
        requests, tokens = key.requests_per_minute, key.tokens_per_minute
        return (
            settings.key_requests_per_minute if requests is None else requests,
            settings.key_tokens_per_minute if tokens is None else tokens,
        )

    def update(self, key: Key) -> None:
        """The same name with another line; what it has used of its limits stays used."""
        self.key = key
        self.allows = key.role.allows
        for bucket, limit in zip((self._requests, self._tokens), self._limits, strict=True):
            if bucket.per_minute != limit:
                bucket.resize(limit)

    def spend(self) -> None:
        """Count one request more.

        Raises:
            RateLimited: its requests of this minute are spent, or it owes tokens.

        """
        for bucket, need, what in ((self._requests, 1, "requests"), (self._tokens, 0, "tokens")):
            seconds = bucket.wait(need)
            if seconds:
                raise RateLimited(
                    f"The key {self.key.name!r} has used its {bucket.per_minute} {what} per minute "
                    f"({PREFIX}KEY_{what.upper()}_PER_MINUTE, or its line in the keys file). Send it later.",
                    retry_after_seconds=seconds,
                )
        self._requests.take(1)
        self._counted_requests.inc()

    def charge(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the tokens that an answer with these headers was computed from."""
        for name, value in headers:
            if name == TOKENS_HEADER:
                self._tokens.take(int(value))
                self._counted_tokens.inc(int(value))


class Access:
    """The keys of a service that has some."""

    def __init__(self, file: Path, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._file = KeysFile(file)
        self._accounts: dict[str, Account] = {}
        self._open_accounts()

    def _open_accounts(self) -> None:
        before, self._accounts = self._accounts, {}
        for key in self._file.keys:
            account = before.get(key.name)
            if account is None:
                account = Account(key, self._settings, self._metrics)
            else:
                account.update(key)
            self._accounts[key.name] = account

    def identify(self, scope: Scope) -> Account:
        """Whose key the request carries.

        Raises:
            Unauthorized: none, or none that is known.

        """
        if self._file.changed():
            self._open_accounts()
        given = _bearer(scope)
        if given is None:
            raise _unauthorized("This needs a key. Send it in the header `Authorization: Bearer KEY`.")
        digest = hashlib.sha256(given).digest()
        found: Account | None = None
        # All of them, and each to its end: the time taken tells nothing of how near a guess was.
        for account in self._accounts.values():
            if hmac.compare_digest(account.key.digest, digest):
                found = account
        if found is None:
            raise _unauthorized("This key is not known here. Check it, or ask for a new one.")
        return found

    def trusts(self, name: str) -> bool:
        """Whether no line of the keys file calls the key of that name untrusted; it may have no line."""
        account = self._accounts.get(name)
        return account is None or account.key.trusted

    def admit(self, scope: Scope, needed: Role) -> None:
        """Let a request in, and note whose it is.

        Raises:
            Unauthorized: no key, or none that is known.
            Forbidden: its role does not allow this.
            RateLimited: it has spent what it may use in a minute.

        """
        account = self.identify(scope)
        scope["account"] = account
        if needed not in account.allows:
            raise Forbidden(
                f"This needs a key of role {needed}; {account.key.name!r} is one of role {account.key.role}."
            )
        account.spend()


def _bearer(scope: Scope) -> bytes | None:
    """The key that a request presents, None for none."""
    scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None


def _unauthorized(message: str) -> Unauthorized:
    return Unauthorized(message, headers={"www-authenticate": "Bearer"})
