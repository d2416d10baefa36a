"""`GET /docs` loads nothing from another host, and runs only scripts that are files of the service."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.service.process import Service
from tests.waiting import LIMIT


class Page(HTMLParser):
    """Collects the addresses that a page loads or links, and its inline scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        for name, value in attributes:
            if name in {"src", "href"} and value is not None:
                self.loads.append(value)
            if name.startswith("on"):
                self.inline.append(f"{name}={value}")

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


def test_every_page_has_a_policy_and_loads_its_own_files(service: Service) -> None:
    answers = {path: service.client.get(path) for path in plain_gets(service)}
    pages = [path for path, answer in answers.items() if "html" in answer.headers.get("content-type", "")]
    assert "/docs" in pages
    for path in pages:
        policy = answers[path].headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "//" not in policy
        assert "'unsafe-inline'" not in re.findall(r"script-src[^;]*", policy)[0]
        page = Page(answers[path].text)
        assert page.inline == []
        for address in page.loads:
            if address != "data:,":
                assert "//" not in address
                found = service.client.get(f"/{address}")
                assert found.status_code == 200
                assert "html" not in found.headers["content-type"]
                assert len(found.content) == int(found.headers["content-length"])
    assert len(Page(answers["/docs"].text).loads) == 4


def plain_gets(service: Service) -> list[str]:
    """Returns `/docs` and each path of the OpenAPI document with GET. Path parameters stay in braces."""
    described = service.client.get("/openapi.json").json()["paths"]
    return ["/docs", *(path for path, operations in described.items() if "get" in operations)]


def test_the_api_page_has_these_files_and_no_others(service: Service) -> None:
    assert "swagger-ui" in service.client.get("/docs/swagger-ui.css").text
    for file in ("redoc.standalone.js", "..%2fcore.py", "%2e%2e", "oauth2-redirect", ""):
        assert service.client.get(f"/docs/{file}").status_code == 404


@pytest.mark.long
def test_every_operation_has_a_name_and_every_example_runs(service: Service) -> None:
    """Sends each example, as the page does. Examples that store documents come first: searches need them."""
    document = service.client.get("/openapi.json").json()
    paths = document["paths"]
    operations = [operation for found in paths.values() for operation in found.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(" " in operation["summary"] for operation in operations)
    contents = {
        path: found["post"]["requestBody"]["content"]
        for path, found in paths.items()
        if "requestBody" in found.get("post", {})
    }
    # Files have another media type and no example.
    bodies = {path: each["application/json"] for path, each in contents.items() if "application/json" in each}
    assert {path.rpartition("/files")[2] for path in contents.keys() - bodies.keys()} == {"", "/preview"}
    assert bodies
    for path in sorted(bodies, key=lambda path: "documents" not in path):
        schema = document["components"]["schemas"][bodies[path]["schema"]["$ref"].rpartition("/")[2]]
        [example] = schema["examples"]
        answer = service.client.post(path.replace("{collection}", "notes"), json=example)
        if path in ("/rerank", "/v1/rerank", "/v2/rerank", "/predict"):
            assert answer.status_code == 409, f"{path}: {answer.text}"
            assert "No reranker is active" in answer.text
            continue
        assert answer.status_code == 200, f"{path}: {answer.text}"


@pytest.mark.long
def test_a_browser_shows_the_page_and_asks_no_other_host(service: Service, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium")
    log = tmp_path / "net.json"
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # blocks Chromium's own requests
            "--no-first-run",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--log-net-log={log}",
            "--enable-logging=stderr",
            "--timeout=30000",
            "--virtual-time-budget=20000",
            "--dump-dom",
            f"http://127.0.0.1:{service.port}/docs",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    for shown in ("swagger-ui", "Sentence embeddings and search", "/documents/{id}", "/v1/embeddings"):
        assert shown in done.stdout
    assert "Content Security Policy" not in done.stderr
    assert "Refused to" not in done.stderr
    own = f"http://127.0.0.1:{service.port}"
    sent = [event["params"] for event in json.loads(log.read_bytes())["events"] if "params" in event]
    requested = {one["url"] for one in sent if one.get("initiator") == own}  # without Chromium's own requests
    assert f"{own}/openapi.json" in requested
    assert all(address.startswith(f"{own}/") for address in requested), requested
