"""Checks that settings, routes, exit statuses, images and folders in the manifests exist."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from models.store import models_dir
from models.version import VERSION
from service.__main__ import parser as service_parser
from service.__main__ import run
from service.api import info
from service.http.routing import RoleRoute
from service.observability.metrics import Metrics
from service.server import DRAIN_SECONDS
from service.settings import PREFIX, Settings, read
from tests.deploy.manifests import FOLDER, ROOT, everything, one, pod, pods
from training.__main__ import parser
from training.retraining.config import TrainTable, read_config
from training.retraining.exits import BUSY, NOTHING, REFUSED
from training.retraining.schedule import _STOPPING_SECONDS

COMPOSE = ROOT / "docker-compose.yml"
SERVING = ("simile", "simile-embed", "simile-replicas")
DEFAULT_CONNECTIONS, KEPT_CONNECTIONS = 100, 3  # PostgreSQL's limit, of which it keeps 3 for superusers
MEMORY = {"Mi": 2**20, "Gi": 2**30}


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * MEMORY[quantity[-2:]]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", [pod.name for pod in pods()])
def test_every_setting_of_a_pod_exists_and_none_is_made_of_a_services_name(name: str) -> None:
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    told = {variable for variable in pod(name).variables if variable.startswith(PREFIX)}
    assert told
    assert told <= known
    # Kubernetes would set SIMILE_PORT=tcp://… for a Service `simile`.
    assert pod(name).spec["enableServiceLinks"] is False


@pytest.mark.parametrize("name", [pod.name for pod in pods()])
def test_commands_of_a_pod_take_its_settings_on_top_of_those_of_its_image(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys, commands refuse the public host of the image. A pod sets keys or a local host."""
    here = pod(name)
    keys = tmp_path / "keys"
    run(service_parser().parse_args(["keys", "add", "search-page", "--role", "read", "--file", str(keys)]))
    for variable in [variable for variable in os.environ if variable.startswith(PREFIX)]:
        monkeypatch.delenv(variable)
    for variable, value in (variables_of_image(here.container["image"]) | here.variables).items():
        mounted = value.startswith("/run/secrets/")  # Here, another file replaces the Secret's.
        monkeypatch.setenv(variable, str(keys) if mounted else value)
    settings = read()
    assert str(settings.models_dir) == "/models"
    assert settings.host == ("0.0.0.0" if name in SERVING else "127.0.0.1")


def variables_of_image(image: str) -> dict[str, str]:
    """Returns the ENV variables of `image`: those of its target in docker/Dockerfile and of the bases."""
    [target] = {
        service["build"]["target"]
        for service in compose()["services"].values()
        if service["image"].split(":")[0] == image.split(":", maxsplit=1)[0]
    }
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = re.findall(r"^FROM (\S+) AS (\S+)\n((?:(?!FROM ).*\n?)*)", text, flags=re.MULTILINE)
    found: dict[str, dict[str, str]] = {}
    for base, stage, body in stages:
        said = shlex.split(" ".join(re.findall(r"^ENV (.+)$", body, flags=re.MULTILINE)))
        found[stage] = found.get(base, {}) | dict(pair.split("=", 1) for pair in said)
    assert found["serving"]["SIMILE_HOST"]
    return found[target]


