"""An imported folder: its links cannot make the import read or publish files outside of it."""

from itertools import pairwise
from pathlib import Path

import pytest

from models.errors import Unsupported
from models.publishing.publish import publish
from models.store import ModelStore


def moved(file: Path, to: Path) -> None:
    """Moves the file to `to`, and leaves a link to it in its place."""
    to.parent.mkdir(parents=True, exist_ok=True)
    file.rename(to)
    file.symlink_to(to)


def test_a_page_that_is_a_link_out_of_the_folder_is_skipped_and_named(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret").write_text("a secret of this machine")
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "README.md").symlink_to(tmp_path / "secret")
    (folder / "LICENSE").symlink_to("/etc/passwd")
    store = ModelStore(tmp_path / "models")
    said: list[str] = []
    manifest = publish(store, folder, say=said.append)
    published = store.folder(manifest.version)
    assert {"README.md", "LICENSE"}.isdisjoint(manifest.files)
    assert all(b"a secret" not in file.read_bytes() for file in published.rglob("*") if file.is_file())
    skipped = [line for line in said if line.startswith("skipping")]
    assert [str(folder / name) in line for name, line in zip(("LICENSE", "README.md"), skipped, strict=True)]


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling"]
)
def test_a_needed_file_that_is_a_link_out_of_the_folder_is_refused(
    tmp_path: Path, folder: Path, name: str
) -> None:
    moved(folder / name, tmp_path / "elsewhere" / name)
    with pytest.raises(Unsupported, match=rf"{name} is a link that points outside of .* cp -rL"):
        publish(ModelStore(tmp_path / "models"), folder)
    assert ModelStore(tmp_path / "models").versions() == []


@pytest.mark.parametrize(
    "way",
    [
        ("vocab.txt", "vocab.txt"),
        ("vocab.txt", "./vocab.txt"),
        ("vocab.txt", "vocab.txt/below"),
        ("vocab.txt", "another", "vocab.txt"),
        ("vocab.txt", "first", "second", "first"),
    ],
)
def test_a_circle_of_links_is_refused(tmp_path: Path, folder: Path, way: tuple[str, ...]) -> None:
    (folder / "vocab.txt").unlink(missing_ok=True)
    for link, target in pairwise(way):
        (folder / link).symlink_to(target)
    with pytest.raises(Unsupported, match=r"vocab\.txt is a link"):
        publish(ModelStore(tmp_path / "models"), folder)


def test_links_inside_the_folder_and_into_the_blobs_of_a_hub_s_cache_are_followed(
    tmp_path: Path, folder: Path
) -> None:
    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "0123"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    for at, name in enumerate(("config.json", "model.safetensors")):
        moved(snapshot / name, snapshot.parents[1] / "blobs" / str(at))
    moved(snapshot / "tokenizer.json", snapshot / "kept" / "tokenizer.json")
    (tmp_path / "link").symlink_to(snapshot)  # The folder that the user names may be a link.
    assert publish(ModelStore(tmp_path / "models"), tmp_path / "link").files
