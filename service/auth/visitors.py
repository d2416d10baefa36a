"""Pseudonyms of the visitors who search and click.

A request may contain an opaque id of its visitor, `user`. The service neither stores nor logs the id, but an
HMAC of it. The secret is in the store, so equal ids have equal hashes, also after a restore or in a copy of
the store. Without the secret a hash cannot be matched with an id. The secret is never rotated, because every
visitor would then seem new.
"""

import hashlib
import hmac

_CHARACTERS = 32  # hexadecimal: 128 bits


class Visitors:
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def hashed(self, user: str | None) -> str:
        """Returns the visitor's hash, or an empty string without an id."""
        if user is None:
            return ""
        return hmac.new(self._secret, user.encode(), hashlib.sha256).hexdigest()[:_CHARACTERS]
