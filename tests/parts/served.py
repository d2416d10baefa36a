"""The service as users run it, with the project's own Python. Imports only `tests` of the project."""

import os
import socket
import subprocess
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.waiting import LIMIT, until

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / os.environ.get("SERVICE_PYTHON", ".venv/bin/python")


class Served:
    """`python -m service` with its data in `folder`, which runs during a `with` block.

    Args:
        folder: Has the data, the models (FOLDER/models), the keys and the log.
        keys: Lines of a keys file. Without lines, the service requires no key.
        key: The key that `client` sends.
        variables: Further settings, as environment variables.
    """

    def __init__(self, folder: Path, keys: list[str], key: str, **variables: str) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")
        }
        self.environment |= {
            "SIMILE_PORT": str(port),
            "SIMILE_DATA_DIR": str(folder / "data"),
            "SIMILE_MODELS_DIR": str(folder / "models"),
            **variables,
        }
        if keys:
            (folder / "keys").write_text("\n".join(keys), encoding="utf-8")
            self.environment["SIMILE_API_KEYS_FILE"] = str(folder / "keys")
        headers = {"authorization": f"Bearer {key}"}
        self.client = httpx2.Client(base_url=self.url, timeout=LIMIT, trust_env=False, headers=headers)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.client.close()

    def start(self) -> None:
        log = self.folder / "service.log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "service"], cwd=ROOT, env=self.environment, stdout=out, stderr=out
            )
        try:
            until(lambda: self.process.poll() is not None or self._is_ready(), log.read_text)
            assert self.process.poll() is None, log.read_text()
        except AssertionError:
            self.process.kill()
            raise

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT)

    def get(self, path: str, **parameters: str | int) -> Any:
        """Returns the JSON of a GET request, which must succeed."""
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object = None) -> Any:
        """Returns the JSON of a POST request, which must succeed."""
        answer = self.client.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()
