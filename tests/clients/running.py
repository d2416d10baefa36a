"""The service as its users run it, started with the project's own Python. Imports nothing of the project."""

import hashlib
import os
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.waiting import LIMIT, until

ROOT = Path(__file__).resolve().parents[2]

READER = "for-tests-a-reader"
HURRIED = "for-tests-one-request-a-minute"
KEYS = f"""\
reader:read:{hashlib.sha256(READER.encode()).hexdigest()}
hurried:read:{hashlib.sha256(HURRIED.encode()).hexdigest()}:1
"""


class Running:
    """`python -m service` in `folder`, with the default model and the example corpus.

    Up between `with` and its end.

    With `keys` the service takes READER and HURRIED and nobody else; `key` is what a client gives.
    """

    def __init__(self, folder: Path, *, keys: bool = False) -> None:
        self.folder = folder
        self.key = READER if keys else "no key needed"
        self._keys = keys
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._client = httpx2.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=LIMIT, trust_env=False
        )

    def __enter__(self) -> Self:
        python = ROOT / os.environ.get("SERVICE_PYTHON", ".venv/bin/python")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")}
        environment |= {
            "SIMILE_PORT": str(self._port),
            "SIMILE_DATA_DIR": str(self.folder / "data"),
            "SIMILE_MODELS_DIR": str(self.folder / "models"),
            "SIMILE_EXAMPLES": "1",
        }
        if self._keys:
            (self.folder / "keys").write_text(KEYS, encoding="utf-8")
            environment["SIMILE_API_KEYS_FILE"] = str(self.folder / "keys")
        log = self.folder / "service.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [python, "-m", "service"], cwd=ROOT, env=environment, stdout=out, stderr=out
            )
        try:
            until(lambda: self._process.poll() is not None or self._is_ready())
            assert self._process.poll() is None
        except AssertionError:
            self._process.kill()
            pytest.fail(f"The service did not become ready:\n{log.read_text()}", pytrace=False)
        return self

    def _is_ready(self) -> bool:
        try:
            return self._client.get("/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def get(self, path: str, **parameters: str | int) -> Any:
        """The JSON of a GET that must succeed."""
        answer = self._client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object) -> Any:
        """The JSON of a POST that must succeed."""
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def spend(self, key: str) -> None:
        """Send with `key` until its rate is spent."""
        for _ in range(3):
            headers = {"Authorization": f"Bearer {key}"}
            if self._client.post("/embed", json={"inputs": "a"}, headers=headers).status_code == 429:
                return
        pytest.fail("The key's rate has no effect.")

    def embed(self, texts: list[str], **options: object) -> NDArray[np.float64]:
        """What `POST /embed` answers, (n, dimension): the reference of every client's vectors."""
        return np.array(self.post("/embed", {"inputs": texts, **options}))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
