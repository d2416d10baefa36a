"""Runs Prometheus with the project's rules on a running service."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.monitoring.files import PROMETHEUS
from tests.service.process import free_port
from tests.waiting import LIMIT, until

SCRAPE = "500ms"
TARGET = '["service:8000"]'


class Prometheus:
    """A Prometheus process with files in `folder`, which scrapes the service at `port` twice a second."""

    def __init__(self, folder: Path, port: int, change: Callable[[str], str] = lambda text: text) -> None:
        """Copies the rules to `folder`. `change` edits the text of alerts.yml."""
        self.port = free_port()
        self._folder = folder / "prometheus"
        shutil.copytree(PROMETHEUS, self._folder)
        config = self._folder / "prometheus.yml"
        text = config.read_text(encoding="utf-8")
        assert TARGET in text
        assert text.count("_interval: 15s") == 2
        text = text.replace(TARGET, f'["127.0.0.1:{port}"]').replace("_interval: 15s", f"_interval: {SCRAPE}")
        config.write_text(text, encoding="utf-8")
        alerts = self._folder / "alerts.yml"
        alerts.write_text(change(alerts.read_text(encoding="utf-8")), encoding="utf-8")
        self._log = folder / "prometheus.log"
        self._client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=LIMIT, trust_env=False)

    def __enter__(self) -> Self:
        command = [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self.until(self._ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # No test needs the data later.
        self._process.wait()
        self._client.close()

    def _ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def until(self, true: Callable[[], bool]) -> None:
        until(true, self._log.read_text, pause=0.1)

    def get(self, path: str, **parameters: str) -> Any:
        """Returns the `data` of an API answer. An error of the API fails the test."""
        answer = json.loads(self._client.get(f"/api/v1/{path}", params=parameters).content)
        assert answer["status"] == "success", f"{parameters}: {answer['error']}"
        return answer["data"]

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Returns the samples of an instant query. Each has `metric` and `value`."""
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def wait_for(self, query: str) -> None:
        """Waits until `query` has a sample."""
        self.until(lambda: bool(self.ask(query)))

    def alert(self, name: str) -> str:
        """Returns the state of an alert: inactive, pending or firing."""
        [state] = [
            rule["state"]
            for group in self.get("rules", type="alert")["groups"]
            for rule in group["rules"]
            if rule["name"] == name
        ]
        return str(state)
