"""A fixture: a process that starts services quickly, for all tests of the session."""

from collections.abc import Iterator

import pytest

from tests.service.replicas.forked import Forge

pytest.importorskip("psycopg", reason="needs the extra postgres")


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    with Forge() as made:
        yield made
