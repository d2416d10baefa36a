"""Reads the files of docker/monitoring: rules, the dashboard and its queries."""

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
    """An alerting rule or a recording rule. `name` is the name of its alert or series."""

    name: str
    expression: str
    alert: bool
    labels: dict[str, str]
    annotations: dict[str, str]


def rules(folder: Path = PROMETHEUS) -> list[Rule]:
    """Returns all rules of the files that prometheus.yml in `folder` lists."""
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
    """Returns the panels of the dashboard, without its rows, which only group panels."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Returns (panel title, PromQL) of all queries, with Grafana's variables replaced by values."""
    return [
        (panel["title"], filled(target["expr"])) for panel in panels() for target in panel.get("targets", ())
    ]


def filled(expression: str) -> str:
    """Returns a query with values for Grafana's variables: an interval of one minute, and all instances."""
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def read_yaml(file: Path) -> Any:
    return yaml.safe_load(file.read_bytes())
