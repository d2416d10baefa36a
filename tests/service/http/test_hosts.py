"""The service checks Host and Origin, against DNS rebinding and pages of other sites."""

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.errors import StartupError
from service.http.hosts import Hosts
from service.settings import allowed_hosts, read
from tests.service.conftest import new_settings, wait_until_ready
from tests.service.keyed import KEYS, bearer, keys_file
from tests.service.process import Service
from tests.service.raw import FAMILIES, Wire, head, post

PAGE = "https://app.example.org"
OTHER = "http://evil.example.org"
VARIABLES = {"SIMILE_ALLOWED_HOSTS": "service, Search.example.org", "SIMILE_CORS_ORIGINS": PAGE}


def get(service: Service, *headers: str, path: str = "/info") -> tuple[int, bytes]:
    lines = "".join(f"{line}\r\n" for line in headers)
    with Wire(service) as wire:
        answer = wire.send(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")).answer("GET")
    return answer.status, answer.body


@pytest.mark.parametrize(
    "host",
    "localhost LocalHost:8000 localhost. simile.localhost:1 127.0.0.1:8000 127.9.9.9 [::1]:8000 [::1] "
    "192.168.1.20:8000 0.0.0.0 [2001:db8::7]:80 service:8000 search.EXAMPLE.org".split(),
)
def test_names_of_this_machine_addresses_and_allowed_names_are_served(service: Service, host: str) -> None:
    assert get(service, f"Host: {host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    "evil.example.org evil.example.org:8000 service.example.org localhost.example.org "
    "127.0.0.1.example.org 1.2.3 x".split(),
)
@pytest.mark.parametrize("path", ["/info", "/health", "/metrics", "/docs", "/nothing"])
def test_a_name_that_anybody_can_have_resolve_to_this_machine_is_421(
    service: Service, host: str, path: str
) -> None:
    status, body = get(service, f"Host: {host}", path=path)
    assert status == 421
    assert b"SIMILE_ALLOWED_HOSTS" in body


def test_each_family_words_a_wrong_host(service: Service) -> None:
    for path, body in FAMILIES.items():
        request = post(path, body).replace(b"Host: localhost", b"Host: evil.example.org")
        with Wire(service) as wire:
            wire.send(request).answer().refused(path, 421, "Forbidden")


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [""],
        ["localhost", "localhost"],
        ["localhost", "evil.example.org"],
        ["evil.example.org", "localhost"],
        ["local host"],
        *([host] for host in "localhost/a me@localhost localhost:x [localhost] [::1 ::1 - caf\xe9".split()),
    ],
)
def test_no_host_two_and_what_is_none_are_400(service: Service, hosts: list[str]) -> None:
    status, body = get(service, *(f"Host: {host}" for host in hosts))
    assert status == 400
    assert b"Host" in body or b"host" in body


def test_the_host_of_a_whole_url_counts(service: Service) -> None:
    with Wire(service) as wire:
        for target, status in (("http://evil.example.org/info", 421), ("http://127.0.0.1:8000/info", 200)):
            request = head(target, method="GET")
            assert wire.send(request).answer("GET").status == status
        evil = head("http://[::1]:80/info", method="GET").replace(b"localhost", b"evil.example.org")
        assert wire.send(evil).answer("GET").status == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Origin", f"http://127.0.0.1\r\nOrigin: {OTHER}"),
        ("Authorization", "Bearer a\r\nAuthorization: Bearer b"),
        ("Content-Length", "2\r\nContent-Length: 2"),
        ("Content-Type", "application/json\r\nContent-Type: text/plain"),
        ("x-model-version", "a\r\nx-model-version: a"),
        ("x-request-id", "a\r\nx-request-id: b"),
        ("x-timeout-ms", "1\r\nx-timeout-ms: 90000"),
        ("Sec-Fetch-Site", "same-origin\r\nSec-Fetch-Site: cross-site"),
    ],
)
def test_a_header_that_decides_something_comes_once(service: Service, name: str, value: str) -> None:
    request = f"POST /documents HTTP/1.1\r\nHost: localhost\r\n{name}: {value}\r\n\r\n"
    with Wire(service) as wire:
        answer = wire.send(request.encode()).answer()
        assert answer.status == 400, answer.body