@pytest.mark.parametrize("name", [pod.name for pod in pods()])
def test_a_pod_asks_for_no_more_than_it_needs(name: str) -> None:
    user, held = pod(name).spec["securityContext"], pod(name).container["securityContext"]
    assert user["runAsNonRoot"] is True
    users = re.findall(
        r"^USER (\d+):\d+$", (ROOT / "docker/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {user["runAsUser"], user["runAsGroup"], user["fsGroup"]} == set(map(int, users))
    assert len(set(users)) == 1
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    assert held.pop("capabilities") == {"drop": ["ALL"]}
    assert held == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    assert pod(name).spec["automountServiceAccountToken"] is False
    resources = pod(name).container["resources"]
    assert bytes_of(resources["requests"]["memory"]) <= bytes_of(resources["limits"]["memory"])
    assert "cpu" in resources["limits"], "without a quota there is a worker for each of the node's processors"


@pytest.mark.parametrize("name", [pod.name for pod in pods()])
def test_every_mount_has_a_volume_and_every_volume_a_source(name: str) -> None:
    here = pod(name)
    volumes = {volume["name"]: volume for volume in here.spec.get("volumes", [])}
    mounted = {mount["name"] for mount in here.mounts.values()}
    assert mounted == set(volumes) | set(here.claims)
    names = {(document["kind"], document["metadata"]["name"]) for document in everything()}
    names.add(("PersistentVolumeClaim", "data-simile-0"))  # the StatefulSet creates this claim
    for volume in volumes.values():
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
        elif "secret" in volume:
            assert ("Secret", volume["secret"]["secretName"]) in names
        elif "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in names
        else:
            assert volume["emptyDir"]["sizeLimit"]


def test_the_owner_is_one_and_alone_on_its_data() -> None:
    owner = one("StatefulSet", "simile")["spec"]
    assert owner["replicas"] == 1
    assert set(pod("simile").claims) == {"data"}
    assert one("StatefulSet", "simile")["spec"]["serviceName"] == "simile-owner"
    assert pod("simile").mounts["/data"]["name"] == "data"
    # The only other pod with this claim is created by hand, while the owner is stopped.
    users = [here.name for here in pods() if "data-simile-0" in str(here.spec.get("volumes"))]
    assert users == ["simile-maintenance"]


def test_replicas_can_write_nothing_that_the_owner_reads() -> None:
    embed = pod("simile-embed")
    assert embed.mounts["/models"]["readOnly"] is True
    assert embed.volume("/models")["persistentVolumeClaim"]["readOnly"] is True
    assert embed.volume("/data")["emptyDir"] == {"sizeLimit": "1Gi"}
    assert embed.volume("/run/secrets/simile")["secret"]["secretName"] == "simile-embed-keys"
    assert pod("simile").volume("/run/secrets/simile")["secret"]["secretName"] == "simile-keys"


@pytest.mark.parametrize("name", SERVING)
def test_probes_ask_routes_that_exist_and_are_open(name: str) -> None:
    open_routes = {
        route.path for route in info.router.routes if isinstance(route, RoleRoute) and route.role is None
    }
    container = pod(name).container
    [port] = container["ports"]
    assert port == {"name": "http", "containerPort": Settings.model_fields["port"].default}
    requested = {
        kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert requested["readinessProbe"] == {"path": "/ready", "port": "http"}
    assert requested["livenessProbe"] == requested["startupProbe"] == {"path": "/health", "port": "http"}
    assert {probe["path"] for probe in requested.values()} <= open_routes
    assert one("Service", name)["spec"]["ports"][0]["targetPort"] == "http"


@pytest.mark.parametrize("name", SERVING)
def test_a_pod_is_given_the_time_that_a_stop_takes(name: str) -> None:
    delay = float(pod(name).variables["SIMILE_STOP_DELAY_SECONDS"])
    assert delay > 0
    assert pod(name).spec["terminationGracePeriodSeconds"] >= delay + DRAIN_SECONDS + 10


@pytest.mark.parametrize("name", SERVING)
def test_a_changed_key_arrives_without_a_restart(name: str) -> None:
    mount = pod(name).mounts["/run/secrets/simile"]
    assert "subPath" not in mount, "a file that is mounted alone is never brought up to date"
    assert pod(name).variables["SIMILE_API_KEYS_FILE"] == "/run/secrets/simile/keys"
    secret = one("Secret", pod(name).volume("/run/secrets/simile")["secret"]["secretName"])
    assert set(secret["stringData"]) == {"keys"}


@pytest.mark.parametrize("name", [*SERVING, "simile-maintenance"])
def test_folders_are_those_that_are_mounted(name: str) -> None:
    here = pod(name)
    assert {here.variables["SIMILE_DATA_DIR"], here.variables["SIMILE_MODELS_DIR"]} <= set(here.mounts)


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"])
def test_what_points_at_pods_finds_them(kind: str) -> None:
    labels = {
        document["metadata"]["name"]: document["spec"]["template"]["metadata"]["labels"]
        for document in everything()
        if document["kind"] in {"StatefulSet", "Deployment"}
    }
    found = [document for document in everything() if document["kind"] == kind]
    assert found
    for document in found:
        spec = document["spec"]
        if kind == "HorizontalPodAutoscaler":
            assert spec["scaleTargetRef"]["name"] in labels
            continue
        requested = spec["selector"] if kind == "Service" else spec["selector"]["matchLabels"]
        assert [requested == has for has in labels.values()].count(True) == 1, document["metadata"]["name"]


def test_the_autoscaler_of_replicas_asks_for_series_that_there_are_and_that_the_adapter_gives() -> None:
    rules = yaml.safe_load(one("ConfigMap", "simile-prometheus-adapter")["data"]["config.yaml"])["rules"]
    [rule] = rules
    [pattern] = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    scraped = generate_latest(Metrics().registry).decode()
    for metric in one("HorizontalPodAutoscaler", "simile-replicas")["spec"]["metrics"]:
        name = metric["pods"]["metric"]["name"]
        assert re.fullmatch(pattern, name)
        assert f"\n{name} " in scraped, "a series without labels: one for each pod"


def test_replicas_keep_nothing_but_the_models_and_leave_the_database_enough_connections() -> None:
    here, spec = pod("simile-replicas"), one("Deployment", "simile-replicas")["spec"]
    assert [path for path in here.mounts if "persistentVolumeClaim" in here.volume(path)] == ["/models"]
    assert here.mounts["/models"].get("readOnly", False) is False
    assert one("PersistentVolumeClaim", "simile-models")["spec"]["accessModes"] == ["ReadWriteMany"]
    rolling = spec["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 0, "maxSurge": 1}
    pods = one("HorizontalPodAutoscaler", "simile-replicas")["spec"]["maxReplicas"] + rolling["maxSurge"]
    each = int(here.variables["SIMILE_DATABASE_CONNECTIONS"]) + 1
    assert pods * each <= DEFAULT_CONNECTIONS - KEPT_CONNECTIONS


def test_an_endpoint_forgets_a_pod_before_it_stops() -> None:
    """A pod still serves after it is told to stop, for longer than its readiness probe needs to fail."""
    here = pod("simile-replicas")
    probe = here.container["readinessProbe"]
    red = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert red < float(here.variables["SIMILE_STOP_DELAY_SECONDS"])


def test_a_refusal_ends_the_job_and_makes_no_new_pod() -> None:
    """A new pod would train on the same texts again, or count a refused candidate as a failure."""
    cron = one("CronJob", "simile-retrain")["spec"]
    job = cron["jobTemplate"]["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    refusal, drained = job["podFailurePolicy"]["rules"]
    assert refusal["action"] == "FailJob"
    assert refusal["onExitCodes"] == {
        "containerName": pod("simile-retrain").container["name"],
        "operator": "In",
        "values": [REFUSED, NOTHING, BUSY],
    }
    assert drained["action"] == "Ignore"
    assert drained["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_the_job_runs_a_command_that_exists() -> None:
    trainer = pod("simile-retrain")
    options = parser().parse_args(trainer.container["args"])
    assert str(options.config) == "/etc/simile/retrain.toml"
    assert trainer.volume("/etc/simile")["configMap"]["name"] == "simile-retrain"
    assert trainer.spec["terminationGracePeriodSeconds"] > _STOPPING_SECONDS


def test_the_retrain_toml_of_the_job_is_one(tmp_path: Any) -> None:
    text = one("ConfigMap", "simile-retrain")["data"]["retrain.toml"]
    (tmp_path / "retrain.toml").write_text(text, encoding="utf-8")
    config = read_config(tmp_path / "retrain.toml")
    trainer = pod("simile-retrain")
    host, port = str(config.corpus.service).removeprefix("http://").split(":")
    ports = one("Service", host)["spec"]["ports"]
    assert [int(port)] == [entry["port"] for entry in ports]
    assert str(config.folders.models) == str(models_dir({"SIMILE_MODELS_DIR": "/models"}))
    assert str(config.folders.models) in trainer.mounts
    assert config.folders.work is not None
    assert str(config.folders.work.parent) in trainer.mounts
    assert config.schedule.threads == int(trainer.container["resources"]["limits"]["cpu"])
    of_compose = read_config(ROOT / "docker/retrain.toml")
    assert config.train == of_compose.train == TrainTable(recipe="auto", minutes=30), "bounded, and no steps"


def test_images_are_those_that_compose_builds() -> None:
    built = {name: service["image"].split(":")[0] for name, service in compose()["services"].items()}
    images = {here.name: here.container["image"] for here in pods()}
    assert set(images.values()) == {f"{built['service']}:{VERSION}", f"{built['trainer']}:{VERSION}"}
    assert images["simile-retrain"] == f"{built['trainer']}:{VERSION}"


def test_volumes_lie_where_compose_has_them() -> None:
    service, trainer = (compose()["services"][name]["volumes"] for name in ("service", "trainer"))
    assert {"data:/data", "models:/models"} <= set(service)
    assert {"models:/models", "retrain:/retrain"} <= set(trainer)
    assert {"/data", "/models"} <= set(pod("simile").mounts)
    assert {"/models", "/retrain"} <= set(pod("simile-retrain").mounts)


def test_apply_takes_neither_example_secrets_nor_the_pod_by_hand() -> None:
    """`kubectl apply -f deploy/kubernetes` reads the files of this folder, but not of its subfolders."""
    applied = {
        document["kind"]
        for file in FOLDER.glob("*.yaml")
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    }
    kinds = "ConfigMap CronJob Deployment HorizontalPodAutoscaler PersistentVolumeClaim PodDisruptionBudget"
    assert applied == {*kinds.split(), "Service", "StatefulSet"}
