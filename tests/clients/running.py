"""The service for tests of client libraries. Imports only `tests` of the project."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.parts.served import Served

READER = "for-tests-a-reader"
HURRIED = "for-tests-one-request-a-minute"
KEYS = [
    f"reader:read:{hashlib.sha256(READER.encode()).hexdigest()}",
    f"hurried:read:{hashlib.sha256(HURRIED.encode()).hexdigest()}:1",
]


class Running(Served):
    """A service with the default model and the example corpus.

    With `keys`, the service accepts only the keys READER and HURRIED. Clients send `key`.
    """

    def __init__(self, folder: Path, *, keys: bool = False) -> None:
        self.key = READER if keys else "no key needed"
        super().__init__(folder, KEYS if keys else [], self.key, SIMILE_EXAMPLES="1")

    def spend(self, key: str) -> None:
        """Send requests with `key` until its rate limit is reached."""
        for _ in range(3):
            headers = {"Authorization": f"Bearer {key}"}
            if self.client.post("/embed", json={"inputs": "a"}, headers=headers).status_code == 429:
                return
        pytest.fail("The key's rate has no effect.")

    def embed(self, texts: list[str], **options: object) -> NDArray[np.float64]:
        """Return the vectors of `POST /embed`, (n, dimension), to compare with those of the clients."""
        return np.array(self.post("/embed", {"inputs": texts, **options}))
