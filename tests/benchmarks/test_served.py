"""A server under load, against a small server whose answers are known."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.closedloop import Answers, ClosedLoop, Load
from benchmarks.contestant import Scenario
from benchmarks.machine import Window
from benchmarks.places import BenchError
from benchmarks.served import OPENAI, OURS, Served
from benchmarks.wire import post
from benchmarks.workloads import Workload
from tests.benchmarks.embedding import Embedding, vector

TEXTS = [f"text {number}" for number in range(40)]
WORKLOAD = Workload("sentences", TEXTS, [[1] * (1 + number % 4) for number in range(40)])
ONE = Scenario("2 x 1", WORKLOAD, clients=2, texts=1, seconds=0.4)
SEVERAL = Scenario("2 x 3", WORKLOAD, clients=2, texts=3, seconds=0.4)


def served(server: Embedding) -> Served:
    return Served("Simile fp32", OURS, server.port, os.getpid())


def test_vectors_are_those_of_the_server_whatever_is_asked_at_once() -> None:
    with Embedding() as server:
        found = served(server).vectors(TEXTS)
    np.testing.assert_array_equal(found, np.array([vector(text) for text in TEXTS]))


def test_a_window_is_counted_in_texts_of_the_mean_length() -> None:
    ours = Served("Simile fp32", OURS, 1, os.getpid())
    made = ours.requests(WORKLOAD, 3)
    assert len(made.lines) == 13  # the 40th text fills none
    # The sixth and the third request of the workload were answered in two seconds, the third twice.
    window = Window(2.0, {"server": 0.5, "load": 0.0003}, 0.1)
    answers = Answers(window, [(0, 10.0), (1, 30.0), (1, 20.0)], {}, 0)
    found = ours._summary(SEVERAL, made, [5, 2], answers)
    texts = (made.tokens[5] + 2 * made.tokens[2]) / 2.5
    assert found.rate == pytest.approx(texts / 2)
    assert (found.p50_ms, found.foreign) == (20, 0.1)
    assert found.cpu_ms == pytest.approx(500 / texts)
    assert found.client_us == pytest.approx(100)


def test_a_server_is_asked_for_so_many_texts_at_once() -> None:
    with Embedding() as server:
        found = served(server).measure(SEVERAL, 0)
        bodies = [json.loads(body)["inputs"] for body in server.asked]
    assert all(len(body) == 3 for body in bodies if isinstance(body, list))
    assert found.rate > 0


def test_a_vector_that_belongs_to_another_text_ends_the_run() -> None:
    with Embedding() as server:
        ours = served(server)
        ours.measure(ONE, 0)
        server.mixed = True
        with pytest.raises(BenchError, match="under load differs from alone"):
            ours.measure(ONE, 0)  # the same texts, so that it is known what they are alone


def test_an_answer_that_is_not_200_ends_the_run() -> None:
    with Embedding(status=503) as server, pytest.raises(BenchError, match="503"):
        served(server).measure(ONE, 0)


def test_a_peer_that_closes_connections_is_asked_again_on_others() -> None:
    with Embedding(closes=5) as server:
        peer = Served("infinity, torch", OURS, server.port, os.getpid(), reconnects=8)
        found = peer.measure(ONE, 0)
        assert server.closes == 0
    assert peer.told["connections it closed"] == 5
    assert found.rate > 0


@pytest.mark.parametrize("reconnects", [0, 4])
def test_more_closed_connections_than_are_allowed_end_the_measurement(reconnects: int) -> None:
    with Embedding(closes=5) as server:
        ours = Served("Simile fp32", OURS, server.port, os.getpid(), reconnects=reconnects)
        with pytest.raises(BenchError, match="closed a connection"):
            ours.measure(ONE, 0)


def test_a_connection_closed_behind_the_last_answer_is_no_failure() -> None:
    with Embedding(idle_seconds=0.1, slow_seconds=1.0) as server:
        lines = [post("/embed", {"inputs": text}) for text in ("fast", "slow")]
        pids = {"server": os.getpid()}
        # Two clients; the window ends in the middle of the slow answer, and the other client has rested then.
        answers = ClosedLoop(Load(server.port, lines, 2, 1, 0.3, pids, 1000)).finish()
    assert answers.reconnects == 0


def test_everybody_has_answered_as_many_texts_before_the_window_begins() -> None:
    for scenario in (ONE, SEVERAL):
        with Embedding() as server:
            window = served(server)
            short = Scenario(scenario.name, WORKLOAD, scenario.clients, scenario.texts, seconds=0.1)
            window.measure(short, 0)
            bodies = [json.loads(body)["inputs"] for body in server.asked.elements()]
        texts = sum(len(body) for body in bodies if isinstance(body, list))
        texts += sum(isinstance(body, str) for body in bodies)
        assert texts >= 510  # 512, or 170 requests of three


def test_with_a_cache_every_text_is_asked_before_the_window_begins() -> None:
    texts = [f"text {number}" for number in range(600)]
    workload = Workload("many", texts, [[1]] * len(texts))
    for scenario in (ONE, SEVERAL):
        with Embedding() as server:
            window = replace(served(server), warm_texts=len(texts))
            short = Scenario(scenario.name, workload, scenario.clients, scenario.texts, seconds=0.1)
            window.measure(short, 0)
            asked = [json.loads(body)["inputs"] for body in server.asked]
        assert {text for one in asked for text in ([one] if isinstance(one, str) else one)} == set(texts)


def test_every_dialect_reads_what_it_asks_for() -> None:
    answer = {"data": [{"embedding": [1.0, 2.0]}, {"embedding": [3.0, 4.0]}]}
    assert OPENAI.read(answer) == [[1.0, 2.0], [3.0, 4.0]]
    assert OPENAI.body(["a", "b"])["input"] == ["a", "b"]
    assert OURS.body(["a"]) == {"inputs": "a"}
    assert OURS.body(["a", "b"]) == {"inputs": ["a", "b"]}
