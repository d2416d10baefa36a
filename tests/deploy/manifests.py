"""Reads the manifests of deploy/kubernetes, as kubectl does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
FILES = sorted(FOLDER.rglob("*.yaml"))


class Pod(NamedTuple):
    """A pod, or the template of one. All pods of the project have one container each."""

    name: str
    spec: dict[str, Any]
    claims: dict[str, dict[str, Any]]  # claims that its StatefulSet creates, by volume

    @property
    def container(self) -> dict[str, Any]:
        [container] = self.spec["containers"]
        found: dict[str, Any] = container
        return found

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the container, also from ConfigMaps and Secrets."""
        told: dict[str, str] = {}
        for source in self.container.get("envFrom", []):
            told |= one("ConfigMap", source["configMapRef"]["name"])["data"]
        return told | {entry["name"]: _value(entry) for entry in self.container.get("env", [])}

    @property
    def mounts(self) -> dict[str, dict[str, Any]]:
        """The volume mounts of the container: {mountPath: mount}."""
        return {mount["mountPath"]: mount for mount in self.container["volumeMounts"]}

    def volume(self, path: str) -> dict[str, Any]:
        """Returns the volume that is mounted at `path`. It must be in the pod's own spec."""
        name = self.mounts[path]["name"]
        [volume] = [volume for volume in self.spec.get("volumes", []) if volume["name"] == name]
        found: dict[str, Any] = volume
        return found


def _value(entry: dict[str, Any]) -> str:
    """Returns the value of a variable, which is written in `entry` or comes from a Secret."""
    if "value" in entry:
        return str(entry["value"])
    named = entry["valueFrom"]["secretKeyRef"]
    return str(one("Secret", named["name"])["stringData"][named["key"]])


def everything() -> list[dict[str, Any]]:
    return [document for file in FILES for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def one(kind: str, name: str) -> dict[str, Any]:
    [found] = [
        document
        for document in everything()
        if document["kind"] == kind and document["metadata"]["name"] == name
    ]
    return found


def pods() -> list[Pod]:
    return list(_pods())


def pod(name: str) -> Pod:
    [found] = [pod for pod in _pods() if pod.name == name]
    return found


def _pods() -> Iterator[Pod]:
    for document in everything():
        name, spec = document["metadata"]["name"], document.get("spec", {})
        if document["kind"] == "Pod":
            yield Pod(name, spec, {})
        elif document["kind"] == "CronJob":
            yield Pod(name, spec["jobTemplate"]["spec"]["template"]["spec"], {})
        elif "template" in spec:
            claims = {claim["metadata"]["name"]: claim for claim in spec.get("volumeClaimTemplates", [])}
            yield Pod(name, spec["template"]["spec"], claims)
