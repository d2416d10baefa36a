"""Strict validation of all manifests with Kubernetes' schemas. `make test-deploy` installs the validator."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.deploy.manifests import FILES, FOLDER
from tests.waiting import LIMIT

VALIDATE = os.environ.get("KUBERNETES_VALIDATE")
pytestmark = pytest.mark.skipif(
    not VALIDATE, reason="needs kubernetes-validate: `make test-deploy` installs it, 145 MB"
)


def problem(file: Path) -> str | None:
    """Return the output of the validator, or None if each resource of the file passed.

    The validator exits with 0 if it has no schema of a kind, so passed resources are counted.
    """
    assert VALIDATE is not None
    done = subprocess.run(
        [VALIDATE, "--strict", str(file)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    said = done.stdout + done.stderr
    resources = file.read_text(encoding="utf-8").count("\nkind: ")
    return None if done.returncode == 0 and said.count("passed for resource") == resources else said


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
def test_a_manifest_is_what_kubernetes_takes(file: Path) -> None:
    assert problem(file) is None


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("\n  replicas: 1", "\n  replicaz: 1", "'replicaz' was unexpected"),
        ("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: never", "'never' is not of type"),
        ("kind: StatefulSet", "kind: StatefullSet", "statefullset"),
    ],
)
def test_a_mistyped_manifest_is_refused(right: str, wrong: str, named: str, tmp_path: Path) -> None:
    text = (FOLDER / "service.yaml").read_text(encoding="utf-8")
    assert text.count(right) == 1
    broken = tmp_path / "service.yaml"
    broken.write_text(text.replace(right, wrong), encoding="utf-8")
    assert named in str(problem(broken)).replace("StatefullSet", "statefullset")
