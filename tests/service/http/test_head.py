"""HEAD wherever GET is, and what stands on every answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.process import Service
from tests.service.raw import FAMILIES, Answer, Wire, ending_well, head, post

GETS = [
    "/health",
    "/ready",
    "/metrics",
    "/docs",
    "/docs/start.js",
    "/docs/swagger-ui.css",
    "/openapi.json",
    "/info",
    "/models",
    "/v1/models",
    "/collections",
    "/documents",
    "/documents/count",
    "/documents/a",
    "/documents/none",
    "/collections/none/documents",
    "/feedback",
    "/feedback/count",
    "/events",
    "/events/count",
    "/search?q=river",
    "/models/20260101T000000-none-00000000/report",
    "/nothing",
]
# The length of the others changes from one answer to the next.
SAME_LENGTH = set(GETS) - {"/metrics", "/info", "/models", "/search?q=river"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    with ending_well(tmp_path_factory.mktemp("head"), tiny_models_dir) as service:
        service.put({"a": "red river"})
        yield service


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_its_body(service: Service, path: str) -> None:
    with Wire(service) as wire:
        # One connection: a byte of a body would be taken for the next answer.
        asked = wire.send(head(path, method="HEAD")).answer("HEAD")
        got = wire.send(head(path, method="GET")).answer("GET")
    assert asked.status == got.status
    own = {"x-request-id", "date", "content-length", "etag", "last-modified"}
    kept = {name.lower() for name in got.headers} - own
    assert {name.lower() for name in asked.headers} - own == kept
    if path in SAME_LENGTH:
        assert asked.headers["content-length"] == got.headers["content-length"] == str(len(got.body))


def test_a_path_without_get_says_what_it_takes(service: Service) -> None:
    with Wire(service) as wire:
        answer = wire.send(head("/embed", method="HEAD")).answer("HEAD")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert wire.send(head("/info")).answer().headers["allow"] == "GET, HEAD"


def test_the_description_has_no_head_and_metrics_count_it_by_its_name(service: Service) -> None:
    paths = service.client.get("/openapi.json").json()["paths"]
    assert not any("head" in operations for operations in paths.values())
    said = service.client.get("/metrics").text
    for path in ("/info", "/documents/{id:anything}", "/openapi.json"):
        assert f'simile_requests_total{{method="HEAD",route="{path}",status="200"}}' in said


def test_no_browser_guesses_what_an_answer_is(service: Service) -> None:
    def said(request: bytes, method: str = "POST") -> Answer:
        with Wire(service) as wire:
            return wire.send(request).answer(method)

    answers = {
        200: said(post("/embed", FAMILIES["/embed"])),
        400: said(b"hello\r\n\r\n"),
        404: said(head("/nothing", method="GET"), "GET"),
        405: said(head("/embed", method="GET"), "GET"),
        413: said(head("/embed", f"Content-Length: {1 << 30}")),
        421: said(head("/embed").replace(b"localhost", b"evil.example.org")),
        422: said(post("/embed", b"{")),
        431: said(head("/embed", "X-A: " + "a" * 100_000)),
    }
    for status, answer in answers.items():
        assert answer.status == status
        assert answer.headers["x-content-type-options"] == "nosniff", status
