"""Pseudonyms of the visitors who search and click.

A request may contain an opaque id of its visitor, `user`. The service stores only an HMAC of it, and never
logs the id. The secret is in the store, so hashes stay equal after a restore. It is never rotated, because
every visitor would then seem new.
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
