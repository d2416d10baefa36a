"""`python -m service map` on a real store, and `GET /map` of its file."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.__main__ import parser
from service.cli.commands import map_documents
from service.errors import CommandError
from service.index.kmeans import nearest_rows
from service.settings import Settings
from tests.service.conftest import new_settings, serving

OF_A_DIRECTORY = pytest.mark.sqlite("a map is of a data directory")

SUBJECTS: dict[str, str] = {
    "rivers": "red river bridge harbour",
    "gardens": "green garden forest market",
    "pets": "cat dog animal sleeps",
}
DOCUMENTS = [
    {"id": f"{name}-{at}", "text": f"{words} {at}", "metadata": {"subject": name, "at": at}}
    for name, words in SUBJECTS.items()
    for at in range(30)
]


class Circle:
    """Replaces UMAP, which may be missing: returns the first two components of the vectors."""

    def UMAP(self, **options: object) -> "Circle":  # noqa: N802
        return self

    def fit_transform(self, rows: map_documents.Plane) -> map_documents.Plane:
        return np.asarray(rows[:, :2])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Settings:
    settings = new_settings(tmp_path_factory.mktemp("map"), tiny_models_dir)
    with serving(settings) as client:
        assert client.post("/documents", json={"documents": DOCUMENTS}).status_code == 200
        few = {"documents": [{"text": "red river"}]}
        assert client.post("/collections/few/documents", json=few).status_code == 200
    return settings


def make(settings: Settings, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    monkeypatch.setattr(map_documents, "find_umap", lambda _: Circle())
    said = map_documents.run(parser().parse_args(["map", *options]), settings)
    content: dict[str, Any] = json.loads(Path(said.partition("): ")[2]).read_bytes())
    return content


@OF_A_DIRECTORY
def test_every_document_has_a_place_a_group_and_its_fields(
    stored: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(stored, monkeypatch)
    ids, of = made["ids"], made["fields"]["subject"]["of"]
    assert sorted(ids) == sorted(str(one["id"]) for one in DOCUMENTS)
    assert len(made["x"]) == len(made["y"]) == len(made["cluster"]) == len(of) == 90
    values = made["fields"]["subject"]["values"]
    assert [values[value] for value in of] == [id.partition("-")[0] for id in ids]
    assert "at" in made["fields"]
    sizes = np.bincount(made["cluster"])
    assert [group["size"] for group in made["clusters"]] == sizes.tolist()
    assert {word for group in made["clusters"] for word in group["words"]} <= set(
        " ".join(SUBJECTS.values()).split()
    )


@OF_A_DIRECTORY
def test_the_route_answers_with_the_map_of_the_live_version(
    stored: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(stored, monkeypatch, "--points", "60")
    assert len(made["ids"]) == 60
    with serving(stored) as client:
        assert client.get("/map").json() == made
        assert client.get("/map", params={"version": made["version"]}).json() == made
        for part in ("bytes=0-3", "bytes=9999999-", "lines=1-2"):
            whole = client.get("/map", headers={"range": part})
            assert (whole.status_code, whole.json()) == (200, made), "a part would be no JSON"
            assert whole.headers["cache-control"] == "no-cache"
        refused(client, "/map?version=20260101T000000-none-00000000")
        refused(client, "/map?version=..%2F..")
        refused(client, "/collections/few/map")
        refused(client, "/collections/none/map")


def test_a_deleted_collection_leaves_no_map(stored: Settings) -> None:
    maps = [stored.maps_dir / "20260101T000000-any-00000000" / f"{name}.json" for name in ("gone", "kept")]
    maps[0].parent.mkdir(parents=True, exist_ok=True)
    for file in maps:
        file.write_text("{}")
    with serving(stored) as client:
        documents = {"documents": [{"text": "red river"}]}
        assert client.post("/collections/gone/documents", json=documents).status_code == 200
        assert client.get("/collections/gone/map").status_code == 200
        assert client.delete("/collections/gone").status_code == 200
        assert client.post("/collections/gone/documents", json=documents).status_code == 200
        refused(client, "/collections/gone/map")
        assert client.delete("/collections/gone").status_code == 200
    assert [file.exists() for file in maps] == [False, True]
    maps[1].unlink()


def refused(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["error_type"]) == (404, "NotFound")


@OF_A_DIRECTORY
def test_what_cannot_be_mapped_is_told_in_a_sentence(
    stored: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match="has 1 document with vectors; a map needs 50"):
        make(stored, monkeypatch, "--collection", "few")
    monkeypatch.undo()
    without_umap(monkeypatch)
    with pytest.raises(
        CommandError, match=r"`make map` installs it, or \S+ -m pip install -c \S+ -e '?\S+\[map\]"
    ):
        map_documents.find_umap(5001)


def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)  # Its import then fails, as if it were missing.


@OF_A_DIRECTORY
def test_a_small_collection_needs_no_umap(stored: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    without_umap(monkeypatch)
    said = map_documents.run(parser().parse_args(["map"]), stored)
    assert said.endswith("\n`make map` separates groups better: it installs umap-learn.")
    made = json.loads(Path(said.partition("): ")[2].partition("\n")[0]).read_bytes())
    assert sorted(made["ids"]) == sorted(str(one["id"]) for one in DOCUMENTS)
    assert grouped(made) > 0.9
    again = map_documents.run(parser().parse_args(["map"]), stored)
    assert json.loads(Path(again.partition("): ")[2].partition("\n")[0]).read_bytes())["x"] == made["x"]


@pytest.mark.parametrize("documents", [50, 1000, 5000])
def test_umap_is_not_needed_for_up_to_5000_documents(monkeypatch: pytest.MonkeyPatch, documents: int) -> None:
    without_umap(monkeypatch)
    assert map_documents.find_umap(documents) is None


def test_a_projection_is_that_of_the_covariance() -> None:
    random = np.random.default_rng(0).normal(size=(200, 6))
    rows = (random * [9, 5, 1, 1, 1, 1] + 3).astype(np.float32)
    _, axes = np.linalg.eigh(np.cov(rows.T))
    expected = (rows - rows.mean(axis=0)) @ axes[:, :-3:-1]
    np.testing.assert_allclose(np.abs(map_documents.projected(rows)), np.abs(expected), atol=1e-2)


def test_equal_documents_have_a_map_too() -> None:
    rows = np.full((60, 4), 0.5, np.float32)
    places = map_documents.fitted(map_documents.projected(rows))
    assert np.isfinite(places).all()
    assert (places.min(), places.max()) >= (0, 0)
    assert places.max() <= map_documents.SIDE


def grouped(made: dict[str, Any]) -> float:
    """Returns the share of documents that lie nearest to the middle of their own subject."""
    places = np.array([made["x"], made["y"]], float).T
    assert places.min() >= 0
    assert places.max() <= map_documents.SIDE
    subject = np.array(made["fields"]["subject"]["of"])
    middles = np.array([places[subject == value].mean(axis=0) for value in range(3)])
    nearest = np.argmin(np.linalg.norm(places[:, None] - middles, axis=2), axis=1)
    return float((nearest == subject).mean())


def test_neighbors_are_those_of_numpy() -> None:
    rows = np.random.default_rng(0).normal(size=(2100, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    told: list[int] = []
    found, cosines = nearest_rows(rows, 5, told.append)
    expected = np.sort(rows @ rows.T, axis=1)[:, ::-1][:, :5]
    np.testing.assert_allclose(cosines, expected, atol=1e-5)
    assert (found[:, 0] == np.arange(len(rows))).all()
    assert told == [1024, 2048, 2100]


def test_a_turned_map_is_laid_over_the_earlier_one() -> None:
    chance = np.random.default_rng(0)
    places = chance.uniform(20_000, 40_000, (100, 2))
    ids = [str(at) for at in range(100)]
    before = {id: (int(x), int(y)) for id, (x, y) in zip(ids, places, strict=True)}
    angle = 1.1
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = (0.003 * (places * [1, -1]) @ turn + [7, -3]).astype(
        np.float32
    )  # turned, mirrored, scaled, moved
    np.testing.assert_allclose(map_documents.aligned(moved, ids, before), places, atol=20)


def test_a_new_document_begins_where_its_nearest_old_one_lay() -> None:
    rows = np.eye(40, 8, dtype=np.float32) + 0.01
    rows[39] = rows[0]
    before = {str(at): (at * 1000, 0) for at in range(39)}
    start = map_documents.begun_from(before, [str(at) for at in range(40)], rows)
    assert start is not None
    np.testing.assert_allclose(start[39], start[0], atol=0.1)
    assert map_documents.begun_from({"0": (1, 1)}, [str(at) for at in range(40)], rows) is None


def test_odd_documents_and_copies_are_found() -> None:
    rows = np.eye(6, dtype=np.float32)
    rows[1] = rows[0]
    rows[2] = (rows[0] + rows[2]) / np.sqrt(2)
    found, cosines = nearest_rows(rows, 3, lambda done: None)
    odd = map_documents.odd(found, cosines)
    assert odd["copies"] == [(0, 1)]
    assert set(odd["strays"][:3]) == {3, 4, 5}


@OF_A_DIRECTORY
def test_umap_keeps_groups_together(stored: Settings) -> None:
    pytest.importorskip("umap", reason="needs the extra map")
    said = map_documents.run(parser().parse_args(["map"]), stored)
    made = json.loads(Path(said.partition("): ")[2]).read_bytes())
    assert grouped(made) > 0.9


PAIRS = [
    ["die Rechnung ist nicht da mit freundlichen Grüßen", "der Drucker druckt nicht mit freundlichen Grüßen"],
    ["bonjour la facture est fausse merci", "bonjour le bureau est froid merci"],
    ["hola la factura es falsa gracias", "hola la oficina es fria gracias"],
    ["please help the invoice is wrong thanks", "please help the printer is broken thanks"],
    ["moin moin hier fehlt das geld bis dann", "moin moin hier fehlt der strom bis dann"],
]


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_words_of_every_text_name_no_group(pair: list[str]) -> None:
    """Greetings and function words of any language are as frequent in one group as in the other."""
    texts = [text for text in pair for _ in range(5)]
    own = [{*one.lower().split()} - {*other.lower().split()} for one, other in (pair, pair[::-1])]
    named = map_documents.find_terms(texts, np.repeat([0, 1], 5))
    for words, expected in zip(named, own, strict=True):
        assert words
        assert {*words} <= expected


def test_a_group_without_words_of_its_own_keeps_its_most_frequent_ones() -> None:
    assert map_documents.find_terms(["red river"] * 6, np.repeat([0, 1], 3)) == [["red", "river"]] * 2
    assert map_documents.find_terms(["red river"] * 6, np.zeros(6, np.int64)) == [["red", "river"]]
