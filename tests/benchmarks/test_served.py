"""A contestant over HTTP, tested with a small server whose answers are known."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.command import BenchError
from benchmarks.load import Answers, Generator, Load, post_request
from benchmarks.machine import Window
from benchmarks.rounds import Scenario
from benchmarks.served import OPENAI, OURS, ServedModel
from benchmarks.workloads import Workload
from tests.benchmarks.embedding_server import EmbeddingServer, vector

TEXTS = [f"text {number}" for number in range(40)]
WORKLOAD = Workload("sentences", TEXTS, [[1] * (1 + number % 4) for number in range(40)])
ONE = Scenario("2 x 1", WORKLOAD, clients=2, texts=1, seconds=0.4)
SEVERAL = Scenario("2 x 3", WORKLOAD, clients=2, texts=3, seconds=0.4)


def served(server: EmbeddingServer) -> ServedModel:
    return ServedModel("Simile fp32", OURS, server.port, os.getpid())


def test_vectors_do_not_depend_on_the_texts_of_a_call() -> None:
    with EmbeddingServer() as server:
        found = served(server).vectors(TEXTS)
    np.testing.assert_array_equal(found, np.array([vector(text) for text in TEXTS]))


def test_a_window_is_counted_in_texts_of_the_mean_length() -> None:
    ours = ServedModel("Simile fp32", OURS, 1, os.getpid())
    made = ours.requests(WORKLOAD, 3)
    assert len(made.lines) == 13  # The 40th text does not fill a request of three.
    # Two seconds: the sixth request of the workload was answered once, the third twice.
    window = Window(2.0, {"server": 0.5, "load": 0.0003}, 0.1)
    request, times, status = np.array([0, 1, 1]), np.array([10.0, 30.0, 20.0]), np.full(3, 200)
    answers = Answers(request, times, times, times, status, status < 0, 2, window, {}, 0)
    found = ours._summary(SEVERAL, made, [5, 2], answers)
    texts = (made.tokens[5] + 2 * made.tokens[2]) / 2.5
    assert found.rate == pytest.approx(texts / 2)
    assert (found.p50_ms, found.foreign) == (20, 0.1)
    assert found.cpu_ms == pytest.approx(500 / texts)


def test_requests_have_the_scenario_s_number_of_texts() -> None:
    with EmbeddingServer() as server:
        found = served(server).measure(SEVERAL, 0)
        bodies = [json.loads(body)["inputs"] for body in server.bodies]
    assert all(len(body) == 3 for body in bodies if isinstance(body, list))
    assert found.rate > 0


def test_a_vector_of_another_text_ends_the_run() -> None:
    with EmbeddingServer() as server:
        ours = served(server)
        window = replace(ONE, seconds=2.0)  # long enough for an answer whose vector is checked
        ours.measure(window, 0)
        server.mixed = True
        with pytest.raises(BenchError, match="is of another text"):
            ours.measure(window, 0)  # the same texts, whose vectors are already known


def test_a_status_other_than_200_ends_the_run() -> None:
    with EmbeddingServer(status=503) as server, pytest.raises(BenchError, match="503"):
        served(server).measure(ONE, 0)


def test_requests_on_closed_connections_of_a_peer_are_sent_again() -> None:
    with EmbeddingServer(closes=5) as server:
        peer = ServedModel("infinity, torch", OURS, server.port, os.getpid(), reconnects=8)
        found = peer.measure(ONE, 0)
        assert server.closes == 0
    assert found.rate > 0


@pytest.mark.parametrize("reconnects", [0, 4])
def test_too_many_closed_connections_end_the_measurement(reconnects: int) -> None:
    with EmbeddingServer(closes=5) as server:
        ours = ServedModel("Simile fp32", OURS, server.port, os.getpid(), reconnects=reconnects)
        with pytest.raises(BenchError, match="closed a connection"):
            ours.measure(ONE, 0)


def test_a_connection_closed_after_the_last_answer_is_not_a_failure() -> None:
    with EmbeddingServer(idle_seconds=0.1, slow_seconds=1.0) as server:
        lines = [post_request("/embed", {"inputs": text}) for text in ("fast", "slow")]
        pids = {"server": os.getpid()}
        # The window ends during the slow answer. By then the other client's connection is idle.
        load = Load(server.port, lines, 2, 0.3, warm=1, pids=pids)
        answers = Generator(load).finish()
    assert answers.reconnects == 0


def test_every_server_answers_equally_many_texts_before_the_window() -> None:
    for scenario in (ONE, SEVERAL):
        with EmbeddingServer() as server:
            window = served(server)
            short = Scenario(scenario.name, WORKLOAD, scenario.clients, scenario.texts, seconds=0.1)
            window.measure(short, 0)
            bodies = [json.loads(body)["inputs"] for body in server.bodies.elements()]
        texts = sum(len(body) for body in bodies if isinstance(body, list))
        texts += sum(isinstance(body, str) for body in bodies)
        assert texts >= 510  # 512, or 170 requests of three


def test_each_dialect_reads_the_answer_to_its_request() -> None:
    answer = {"data": [{"embedding": [1.0, 2.0]}, {"embedding": [3.0, 4.0]}]}
    assert OPENAI.read(answer) == [[1.0, 2.0], [3.0, 4.0]]
    assert OPENAI.body(["a", "b"])["input"] == ["a", "b"]
    assert OURS.body(["a"]) == {"inputs": "a"}
    assert OURS.body(["a", "b"]) == {"inputs": ["a", "b"]}
