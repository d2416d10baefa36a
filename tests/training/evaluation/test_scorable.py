"""Models that `evaluate` opens: published versions, folders, pairs and servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.publishing.publish import publish
from models.store import ModelStore
from tests.parts.json_server import json_server
from tests.service.process import Service, free_port
from tests.service.swapping import published_pair
from tests.tiny import tiny_source
from training.errors import TrainingError
from training.evaluation.scorable import Server, open_scorable

TEXTS = ["the cat sleeps", "red paper"]


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    """A models folder with one version, whose prompt for documents is named `passage`."""
    folder = tmp_path_factory.mktemp("prompted")
    source = tiny_source(folder / "source", prompts={"query": "when do i ", "passage": "a stone: "})
    store = ModelStore(folder / "models")
    store.request(publish(store, source).version)
    return store


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, prompted: ModelStore) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), prompted.root, SIMILE_WORKERS="1") as running:
        yield running


def test_a_version_puts_its_prompts_before_queries_and_documents(prompted: ModelStore) -> None:
    version = prompted.versions()[0].version
    with open_scorable(version, {"SIMILE_MODELS_DIR": str(prompted.root)}) as found:
        behind = {
            prompt: found.encode([prompt + text for text in TEXTS]) for prompt in ("when do i ", "a stone: ")
        }
        assert np.array_equal(found.encode_queries(TEXTS), behind["when do i "])
        assert np.array_equal(found.encode_documents(TEXTS), behind["a stone: "])
        assert not np.allclose(found.encode(TEXTS), found.encode_queries(TEXTS), atol=1e-3)
        assert not np.allclose(found.encode(TEXTS), found.encode_documents(TEXTS), atol=1e-3)


def test_a_server_does_so_too(prompted: ModelStore, service: Service) -> None:
    version = prompted.versions()[0].version
    with (
        open_scorable(f"http://127.0.0.1:{service.port}") as served,
        open_scorable(version, {"SIMILE_MODELS_DIR": str(prompted.root)}) as local,
    ):
        assert (served.version, served.fingerprint) == (local.version, local.fingerprint)
        texts = [*TEXTS, "天地 with a stone", "x " * 300]
        assert served.encode(texts) == pytest.approx(local.encode(texts), abs=1e-6)
        assert served.encode_queries(TEXTS) == pytest.approx(local.encode_queries(TEXTS), abs=1e-6)
        assert served.encode_documents(TEXTS) == pytest.approx(local.encode_documents(TEXTS), abs=1e-6)


def test_the_queries_of_a_pair_are_scored_by_its_student(tmp_path: Path) -> None:
    """The teacher encodes sentences and documents."""
    environ = {"SIMILE_MODELS_DIR": str(tmp_path)}
    names = published_pair(tmp_path, {"query": "when do i ", "passage": "a stone: "})
    with contextlib.ExitStack() as opened:
        teacher, student, pair = (opened.enter_context(open_scorable(name, environ)) for name in names)
        assert np.array_equal(pair.encode_queries(TEXTS), student.encode_queries(TEXTS))
        assert np.array_equal(pair.encode_documents(TEXTS), teacher.encode_documents(TEXTS))
        assert np.array_equal(pair.encode(TEXTS), teacher.encode(TEXTS))


def test_a_model_without_prompts_has_one_function_for_all(tiny_models_dir: Path) -> None:
    version = ModelStore(tiny_models_dir).versions()[0].version
    with open_scorable(version, {"SIMILE_MODELS_DIR": str(tiny_models_dir)}) as found:
        assert np.array_equal(found.encode_queries(TEXTS), found.encode(TEXTS))
        assert np.array_equal(found.encode_documents(TEXTS), found.encode(TEXTS))


# Status, body and headers.
Answer = tuple[int, bytes, dict[str, str]]
INFO: Answer = (200, b'{"model_version": "v1", "fingerprint": "f1"}', {})


def _server(embed: Callable[[list[str]], Answer], info: Answer = INFO) -> AbstractContextManager[str]:
    """Serves `/embed` with the answers of `embed`, and other paths with `info`. Yields the URL."""

    def answer(path: str, parameters: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        if path != "/embed":
            return info
        assert headers["accept"] == "application/octet-stream"
        return embed(parameters["inputs"])

    return json_server(answer)


def _numbers(texts: list[str], version: str = "v1") -> Answer:
    """Returns an answer of `/embed`, in which the text `3` has the vector (3, 6)."""
    vectors = np.array([[float(text), 2 * float(text)] for text in texts], "<f4")
    headers = {"x-model-version": version, "x-embedding-shape": f"{len(texts)},2"}
    return 200, vectors.tobytes(), headers


def test_many_texts_go_in_batches_of_256_and_come_back_in_order() -> None:
    sizes: list[int] = []

    def embed(texts: list[str]) -> Answer:
        sizes.append(len(texts))
        return _numbers(texts)

    with _server(embed) as url, closing(Server(url)) as server:
        vectors = server.encode([str(number) for number in range(600)])
        assert server.encode([]).shape == (0, 0)
    assert sizes == [256, 256, 88]
    assert np.array_equal(vectors, np.outer(np.arange(600), [1, 2]))


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with _server(_numbers) as url, closing(Server(url)) as server:
        assert server.encode(["3"]).tolist() == [[3, 6]]


def test_a_version_that_changes_between_batches_is_refused() -> None:
    versions = iter(["v1", "v2"])
    with (
        _server(lambda texts: _numbers(texts, next(versions))) as url,
        closing(Server(url)) as server,
        pytest.raises(TrainingError, match="changed from v1 to v2 during the evaluation"),
    ):
        server.encode(["1"] * 300)


def test_a_busy_server_is_asked_again() -> None:
    answers = iter([(429, b"busy", {"retry-after": "0"}), (503, b"starting", {"retry-after": "0"})])
    with _server(lambda texts: next(answers, None) or _numbers(texts)) as url, closing(Server(url)) as server:
        assert server.encode(["3"]).tolist() == [[3, 6]]


def test_a_server_that_stays_busy_is_refused_with_its_own_words() -> None:
    with (
        _server(lambda _: (429, b"the queue is full", {"retry-after": "0"})) as url,
        closing(Server(url)) as server,
        pytest.raises(TrainingError, match=r"/embed answered 429: the queue is full"),
    ):
        server.encode(["1"])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b"[[1, 2]]", {"x-model-version": "v1"}), r"gave no float32 vectors \(8 bytes"),
        ((200, b"1234", {"x-model-version": "v1", "x-embedding-shape": "1,2"}), "gave no float32 vectors"),
        (
            (200, bytes(8), {"x-model-version": "v1", "x-embedding-shape": "2,1"}),
            "gave 2 vectors for 1 text",
        ),
        ((413, b"too large", {}), "/embed answered 413: too large"),
    ],
)
def test_an_answer_that_is_not_the_texts_vectors_is_refused(answer: Answer, reason: str) -> None:
    with (
        _server(lambda _: answer) as url,
        closing(Server(url)) as server,
        pytest.raises(TrainingError, match=reason),
    ):
        server.encode(["1"])


def test_a_page_of_something_else_is_no_server_of_embeddings() -> None:
    with (
        _server(_numbers, info=(200, b"<html>", {})) as url,
        pytest.raises(TrainingError, match="does not answer as a Simile service does"),
    ):
        Server(url)
