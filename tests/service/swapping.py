"""Several tiny models, and checks of which version computed a vector or score.

Texts come from a fixed list, so their vectors are known for every version.
"""

import http.client
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from models.manifest import TEACHER, Manifest
from models.publishing.pair import pair
from models.publishing.publish import publish
from models.store import ModelStore
from tests.tiny import tiny_source, tiny_student
from tests.waiting import LIMIT

WORDS = "river stone market letter engine garden bridge paper window forest harbour cat dog animal".split()
TEXTS = [f"{a} {b} {n}" for a in WORDS for b in WORDS for n in ("red", "green")]
QUERIES = ["red river", "the cat sleeps", "a letter from the harbour", "how do i open my account"]
TOLERANCE = 1e-4


_made = TemporaryDirectory(prefix="simile-tests-")  # published models, by seed


def published(root: Path, count: int) -> list[str]:
    """Puts `count` published models with different weights into `root`, requests the first, and returns all.

    Each model is published once per process and copied later.
    """
    made, store = ModelStore(Path(_made.name) / "models"), ModelStore(root)
    versions = []
    for seed in range(count):
        source = Path(_made.name) / f"source-{seed}"
        if not source.exists():
            tiny_source(source, seed)
        version = publish(made, source, origin=f"tiny-{seed}").version  # returns an existing version
        shutil.copytree(made.folder(version), root / version)
        versions.append(version)
    store.request(versions[0])
    return versions


def published_pair(root: Path, prompts: dict[str, str] | None = None) -> list[str]:
    """Puts a tiny teacher, its student and their pair into `root`, requests the teacher, returns all."""
    store = ModelStore(root)
    with TemporaryDirectory(prefix="simile-tests-") as folder:
        source = tiny_source(Path(folder, "teacher"), prompts=prompts)
        teacher = publish(store, source, origin="teacher", int8=True)
        student, both = publish_pair(store, teacher, source)
    store.request(teacher.version)
    return [teacher.version, student.version, both.version]


def publish_pair(store: ModelStore, teacher: Manifest, source: Path) -> tuple[Manifest, Manifest]:
    """Publishes a student of `teacher`, made from its source folder, and their pair. Returns both."""
    with TemporaryDirectory(prefix="simile-tests-") as folder:
        small = tiny_student(source, Path(folder, "student"))
        lineage = {TEACHER: teacher.fingerprint}
        student = publish(store, small, origin="student", lineage=lineage, int8=True)
    return student, pair(store, teacher.version, student.version)


class Client:
    """A client with one connection and little overhead, because sixteen share one interpreter."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)

    def send(self, method: str, path: str, body: object = None) -> tuple[Any, str]:
        """Returns the answer's JSON and version. Raises AssertionError unless the status is 200."""
        content = None if body is None else orjson.dumps(body)
        self._connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, f"{method} {path}: {answer.status} {text!r}"
        return orjson.loads(text), answer.headers.get("x-model-version", "")

    def close(self) -> None:
        self._connection.close()


class Oracle:
    """Expected vectors of each version."""

    def __init__(self, root: Path, versions: Sequence[str]) -> None:
        self._root = root
        self._opening = threading.Lock()
        self._vectors: dict[str, dict[str, NDArray[np.float32]]] = {}
        self._queries: dict[str, dict[str, NDArray[np.float32]]] = {}
        self.students: dict[str, str | None] = {}  # query encoders of pairs, by version
        for version in versions:
            self.of(version)

    def of(self, version: str) -> dict[str, NDArray[np.float32]]:
        """Returns a version's vectors of all texts and queries, for a pair its teacher's. Opens it once."""
        with self._opening:
            if version not in self._vectors:
                encoder = ModelStore(self._root).open(version)
                texts = [*TEXTS, *QUERIES]
                self._vectors[version] = dict(zip(texts, encoder.encode(texts).vectors, strict=True))
                self._queries[version] = dict(
                    zip(QUERIES, encoder.for_queries.encode(QUERIES).vectors, strict=True)
                )
                queries = encoder.queries
                self.students[version] = None if queries is None else queries.manifest.version
                encoder.close()
            return self._vectors[version]

    def differ(self) -> bool:
        """Returns whether all versions have clearly different vectors for each text."""
        versions = list(self._vectors)
        return all(
            np.abs(self._vectors[a][text] - self._vectors[b][text]).max() > 100 * TOLERANCE
            for at, a in enumerate(versions)
            for b in versions[:at]
            for text in TEXTS
        )

    def check_vector(self, version: str, text: str, vector: Sequence[float]) -> None:
        difference = np.abs(np.subtract(vector, self.of(version)[text])).max()
        assert difference < TOLERANCE, f"the vector of {text!r} is not {version}'s"

    def check_search(self, answer: Mapping[str, Any]) -> None:
        """Checks that every score is that of the version that the answer names."""
        known = self.of(answer["model"])
        query = self._queries[answer["model"]][answer["query"]]
        expected = np.array([known[hit["text"]] for hit in answer["hits"]]) @ query
        assert answer.get("query_encoder") == self.students[answer["model"]]
        difference = np.abs([hit["score"] for hit in answer["hits"]] - expected).max()
        assert difference < TOLERANCE, f"a score is not {answer['model']}'s"
