"""Prometheus scrapes a running service, evaluates rules, answers the dashboard, and fires an alert.

A copy of the rules is evaluated twice a second, and an alert must last (`for`) a second instead of a minute.
The files in tests/monitoring/rules test the real durations.
"""

import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from models.store import ModelStore
from service.errors import error_types
from tests.monitoring.files import ROOT, alerts, panels, queries, rules
from tests.monitoring.prometheus import Prometheus
from tests.parts.rerankers import publish_reranker
from tests.service.process import Service

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs Prometheus and promtool (Debian: apt-get install prometheus)",
)

# These series exist only after a request with a key, or with scores.
LATER = {"simile_key_requests_total", "simile_key_tokens_total", "simile_model_score"}
WITH_TRAFFIC = ["Requests by route", "Searches", "Vectors and similarities", "Wait in the queue"]
WITH_TRAFFIC += ["Forward pass", "Tokens embedded", "Texts of a batch", "Share found", "Documents stored"]
WITH_TRAFFIC += ["Writes", "Commit, fsync included", "Versions in memory", "Memory", "Disk free"]


class Watched(NamedTuple):
    service: Service
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Watched]:
    """A service and its Prometheus, after traffic that Prometheus has scraped."""
    folder = tmp_path_factory.mktemp("watched")
    unstarted = Service(folder, tiny_models_dir, SIMILE_CACHE_MB="4")
    store = ModelStore(folder / "models")
    store.request_reranker(publish_reranker(store.root))
    with (
        unstarted as service,
        Prometheus(folder, service.port, lambda text: text.replace("for: 1m", "for: 1s")) as prometheus,
    ):
        prometheus.wait_for("simile_ready == 1")
        prometheus.wait_for("simile_reranker_info == 1")
        for round in range(3):
            talk(service, round)
            # Waits for a scrape, so that the next round is between two scrapes.
            prometheus.wait_for(f'simile_requests_total{{route="/embed", status="200"}} >= {3 * (round + 1)}')
        prometheus.wait_for("simile:requests:rate5m > 0")
        prometheus.wait_for('simile:request_seconds:p99{kind="search"} > 0')
        yield Watched(service, prometheus)


def talk(service: Service, round: int) -> None:
    """Sends requests of many kinds. In a later round, only the second of three texts for /embed is new."""
    for text in ("a river", f"a stone and {round} letters", "the cat sleeps"):
        assert service.client.post("/embed", json={"inputs": text}).status_code == 200
    assert service.put({f"{round}-{at}": f"red river {round} {at}" for at in range(20)}).status_code == 200
    assert service.client.get("/search", params={"q": f"a red river {round}"}).status_code == 200
    judged = {"query": "a red river", "id": f"{round}-1", "relevant": True}
    assert service.client.post("/feedback", json=judged).status_code == 200
    clicked = {"search_id": f"s{round}", "query": "a red river", "id": f"{round}-1", "type": "click"}
    assert service.client.post("/events", json=clicked).status_code == 200
    assert service.client.get("/documents/nowhere").status_code == 404


def scraped(service: Service) -> str:
    return service.client.get("/metrics").text


def samples(text: str) -> set[str]:
    return set(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)", text, flags=re.MULTILINE))


def names(expression: str) -> set[str]:
    """Returns the names of all `simile` and `process` series in a PromQL expression."""
    bare = re.sub(r'"[^"]*"', "", expression)
    return set(re.findall(r"\b(?:simile|process)[_:][a-z0-9_:]+", bare))


def test_promtool_finds_nothing_to_say_of_a_scrape(watched: Watched) -> None:
    text = scraped(watched.service)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_rule_is_loaded_and_evaluated_without_an_error(watched: Watched) -> None:
    def loaded() -> list[dict[str, Any]]:
        return [rule for group in watched.prometheus.get("rules")["groups"] for rule in group["rules"]]

    watched.prometheus.until(lambda: all(rule["health"] != "unknown" for rule in loaded()))
    assert sorted(rule["name"] for rule in loaded()) == sorted(rule.name for rule in rules())
    for rule in loaded():
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]


