"""Metrics, `/info` and `/models`."""

import asyncio
import json
import math
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from starlette.testclient import TestClient

from models.engines.form import FP32
from models.manifest import Manifest
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.errors import ServiceError
from service.index.index import Index
from service.observability.metrics import Metrics
from service.runtime import gauges
from service.runtime.runtime import Runtime
from service.settings import Settings
from tests.parts.faults import before_passes
from tests.parts.places import Place, place
from tests.service.fakes import CountingEncoder, run, until
from tests.waiting import LIMIT
from tests.waiting import until as wait_until

__all__ = ["place"]
DOCS = Path(__file__).resolve().parents[3] / "docs" / "METRICS.md"


def parsed(text: str) -> dict[str, float]:
    lines = text.splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")
    }


def samples(client: TestClient) -> dict[str, float]:
    return parsed(client.get("/metrics").text)


def of(metrics: Metrics) -> dict[str, float]:
    return parsed(generate_latest(metrics.registry).decode())


def test_every_series_and_every_label_known_beforehand_is_in_the_first_scrape(
    app: FastAPI, running: TestClient, runtime: Runtime
) -> None:
    first = parsed(gauges.scrape(runtime.metrics, runtime.active, None).decode())
    documented = set(re.findall(r"^\| `(simile_[a-z_]+)`", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    families = {re.sub(r"(_bucket|_count|_sum)?(\{.*)?$", "", name) for name in first}
    later = {
        "simile_model_score",
        "simile_reranker_info",
        "simile_key_requests_total",
        "simile_key_tokens_total",
    }
    assert documented - families == later
    for route in app.router.routes:
        if isinstance(route, APIRoute):
            for method in route.methods or ():
                name = f'{{method="{method}",route="{route.path}",status="{route.status_code or 200}"}}'
                assert f"simile_requests_total{name}" in first
    assert 'simile_requests_total{method="POST",route="/models/rollback",status="202"}' in first
    for kind in ServiceError.__subclasses__():
        assert f'simile_errors_total{{error_type="{kind.error_type}"}}' in first
    version = runtime.active.generation.version
    for lane in ("interactive", "background"):
        for series in ("tokens_total", "tokenize_seconds_count", "queue_seconds_count", "batch_texts_count"):
            assert f'simile_{series}{{lane="{lane}",version="{version}"}}' in first


def test_requests_are_counted_by_template_never_by_path_or_odd_method(client: TestClient) -> None:
    before = samples(client)['simile_errors_total{error_type="NotFound"}']
    client.get("/documents/secret-name")
    client.get("/nowhere/secret-name")
    found = samples(client)
    assert found['simile_requests_total{method="GET",route="/documents/{id:anything}",status="404"}'] == 1
    assert found['simile_requests_total{method="GET",route="unmatched",status="404"}'] == 1
    assert found['simile_errors_total{error_type="NotFound"}'] - before == 2
    assert not any("secret" in name for name in found)
    client.request("SECRET", "/embed")
    assert not any("SECRET" in name for name in samples(client))


def test_a_batch_is_counted_by_its_texts_tokens_and_padding(client: TestClient, runtime: Runtime) -> None:
    version = runtime.active.generation.version
    by_lane = f'{{lane="interactive",version="{version}"}}'
    before = samples(client)
    client.post("/embed", json={"inputs": ["river", "river " * 100]})  # 3 tokens, and 64 of 102
    client.post("/embed", json={"inputs": ["river", "river stone", "the cat"]})  # 3, 4 and 4 tokens
    key, last = f"simile_tokens_total{by_lane}", f"simile_queue_seconds_count{by_lane}"
    wait_until(lambda: samples(client)[last] - before[last] >= 5)  # The service counts after the answer.
    after = samples(client)

    def gained(name: str) -> float:
        return after[name] - before[name]

    assert gained(key) == 3 + 64 + 11
    assert gained(f'simile_truncated_texts_total{{version="{version}"}}') == 1
    # The graph computes no padding, so the first two texts share a batch.
    assert gained(f"simile_inference_seconds_count{by_lane}") == 2
    assert gained(f"simile_batch_texts_sum{by_lane}") == 5
    assert gained(f"simile_batch_tokens_sum{by_lane}") == 2 * 64 + 12
    assert gained(f"simile_padding_tokens_total{by_lane}") == 61 + 1
    assert gained(f"simile_tokenize_seconds_count{by_lane}") == 2
    assert gained(f"simile_queue_seconds_count{by_lane}") == 5
    assert after["process_resident_memory_bytes"] > 1e6


def test_what_waits_for_the_encoder_is_shown_by_lane_until_it_is_done_or_given_up() -> None:
    async def body() -> None:
        metrics, encoder = Metrics(), CountingEncoder()
        batcher = Batcher(metrics, workers=1, max_queue_tokens=1000)
        batcher.start()
        encoder.gate.clear()

        def waiting(lane: str) -> tuple[float, float]:
            found = of(metrics)
            return tuple(found[f'simile_queue_{what}{{lane="{lane}"}}'] for what in ("texts", "tokens"))  # type: ignore[return-value]

        running = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
        await until(lambda: len(encoder.begun) == 1)
        requested = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["b" * 8, "c", "d" * 4]))
        builds = batcher.embed(encoder.as_encoder(), ["e" * 8] * 2, lane=Lane.BACKGROUND)
        built = asyncio.create_task(builds)
        await asyncio.sleep(0)  # Lets both tasks join the queue.
        # Estimated, because the only worker is busy: a quarter of the characters, plus two.
        assert waiting("interactive") == (3, 4 + 2 + 3)
        assert waiting("background") == (2, 8)
        found = of(metrics)
        assert found["simile_queue_limit_tokens"] == 1000
        assert found["simile_queue_limit_seconds"] == float("inf")
        # One call is pending. Its turn has one of its three texts: 3 tokens, at 1,000 per second.
        assert found["simile_queue_wait_seconds"] == 3 / 1000
        built.cancel()
        await asyncio.gather(built, return_exceptions=True)
        assert waiting("background") == (0, 0)
        encoder.gate.set()
        await asyncio.gather(running, requested)
        assert waiting("interactive") == (0, 0)
        await asyncio.to_thread(batcher.stop)

    run(body)


