"""CORS and TLS. Both are off by default."""

import http.client
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient

from service.cli.check import require_usable
from service.errors import StartupError
from service.http.connections import MAX_HANDSHAKES, SPARE
from service.settings import allowed_origins, read
from tests.service.conftest import new_settings, serving
from tests.service.keyed import KEYS, bearer, keys_file
from tests.service.process import Service
from tests.service.raw import Wire, held
from tests.waiting import LIMIT, until

PAGE = "https://app.example.org"
OTHER = "https://evil.example.org"
PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("cors")
    origins = f"{PAGE}, http://127.0.0.1:3000"
    settings = new_settings(
        folder, tiny_models_dir, api_keys_file=keys_file(folder), cors_origins=origins, max_body_mb=1
    )
    with serving(settings) as client:
        yield client


def test_a_named_origin_may_ask_without_a_key_what_it_may_send(client: TestClient) -> None:
    requested = "authorization, content-type, x-request-id, x-model-version, x-timeout-ms"
    answer = client.options("/embed", headers=PREFLIGHT | {"Access-Control-Request-Headers": requested})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"] == requested
    assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-private-network" not in answer.headers
    assert answer.headers["x-request-id"]
    given = client.options("/embed", headers=PREFLIGHT | {"x-request-id": "mine"})
    assert given.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    "requested",
    [
        "authorization,content-type,x-stainless-os",
        "x-stainless-arch,x-stainless-lang,x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime",
        "x-stainless-runtime-version,x-stainless-timeout,x-stainless-helper-method",
        "openai-organization, openai-project, openai-beta",
        "x-client-name,x-fern-language,x-fern-sdk-name,x-fern-sdk-version",
        "traceparent,tracestate",
        "x-requested-with,cache-control,idempotency-key",
        "X-Of-Tomorrow",
    ],
)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/documents", "/nothing"])
def test_a_named_origin_may_send_any_header_and_reach_a_private_network(
    client: TestClient, path: str, requested: str
) -> None:
    private = {"Access-Control-Request-Private-Network": "true"}
    answer = client.options(path, headers=PREFLIGHT | private | {"Access-Control-Request-Headers": requested})
    assert answer.status_code == 200, answer.text
    assert answer.headers["access-control-allow-headers"] == requested
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert "Access-Control-Request-Headers" in answer.headers["vary"]
    refused = client.options(path, headers=PREFLIGHT | private | {"Origin": OTHER})
    assert refused.status_code == 403
    assert not any(name.startswith("access-control") for name in refused.headers)


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({"Origin": OTHER}, "origin"),
        ({"Origin": f"{PAGE}.evil.org"}, "origin"),
        ({"Origin": "http://app.example.org"}, "origin"),
        ({"Origin": "null"}, "origin"),
        ({"Access-Control-Request-Method": "PUT"}, "method"),
        ({"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "x-else"}, "method"),
    ],
)
def test_a_preflight_for_anything_else_is_refused_in_our_words(
    client: TestClient, headers: dict[str, str], word: str
) -> None:
    answer = client.options("/embed", headers=PREFLIGHT | headers)
    assert answer.status_code == 403
    assert answer.json()["error_type"] == "Forbidden"
    assert answer.json()["error"].startswith(f"Disallowed CORS {word}")
    assert "SIMILE_CORS_ORIGINS" in answer.json()["error"]
    assert (answer.headers.get("access-control-allow-origin") == PAGE) == ("Origin" not in headers)
    assert answer.headers["x-request-id"]
    assert "Origin" in answer.headers["vary"]


def test_a_page_can_read_answers_and_refusals(client: TestClient) -> None:
    page = {"Origin": PAGE, **bearer(KEYS["reader"])}
    large = b" " * (2 << 20)
    json = {"content-type": "application/json"}
    answers = {
        200: client.post("/embed", json={"inputs": "river"}, headers=page),
        401: client.get("/info", headers={"Origin": PAGE}),
        403: client.post("/documents", headers=page),
        404: client.get("/nothing", headers=page),
        413: client.post("/embed", content=large, headers=page | json),
        422: client.get("/info", headers=page | {"x-timeout-ms": "soon"}),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        exposed = answer.headers["access-control-expose-headers"]
        for name in ("x-request-id", "x-model-version", "x-compute-tokens", "x-truncated", "retry-after"):
            assert name in exposed
    # A page may read every x- header that an answer has.
    for name in answers[200].headers:
        assert not name.startswith("x-") or name in exposed


def test_it_is_off_by_default(tmp_path: Path, tiny_models_dir: Path) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        assert client.options("/embed", headers=PREFLIGHT).status_code == 405
        answer = client.get("/info", headers={"Origin": PAGE})
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_origins_are_read_one_by_one() -> None:
    assert allowed_origins("") == []
    allowed = allowed_origins(" https://a.org ,http://127.0.0.1:3000,https://[::1]:8443,")
    assert allowed == ["https://a.org", "http://127.0.0.1:3000", "https://[::1]:8443"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((value, "any page on the web") for value in ("*", "https://*.example.org")),
        *((f"https://{value}", "is not an origin") for value in ("a.org/", "A.org", "a.org:443", "me@a.org")),
        *((f"https://a.org{value}", "is not an origin") for value in (",null", " http://b.org")),
        *((value, "is not an origin") for value in ("example.org", "http://a.org:80", "ftp://a.org")),
    ],
)
def test_what_no_browser_would_send_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.setenv("SIMILE_CORS_ORIGINS", value)
    with pytest.raises(StartupError, match="SIMILE_CORS_ORIGINS") as refused:
        read()
    assert words in str(refused.value)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The certificate file and the key file of a self-signed certificate for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command, to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    return certificate(folder, "one")


