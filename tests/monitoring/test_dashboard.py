"""Checks the dashboard file for errors that Grafana would show. test_prometheus.py runs its queries."""

from itertools import combinations, pairwise
from typing import Any

import pytest

from tests.monitoring.files import DASHBOARD, MONITORING, dashboard, panels, read_yaml

ROWS = ["State", "Traffic", "Latency", "Batching", "Cache", "Index", "Documents"]
ROWS += ["Swaps and versions", "Replicas and database", "Retraining", "Process and machine"]
WIDTH = 24  # columns of Grafana's grid


def test_the_dashboard_asks_the_datasource_that_is_provisioned() -> None:
    [source] = read_yaml(MONITORING / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    named = {"type": source["type"], "uid": source["uid"]}
    requested: list[Any] = [panel["datasource"] for panel in panels()]
    requested += [target["datasource"] for panel in panels() for target in panel["targets"]]
    requested += [entry["datasource"] for entry in dashboard()["annotations"]["list"]]
    requested += [variable["datasource"] for variable in dashboard()["templating"]["list"]]
    assert all(datasource == named for datasource in requested)
    assert source["url"] == "http://prometheus:9090"


def test_the_provider_finds_the_dashboard_where_compose_mounts_it() -> None:
    [provider] = read_yaml(MONITORING / "grafana/provisioning/dashboards/simile.yml")["providers"]
    assert provider["options"]["path"] == f"/var/lib/grafana/{DASHBOARD.parent.name}"


def test_there_is_a_row_for_each_subject_and_panels_behind_each() -> None:
    found = dashboard()["panels"]
    assert [panel["title"] for panel in found if panel["type"] == "row"] == ROWS
    for before, after in pairwise(found):
        assert (before["type"], after["type"]) != ("row", "row"), before["title"]
    assert found[-1]["type"] != "row"


def test_no_two_panels_share_an_id_or_a_place() -> None:
    found = dashboard()["panels"]
    assert len({panel["id"] for panel in found}) == len(found)
    for one, other in combinations(found, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), f"{one['title']}, {other['title']}"
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= WIDTH for panel in found)


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or below)


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_each_panel_has_a_unit_and_names_its_lines_apart(panel: dict[str, Any]) -> None:
    assert panel["type"] in {"timeseries", "stat"}
    assert panel["fieldConfig"]["defaults"]["unit"]
    targets = panel["targets"]
    assert len({target["refId"] for target in targets}) == len({target["legendFormat"] for target in targets})
    assert len({target["refId"] for target in targets}) == len(targets) > 0
    assert all("$instance" in target["expr"] or "ALERTS" in target["expr"] for target in targets)