def test_what_rules_and_dashboard_ask_for_is_in_a_scrape_or_recorded(watched: Watched) -> None:
    there = samples(scraped(watched.service)) | LATER
    recorded = {rule.name for rule in rules() if not rule.alert}
    requested = [(rule.name, rule.expression) for rule in rules()] + queries()
    for who, expression in requested:
        found = names(expression)
        assert found <= there | recorded, f"{who}: {found - there - recorded}"
    assert recorded <= {name for _, expression in requested for name in names(expression)}, (
        "recorded, and nobody asks for it"
    )


def test_no_rule_and_no_panel_selects_a_label_that_does_not_exist(watched: Watched) -> None:
    known = labels(scraped(watched.service))
    known["error_type"] |= set(error_types())
    known["status"] |= {"503"}  # A series with this status exists only after the first 503.
    for expression in [rule.expression for rule in rules()] + [query for _, query in queries()]:
        selected = re.findall(r'(\w+)=~?"([^"]*)"', expression)
        for label, pattern in selected:
            if label in {"instance", "job", "alertname", "alertstate", "kind"}:
                continue
            for part in pattern.split("|"):
                assert any(re.fullmatch(part, value) for value in known[label]), f"{label} {part}"


def labels(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for label, value in re.findall(r'(\w+)="([^"]*)"', text):
        found.setdefault(label, set()).add(value)
    return found


def test_every_query_of_the_dashboard_answers_with_something(watched: Watched) -> None:
    may_be_empty = {panel["title"] for panel in panels() if "Empty " in panel.get("description", "")}
    empty = [
        f"{title}: {query}"
        for title, query in queries()
        if not watched.prometheus.ask(query) and title not in may_be_empty
    ]
    assert not empty


@pytest.mark.parametrize("title", WITH_TRAFFIC)
def test_a_panel_shows_the_traffic_there_was(watched: Watched, title: str) -> None:
    found = [query for name, query in queries() if name == title]
    assert found
    for query in found:
        values = [float(sample["value"][1]) for sample in watched.prometheus.ask(query)]
        assert any(value > 0 and math.isfinite(value) for value in values), f"{query}: {values}"


def test_what_is_stored_and_what_prometheus_shows_agree(watched: Watched) -> None:
    def value(query: str) -> float:
        [sample] = watched.prometheus.ask(query)
        return float(sample["value"][1])

    watched.prometheus.until(lambda: value("simile_documents") == 60)
    assert value('simile_requests_total{method="POST", route="/embed", status="200"}') == 9
    assert value("simile_cache_hits_total") >= 4, "two texts, each asked for three times"
    info: Any = watched.service.client.get("/info").json()
    assert watched.prometheus.ask("simile_model_info")[0]["metric"]["version"] == info["model_version"]


def test_every_documented_series_is_on_the_dashboard() -> None:
    text = (ROOT / "docs/METRICS.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(simile_[a-z0-9_]+)`", text, flags=re.MULTILINE))
    recorded = {rule.name: rule.expression for rule in rules() if not rule.alert}
    requested = {name for _, query in queries() for name in names(query)}
    requested |= {name for record in requested & recorded.keys() for name in names(recorded[record])}
    shown = requested | {re.sub(r"_(bucket|sum|count)$", "", name) for name in requested}
    assert len(documented) > 40
    assert documented <= shown, documented - shown


def test_a_service_that_is_killed_is_reported_and_one_that_is_started_again_is_not(watched: Watched) -> None:
    service, prometheus = watched
    assert prometheus.alert("SimileDown") == "inactive"
    service.kill()
    prometheus.until(lambda: prometheus.alert("SimileDown") == "firing")
    firing = {alert["labels"]["alertname"]: alert for alert in prometheus.get("alerts")["alerts"]}
    sent = firing["SimileDown"]
    [alert] = [alert for alert in alerts() if alert.name == "SimileDown"]
    instance = f"127.0.0.1:{service.port}"
    assert sent["labels"] == {"alertname": "SimileDown", "job": "simile", "instance": instance} | alert.labels
    assert sent["annotations"]["runbook"] == "docs/ALERTS.md#similedown"
    assert instance in sent["annotations"]["description"]
    service.start()
    prometheus.until(lambda: prometheus.alert("SimileDown") == "inactive")