@pytest.mark.parametrize(
    "origin",
    [
        OTHER,
        "null",
        "",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1",
        "http://127.0.0.1:1{port}",
        "http://localhost:{port}",
        "http://127.0.0.1:{port}.example.org",
        "127.0.0.1:{port}",
        f"{PAGE}.evil.org",
    ],
)
def test_a_page_of_another_site_changes_nothing(service: Service, origin: str) -> None:
    for method, path in changes(service):
        sent = {"Origin": origin.format(port=service.port)}
        answer = service.client.request(method, path, headers=sent)
        assert answer.status_code == 403, (method, path)
        assert "SIMILE_CORS_ORIGINS" in answer.json()["error"]


@pytest.mark.parametrize("origin", ["http://127.0.0.1:{port}", PAGE, None])
def test_the_services_own_page_an_allowed_one_and_a_program_may(service: Service, origin: str | None) -> None:
    sent = {} if origin is None else {"Origin": origin.format(port=service.port)}
    for method, path in changes(service):
        answer = service.client.request(method, path, headers=sent)
        assert answer.status_code not in {400, 401, 403, 421}, (method, path)


def changes(service: Service) -> list[tuple[str, str]]:
    """Returns the method and path of every route that changes something."""
    found = []
    for path, operations in service.client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            if operation["x-role"] in {"write", "admin"}:
                found.append((method.upper(), re.sub(r"{\w+}", "none", path)))
    assert len(found) > 10
    return found


def test_the_browsers_word_counts_more_than_the_origin(service: Service) -> None:
    for headers, status in (
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": PAGE}, 409),
        ({"Sec-Fetch-Site": "same-origin", "Origin": OTHER}, 409),
        ({"Sec-Fetch-Site": "none"}, 409),
    ):
        assert service.client.post("/models/rollback", headers=headers).status_code == status
    own = {"Host": "search.example.org", "Origin": "https://search.example.org"}
    for site, status in (("same-origin", 409), ("none", 403), ("same-site", 403), ("cross-site", 403)):
        sent = own | {"Sec-Fetch-Site": site}
        assert service.client.post("/models/rollback", headers=sent).status_code == status


def test_a_page_of_another_site_may_still_ask_and_is_not_read(service: Service) -> None:
    answer = service.client.post("/embed", json={"inputs": "river"}, headers={"Origin": OTHER})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_a_preflight_to_another_name_is_421(service: Service) -> None:
    requested = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Host": "evil.example.org"}
    answer = service.client.options("/documents", headers=requested)
    assert answer.status_code == 421
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(("names", "status"), [("", 200), ("service", 421)])
def test_with_keys_any_name_will_do_until_some_are_named(
    tmp_path: Path, tiny_models_dir: Path, names: str, status: int
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, api_keys_file=keys_file(tmp_path), allowed_hosts=names)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        wait_until_ready(client)
        for host, expected in (("evil.example.org", status), ("service", 200), ("localhost", 200)):
            sent = {"Host": host, **bearer(KEYS["reader"])}
            assert client.get("/info", headers=sent).status_code == expected


def test_the_names_that_are_allowed_and_listened_on_are_served() -> None:
    for keys, names in ((False, ()), (True, ("service",))):
        hosts = Hosts(names, "Simile.lan", (), keys=keys)
        assert hosts.refusal([(b"host", b"simile.lan:8000")]) is None
        refused = hosts.refusal([(b"host", b"other.lan")])
        assert refused is not None
        assert refused.status == 421
    assert allowed_hosts("") == frozenset()
    assert allowed_hosts(" Service, my_box,a.b-c.org ,") == {"service", "my_box", "a.b-c.org"}


@pytest.mark.parametrize("value", ["*", "*.example.org", "http://a.org", "a.org:8000", "a b", "-a", "a..b"])
def test_what_is_no_name_is_refused_at_start(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SIMILE_ALLOWED_HOSTS", value)
    with pytest.raises(StartupError, match="SIMILE_ALLOWED_HOSTS"):
        read()
