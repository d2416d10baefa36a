"""A service in this process with a real port, so a test can break a part of it."""

import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2
import numpy as np
import uvicorn
from fastapi import FastAPI

from models.encoder import Encoder
from service.app import create_app
from service.runtime.runtime import Runtime
from tests.service.conftest import new_settings
from tests.service.swapping import TEXTS
from tests.waiting import LIMIT, until

Ids = Sequence[Sequence[int]]


class Place:
    """A service in this process with a real port."""

    def __init__(self, app: FastAPI, port: int) -> None:
        self.runtime: Runtime = app.state.runtime
        self.port = port
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT, trust_env=False)

    @property
    def encoder(self) -> Encoder:
        return self.runtime.active.generation.encoder

    def embed(self, inputs: str | list[str], **headers: str) -> httpx2.Response:
        """Embeds over a new connection, as another client would."""
        with httpx2.Client(base_url=self.client.base_url, timeout=LIMIT, trust_env=False) as client:
            return client.post("/embed", json={"inputs": inputs}, headers=headers)

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def check(self) -> None:
        """Checks that the service becomes healthy and idle, and answers the next request correctly."""
        until(lambda: self.metric("simile_healthy") == 1)
        until(lambda: self.client.get("/health").status_code == 200)  # An earlier check may still fail.
        self.check_vector(self.embed(TEXTS[7]), TEXTS[7])
        for lane in ("interactive", "background"):
            for what in ("texts", "tokens"):
                until(partial(self._is, f'simile_queue_{what}{{lane="{lane}"}}', 0))

    def _is(self, name: str, value: float) -> bool:
        return self.metric(name) == value

    def check_vector(self, answer: httpx2.Response, text: str) -> None:
        assert answer.status_code == 200, answer.text
        [vector] = answer.json()
        [ids] = [tokens.ids for tokens in self.encoder.tokenize([text])]
        expected = Encoder.forward(self.encoder, [ids])[0]
        np.testing.assert_allclose(vector, expected, atol=1e-5)


@contextmanager
def serving(folder: Path, models_dir: Path, **others: object) -> Iterator[Place]:
    app = create_app(new_settings(folder, models_dir, **others))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    place = Place(app, listener.getsockname()[1])
    try:
        assert app.state.runtime.ready.wait(LIMIT)
        yield place
    finally:
        place.client.close()
        server.should_exit = True
        thread.join(LIMIT)
    assert not thread.is_alive()


def occupied(place: Place, pool: ThreadPoolExecutor, begun: list[int]) -> list[Future[httpx2.Response]]:
    """Sends two requests, each to its own worker. The caller's fault adds an entry to `begun` per pass."""
    answers = []
    for at in range(2):
        answers.append(pool.submit(place.embed, TEXTS[at]))
        until(lambda at=at: len(begun) > at)  # type: ignore[misc]
    return answers
