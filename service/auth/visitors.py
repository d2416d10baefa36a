"""Visitors: who searched and clicked, without anybody's name.

A request may name its visitor by an opaque id, `user`. The id itself is neither stored nor logged. The
service keeps an HMAC of it, and the secret is in the store. So equal ids have equal hashes, also after a
restore or in a copy of the store. Without the secret, nobody can test which id a hash belongs to. The secret
is never rotated: after a rotation, every visitor would be a new one.
"""

import hashlib
import hmac

_CHARACTERS = 32  # hexadecimal: 128 bits


class Visitors:
    """Hashes the ids of visitors by one secret."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def hashed(self, user: str | None) -> str:
        """The visitor's hash; empty if no id is given."""
        if user is None:
            return ""
        return hmac.new(self._secret, user.encode(), hashlib.sha256).hexdigest()[:_CHARACTERS]
