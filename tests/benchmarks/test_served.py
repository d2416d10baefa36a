"""A server under load, by our generator and by wrk, against a small server whose answers are known."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import wrk
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


@pytest.mark.skipif(wrk.program() is None, reason="needs wrk")
def test_wrk_sends_the_same_requests_and_its_figures_are_read(tmp_path: Path) -> None:
    with Embedding() as server:
        ours = served(server)
        found = wrk.Judged(ours, tmp_path).measure(ONE, 0)
        assert set(server.asked) == {json.dumps({"inputs": text}) for text in TEXTS}
        # It counts what was answered in its two seconds; some more may have been under way.
        assert found.rate * wrk.LEAST_SECONDS == pytest.approx(server.asked.total(), rel=0.1)
    assert found.p50_ms is not None
    assert found.p99_ms is not None
    assert 0 < found.p50_ms <= found.p99_ms


@pytest.mark.skipif(wrk.program() is None, reason="needs wrk")
def test_wrk_does_not_hide_that_requests_failed(tmp_path: Path) -> None:
    with Embedding(status=500) as server, pytest.raises(BenchError, match="of them failed"):
        wrk.Judged(served(server), tmp_path).measure(ONE, 0)


def test_wrk_s_last_line_is_read_in_its_units() -> None:
    said = '{"requests":300,"microseconds":2000000,"p50":1500,"p99":9000,"errors":0}\n'
    assert wrk.read(f"Running 2s test\n  1 threads\n\n{said}") == wrk.Said(300, 2.0, 1.5, 9.0)
    with pytest.raises(BenchError, match="nothing that could be read"):
        wrk.read("unable to connect to 127.0.0.1:1 Connection refused\n")
    with pytest.raises(BenchError, match="3 of them failed"):
        wrk.read(said.replace('"errors":0', '"errors":3'))
