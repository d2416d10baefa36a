"""A forge of services, for as many tests as want one."""

from collections.abc import Iterator

import pytest

from tests.service.replicas.forked import Forge

pytest.importorskip("psycopg", reason="needs the extra postgres")


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    with Forge() as made:
        yield made
