"""Health, readiness, metrics and what the service says of itself."""

import time

from starlette.testclient import TestClient

from service.runtime import Runtime


def samples(client: TestClient) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")
    }


def test_requests_are_counted_by_route_template_never_by_path(client: TestClient) -> None:
    client.get("/documents/secret-name")
    client.get("/nowhere/secret-name")
    found = samples(client)
    assert found['simile_requests_total{method="GET",route="/documents/{id:anything}",status="404"}'] == 1
    assert found['simile_requests_total{method="GET",route="unmatched",status="404"}'] == 1
    assert found['simile_errors_total{error_type="NotFound"}'] == 2
    assert not any("secret" in name for name in found)


def test_an_invented_method_is_no_label(client: TestClient) -> None:
    client.request("SECRET", "/embed")
    assert not any("SECRET" in name for name in samples(client))


def test_tokens_truncations_and_batches_are_counted(client: TestClient, runtime: Runtime) -> None:
    version = runtime.live.generation.version
    name = f'simile_tokens_total{{lane="interactive",version="{version}"}}'
    name_other = f'simile_tokens_total{{version="{version}",lane="interactive"}}'
    before = samples(client)
    client.post("/embed", json={"inputs": ["river", "river " * 100]})
    key = name if name in before else name_other
    deadline = time.monotonic() + 5
    while (after := samples(client))[key] - before[key] < 3 + 64:  # counted behind the answer
        assert time.monotonic() < deadline
    assert after[key] - before[key] == 3 + 64
    cut = f'simile_truncated_texts_total{{version="{version}"}}'
    assert after[cut] - before[cut] == 1
    batches = 'simile_inference_seconds_count{lane="interactive"}'
    assert after[batches] > before[batches]
    assert after["process_resident_memory_bytes"] > 1e6


def test_info_tells_what_really_runs(client: TestClient, runtime: Runtime) -> None:
    info = client.get("/info").json()
    manifest = runtime.live.generation.manifest
    assert info["model_version"] == manifest.version
    assert info["fingerprint"] == info["model_sha"] == manifest.fingerprint
    assert info["form"] == "fp32/onnxruntime"
    assert info["providers"] == ["CPUExecutionProvider"]
    assert (info["dimension"], info["max_input_length"]) == (32, 64)
    assert info["max_client_batch_size"] == 2048
    assert info["threads"] == runtime.workers
    assert info["index"] == {"documents": 0, "kind": "exact", "bytes": info["index"]["bytes"]}


def test_models_lists_the_versions_and_which_is_active(client: TestClient, runtime: Runtime) -> None:
    answer = client.get("/models").json()
    version = runtime.live.generation.version
    assert (answer["active"], answer["wanted"]) == (version, version)
    assert [(model["version"], model["state"]) for model in answer["models"]] == [(version, "active")]


def test_the_interactive_description_is_served(client: TestClient) -> None:
    assert client.get("/docs").status_code == 200
    assert client.get("/openapi.json").json()["info"]["title"] == "Simile"
