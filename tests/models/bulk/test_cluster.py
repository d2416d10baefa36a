"""Jobs on Ray and in an S3 bucket: `make test-bulk`, which installs both parts."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from models.bulk.vector_files import open_folder, resolve
from models.messages import amount
from tests.models.bulk import jobs
from tests.waiting import until

pytestmark = pytest.mark.long

MOTO = os.environ.get("MOTO_SERVER") or shutil.which("moto_server")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [*jobs.documents(400), {"id": "empty", "title": "", "text": "", "year": 0}]
    return jobs.write_parquet(tmp_path_factory.mktemp("in") / "in.parquet", rows, group=150)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path, source: Path) -> Path:
    """The results of the local engine, with equal bits in any batch."""
    folder = tmp_path_factory.mktemp("out") / "out"
    jobs.embed(tiny_models_dir, source, folder, part_rows=100, others=None, deterministic=True)
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=lambda nodes: amount(nodes, "node"))
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Ray cluster on this machine, of one or two nodes."""
    ray = pytest.importorskip("ray", reason="Ray is missing (`make test-bulk` installs it)")
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(request.param - 1):
        found.add_node(num_cpus=1)
    try:
        yield found.address
    finally:
        ray.shutdown()
        found.shutdown()  # type: ignore[no-untyped-call, unused-ignore]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*")
def test_ray_gives_the_parts_of_the_local_engine(
    tmp_path: Path, tiny_models_dir: Path, source: Path, out: Path, cluster: str
) -> None:
    from models.bulk.ray_engine import embed_on_ray

    def engine(*given: Any) -> Any:
        return embed_on_ray(*given, address=cluster, actors=0, processors=1)

    counts = jobs.embed(
        tiny_models_dir,
        source,
        tmp_path / "out",
        part_rows=100,
        others=None,
        deterministic=True,
        engine=engine,
    )
    assert counts == {"format": 1, "parts": 6, "documents": 400, "rejected": 1}
    mine, other = open_folder(str(tmp_path / "out")), open_folder(str(out))
    assert [Path(part.path).name for part in mine] == [Path(part.path).name for part in other]
    for one, two in zip(mine, other, strict=True):
        assert pq.read_table(one.path).equals(pq.read_table(two.path)), "equal bits"
    assert jobs.rejects(tmp_path / "out") == jobs.rejects(out)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URI of an empty bucket of an S3 server on loopback, with %s for the path."""
    if MOTO is None:
        pytest.skip("moto[server] is missing (`make test-bulk` installs it)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [MOTO, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers)
        options = (
            f"scheme=http&endpoint_override=127.0.0.1:{port}&allow_bucket_creation=true&region=us-east-1"
        )
        uri = f"s3://key:secret@texts/%s?{options}"
        system, _ = resolve(uri % "in")
        system.create_dir("texts")
        yield uri
    finally:
        server.terminate()
        server.wait()


def test_a_bucket_holds_inputs_and_results(
    tmp_path: Path, tiny_models_dir: Path, source: Path, out: Path, bucket: str
) -> None:
    system, path = resolve(bucket % "in/a.parquet")
    fs.copy_files(str(source), path, destination_filesystem=system)
    place = bucket % "out"
    options: dict[str, Any] = {"part_rows": 100, "others": None, "deterministic": True}
    counts = jobs.embed(tiny_models_dir, bucket % "in", place, **options)
    assert counts == {"format": 1, "parts": 6, "documents": 400, "rejected": 1}
    assert np.array_equal(jobs.vectors(place), jobs.vectors(out))
    with system.open_input_stream("texts/out/job.json") as stream:
        assert b"secret" not in stream.read()
    names = {info.base_name for info in system.get_file_info(fs.FileSelector("texts/out"))}
    assert not [name for name in names if name.startswith(".")], "nothing temporary is left"
    gone = "texts/out/part-00000-00001-00000.parquet"
    before = system.get_file_info(gone).mtime
    system.delete_file(gone)
    system.delete_file("texts/out/done.json")
    jobs.embed(tiny_models_dir, bucket % "in", place, **options)
    assert system.get_file_info(gone).mtime >= before
    assert np.array_equal(jobs.vectors(place), jobs.vectors(out))
