"""The documents are true: commands run, tables are complete, links lead somewhere."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from prometheus_client.metrics import MetricWrapperBase

from models.version import VERSION
from service.app import create_app
from service.errors import ServiceError
from service.observability.metrics import Metrics
from service.settings import PREFIX, Settings, allowed_hosts
from tests.service.process import Service

ROOT = Path(__file__).resolve().parents[1]
# Settings that the compose file fixes, that keys.yml or gpu.yml add, or that need a file to be mounted.
NOT_PASSED_ON = {
    "HOST", "PORT", "DATA_DIR", "MODELS_DIR", "INSECURE", "LOG_FORMAT", "API_KEYS_FILE", "DEVICE",
    "INDEX_DEVICE", "TLS_CERT_FILE", "TLS_KEY_FILE", "CANARY_FILE",
    "EVAL_DATA", "SERVICE_KEY", "SERVICE_KEY_FILE", "ALLOWED_HOSTS",
}  # fmt: skip
OF_A_COLLECTION = """search suggest searches documents documents/count documents/{id} files files/preview map
    feedback feedback/count feedback/summary events events/count"""
OF_THE_SERVICE = """rerank v1/rerank v2/rerank predict
embed similarity tokenize decode v1/embeddings embeddings v1/models v2/embed me info
    examples collections collections/{collection} collections/{collection}/clicked models
    collections/{collection}/synonyms models/{version}/report
    models/{version}/report/{file} models/{version}/activate models/{version}/keep models/rollback
    models/{version} models/{version}/test
    models/deactivate retraining
    health ready metrics"""


def blocks(text: str) -> list[str]:
    """Returns the contents of the shell blocks of a document."""
    return re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[str]:
    """Returns the curl commands of a document's shell blocks, with all their lines."""
    joined = "\n".join(blocks(text))
    return [
        part.strip()
        for part in re.split(r"^(?=curl |make |\.venv/)", joined, flags=re.MULTILINE)
        if part.startswith("curl ")
    ]


