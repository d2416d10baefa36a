"""`--profile monitoring`: Prometheus finds the service by its name in the stack, and has read every rule."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.docker.stack import ROOT, Stack, docker
from tests.docker.test_files import config
from tests.waiting import until

STAND_IN = "simile-standin-prometheus:test"


@pytest.fixture(scope="module")
def prometheus_image(engine: None) -> str:
    """The official one, or where it cannot be pulled Debian's."""
    official: str = config(profiles=("monitoring",))["services"]["prometheus"]["image"]
    for command in ("image inspect", "pull"):
        if not subprocess.run(
            ["docker", *command.split(), official], capture_output=True, check=False
        ).returncode:
            return official
    docker("build", "--quiet", "--tag", STAND_IN, str(ROOT / "tests/docker/standins/prometheus"), seconds=600)
    return STAND_IN


@pytest.fixture(scope="module")
def watched(service_image: str, prometheus_image: str) -> Iterator[Stack]:
    with Stack("watched", PROMETHEUS_IMAGE=prometheus_image, COMPOSE_PROFILES="monitoring") as stack:
        stack.up("service", "prometheus")
        yield stack


def asked(stack: Stack, path: str, **parameters: str) -> Any:
    url = f"http://127.0.0.1:{stack.prometheus_port}/api/v1/{path}"
    answer = httpx2.get(url, params=parameters, trust_env=False).json()
    assert answer["status"] == "success", answer
    return answer["data"]


def until_up_is(stack: Stack, expected: str) -> None:
    def found() -> list[str]:
        return [row["value"][1] for row in asked(stack, "query", query='up{job="simile"}')["result"]]

    until(lambda: found() == [expected], found, pause=0.5)


def test_prometheus_scrapes_the_service_and_sees_it_go(watched: Stack) -> None:
    until_up_is(watched, "1")
    rows = asked(watched, "query", query="simile_model_info")["result"]
    assert rows[0]["metric"]["version"] == watched.client.get("/info").json()["model_version"]
    watched.compose("stop", "service")
    until_up_is(watched, "0")


def test_every_rule_of_the_folder_is_loaded_and_none_fails(watched: Stack) -> None:
    groups = asked(watched, "rules")["groups"]
    files = {group["file"].rpartition("/")[2] for group in groups}
    assert files == {"alerts.yml", "recording.yml"}
    rules = [rule for group in groups for rule in group["rules"]]
    assert "SimileDown" in {rule["name"] for rule in rules}
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
