"""Compose files and Dockerfiles: all combinations are valid, and no port is public by default."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.files.retrainings import write_runs
from models.publishing.default import REQUIREMENT
from service.settings import PREFIX, Settings
from tests.docker.stack import ROOT, config, docker, image_environment
from tests.test_documentation import NOT_PASSED_ON

OVERRIDES = ("docker/keys.yml", "docker/gpu.yml", "docker/postgres.yml")
PROFILES = ("monitoring", "tools")
DOCKERFILES = (
    "docker/Dockerfile",
    *(f"tests/docker/standins/{name}/Dockerfile" for name in ("haproxy", "pgvector", "prometheus")),
)
DATABASE = "postgresql://simile@postgres/simile"  # PGPASSWORD has the password.


def target(port: dict[str, Any]) -> int:
    return int(port["target"])


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [part for count in range(len(names) + 1) for part in itertools.combinations(names, count)]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_hadolint_finds_nothing(dockerfile: str) -> None:
    beside = Path(os.environ.get("HADOLINT", "hadolint"))
    if shutil.which(beside) is None:
        pytest.skip("needs hadolint (`make test-docker` installs it)")
    done = subprocess.run([beside, ROOT / dockerfile], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("profiles", subsets(PROFILES), ids="+".join)
@pytest.mark.parametrize("files", subsets(OVERRIDES), ids="+".join)
def test_every_combination_is_a_stack_that_stays_on_this_machine(
    engine: None, files: tuple[str, ...], profiles: tuple[str, ...]
) -> None:
    services = config(files, profiles)["services"]
    expected = {"service", "trainer"}
    expected |= {"prometheus", "grafana"} if "monitoring" in profiles else set()
    expected |= {"keys"} if "tools" in profiles and "docker/keys.yml" in files else set()
    shared = "docker/postgres.yml" in files
    expected |= {"postgres", "balancer"} if shared else set()
    assert set(services) == expected
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    owners = {
        name
        for name, service in services.items()
        for volume in service.get("volumes", [])
        if volume["source"] == "data"
    }
    assert owners == (set() if shared else {"service"})
    published = {name for name, service in services.items() if 8000 in map(target, service.get("ports", []))}
    assert published == ({"balancer"} if shared else {"service"}), (
        "replicas cannot share a port of the machine"
    )
    assert services["service"]["environment"].get("SIMILE_DATABASE") == (DATABASE if shared else None)
    keyed = "docker/keys.yml" in files
    environment = services["service"]["environment"]
    assert environment["SIMILE_INSECURE"] == ("0" if keyed else "1")
    assert ("SIMILE_API_KEYS_FILE" in environment) is keyed
    assert ("secrets" in services["trainer"]) is keyed
    assert services["trainer"]["depends_on"]["service"]["condition"] == "service_healthy"
    gpu = "docker/gpu.yml" in files
    assert services["service"]["image"] == f"simile-service{'-gpu' if gpu else ''}:test"
    assert services["service"]["build"]["target"] == ("service-gpu" if gpu else "service")
    assert services["trainer"]["image"] == f"simile-trainer{'-gpu' if gpu else ''}:test"
    torch_index = services["trainer"]["build"].get("args", {}).get("TORCH_INDEX_URL")
    assert torch_index == ("" if gpu else None), (
        "CUDA comes with gpu.yml alone; unset, the Dockerfile names CPU wheels"
    )
    reserved = services["service"].get("deploy", {}).get("resources", {}).get("reservations", {})
    assert bool(reserved.get("devices")) is gpu


def test_a_setting_in_the_shell_or_in_the_env_file_reaches_the_service(engine: None) -> None:
    names = {name.upper() for name in Settings.model_fields} - NOT_PASSED_ON
    given = {PREFIX + name: f"value-of-{name}" for name in names}
    environment = config((), (), **given)["services"]["service"]["environment"]
    assert {name: environment.get(name) for name in given} == given
    for files, named, arrives in (
        ((), "", "service,"),
        ((), "a.org", "service,a.org"),
        (("docker/keys.yml",), "", ""),
        (("docker/keys.yml",), "a.org", "service,a.org"),
    ):
        environment = config(files, SIMILE_ALLOWED_HOSTS=named)["services"]["service"]["environment"]
        assert environment["SIMILE_ALLOWED_HOSTS"] == arrives
    gpu = config(("docker/gpu.yml",), SIMILE_DEVICE="cuda:1", SIMILE_INDEX_DEVICE="cuda:1")
    environment = gpu["services"]["service"]["environment"]
    assert (environment["SIMILE_DEVICE"], environment["SIMILE_INDEX_DEVICE"]) == ("cuda:1", "cuda:1")


def test_everything_that_stays_up_tells_whether_it_is_well_and_prometheus_waits_for_nobody(
    engine: None,
) -> None:
    services = config(("docker/postgres.yml",), ("monitoring",))["services"]
    checked = {name for name, service in services.items() if service.get("healthcheck", {}).get("test")}
    assert checked == set(services) - {"service"}, "the service's check is in its image"
    # With depends_on, Prometheus would not report a first start that fails.
    assert "depends_on" not in services["prometheus"]


def test_grafana_calls_nobody(engine: None) -> None:
    environment = config(profiles=("monitoring",))["services"]["grafana"]["environment"]
    assert environment["GF_ANALYTICS_REPORTING_ENABLED"] == "false"
    assert environment["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


def test_no_image_is_the_newest_of_anything(engine: None) -> None:
    services = config(("docker/postgres.yml",), ("monitoring",))["services"]
    for name in ("prometheus", "grafana", "balancer", "postgres"):
        tag = services[name]["image"].partition(":")[2].partition("-")[0]
        assert tag.lstrip("v").replace(".", "").isdigit(), name


def test_replicas_do_not_start_without_a_password_of_the_database(engine: None) -> None:
    environment = image_environment() | {"COMPOSE_FILE": "docker-compose.yml:docker/postgres.yml"}
    said = docker("compose", "config", environment=environment, status=None, both=True)
    assert "write POSTGRES_PASSWORD=… into .env" in said


def test_the_configurations_of_prometheus_differ_in_how_replicas_are_found() -> None:
    one, many = (
        yaml.safe_load((ROOT / "docker/monitoring" / name).read_text(encoding="utf-8"))
        for name in ("prometheus/prometheus.yml", "replicas.yml")
    )
    [alone], [found] = one["scrape_configs"], many["scrape_configs"]
    assert alone.pop("static_configs") == [{"targets": ["service:8000"]}]
    [dns] = found.pop("dns_sd_configs")
    assert (dns["names"], dns["type"], dns["port"]) == (["service"], "A", 8000)
    assert one == many


@pytest.mark.parametrize(
    ("written", "status"),
    [
        (None, 1),
        ({"running": None, "next_run": "2999-01-01T03:30:00+00:00"}, 0),
        ({"running": None, "next_run": "2026-01-01T03:30:00+00:00"}, 1),
        ({"running": {"pid": 7}, "next_run": "2026-01-01T03:30:00+00:00"}, 0),
        ({"running": None, "next_run": None}, 1),
    ],
    ids=["never begun", "waits", "missed its hour", "trains", "ended"],
)
def test_the_trainer_is_well_while_its_schedule_stands(
    tmp_path: Path, written: dict[str, Any] | None, status: int
) -> None:
    if written is not None:
        write_runs(tmp_path, written)
    check = [sys.executable, "-I", "-S", str(ROOT / "docker/trainer_health.py")]
    environment = os.environ | {"SIMILE_MODELS_DIR": str(tmp_path)}
    done = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr


def test_the_model_of_the_image_is_the_one_that_the_program_names() -> None:
    assert REQUIREMENT in (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
