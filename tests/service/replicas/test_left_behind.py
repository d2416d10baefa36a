"""Replicas that miss a swap, die during a build, or have a models folder of their own."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.service.load import STATIC
from tests.service.replicas.cluster import Cluster, Replica, cluster
from tests.service.replicas.forked import Forge
from tests.service.swapping import QUERIES, TEXTS


def find_version(replica: Replica, method: str, path: str, **sent: Any) -> str | None:
    """Sends a request. Returns the version that answered, or None for a 503, which must have Retry-After."""
    answer = replica.client.request(method, path, **sent)
    if answer.status_code == 503:
        assert int(answer.headers["Retry-After"]) > 0
        return None
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-model-version"])


@pytest.mark.long
def test_one_that_slept_through_a_swap_answers_nothing_by_the_retired_version(
    tmp_path: Path, forge: Forge
) -> None:
    with cluster(tmp_path, forge) as made:
        first, second, sleeper = made.replicas
        assert first.put(STATIC).status_code == 200
        target = made.versions[1]
        sleeper.process.send_signal(signal.SIGSTOP)
        assert first.client.post(f"/models/{target}/activate").status_code == 202
        made.until(lambda: first.active == target == second.active)
        sleeper.process.send_signal(signal.SIGCONT)
        requested = {"inputs": TEXTS[:1]}
        answers: list[str | None] = []
        while not (answers and answers[-1]):
            answers.append(find_version(sleeper, "POST", "/embed", json=requested))
            answers.append(find_version(sleeper, "GET", "/search", params={"q": QUERIES[0]}))
        assert {*answers} - {None} == {target}
        made.until(sleeper.goes)
        assert sleeper.put({"later": TEXTS[0]}).status_code == 200
        assert first.stored() == sleeper.stored() == STATIC | {"later": TEXTS[0]}


@pytest.mark.long
def test_all_embed_and_the_part_of_one_that_dies_is_done_by_the_others(tmp_path: Path, forge: Forge) -> None:
    with cluster(tmp_path, forge, SIMILE_BUILD_RATE="20") as made:
        first, second, third = made.replicas
        texts = {f"d{at}": TEXTS[at] for at in range(200)}
        assert first.put(texts).status_code == 200
        target = made.versions[1]
        assert first.client.post(f"/models/{target}/activate").status_code == 202
        at_work: set[str] = set()

        def all_are_at_work() -> bool:
            at_work.update(id for (id,) in made.ask("SELECT taken_by FROM lacking WHERE taken_by <> ''"))
            return len(at_work) == 3

        made.until(all_are_at_work)
        third.kill()
        written = 0
        while first.active != target or second.active != target:
            assert second.put({f"w{written}": TEXTS[written % len(TEXTS)]}).status_code == 200
            texts[f"w{written}"] = TEXTS[written % len(TEXTS)]
            written += 1
            time.sleep(0.02)
        third.launch(forge)
        third.wait_until_ready()
        assert made.everywhere(target)
        made.check_stored(texts)
        assert made.ask("SELECT count(*) FROM lacking") == [(0,)]


@pytest.mark.long
def test_replicas_with_a_models_folder_each_follow_the_newest_wish(tmp_path: Path, forge: Forge) -> None:
    with cluster(tmp_path, forge, apart=True) as made:
        target = made.versions[1]
        late = made.replicas[2]
        aside = tmp_path / "aside"
        (late.folder / "models" / target).rename(aside)
        assert made.replicas[1].client.post(f"/models/{target}/activate").status_code == 202
        made.until(lambda: "is tried again" in late.log.read_text())
        assert made.everywhere(made.versions[0]), "the one that lacks the folder is waited for"
        shutil.copytree(aside, late.folder / "models" / target)
        made.until(lambda: made.everywhere(target))
        assert late.client.post("/models/rollback").json() == {"wanted": made.versions[0]}
        made.until(lambda: made.everywhere(made.versions[0]))
        check_refused(made, late)


def check_refused(made: Cluster, replica: Replica) -> None:
    """Checks that a start without the folder of the active version fails and says what to do."""
    replica.kill()
    shutil.rmtree(replica.folder / "models" / made.versions[0])
    replica.launch()
    replica.process.wait()
    assert "copy its folder from another replica" in replica.log.read_text()


@pytest.mark.long
def test_a_replica_without_its_database_is_well_and_answers_503(tmp_path: Path, forge: Forge) -> None:
    with cluster(tmp_path, forge) as made:
        replica, requested = made.replicas[0], {"inputs": TEXTS[:1]}
        name = made.ask("SELECT current_database()")[0][0]
        with psycopg.connect(made.url, dbname="postgres", autocommit=True) as elsewhere:
            elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
            elsewhere.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
            )
            made.until(lambda: find_version(replica, "POST", "/embed", json=requested) is None)
            assert replica.client.get("/ready").status_code == 503
            assert replica.client.get("/health").status_code == 200
            pinned = {"x-model-version": made.versions[0]}
            assert find_version(replica, "POST", "/embed", json=requested, headers=pinned) == made.versions[0]
            elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
        made.until(lambda: all(each.goes() for each in made.replicas))
        assert replica.put(STATIC).status_code == 200
