"""The bare applications answer what the service does, so that their cost can be held against its own."""

from contextlib import closing
from pathlib import Path
from socket import create_connection

import orjson
import pytest

from benchmarks import cached
from benchmarks.bare import APPS


@pytest.mark.long
@pytest.mark.parametrize("name", APPS)
def test_an_application_answers_the_vector(tmp_path: Path, name: str) -> None:
    body = tmp_path / "answer.json"
    body.write_bytes(orjson.dumps([[0.25, -1.5, 3e-05]]))
    with cached._bare(name, body) as (_, port), closing(create_connection(("127.0.0.1", port))) as connection:
        for _ in range(2):  # on one connection
            assert orjson.loads(cached._exchange(connection)) == [[0.25, -1.5, 3e-05]]
