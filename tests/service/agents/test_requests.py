"""`POST /mcp` as an HTTP route: keys, origins, sizes, deadlines, metrics, and a service that stops."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from starlette.testclient import TestClient

from service.app import create_app
from tests.parts.faults import before_passes
from tests.service.agents.calling import call, fail, over_stdio
from tests.service.conftest import new_settings, serving, wait_until_ready
from tests.service.keyed import KEYS, bearer, keys_file, line
from tests.service.process import Service, plain_environment
from tests.service.swapping import published
from tests.test_not_installed import RUN
from tests.waiting import LIMIT, until

ACCEPT = {"accept": "application/json, text/event-stream"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
LEAVING = "sk-leaving"


def search(query: str = "a river") -> dict[str, Any]:
    params = {"name": "search", "arguments": {"query": query}}
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("keyed")
    with Service(
        folder,
        tiny_models_dir,
        SIMILE_API_KEYS_FILE=str(keys_file(folder, line("leaving", "write", LEAVING))),
        SIMILE_CORS_ORIGINS="https://allowed.example",
        SIMILE_ACCESS_LOG="1",
        SIMILE_HANG_SECONDS=f"{LIMIT:g}",
    ) as service:
        service.client.headers.update(bearer(KEYS["reader"]) | ACCEPT)
        yield service


def test_a_message_needs_no_session(service: Service) -> None:
    """Any replica can answer it, also after a restart."""
    answer = service.client.post("/mcp", json=LIST, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "mine"
    assert "mcp-session-id" not in answer.headers
    names = [tool["name"] for tool in answer.json()["result"]["tools"]]
    assert names == ["search", "read_document", "list_collections"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"method": "GET"}, 405),
        ({"method": "DELETE"}, 405),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ({"json": [LIST, LIST]}, 400),
        ({"json": LIST, "headers": {"accept": "text/html"}}, 406),
        ({"json": LIST, "headers": {"authorization": "Bearer wrong"}}, 401),
        ({"json": LIST, "headers": {"origin": "https://other.example"}}, 403),
        ({"json": LIST, "headers": {"origin": "https://allowed.example"}}, 200),
        ({"json": LIST | {"params": {"x": [0] * 200_000}}}, 422),
        ({"json": LIST | {"params": {"x": "y" * (5 << 20)}}}, 413),
        ({"json": LIST, "headers": {"x-timeout-ms": "0"}}, 422),
        ({"json": LIST, "headers": {"mcp-protocol-version": "1999-01-01"}}, 400),
    ],
)
def test_a_request_that_is_not_allowed_is_refused(
    request_: dict[str, Any], status: int, service: Service
) -> None:
    answer = service.client.request(**{"method": "POST", "url": "/mcp"} | request_)
    assert answer.status_code == status, answer.text


def test_the_requests_of_a_tool_are_counted_with_the_key_and_logged_without_texts(service: Service) -> None:
    secret = "zyxwordthatnobodywrites"
    assert service.client.post("/mcp", json=search(secret)).json()["result"]["isError"] is False
    assert service.client.post("/mcp", json=LIST | {"method": secret}).json()["error"]["code"] == -32601
    metrics = service.client.get("/metrics").text
    assert 'simile_requests_total{method="POST",route="/mcp",status="200"}' in metrics
    assert 'simile_requests_total{method="POST",route="/search",status="200"}' in metrics
    until(lambda: "route=/search" in service.log.read_text())
    log = service.log.read_text()
    assert "key=reader" in log
    assert secret not in log


def test_a_key_that_is_removed_ends_the_agents_calls(service: Service, tmp_path: Path) -> None:
    file = service.folder / "keys"
    with_key = file.read_text(encoding="utf-8")
    without = "\n".join(each for each in with_key.splitlines() if not each.startswith("leaving:"))

    async def use(client: Client) -> str:
        await call(client, "search", query="a river")
        file.write_text(without, encoding="utf-8")

        def is_removed() -> bool:
            return service.client.get("/me", headers=bearer(LEAVING)).status_code == 401

        until(is_removed)
        return await fail(client, "search", query="a river")

    assert over_stdio(service, use, LEAVING) == "This key is not known here. Check it, or ask for a new one."
    answer = service.client.post("/mcp", json=search(), headers=bearer(LEAVING))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    file.write_text(with_key, encoding="utf-8")


def test_a_deadline_ends_a_call_and_the_next_one_is_answered(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()

    def hold(*_: object) -> None:
        assert free.wait(LIMIT)

    app = create_app(new_settings(tmp_path, tiny_models_dir))
    with TestClient(app, headers=ACCEPT) as client:
        wait_until_ready(client)
        client.post("/mcp", json=search())  # imports the package
        before_passes(monkeypatch, hold)
        late = client.post("/mcp", json=search("the second river"), headers={"x-timeout-ms": "300"})
        # The request of the tool ends a moment before its own, or after it.
        if late.status_code == 200:
            assert "The deadline passed" in late.json()["result"]["content"][0]["text"]
        else:
            assert late.status_code == 504
        free.set()
        found = client.post("/mcp", json=search("the second river"))
        assert found.json()["result"]["structuredContent"]["documents"] == []


def test_a_service_that_stops_or_swaps_answers_the_calls_in_progress(tmp_path: Path) -> None:
    versions = published(tmp_path / "models", 2)
    seen: set[str] = set()
    failed: list[object] = []
    ending = threading.Event()
    with Service(tmp_path, SIMILE_HANG_SECONDS=f"{LIMIT:g}") as service:
        service.put({f"d{at}": f"river number {at}" for at in range(20)})

        def work() -> None:
            with httpx2.Client(base_url=service.client.base_url, timeout=LIMIT, headers=ACCEPT) as client:
                while not failed:
                    try:
                        answer = client.post("/mcp", json=search())
                    except httpx2.TransportError:
                        assert ending.is_set()
                        return
                    if answer.status_code == 503 and ending.is_set():
                        return
                    result = answer.json().get("result", {})
                    if result.get("isError") is not False:
                        if not ending.is_set():
                            failed.append(answer.text)
                        return
                    seen.add(result["structuredContent"]["model"])

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        until(lambda: versions[0] in seen or failed)
        assert service.client.post(f"/models/{versions[1]}/activate").status_code == 202
        until(lambda: versions[1] in seen or failed)
        ending.set()
        assert service.stop(signal.SIGTERM) == 0
        for worker in workers:
            worker.join(LIMIT)
            assert not worker.is_alive()
        assert failed == []
        assert "Traceback" not in service.log.read_text()


def test_without_the_package_the_route_and_the_command_say_what_to_install(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import service.agents
    from service.api import mcp

    # Simulates a missing package, although this process may have imported it.
    monkeypatch.setitem(sys.modules, "service.agents.server", None)
    monkeypatch.delattr(service.agents, "server", raising=False)
    mcp._import_server.cache_clear()
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        answer = client.post("/mcp", json=LIST)
    assert answer.status_code == 409
    assert answer.json()["error_type"] == "Conflict"
    assert f"{sys.executable} -m pip install" in answer.json()["error"]
    assert "[mcp]" in answer.json()["error"]

    code = RUN.format(package="mcp", arguments=["mcp"], program="service")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"mcp is not installed: {sys.executable} -m pip install")
    assert done.stderr.count("\n") == 1


def test_serving_imports_nothing_of_the_package_before_an_agent_comes() -> None:
    code = (
        "import sys; from service.app import create_app; from service.settings import Settings; "
        "create_app(Settings(data_dir='never-made')); "
        "print([name for name in sys.modules if name.partition('.')[0] in ('mcp', 'mcp_types', 'httpx2')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_command_ends_with_its_agent_and_by_ctrl_c(service: Service) -> None:
    command = [sys.executable, "-m", "service", "mcp", "--url", str(service.client.base_url)]
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    for status in (0, -signal.SIGINT):
        with subprocess.Popen(
            command,
            env=plain_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(initialize) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "simile"
            if status:
                process.send_signal(signal.SIGINT)
            else:
                process.stdin.close()
            assert process.wait(LIMIT) == status
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


def test_an_address_that_is_none_is_refused_in_one_sentence() -> None:
    for url in ("not an address", "ftp://127.0.0.1"):
        done = subprocess.run(
            [sys.executable, "-m", "service", "mcp", "--url", url],
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 1, done
        assert done.stderr.count("\n") == 1
