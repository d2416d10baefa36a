"""The bare applications answer what the service does, so that their cost can be held against its own."""

from pathlib import Path

import orjson
import pytest

from benchmarks import cached
from benchmarks.bare import APPS


@pytest.mark.long
@pytest.mark.parametrize("name", APPS)
def test_an_application_answers_the_vector(tmp_path: Path, name: str) -> None:
    body = tmp_path / "answer.json"
    body.write_bytes(orjson.dumps([[0.25, -1.5, 3e-05]]))
    with cached._bare(name, body) as (_, port):
        for requests in (1, 2):  # the second on the same connection
            assert orjson.loads(cached._ask(port, requests)) == [[0.25, -1.5, 3e-05]]
