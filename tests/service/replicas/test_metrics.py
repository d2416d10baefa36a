"""Metrics of a service with a shared database: lease, connection pool, and the delay of a real standby."""

import math
import re
from collections.abc import Iterator

import psycopg
import pytest

from tests import postgres
from tests.service.replicas.cluster import Cluster, cluster
from tests.service.replicas.forked import Forge


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("metrics"), forge, SIMILE_DATABASE_CONNECTIONS="6") as made:
        yield made


def series(made: Cluster) -> dict[str, float]:
    text = made.replicas[0].client.get("/metrics").text
    found = re.findall(r"^(simile_(?:database|lease|replicas)\S*) (\S+)$", text, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.long
def test_the_pool_and_the_lease_are_shown(made: Cluster) -> None:
    made.until(lambda: series(made)["simile_replicas"] == 3)
    found = series(made)
    assert found["simile_database_connections_limit"] == 6
    assert 2 <= found['simile_database_connections{state="open"}'] <= 6
    opened = made.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'simile'")[0][0]
    assert found['simile_database_connections{state="open"}'] <= opened <= 3 * 6
    assert found['simile_database_connections{state="idle"}'] <= 6
    assert found["simile_database_waiting"] == 0
    assert 0 <= found["simile_lease_age_seconds"] < 10
    assert math.isnan(found["simile_database_replication_lag_seconds"]), "there is no standby"


@pytest.mark.long
def test_a_standby_that_stands_still_falls_behind_by_the_time_since(made: Cluster) -> None:
    def lag() -> float:
        return series(made)["simile_database_replication_lag_seconds"]

    with postgres.standby() as url, psycopg.connect(url, autocommit=True) as connection:
        made.until(lambda: lag() >= 0)
        connection.execute("SELECT pg_wal_replay_pause()")
        made.until(lambda: lag() > 2)  # Each renewal of a lease is a write.
    made.until(lambda: math.isnan(lag()))
