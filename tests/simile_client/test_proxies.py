"""Proxy variables of the environment: they never apply to this machine, and errors name the proxy."""

import asyncio
from typing import Any

import pytest

from simile_client import AsyncClient, Client, SimileError
from simile_client.clients import find_proxy, is_loopback
from tests.parts.json_server import json_server

VARIABLES = [
    ("http_proxy", "http://127.0.0.1:9"),
    ("HTTP_PROXY", "127.0.0.1:9"),
    ("ALL_PROXY", "http://127.0.0.1:9"),
    ("all_proxy", "http://127.0.0.1:9"),
    ("ALL_PROXY", "socks5h://127.0.0.1:9"),
    ("ALL_PROXY", "quic://127.0.0.1:9"),
]
ELSEWHERE = "http://simile.invalid:8000"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def info(url: str) -> dict[str, Any]:
    """Asks with both clients, whose answers or errors are equal."""

    async def ask() -> dict[str, Any]:
        async with AsyncClient(url, retries=0) as client:
            return await client.info()

    def ask_blocking() -> dict[str, Any]:
        with Client(url, retries=0) as client:
            return client.info()

    found: list[dict[str, Any] | SimileError] = []
    for request in (ask_blocking, lambda: asyncio.run(ask())):
        try:
            found.append(request())
        except SimileError as error:
            found.append(error)
    assert str(found[0]) == str(found[1])
    if isinstance(found[0], SimileError):
        raise found[0]
    return found[0]


@pytest.mark.parametrize(("name", "proxy"), VARIABLES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, name: str, proxy: str, host: str
) -> None:
    monkeypatch.setenv(name, proxy)
    with json_server(lambda *_: (200, {"dimension": 4})) as url:
        assert info(url.replace("127.0.0.1", host)) == {"dimension": 4}


@pytest.mark.parametrize(("name", "proxy"), VARIABLES)
def test_an_error_names_the_proxy(monkeypatch: pytest.MonkeyPatch, name: str, proxy: str) -> None:
    monkeypatch.setenv(name, proxy)
    with pytest.raises(SimileError, match=r"127\.0\.0\.1:9 \(proxy variables of the environment") as failed:
        info(ELSEWHERE)
    assert ("cannot be used" in str(failed.value)) == (not proxy.startswith(("http:", "127")))


def test_an_error_hides_the_password_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    with pytest.raises(SimileError, match=r"through the proxy http://127\.0\.0\.1:9 \(") as failed:
        info(ELSEWHERE)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("excluded", ["simile.invalid", ".invalid", "a.org,invalid", "*"])
def test_an_excluded_host_has_no_proxy(monkeypatch: pytest.MonkeyPatch, excluded: str) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", excluded)
    assert find_proxy(ELSEWHERE) is None
    with pytest.raises(SimileError, match=r"does not answer \("):
        info(ELSEWHERE)


@pytest.mark.parametrize(
    ("status", "said"), [(502, "HTTP status 502"), (403, "HTTP status 403"), (200, "is not")]
)
def test_an_answer_of_the_proxy_itself_names_it(
    monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    with json_server(lambda *_: (status, b"<html>")) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(SimileError, match=said) as failed:
            info(ELSEWHERE)
    assert f"through the proxy {proxy} (" in str(failed.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[(host, True) for host in ("localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0")],
        *[
            (host, False)
            for host in ("", "example.org", "localhost.org", "10.0.0.1", "192.168.1.1", "fe80::1")
        ],
    ],
)
def test_a_loopback_host_is_known_by_its_name_or_address(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
