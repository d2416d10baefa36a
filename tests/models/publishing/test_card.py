"""The model card: what an imported version says about itself, sealed with its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import Damaged
from models.manifest import ANCHOR, FUSION, Manifest, Quantized, SearchDefaults
from models.publishing.layout import CARD, write_card
from models.publishing.publish import publish
from models.store import ModelStore
from tests.tiny import WIDTH, tiny_source


def test_an_imported_version_has_a_card_of_its_own_beside_that_of_its_source(
    store: ModelStore, tmp_path: Path
) -> None:
    folder = tiny_source(tmp_path / "model")
    (folder / "README.md").write_text("The source's own card.")
    manifest = publish(store, folder, origin="tiny", lineage={"source": "a/tiny"})
    at = store.folder(manifest.version)
    assert (at / "README.md").read_text() == "The source's own card."
    card = (at / CARD).read_text(encoding="utf-8")
    assert card.startswith(f"# {manifest.version}\n\nA sentence encoder.")
    assert f"a vector of {WIDTH} numbers" in card
    assert "- Imported from a/tiny, and not trained here.\n" in card
    assert f"- Published: {manifest.created}.\n" in card
    assert "The quality of this version was not measured" in card
    assert "- It reads 64 tokens of a text" in card
    assert f"`simile models activate {manifest.version}`" in card
    assert "Parent" not in card
    assert "Anchor" not in card


def test_the_card_is_sealed_and_a_version_from_before_there_was_one_is_valid(
    store: ModelStore, tmp_path: Path
) -> None:
    manifest = publish(store, tiny_source(tmp_path / "model"), origin="tiny")
    at = store.folder(manifest.version)
    files = {file: checksum for file, checksum in manifest.files.items() if file != CARD}
    assert len(files) == len(manifest.files) - 1
    with (at / CARD).open("a") as file:
        file.write("Better than all others.\n")
    with pytest.raises(Damaged, match="was changed"):
        store.verify(manifest.version)
    (at / CARD).unlink()
    (at / "manifest.json").write_text(manifest.model_copy(update={"files": files}).text())
    assert store.verify(manifest.version).version == manifest.version


def test_every_figure_of_the_manifest_is_in_the_card(store: ModelStore, tmp_path: Path) -> None:
    published = publish(store, tiny_source(tmp_path / "model"), origin="tiny")
    manifest = published.model_copy(
        update={
            "lineage": {
                "method": "triples", "texts": 12345, "steps": 678, "base": "default", "share": 0.25,
                ANCHOR: "the-anchor",
            },
            "parent": "the-parent",
            "search": {"tickets": SearchDefaults(mode="hybrid", weight=0.7, fusion=FUSION)},
            "prompts": {"query": "ask: "},
            "search_prompt": "ask: ",
            "quantised": Quantized(
                calibrated_on=9, measured_on=2000, cosine_mean=0.99871, cosine_least=0.98765,
                same_neighbours=0.9234,
            ),
        }
    )  # fmt: skip
    card = written(tmp_path, manifest)
    for said in (
        "Trained by the recipe triples on 12,345 rows, in 678 steps.",
        "Base, where the training began: default.",
        "25% of the way from the base to the trained weights was kept.",
        "Learned search settings of the collection tickets: hybrid, weight 0.7 of the vectors.",
        "Parent: the-parent.",
        "Anchor, the imported model of its line: the-anchor.",
        "on 2,000 texts: mean cosine 0.9987, smallest 0.9877; 92.3% of the ten nearest",
        'prompt_name="query"',
        "Put 'ask: ' before a query and '' before a document",
    ):
        assert said in card, said
    assert "Imported" not in card


def test_the_card_of_a_model_that_only_simile_opens_names_no_other_way(
    store: ModelStore, tmp_path: Path
) -> None:
    manifest = publish(store, tiny_source(tmp_path / "model"), origin="tiny")
    card = written(tmp_path, manifest.model_copy(update={"portable": "simile"}))
    assert "SentenceTransformer" not in card
    assert "sentence-transformers cannot open it" in card


def written(folder: Path, manifest: Manifest) -> str:
    write_card(folder, manifest)
    return (folder / CARD).read_text(encoding="utf-8")
