"""The monitoring's files and their contents."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docker/monitoring"
PROMETHEUS = MONITORING / "prometheus"
DASHBOARD = MONITORING / "grafana/dashboards/simile.json"


@dataclass(frozen=True)
class Rule:
    """A recording or an alerting rule; `name` is that of the series or of the alert."""

    name: str
    expression: str
    alert: bool
    labels: dict[str, str]
    annotations: dict[str, str]


def rules(folder: Path = PROMETHEUS) -> list[Rule]:
    """Every rule of `folder`."""
    return [
        Rule(
            name=rule.get("alert") or rule["record"],
            expression=rule["expr"],
            alert="alert" in rule,
            labels=rule.get("labels", {}),
            annotations=rule.get("annotations", {}),
        )
        for name in read_yaml(folder / "prometheus.yml")["rule_files"]
        for group in read_yaml(folder / name)["groups"]
        for rule in group["rules"]
    ]


def alerts() -> list[Rule]:
    return [rule for rule in rules() if rule.alert]


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DASHBOARD.read_bytes())
    return content


def panels() -> list[dict[str, Any]]:
    """Panels with data, so without rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """(title of the panel, PromQL), as Grafana would send it: its variables put in."""
    return [
        (panel["title"], filled(target["expr"])) for panel in panels() for target in panel.get("targets", ())
    ]


def filled(expression: str) -> str:
    """With what Grafana puts in for its variables; all instances are shown unless one is chosen."""
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def read_yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_bytes())