def certificate(folder: Path, name: str, *, password: str | None = None) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    secret = ["-nodes"] if password is None else ["-passout", f"pass:{password}"]
    named = ["-subj", "/CN=simile", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert), "-days", "2"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *secret, *named, *files], check=True, capture_output=True
    )
    return cert, key


def encrypted(
    folder: Path, models_dir: Path, pair: tuple[Path, Path], **variables: str
) -> tuple[Service, ssl.SSLContext]:
    """Returns a service with the certificate of `pair`, and the TLS context of clients that trust it."""
    cert, key = map(str, pair)
    service = Service(folder, models_dir, SIMILE_TLS_CERT_FILE=cert, SIMILE_TLS_KEY_FILE=key, **variables)
    service.client.close()
    trusting = ssl.create_default_context(cafile=cert)
    url = f"https://127.0.0.1:{service.port}"
    service.client = httpx2.Client(base_url=url, verify=trusting, timeout=LIMIT, trust_env=False)
    return service, trusting


@pytest.mark.long
def test_handshakes_that_never_begin_are_bounded_and_keep_nobody_out(
    tmp_path: Path, tiny_models_dir: Path, pair: tuple[Path, Path]
) -> None:
    service, trusting = encrypted(tmp_path, tiny_models_dir, pair)
    with service, ExitStack() as stack:
        for _ in range(2 * (MAX_HANDSHAKES + SPARE)):
            stack.enter_context(Wire(service))
        client = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=LIMIT, context=trusting)
        client.request("GET", "/health")
        assert client.getresponse().status == 200
        most = MAX_HANDSHAKES + SPARE + 2  # 2: the connections of the two clients
        until(lambda: held(service) <= most, "their number has no bound")
        client.close()


@pytest.mark.long
def test_it_speaks_tls_and_nothing_else(
    tmp_path: Path, tiny_models_dir: Path, pair: tuple[Path, Path]
) -> None:
    variables = {"PYTHONUNBUFFERED": "1", "SIMILE_API_KEYS_FILE": str(keys_file(tmp_path))}
    service, trusting = encrypted(tmp_path, tiny_models_dir, pair, **variables)
    with service:
        answer = service.client.post("/embed", json={"inputs": "river"}, headers=bearer(KEYS["reader"]))
        assert answer.status_code == 200
        assert service.client.get("/info").status_code == 401
        plain = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        plain.request("GET", "/health")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()
        large = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=LIMIT, context=trusting)
        large.request("POST", "/embed", b" " * (32 << 20), {"Connection": "close", **bearer("wrong")})
        assert large.getresponse().status == 401
        large.close()
        until(lambda: "Ctrl-C" in service.log.read_text(), service.log.read_text)
        said = service.log.read_text()
        assert f"https://127.0.0.1:{service.port}" in said
        assert "http://" not in said
        assert said.count('-H "Authorization: Bearer $KEY"') == 4
        assert service.stop() == 0


def refused_pair(monkeypatch: pytest.MonkeyPatch, cert: Path | None, key: Path | None) -> str:
    for name, value in (("CERT", cert), ("KEY", key)):
        monkeypatch.delenv(f"SIMILE_TLS_{name}_FILE", raising=False)
        if value is not None:
            monkeypatch.setenv(f"SIMILE_TLS_{name}_FILE", str(value))
    with pytest.raises(StartupError) as refused:
        require_usable(read())
    return str(refused.value)


def test_a_pair_that_cannot_be_used_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[Path, Path]
) -> None:
    cert, key = pair
    _, other = certificate(tmp_path, "other")
    _, secret = certificate(tmp_path, "secret", password="a password")
    assert "belong together" in refused_pair(monkeypatch, cert, None)
    assert "belong together" in refused_pair(monkeypatch, None, key)
    assert "No such file" in refused_pair(monkeypatch, cert, tmp_path / "absent")
    for wrong in (other, secret, cert):
        said = refused_pair(monkeypatch, cert, wrong)
        assert "SIMILE_TLS_CERT_FILE" in said
        assert "cannot be used" in said
