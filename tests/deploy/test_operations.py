"""Checks docs/OPERATIONS.md: its commands exist, its drill runs, and its names match the code."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from service.observability.metrics import Metrics
from service.runtime.watchdog import EXIT_STATUS
from service.settings import PREFIX, Settings
from simile.commands import COMMANDS
from simile.completion import build_parser
from tests.deploy.manifests import FOLDER, ROOT, Pod, one, pods
from tests.deploy.test_systemd import Unit
from tests.service.process import Service, free_port, plain_environment
from tests.waiting import LIMIT
from training.retraining.exits import BUSY, NOTHING, REFUSED, STOPPED

PAGE = ROOT / "docs/OPERATIONS.md"
TEXT = PAGE.read_text(encoding="utf-8")
RETRAINING = ROOT / "docs/RETRAINING.md"


def blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)


def lines() -> Iterator[str]:
    """Yields the lines of shell blocks, with continued lines joined, and inline code of the text."""
    for block in blocks():
        yield from block.replace("\\\n", " ").splitlines()
    yield from (" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", TEXT))


def commands() -> list[list[str]]:
    """Returns the arguments of each Simile command on the page."""
    found = (re.search(rf"\bsimile ((?:{'|'.join(COMMANDS)})\b[^#|&>;]*)", line) for line in lines())
    return [shlex.split(match[1]) for match in found if match]


def test_there_are_commands_to_look_at() -> None:
    assert len(commands()) >= 20


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_is_one_that_simile_takes(arguments: list[str]) -> None:
    build_parser("simile").parse_args(arguments)


def test_every_setting_and_metric_exists() -> None:
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    compose = {"SIMILE_TAG"}  # docker/README.md
    assert set(re.findall(r"SIMILE_[A-Z_]+[A-Z]", TEXT)) <= known | compose
    series = {
        family.name + ("_total" if family.type == "counter" else "")
        for metric in Metrics().registry._collector_to_names
        if isinstance(metric, MetricWrapperBase)
        for family in metric.describe()
    }
    for name in re.findall(r"\bsimile_[a-z_]+", TEXT):
        assert any(full == name or (name.endswith("_") and full.startswith(name)) for full in series), name


def test_links_lead_somewhere() -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", TEXT):
        assert (PAGE.parent / target).exists(), target
        if anchor and not target:
            heading = anchor[1:].replace("-", " ")
            assert re.search(rf"^#+ {heading}$", TEXT, flags=re.MULTILINE | re.IGNORECASE), anchor


def test_exit_statuses_are_those_of_the_code() -> None:
    page = RETRAINING.read_text(encoding="utf-8")
    table = page.partition("| exit status | | wake somebody |")[2].partition("\n\n")[0]
    told = re.findall(r"^\| ([\d]+)", table, flags=re.MULTILINE)
    assert [int(status) for status in told] == [0, REFUSED, NOTHING, BUSY, STOPPED, 1]
    assert f"status {EXIT_STATUS} (it hung)" in TEXT
    assert f"It will not start (status {os.EX_CONFIG})" in TEXT


def test_numbers_that_files_hold_are_told_as_they_are() -> None:
    stop = one("ConfigMap", "simile")["data"]["SIMILE_STOP_DELAY_SECONDS"]
    grace = one("StatefulSet", "simile")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert f"{stop} s in which endpoints forget the pod, 30 s for requests in flight, {grace} s in" in TEXT
    assert f"{Unit('simile.service')['TimeoutStopSec']} s in all (`TimeoutStopSec`)" in TEXT
    table = TEXT.partition("## Kubernetes")[2]
    for file in FOLDER.glob("*.yaml"):
        assert f"`{file.name}`" in table, file.name


def test_images_are_built_under_the_tag_that_the_manifests_name() -> None:
    tags = {here.container["image"].partition(":")[2] for here in pods()}
    assert re.findall(r"SIMILE_TAG=(\S+) docker compose\s+build", TEXT) == list(tags)


def test_a_revoked_key_is_taken_out_of_every_secret_that_has_it() -> None:
    """The replicas have their own Secret, and would still accept a key that stays there."""
    [change] = [block for block in blocks() if "keys remove" in block and "kubectl" in block]
    rewritten = re.findall(r"create secret generic (\S+) --from-file=keys=\S+ --dry-run=client", change)
    held = [here.volume("/run/secrets/simile")["secret"]["secretName"] for here in pods() if keeps_keys(here)]
    assert sorted(rewritten) == sorted({*held}) == ["simile-embed-keys", "simile-keys"]


def keeps_keys(here: Pod) -> bool:
    return "SIMILE_API_KEYS_FILE" in here.variables


def block_of(heading: str) -> str:
    """Returns the first shell block below a heading."""
    return TEXT.partition(f"{heading}\n")[2].partition("```sh\n")[2].partition("```")[0]


def in_path(folder: Path) -> str:
    """Returns a PATH in which `simile` runs on this interpreter."""
    program = folder / "bin/simile"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m simile "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.mark.long
def test_on_a_new_machine_the_commands_of_the_page_bring_the_service_back(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    """The page's commands run unchanged. The test sets only a port and the number of workers."""
    path, here, there = in_path(tmp_path), tmp_path / "old", tmp_path / "new"
    there.mkdir()
    documents = {"a": "A first sentence.", "b": "A second one."}
    with Service(here, tiny_models_dir) as running:
        assert running.put(documents).status_code == 200
        settings = {"SIMILE_DATA_DIR": "data", "SIMILE_MODELS_DIR": "models", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-ec", block_of("## Backup and restore")],
            cwd=here,
            env=plain_environment(**settings, PATH=path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "All is sound." in done.stdout) == (0, True), done.stdout + done.stderr
    shutil.move(here / "backups", there / "backups")
    shutil.rmtree(here)
    restored = Service(there)  # gives a port and a client
    variables = {"SIMILE_PORT": str(restored.port), "SIMILE_WORKERS": "1", "PYTHONPATH": str(ROOT)}
    with restored.log.open("wb") as log:
        restored.process = subprocess.Popen(
            ["bash", "-ec", block_of("### On a new machine")],
            cwd=there,
            env=plain_environment(**variables, PATH=path),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        restored.wait_until_ready()
        assert restored.stored() == documents
        assert "All is sound." in restored.log.read_text()
        os.killpg(restored.process.pid, signal.SIGTERM)
        restored.process.wait(LIMIT)
    finally:
        if restored.process.poll() is None:
            os.killpg(restored.process.pid, signal.SIGKILL)
        restored.client.close()
    assert not (there / "data").exists()


@pytest.mark.long
def test_the_drill_runs_by_the_service_and_counts_documents(tmp_path: Path, tiny_models_dir: Path) -> None:
    drill = block_of("### The drill")
    assert drill.count("8001") == 3
    path = in_path(tmp_path)
    with Service(tmp_path, tiny_models_dir) as running:
        assert running.put({"a": "A first sentence.", "b": "A second one."}).status_code == 200
        environment = plain_environment(
            SIMILE_DATA_DIR=str(tmp_path / "data"),
            SIMILE_MODELS_DIR=str(tmp_path / "models"),
            SIMILE_WORKERS="1",
            PYTHONPATH=str(ROOT),
        )
        environment["PATH"] = path
        process = subprocess.Popen(
            ["bash", "-ec", drill.replace("8001", str(free_port()))],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, said
        assert '{"count":2}' in said
        assert "All is sound." in said
        assert running.client.get("/documents/count").json()["count"] == 2
    assert not (tmp_path / "drill").exists()
