"""A quota holds for replicas on one database, but for the writes that are in progress."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import postgres
from tests.service.keyed import bearer, keys_file, line
from tests.service.process import Service
from tests.waiting import until

pytest.importorskip("psycopg", reason="needs the extra postgres")

QUOTA, BATCH = 40, 3


def test_replicas_exceed_a_quota_by_no_more_than_a_write_in_progress(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    scope = {"collections": ["shared"], "filter": {"tenant": "acme"}, "max_documents": QUOTA}
    keys = keys_file(tmp_path, line("acme", "write", "sk-acme", "", "", "", json.dumps(scope)))
    place = {"SIMILE_DATABASE": postgres.new_database(), "SIMILE_API_KEYS_FILE": str(keys)}

    def write(replica: Service) -> None:
        """Writes until the quota is reached."""
        for at in range(QUOTA):
            documents = [{"id": f"{replica.port}-{at}-{n}", "text": f"text {n}"} for n in range(BATCH)]
            answer = replica.client.post(
                "/collections/shared/documents", json={"documents": documents}, headers=bearer("sk-acme")
            )
            if answer.status_code == 409:
                return
            assert answer.status_code == 200, answer.text
        pytest.fail("The quota was never reached.")

    def knows_another(replica: Service) -> bool:
        answer = replica.client.get("/metrics", headers=bearer("sk-change-me"))
        return "\nsimile_replicas 2.0\n" in answer.text

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with (
        Service(tmp_path / "one", tiny_models_dir, **place) as one,
        Service(tmp_path / "two", tiny_models_dir, **place) as two,
    ):
        for replica in (one, two):
            until(lambda replica=replica: knows_another(replica))  # type: ignore[misc]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, (one, two)))
        count = one.client.get("/collections/shared/documents/count", headers=bearer("sk-acme")).json()[
            "count"
        ]
    assert QUOTA - BATCH < count <= QUOTA + BATCH
