"""Scopes of keys: their text, and the routes that keep to them."""

from pathlib import Path

import pytest
from fastapi import FastAPI

from service.api.openapi import describe
from service.app import create_app
from service.auth.key_scope import KeyScope, OpenTo, ScopeError, parse_scope
from service.auth.keys import KeysError, Role, parse
from service.cli import keys as command
from service.http.routing import RoleRoute
from service.settings import Settings

HASH = "a" * 64
# A route that touches documents, or tells of them, belongs here only with an attack in test_attacks.py.
SCOPED = """
POST / /embed /similarity /tokenize /decode /embeddings /v1/embeddings /v2/embed
POST /rerank /v1/rerank /v2/rerank /predict /mcp
GET /v1/models /info /me /models /models/{version} /examples /collections /collections/{collection}/synonyms
POST /search /documents /files /files/preview /feedback /events
GET /search /suggest /documents /documents/count /documents/{id:anything} /map
GET /feedback /feedback/count /feedback/summary /events /events/count
DELETE /documents /documents/{id:anything} /feedback /events
"""
COLLECTIONS = """
PUT /collections/{collection}/synonyms
DELETE /collections/{collection}/synonyms /collections/{collection}
"""
BELOW = ("/search", "/suggest", "/documents", "/files", "/feedback", "/events", "/map")


def list_routes(table: str) -> set[tuple[str, str]]:
    plain = {
        (method, path) for method, *paths in map(str.split, table.strip().splitlines()) for path in paths
    }
    return plain | {
        (method, f"/collections/{{collection}}{path}") for method, path in plain if path.startswith(BELOW)
    }


def test_only_routes_that_were_attacked_are_open_to_tenants(tmp_path: Path) -> None:
    app: FastAPI = create_app(Settings(data_dir=tmp_path / "never-made"))
    found: dict[OpenTo, set[tuple[str, str]]] = {each: set() for each in OpenTo}
    for route in app.routes:
        if isinstance(route, RoleRoute) and route.role is not None:
            found[route.open_to] |= {(method, route.path) for method in route.methods or ()}
    assert found[OpenTo.SCOPED] == list_routes(SCOPED)
    assert found[OpenTo.COLLECTIONS] == list_routes(COLLECTIONS)
    assert found[OpenTo.UNSCOPED]


def test_a_new_route_is_closed_to_keys_with_a_scope() -> None:
    async def read_all() -> None:
        pass

    route = RoleRoute("/new", read_all, **describe(Role.READ))
    assert not route.open_to.admits(KeyScope(("a",)))
    assert route.open_to.admits(None)


def test_a_scope_is_read_from_the_seventh_field() -> None:
    scope = (
        '{"collections":["acme","acme-*"],"filter":{"tenant":"a:b","n":1},"max_documents":5,"max_bytes":9}'
    )
    text = f"acme:write:{HASH}:1:2::{scope}\nown:read:{'b' * 64}::::" + '{"collections":["own"]}'
    acme, own = parse(text)
    assert acme.scope == KeyScope(("acme", "acme-*"), (("n", 1), ("tenant", "a:b")), 5, 9)
    assert (acme.requests_per_minute, acme.tokens_per_minute) == (1, 2)
    assert not acme.trusted, "what a tenant of a shared collection judges teaches nobody"
    assert own.scope == KeyScope(("own",))
    assert own.trusted
    [said] = parse(f"acme:write:{HASH}:::trusted:{scope}")
    assert said.trusted
    assert parse_scope(str(acme.scope)) == acme.scope


@pytest.mark.parametrize(
    ("collection", "allowed"),
    [("acme", True), ("acme-", True), ("acme-x", True), ("acm", False), ("acmex", False), ("default", False)],
)
def test_a_prefix_ends_with_a_star(collection: str, allowed: bool) -> None:
    assert KeyScope(("acme", "acme-*")).allows(collection) is allowed
    assert KeyScope(("*",)).allows(collection)


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("[]", "must be a JSON object"),
        ("sk-simile-secret", "must be a JSON object"),
        ('{"filter":{"tenant":"a"}}', 'needs "collections"'),
        ('{"collections":[]}', "a list of 1 to 100"),
        ('{"collections":"acme"}', "a list of 1 to 100"),
        ('{"collections":["a*b"]}', "entry 1"),
        ('{"collections":["a","-b"]}', "entry 2"),
        ('{"collections":["a"],"filters":{}}', "no other fields than collections, filter"),
        ('{"collections":["a"],"filter":{}}', "1 to 8 fields"),
        ('{"collections":["a"],"filter":{"$or":1}}', "names of metadata"),
        ('{"collections":["a"],"filter":{"a.b":1}}', "names of metadata"),
        ('{"collections":["a"],"filter":{"":1}}', "names of metadata"),
        ('{"collections":["a"],"filter":{"a":null}}', "each value"),
        ('{"collections":["a"],"filter":{"a":["x"]}}', "each value"),
        ('{"collections":["a"],"filter":{"a":{"$ne":"x"}}}', "each value"),
        ('{"collections":["a"],"filter":{"a":"x\\u0000"}}', "each value"),
        ('{"collections":["a"],"filter":{"a":"2024-05-01"}}', "a date or a time"),
        ('{"collections":["a"],"filter":{"a":"2024-05-01T00:00:00Z"}}', "a date or a time"),
        ('{"collections":["a"],"max_documents":0}', "at least 1"),
        ('{"collections":["a"],"max_collections":1.5}', "at least 1"),
        ('{"collections":["a"],"max_bytes":true}', "at least 1"),
    ],
)
def test_a_malformed_scope_is_refused_without_quoting_it(scope: str, words: str) -> None:
    with pytest.raises(ScopeError) as refused:
        parse_scope(scope)
    assert words in str(refused.value)
    with pytest.raises(KeysError, match="line 1") as refused_line:
        parse(f"acme:write:{HASH}::::{scope}")
    assert "secret" not in str(refused_line.value)


def test_an_admin_has_no_scope() -> None:
    with pytest.raises(KeysError, match="role admin sees everything"):
        parse(f"acme:admin:{HASH}::::" + '{"collections":["a"]}')


def test_the_command_adds_and_lists_scopes(tmp_path: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    command.describe(parser)
    file = tmp_path / "keys"

    def run(*arguments: str) -> str:
        return command.run(parser.parse_args([*arguments, "--file", str(file)]))

    run("add", "ops", "--role", "admin")
    scope = ("--collections", "acme,acme-*", "--filter", '{"tenant":"acme"}')
    run("add", "acme", "--role", "write", *scope, "--max-documents", "7", "--max-bytes", "9")
    run("add", "makes", "--role", "write", "--collections", "b-*", "--max-collections", "5")
    text = '{"collections":["acme","acme-*"],"filter":{"tenant":"acme"},"max_documents":7,"max_bytes":9}'
    assert file.read_text().splitlines()[1].endswith(f"::::{text}")
    listed = run("list").splitlines()
    assert listed[1].endswith("trusted    everything")
    assert listed[2].endswith(f"untrusted  {text}")
    assert listed[3].endswith('{"collections":["b-*"],"max_collections":5}')
    for wrong, words in (
        (("--max-documents", "7"), "collections"),
        (("--collections", "a b"), "entry 1"),
        (("--collections", "a", "--filter", "tenant=acme"), "--filter is not JSON"),
    ):
        with pytest.raises(KeysError, match=words):
            run("add", "other", "--role", "write", *wrong)
    with pytest.raises(KeysError, match="role admin"):
        run("add", "other", "--role", "admin", *scope)
    assert len(file.read_text().splitlines()) == 3
