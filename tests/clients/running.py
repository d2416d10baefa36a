"""The service for tests of client libraries. Imports only `tests` of the project."""

import hashlib
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.parts.served import PYTHON, ROOT, Served
from tests.waiting import until

READER = "for-tests-a-reader"
WRITER = "for-tests-a-writer"
HURRIED = "for-tests-one-request-a-minute"
KEYS = [
    f"reader:read:{hashlib.sha256(READER.encode()).hexdigest()}",
    f"writer:write:{hashlib.sha256(WRITER.encode()).hexdigest()}",
    f"hurried:read:{hashlib.sha256(HURRIED.encode()).hexdigest()}:1",
]

PUBLISH = """
import sys
from pathlib import Path
from models.store import ModelStore
from tests.parts.rerankers import publish_reranker
root = Path(sys.argv[1])
ModelStore(root).request_reranker(publish_reranker(root))
"""


class Running(Served):
    """A service with the default model and the example corpus.

    With `keys`, the service accepts only the keys READER, WRITER and HURRIED. Clients send `key`.
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

    def use_reranker(self) -> None:
        """Publish a tiny reranker with the service's Python, and wait until it is active."""
        subprocess.run([PYTHON, "-c", PUBLISH, self.folder / "models"], cwd=ROOT, check=True)
        until(lambda: self.get("/info")["reranker"] is not None)

    def embed(self, texts: list[str], **options: object) -> NDArray[np.float64]:
        """Return the vectors of `POST /embed`, (n, dimension), to compare with those of the clients."""
        return np.array(self.post("/embed", {"inputs": texts, **options}))
