"""Rules of docker/monitoring/prometheus are valid. Each alert has tests and a section in docs/ALERTS.md."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from models.__main__ import parser as models_parser
from service.__main__ import parser as service_parser
from service.app import create_app
from service.settings import Settings
from tests.monitoring.files import PROMETHEUS, ROOT, Rule, alerts, read_yaml, rules

TESTS = sorted((Path(__file__).parent / "rules").glob("*.yml"))
PAGE = ROOT / "docs/ALERTS.md"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="needs promtool, which comes with Prometheus (Debian: apt-get install prometheus)",
)


def promtool(*arguments: str, folder: Path = PROMETHEUS) -> str:
    """Run promtool in `folder`, and return its output. A failure of promtool fails the test."""
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_accepts_the_configuration_and_every_rule() -> None:
    said = promtool("check", "config", "prometheus.yml")
    assert "2 rule files found" in said
    assert f"{len(alerts())} rules found" in said
    assert f"{len(rules()) - len(alerts())} rules found" in said


@needs_promtool
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should_and_are_silent_when_not(file: Path) -> None:
    promtool("test", "rules", file.name, folder=file.parent)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_each_alert_is_tried_both_ways(alert: Rule) -> None:
    tried = [
        bool(case["exp_alerts"])
        for file in TESTS
        for test in read_yaml(file)["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == alert.name
    ]
    assert set(tried) == {True, False}, f"{alert.name}: {tried}"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_each_alert_says_how_bad_it_is_what_it_saw_and_where_to_read_on(alert: Rule) -> None:
    assert alert.labels["severity"] in {"critical", "warning"}
    assert alert.annotations["summary"]
    assert "{{" in alert.annotations["description"], "where, or how much"
    assert alert.annotations["runbook"] == f"docs/ALERTS.md#{alert.name.lower()}"
    section = sections()[alert.name]
    for part in ("**Means.**", "**Look.**", "**Do.**"):
        assert part in section, f"{alert.name} has no {part}"


def test_the_page_of_alerts_has_no_section_of_an_alert_that_there_is_not() -> None:
    assert list(sections()) == [alert.name for alert in alerts()]


def test_every_command_of_the_page_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"exec service simile ([^`]+)`", text)
    found += re.findall(r"--no-deps service ([^`]+)`", text)  # the image runs `python -m service`
    assert len(found) >= 6
    for arguments in found:
        command, *words = arguments.replace("VERSION", "some-version").split()
        # argparse ends the test at an unknown option.
        if command == "models":
            models_parser({}).parse_args(words)
        else:
            service_parser().parse_args([command, *words])
    containers = re.findall(
        r"docker compose (?:[a-z]+|ps -aq)(?: --entrypoint \S+| -\S+| \d+)* ([a-z]+)", text
    )
    assert set(containers) == {"service", "trainer"}


def test_docker_is_asked_for_containers_and_not_for_what_compose_calls_them() -> None:
    options = {
        "events": {"--since", "--until", "--filter"},
        "kill": set(),
        "stats": {"--no-stream"},
        "system": set(),
    }
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = re.findall(r"`docker (?!compose)([^`]+)`", text)
    assert {command.split()[0] for command in found} == {*options, "inspect"}
    for command in found:
        named = re.sub(r"\$\(docker compose ps -a?q (?:service|trainer)\)", "CONTAINER", command)
        program, *words = shlex.split(named)
        assert not {"service", "trainer"} & set(words), command
        assert {word for word in words if word.startswith("-")} <= options.get(program, set()), command
        assert all(word == "container=CONTAINER" for word in words if word.startswith("container=")), command


def test_every_route_setting_and_series_of_the_page_exists(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    paths = create_app(Settings(data_dir=tmp_path / "never-made")).openapi()["paths"]
    requested = re.findall(r"curl (?:-X (POST|DELETE) )?http://127\.0\.0\.1:8000(/[^`\s]*)", text)
    assert len(requested) >= 20
    for method, path in requested:
        template = path.replace("VERSION", "{version}").replace("ID", "{id}")
        assert (method or "GET").lower() in paths[template], path
    settings = set(re.findall(r"SIMILE_([A-Z_]+)", text)) - {""}
    assert settings <= {name.upper() for name in Settings.model_fields}
    documented = set(
        re.findall(r"`(simile_[a-z_]+)`", (ROOT / "docs/METRICS.md").read_text(encoding="utf-8"))
    )
    assert set(re.findall(r"simile_[a-z_]+", text)) <= documented


def sections() -> dict[str, str]:
    """Returns {alert: text of its section in docs/ALERTS.md}."""
    parts = re.split(r"^### (Simile\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
