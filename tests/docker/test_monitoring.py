"""`--profile monitoring`: Prometheus scrapes the service of the stack, and has loaded all rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.docker.stack import Stack, config, image
from tests.waiting import until


@pytest.fixture(scope="module")
def watched(service_image: str) -> Iterator[Stack]:
    prometheus_image = image(config(profiles=("monitoring",)), "prometheus", "prometheus")
    with Stack("watched", PROMETHEUS_IMAGE=prometheus_image, COMPOSE_PROFILES="monitoring") as stack:
        stack.up("service", "prometheus")
        yield stack


def requested(stack: Stack, path: str, **parameters: str) -> Any:
    url = f"http://127.0.0.1:{stack.prometheus_port}/api/v1/{path}"
    answer = httpx2.get(url, params=parameters, trust_env=False).json()
    assert answer["status"] == "success", answer
    return answer["data"]


def until_up_is(stack: Stack, expected: str) -> None:
    def found() -> list[str]:
        return [row["value"][1] for row in requested(stack, "query", query='up{job="simile"}')["result"]]

    until(lambda: found() == [expected], found, pause=0.5)


def test_prometheus_scrapes_the_service_and_sees_it_go(watched: Stack) -> None:
    until_up_is(watched, "1")
    rows = requested(watched, "query", query="simile_model_info")["result"]
    assert rows[0]["metric"]["version"] == watched.client.get("/info").json()["model_version"]
    watched.compose("stop", "service")
    until_up_is(watched, "0")


def test_every_rule_of_the_folder_is_loaded_and_none_fails(watched: Stack) -> None:
    groups = requested(watched, "rules")["groups"]
    files = {group["file"].rpartition("/")[2] for group in groups}
    assert files == {"alerts.yml", "recording.yml"}
    rules = [rule for group in groups for rule in group["rules"]]
    assert "SimileDown" in {rule["name"] for rule in rules}
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