def answers(text: str) -> list[str]:
    return re.findall(r"```json\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, default_models_dir: Path) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("readme"), default_models_dir, SIMILE_EXAMPLES="1") as service:
        yield service


def answered(command: str, port: int) -> Any:
    """Run a curl of the docs against the service at `port`, and return the JSON answer."""
    here = command.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    done = subprocess.run(
        ["bash", "-c", here + " --silent --show-error --fail-with-body"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_curl_of_the_readme_answers_as_it_says(service: Service) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = commands(readme)
    assert len(found) == 7
    said = []
    for command in found:
        assert "127.0.0.1:8000" in command
        said.append(answered(command, service.port))
    promised = json.loads(answers(readme)[0])
    first = said[0]
    assert first["query"] == promised["query"]
    assert first["mode"] == promised["mode"]
    assert first["model"][16:] == promised["model"][16:], "the space's fingerprint"
    for hit, shown in zip(first["hits"], promised["hits"], strict=True):
        assert hit["id"] == shown["id"]
        assert hit["score"] == pytest.approx(shown["score"], abs=1e-4)
        assert hit["text"].startswith(shown["text"].removesuffix(" …"))
        assert hit["metadata"] == shown["metadata"]
    filtered = said[2]
    assert [hit["id"] for hit in filtered["hits"]] == ["ticket-1"]
    kept = service.client.get("/documents/count", params={"filter": '{"example": true}'}).json()["count"]
    assert kept == 320, "the examples are there after the tour"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_curl_about_search_finds_something(service: Service) -> None:
    service.client.post("/documents", json={"documents": examples()})
    found = commands((ROOT / "docs/SEARCH.md").read_text(encoding="utf-8"))
    searches = [command for command in found if "/search" in command]
    assert (len(searches), len(found)) == (9, 17)
    for command in found:
        said = answered(command, service.port)
        if command in searches:
            assert said["hits"] if "hits" in said else said["results"][0]
        assert said.get("refused", []) == []


def test_the_example_of_highlights_is_what_a_search_answers(service: Service) -> None:
    service.client.post("/documents", json={"documents": examples()})
    section = (ROOT / "docs/SEARCH.md").read_text(encoding="utf-8").partition("### Highlights\n")[2]
    [shown, *_] = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    expected = json.loads(shown)
    [hit, *_] = answered(commands(section)[0], service.port)["hits"]
    assert hit["highlights"] == expected["highlights"]
    assert hit["snippet"].pop("text").startswith(expected["snippet"].pop("text").removesuffix(" …"))
    assert hit["snippet"] == expected["snippet"]


def test_the_example_queries_find_their_documents(service: Service) -> None:
    """At least 29 of the 30 example queries must find their document at rank 1."""
    service.client.post("/documents", json={"documents": examples()})
    queries = json.loads((ROOT / "tests/examples_queries.json").read_bytes())
    texts = [entry["query"] for entry in queries]
    body = {"queries": texts, "mode": "dense", "k": 3, "filter": {"example": True}}
    results = service.client.post("/search", json=body).json()["results"]
    ranks = [
        [hit["id"] for hit in hits].index(entry["expected_id"])
        for entry, hits in zip(queries, results, strict=True)
    ]
    assert len(ranks) == 30
    assert ranks.count(0) >= 29


def examples() -> list[dict[str, object]]:
    lines = (ROOT / "models/tokens/examples.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [{**row, "metadata": {**row["metadata"], "example": True}} for row in rows]


def test_the_example_corpus_is_a_few_hundred_distinct_texts_of_several_topics() -> None:
    rows = examples()
    assert len(rows) == len({row["id"] for row in rows}) == len({row["text"] for row in rows}) == 320
    assert len({row["metadata"]["topic"] for row in rows}) == 8  # type: ignore[index]


def first_cells(name: str) -> set[str]:
    lines = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
    return {match[1] for line in lines if (match := re.match(r"\| `([^`]+)`", line))}


def test_every_setting_is_in_the_table_and_nothing_else() -> None:
    assert first_cells("SETTINGS.md") == {PREFIX + name.upper() for name in Settings.model_fields}


def test_every_limit_stands_in_the_table_with_its_default() -> None:
    lines = (ROOT / "docs" / "SETTINGS.md").read_text(encoding="utf-8").splitlines()
    limits = [
        name for name in Settings.model_fields if name.startswith(("max_", "feedback_per_", "events_per_"))
    ]
    assert len(limits) >= 18
    for name in limits:
        [row] = [line for line in lines if line.startswith(f"| `{PREFIX}{name.upper()}` |")]
        default = Settings.model_fields[name].default
        if isinstance(default, int | float):  # Other defaults depend on a setting that the page names.
            cell = row.split("|")[2].replace("`", "")
            assert str(int(default)) in cell.split() or f"{default:g}" in cell.split(), row


def test_every_setting_is_passed_on_by_the_compose_file() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    passed_on = set(re.findall(r"^ +(SIMILE_\w+):$", text, flags=re.MULTILINE))
    names = {name.upper() for name in Settings.model_fields} - NOT_PASSED_ON
    assert passed_on == {PREFIX + name for name in names}


def test_the_compose_file_lets_the_service_be_called_by_its_name_there() -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["service"]
    named = service["environment"]["SIMILE_ALLOWED_HOSTS"]
    for given in ("", "search.example.org"):
        assert "service" in allowed_hosts(named.replace("${SIMILE_ALLOWED_HOSTS:-}", given))
    scraped = yaml.safe_load((ROOT / "docker/monitoring/prometheus/prometheus.yml").read_text("utf-8"))
    for job in scraped["scrape_configs"]:
        assert [config["targets"] for config in job["static_configs"]] == [["service:8000"]]
    assert 'service = "http://service:8000"' in (ROOT / "docker/retrain.toml").read_text(encoding="utf-8")


def test_the_balancer_logs_no_query_string() -> None:
    lines = [line.strip() for line in (ROOT / "docker/haproxy.cfg").read_text(encoding="utf-8").splitlines()]
    assert not {"option httplog", "option tcplog"} & set(lines)
    [written] = [line for line in lines if line.startswith("log-format ")]
    names = set(re.findall(r"%(?:\{[^}]*\})?(\[[^\]]*\]|\w+)", written.replace("[%tr]", "%tr")))
    assert {"HM", "HPO", "ST"} <= names
    # Fields that contain queries or headers: no log line may have these.
    assert not {name for name in names if name in {"r", "HU", "HQ", "hrl", "hsl"} or name.startswith("[")}
    assert not [line for line in lines if "capture" in line.partition("#")[0].split()]


def test_the_images_are_labelled_with_the_version_of_the_package() -> None:
    assert f"ARG VERSION={VERSION}\n" in (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")


def test_every_metric_is_in_the_table_with_its_labels_and_nothing_else() -> None:
    text = (ROOT / "docs/METRICS.md").read_text(encoding="utf-8")
    expected = set()
    for series in Metrics().registry._collector_to_names:
        if not isinstance(series, MetricWrapperBase):  # the metrics of the process itself
            continue
        [family] = series.describe()
        full = family.name + ("_total" if family.type == "counter" else "")
        expected.add(full)
        labels = ", ".join(f"`{label}`" for label in series._labelnames)
        assert f"| `{full}` | {family.type} | {labels} |" in text
    assert first_cells("METRICS.md") == expected


def test_every_refusal_is_in_the_table() -> None:
    text = (ROOT / "docs/ERRORS.md").read_text(encoding="utf-8")
    for kind in ServiceError.__subclasses__():
        assert f"| {kind.status} | `{kind.error_type}` |" in text


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_within_the_project_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


def test_every_route_names_its_role_and_describes_its_failures(tmp_path: Path) -> None:
    app: FastAPI = create_app(Settings(data_dir=tmp_path / "never-made"))
    document = app.openapi()
    below = {f"/{path}" for path in OF_A_COLLECTION.split()}
    below |= {f"/collections/{{collection}}{path}" for path in below}
    assert set(document["paths"]) == below | {f"/{path}" for path in OF_THE_SERVICE.split()} | {"/"}
    by_role: dict[str, set[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_role.setdefault(operation["x-role"], set()).add(f"{method} {path}")
    assert by_role["open"] == {"get /", "get /health", "get /ready", "get /metrics"}
    writes = {f"post /{path}" for path in ("documents", "files", "files/preview", "feedback", "events")}
    writes |= {f"delete /{path}" for path in ("documents", "documents/{id}", "feedback", "events")}
    writes |= {write.replace(" /", " /collections/{collection}/") for write in writes}
    synonyms = {f"{method} /collections/{{collection}}/synonyms" for method in ("put", "delete")}
    assert by_role["write"] == {*writes, "delete /collections/{collection}", *synonyms}
    changes = ("{version}/activate", "{version}/keep", "rollback", "deactivate")
    clicked = "put /collections/{collection}/clicked"
    searches = {"get /searches", "get /collections/{collection}/searches"}
    tests = {"post /models/{version}/test", "delete /models/{version}/test"}
    admin = {
        clicked,
        *tests,
        "post /retraining",
        *searches,
        *(f"post /models/{change}" for change in changes),
    }
    assert by_role["admin"] == admin
    families = dict.fromkeys(("/v1/embeddings", "/embeddings"), "OpenAIRefusal")
    families |= {"/v1/rerank": "OpenAIRefusal", "/v2/embed": "CohereRefusal", "/v2/rerank": "CohereRefusal"}
    for path in ("/", "/embed", "/similarity", "/tokenize", "/decode", "/rerank", "/predict", *families):
        answers = document["paths"][path]["post"]["responses"]
        assert answers["200"]["content"]["application/json"]["schema"]["$ref"]
        refusals = {status: answer for status, answer in answers.items() if status >= "400"}
        native = {"422", "424"} if path not in {"/tokenize", "/decode"} else {"422"}
        expected = {"400", "401", "403", "404", "409", "413", "415", "421", "429", "500", "503", "504"}
        assert set(refusals) == expected | (set() if path in families else native)
        for reference in refusals.values():
            answer = document["components"]["responses"][reference["$ref"].rpartition("/")[2]]
            refusal = answer["content"]["application/json"]["schema"]["$ref"]
            assert refusal.endswith(f"/{families.get(path, 'Refusal')}")
    assert document["paths"]["/embed"]["post"]["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/EmbedRequest"
    }
    assert "inputs" in document["components"]["schemas"]["EmbedRequest"]["properties"]
    assert not (tmp_path / "never-made").exists(), "describing the service must not start it"


def test_every_page_has_its_place_in_the_site() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = [page for section in nav for pages in section.values() for page in pages]
    folders = (".", "docs", "docs/decisions", "training", "docker")
    known = [page.relative_to(ROOT).as_posix() for each in folders for page in (ROOT / each).glob("*.md")]
    assert sorted(listed) == sorted(known)


def test_the_citation_and_the_issue_forms_are_complete() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    forms = [form for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if form.stem != "config"]
    assert len(forms) == 2
    for form in forms:
        described = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= described.keys()
        fields = [field for field in described["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all({"label", "description"} <= field["attributes"].keys() for field in fields)