def test_the_limits_of_the_queue_are_those_of_the_settings(client: TestClient, settings: Settings) -> None:
    found = samples(client)
    assert found["simile_queue_limit_tokens"] == settings.max_queue_tokens == 1_000_000
    assert found["simile_queue_limit_seconds"] == settings.max_queue_seconds == 1
    assert found["simile_queue_wait_seconds"] == 0


@pytest.mark.sqlite("it has a data directory")
def test_the_room_on_the_disk_of_each_folder_is_looked_up_at_each_scrape(
    client: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(folder: Path) -> SimpleNamespace:
        if folder == settings.models_dir:
            raise FileNotFoundError(folder)
        return SimpleNamespace(free=12.0, total=100.0)

    real = samples(client)
    disk = shutil.disk_usage(settings.data_dir)
    for folder in ("data", "models"):
        assert real[f'simile_disk_total_bytes{{folder="{folder}"}}'] == disk.total
        assert 0 < real[f'simile_disk_free_bytes{{folder="{folder}"}}'] < disk.total
    with monkeypatch.context() as patch:
        patch.setattr("service.runtime.gauges.shutil.disk_usage", usage)
        found = samples(client)
    assert found['simile_disk_free_bytes{folder="data"}'] == 12
    assert found['simile_disk_total_bytes{folder="data"}'] == 100
    assert math.isnan(found['simile_disk_free_bytes{folder="models"}']), "a folder that is away"


def test_the_memory_that_the_process_may_have_is_shown_and_nan_where_nobody_tells(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("service.memory.limit", lambda: 123)
        assert samples(client)["simile_memory_limit_bytes"] == 123
        patch.setattr("service.memory.limit", lambda: None)
        assert math.isnan(samples(client)["simile_memory_limit_bytes"])
    found = samples(client)
    assert found["process_resident_memory_bytes"] < found["simile_memory_limit_bytes"]


def test_series_of_a_version_go_with_it_however_many_swaps_there_are() -> None:
    metrics = Metrics()
    metrics.by_version.keep({"v0", "v1"})
    lines = len(of(metrics))
    late = metrics.by_version.inference("v0", "interactive")
    assert late is not None
    for number in range(1, 40):
        late.tokens.inc()  # tokens of a batch that still runs
        metrics.by_version.keep({f"v{number}", f"v{number + 1}"})
        found = of(metrics)
        assert len(found) == lines
        versions = {name.split("version=")[1].strip('"}') for name in found if "version=" in name}
        assert versions == {f"v{number}", f"v{number + 1}"}
    assert metrics.by_version.inference("v0", "interactive") is None
    metrics.by_version.keep({"v0"})
    assert of(metrics)['simile_tokens_total{lane="interactive",version="v0"}'] == 0


def test_the_active_versions_scores_are_shown_by_their_path(tiny_models_dir: Path) -> None:
    [folder] = [path for path in tiny_models_dir.iterdir() if path.is_dir() and path.name[0].isdigit()]
    manifest = Manifest.read(folder)
    metrics = Metrics()
    scores = {"sts": {"dev": 0.5, "own": {"x": 1}}, "note": "no number", "sure": True, "alignment": 0.25}
    metrics.serve(manifest.model_copy(update={"scores": scores}), FP32)

    def shown() -> dict[str, float]:
        names = {name: value for name, value in of(metrics).items() if "model_score" in name}
        assert all(manifest.version in name for name in names)
        return {name.split('"')[1]: value for name, value in names.items()}

    assert shown() == {"sts.dev": 0.5, "sts.own.x": 1, "alignment": 0.25}
    metrics.serve(manifest.model_copy(update={"scores": {"uniformity": -2}}), FP32)
    assert shown() == {"uniformity": -2}
    many = {str(number): number for number in range(1000)}
    metrics.serve(manifest.model_copy(update={"scores": many}), FP32)
    assert len(shown()) == 100


@pytest.mark.sqlite("its index takes memory of the process")
def test_a_swap_is_seen_in_the_series_and_the_old_version_leaves_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.lifecycle.controller.LINGER_SECONDS", 0.2)
    with place.serving() as client:
        place.fill()
        found = samples(client)
        assert found['simile_generations{state="active"}'] == 1
        assert found[f'simile_index_bytes{{version="{place.a}"}}'] >= 60 * 32 * 4
        place.activate(place.b)
        place.until(lambda: samples(client)['simile_generations{state="kept"}'] == 1)
        both = samples(client)
        for version in (place.a, place.b):
            assert both[f'simile_index_bytes{{version="{version}"}}'] >= 60 * 32 * 4
        # The new version embedded 60 documents of three words and two special tokens.
        candidate = f'simile_tokens_total{{lane="candidate",version="{place.b}"}}'
        assert both[candidate] >= 60 * 5
        controller = place.app.state.runtime.controller
        monkeypatch.setattr(
            controller, "_settings", controller._settings.model_copy(update={"grace_seconds": 0.3})
        )
        place.until(lambda: not any(place.a in name for name in samples(client)))
        last = samples(client)
        assert last['simile_generations{state="kept"}'] == 0
        assert last['simile_generations{state="active"}'] == 1
        assert last['simile_swaps_total{outcome="done"}'] == 1


def test_requests_in_flight_and_their_bytes_are_shown(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    body = json.dumps({"inputs": "a river"}).encode()
    with monkeypatch.context() as patch, ThreadPoolExecutor() as threads:
        before_passes(patch, lambda *_: gate.wait(LIMIT))
        headers = {"content-type": "application/json"}
        waiting = [threads.submit(client.post, "/embed", content=body, headers=headers) for _ in range(3)]
        wait_until(lambda: samples(client)["simile_admitted_bytes"] >= 3 * len(body))
        assert samples(client)["simile_requests_in_flight"] == 3 + 1, "three, and the scrape itself"
        gate.set()
        assert [answer.result().status_code for answer in waiting] == [200] * 3
    found = samples(client)
    assert (found["simile_requests_in_flight"], found["simile_admitted_bytes"]) == (1, 0)


def test_a_slow_scrape_delays_no_request(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = threading.Event(), threading.Event()
    scrape = runtime.scrape

    def slow() -> bytes:
        begun.set()
        gate.wait(LIMIT)
        return scrape()

    with ThreadPoolExecutor() as threads:
        monkeypatch.setattr(runtime, "scrape", slow)
        scraped = threads.submit(client.get, "/metrics")
        assert begun.wait(LIMIT)
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        assert not scraped.done()
        gate.set()
        assert "simile_ready 1.0" in scraped.result().text


def test_how_late_the_event_loop_is_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "SAMPLE_SECONDS", 0.05)

    async def body() -> Metrics:
        metrics = Metrics()
        sampling = asyncio.create_task(gauges.sample(metrics))
        await asyncio.sleep(0)  # Lets the task begin to sleep.
        time.sleep(0.4)  # noqa: ASYNC251  blocks the loop on purpose
        while not of(metrics)["simile_loop_lag_seconds_count"]:  # noqa: ASYNC110  no event exists
            await asyncio.sleep(0)
        sampling.cancel()
        return metrics

    found = of(asyncio.run(body()))
    assert found["simile_loop_lag_seconds_count"] == 1
    assert 0.3 < found["simile_loop_lag_seconds_sum"] < 20


@pytest.mark.sqlite("its index follows the writes")
def test_the_time_from_commit_to_index_is_known(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Index.apply

    def slow(self: Index, *arguments: object, **options: object) -> None:
        time.sleep(0.2)
        apply(self, *arguments, **options)  # type: ignore[arg-type]

    before = samples(client)
    with monkeypatch.context() as patch:
        patch.setattr(Index, "apply", slow)
        client.post("/documents", json={"documents": [{"id": "late", "text": "a river"}]})
    after = samples(client)
    name = "simile_index_lag_seconds"
    assert after[f"{name}_count"] - before[f"{name}_count"] == 1
    assert 0.2 <= after[f"{name}_sum"] - before[f"{name}_sum"] < 20
    assert client.delete("/documents/late").json()["deleted"] == 1


@pytest.mark.sqlite("its index is in the process")
def test_info_tells_what_really_runs(client: TestClient, runtime: Runtime) -> None:
    info = client.get("/info").json()
    manifest = runtime.active.generation.manifest
    assert info["model_version"] == manifest.version
    assert info["fingerprint"] == info["model_sha"] == manifest.fingerprint
    assert info["form"] == "fp32/onnxruntime"
    assert info["providers"] == ["CPUExecutionProvider"]
    assert (info["dimension"], info["max_input_length"]) == (32, 64)
    assert info["max_client_batch_size"] == 2048
    assert (info["search_mode"], info["passages"]) == (None, True)
    assert info["threads"] == runtime.layout.workers
    assert info["single_text_threads"] == min(4, runtime.layout.workers)
    index = {"documents": 0, "passages": 0, "kind": "exact", "recall_at_10": None, "recall_queries": None}
    assert info["index"] == index | {"device": "cpu", "bytes": info["index"]["bytes"]}
