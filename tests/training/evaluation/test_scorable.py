"""Prompts: sentences go in without one, queries and documents behind the model's own, here and over HTTP."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models.publishing.publish import publish
from models.store import Store
from tests.service.process import Service
from tests.service.swapping import published_pair
from tests.tiny import tiny_source
from training.evaluation.scorable import open_scorable

TEXTS = ["the cat sleeps", "red paper"]


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A models folder with one version, whose documents' prompt is named `passage`."""
    folder = tmp_path_factory.mktemp("prompted")
    source = tiny_source(folder / "source", prompts={"query": "when do i ", "passage": "a stone: "})
    store = Store(folder / "models")
    store.want(publish(store, source).version)
    return store


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, prompted: Store) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), prompted.root, SIMILE_WORKERS="1") as running:
        yield running


def test_a_version_puts_its_prompts_before_queries_and_documents(prompted: Store) -> None:
    version = prompted.versions()[0].version
    with open_scorable(version, {"SIMILE_MODELS_DIR": str(prompted.root)}) as found:
        behind = {
            prompt: found.encode([prompt + text for text in TEXTS]) for prompt in ("when do i ", "a stone: ")
        }
        assert np.array_equal(found.encode_queries(TEXTS), behind["when do i "])
        assert np.array_equal(found.encode_documents(TEXTS), behind["a stone: "])
        assert not np.allclose(found.encode(TEXTS), found.encode_queries(TEXTS), atol=1e-3)
        assert not np.allclose(found.encode(TEXTS), found.encode_documents(TEXTS), atol=1e-3)


def test_a_server_does_so_too(prompted: Store, service: Service) -> None:
    version = prompted.versions()[0].version
    with (
        open_scorable(f"http://127.0.0.1:{service.port}") as served,
        open_scorable(version, {"SIMILE_MODELS_DIR": str(prompted.root)}) as local,
    ):
        assert served.encode(TEXTS) == pytest.approx(local.encode(TEXTS), abs=1e-6)
        assert served.encode_queries(TEXTS) == pytest.approx(local.encode_queries(TEXTS), abs=1e-6)
        assert served.encode_documents(TEXTS) == pytest.approx(local.encode_documents(TEXTS), abs=1e-6)


def test_the_queries_of_a_pair_are_scored_by_its_student(tmp_path: Path) -> None:
    """Vectors as a search encodes them; sentences and documents are the teacher's."""
    environ = {"SIMILE_MODELS_DIR": str(tmp_path)}
    names = published_pair(tmp_path, {"query": "when do i ", "passage": "a stone: "})
    with contextlib.ExitStack() as opened:
        teacher, student, pair = (opened.enter_context(open_scorable(name, environ)) for name in names)
        assert np.array_equal(pair.encode_queries(TEXTS), student.encode_queries(TEXTS))
        assert np.array_equal(pair.encode_documents(TEXTS), teacher.encode_documents(TEXTS))
        assert np.array_equal(pair.encode(TEXTS), teacher.encode(TEXTS))


def test_a_model_without_prompts_has_one_function_for_all(tiny_models_dir: Path) -> None:
    version = Store(tiny_models_dir).versions()[0].version
    with open_scorable(version, {"SIMILE_MODELS_DIR": str(tiny_models_dir)}) as found:
        assert np.array_equal(found.encode_queries(TEXTS), found.encode(TEXTS))
        assert np.array_equal(found.encode_documents(TEXTS), found.encode(TEXTS))
