"""A running server as an encoder: texts over HTTP, vectors back as raw float32, all from one version."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import httpx2
import numpy as np

from models.files.bounded import parse_json
from training.errors import TrainingError
from training.evaluation.encoding import Encode, Vectors
from training.text.service import key_header, shown

_BATCH = 256  # texts in one request
_TRIES = 5
_LONGEST_WAIT_SECONDS = 30.0  # before sending again to a server that is overloaded
_BUSY = (429, 503)
_REFUSED = 422  # a prompt that the model does not have


class Server:
    """Texts go without a prompt unless one is named; what is too long is cut, as everywhere here."""

    def __init__(self, url: str, timeout_seconds: float = 120) -> None:
        """Raise TrainingError when nothing answers there, or something that is no Simile."""
        self._url = url.rstrip("/")
        self._typed, self._shown = shown(url), shown(self._url)
        self._client = httpx2.Client(  # no proxy between
            timeout=timeout_seconds, trust_env=False, headers=key_header()
        )
        try:
            info = self._json(self._send("GET", "/info"))
        except BaseException:
            self._client.close()
            raise
        self.version: str | None = info.get("model_version")
        self.fingerprint: str | None = info.get("fingerprint")
        self.form: str | None = info.get("form")
        self.query_encoder: dict[str, Any] | None = info.get(
            "query_encoder"
        )  # of a pair; no route gives its vectors

    def close(self) -> None:
        self._client.close()

    def encode(self, texts: list[str], prompt: str | None = None) -> Vectors:
        """(n, dimension), behind the model's prompt of that name.

        Raise TrainingError, also when the server changed its version meanwhile.
        """
        batches = [self._embed(texts[at : at + _BATCH], prompt) for at in range(0, len(texts), _BATCH)]
        if len({batch.shape[1] for batch in batches}) > 1:
            raise TrainingError(f"{self._shown} gave vectors of different dimensions.")
        return np.concatenate(batches) if batches else np.empty((0, 0), np.float32)

    def behind(self, *prompts: str) -> Encode:
        """`encode` behind the first of these prompts that the model has, or behind none when it has none.

        A server does not list its prompts, so at the first call it is asked for a vector behind each.
        """
        named = cache(lambda: next((prompt for prompt in prompts if self._has(prompt)), None))
        return lambda texts: self.encode(texts, named())

    def _has(self, prompt: str) -> bool:
        body = {"inputs": ["a"], "prompt_name": prompt}
        return self._send("POST", "/embed", body, allowed=(200, _REFUSED)).status_code == 200

    def _embed(self, texts: list[str], prompt: str | None) -> Vectors:
        body = {"inputs": texts, "truncate": True} | ({"prompt_name": prompt} if prompt else {})
        answer = self._send("POST", "/embed", body)
        version = answer.headers.get("x-model-version")
        if version != self.version:
            raise TrainingError(
                f"{self._shown} changed from {self.version} to {version} during the evaluation. "
                "Start it again."
            )
        shape = answer.headers.get("x-embedding-shape", "")
        try:
            rows, dimension = (int(part) for part in shape.split(","))
            vectors = np.frombuffer(answer.content, "<f4").reshape(rows, dimension)
        except ValueError:
            raise TrainingError(
                f"{self._shown}/embed gave no float32 vectors ({len(answer.content)} bytes, "
                f"x-embedding-shape {shape!r})."
            ) from None
        if rows != len(texts):
            raise TrainingError(f"{self._shown}/embed gave {rows} vectors for {len(texts)} texts.")
        return vectors.astype(np.float32, copy=False)

    def _send(
        self, method: str, path: str, body: object = None, allowed: tuple[int, ...] = (200,)
    ) -> httpx2.Response:
        """Send again to a server that says it is busy; hours of work should not end on one refusal."""
        headers = {"accept": "application/octet-stream" if body else "application/json"}
        for attempt in range(1, _TRIES + 1):
            try:
                answer = self._client.request(method, self._url + path, json=body, headers=headers)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise TrainingError(f"{self._typed} cannot be reached: {error}") from None
            if answer.status_code not in _BUSY or attempt == _TRIES:
                break
            asked = answer.headers.get("retry-after", "")  # seconds; a date in its place is not understood
            time.sleep(min(float(asked), _LONGEST_WAIT_SECONDS) if asked.isdecimal() else 1.0)
        if answer.status_code not in allowed:
            raise TrainingError(f"{self._shown}{path} refused ({answer.status_code}): {answer.text[:300]}")
        return answer

    def _json(self, answer: httpx2.Response) -> dict[str, Any]:
        try:
            content = parse_json(answer.content)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise TrainingError(
                f"{shown(str(answer.url))} is not an embedding server's: it gave no JSON object."
            )
        return content
