"""python -m models with rerankers, as a person uses it, and their wrong-kind errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.__main__ import main
from models.errors import Damaged, DamagedRequest, InUse, ProofFailed, UnknownVersion, WrongKind
from models.manifest import Manifest, QuantizedScores
from models.publishing.default import publish_named
from models.publishing.pair import pair
from models.publishing.scores import check_golden_scores
from models.store import ModelStore
from tests.models.forms import needs_int8
from tests.tiny import tiny_cross_encoder, tiny_source


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder with an encoder, two rerankers and a classifier."""
    folder = tmp_path_factory.mktemp("kinds")
    store = ModelStore(folder / "models")
    sources = [
        tiny_source(folder / "encoder"),
        tiny_cross_encoder(folder / "one"),
        tiny_cross_encoder(folder / "two", seed=2),
        tiny_cross_encoder(folder / "classes", labels=("no", "yes", "unknown")),
    ]
    for source in sources:
        publish_named(store, str(source))
    return store.root


@pytest.fixture
def root(published: Path, tmp_path: Path) -> Path:
    return shutil.copytree(published, tmp_path / "models")


@pytest.fixture
def store(root: Path) -> ModelStore:
    return ModelStore(root)


def named(store: ModelStore, origin: str) -> str:
    return next(known.version for known in store.versions() if known.origin == origin)


def run(root: Path, *arguments: str) -> int:
    return main(["--models-dir", str(root), *arguments], environ={})


def test_a_cross_encoder_is_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root = tiny_cross_encoder(tmp_path / "source"), tmp_path / "models"
    assert run(root, "import", str(source), "--name", "Mine") == 0
    first = capsys.readouterr()
    version = first.out.split()[0]
    assert "-mine-" in version
    assert "verifying it against the weights" in first.err
    assert run(root, "import", str(source)) == 0
    assert capsys.readouterr().out.startswith(f"{version} was published before. ")
    [manifest] = ModelStore(root).versions()
    assert (manifest.kind, manifest.dimension, manifest.activation) == ("reranker", 1, "sigmoid")
    assert (manifest.max_length, manifest.packed) == (64, True)
    assert "cross-encoder" in (root / version / "MODEL_CARD.md").read_text().lower()


def test_import_with_a_pooling_still_makes_an_encoder(tmp_path: Path) -> None:
    source, root = tiny_cross_encoder(tmp_path / "source"), tmp_path / "models"
    assert run(root, "import", str(source), "--pooling", "mean") == 0
    [manifest] = ModelStore(root).versions()
    assert (manifest.kind, manifest.pooling) == ("encoder", "mean")


def test_the_list_shows_the_kind_and_what_is_requested(
    root: Path, store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, one, two = (named(store, origin) for origin in ("encoder", "one", "two"))
    store.write_state({"live": encoder, "reranker": two})
    serve(store, one)
    store.request_reranker(two)
    assert run(root, "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["versions"]
    found = {entry["version"]: (entry["kind"], entry["state"]) for entry in listed}
    assert found[encoder] == ("encoder", "live")
    assert found[one] == ("reranker", "previous")
    assert found[two] == ("reranker", "live")
    assert run(root, "list") == 0
    table = capsys.readouterr().out
    assert "previous reranker" in table
    assert "candidate reranker" in table


def test_show_and_verify_read_a_reranker(
    root: Path, store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    version = named(store, "classes")
    assert run(root, "show", version) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "reranker"
    assert shown["labels"] == ["no", "yes", "unknown"]
    assert "activation" not in shown, "identity is left out"
    assert run(root, "verify", version) == 0
    assert "golden scores within" in capsys.readouterr().out


def test_verify_finds_other_scores(root: Path, store: ModelStore) -> None:
    version = named(store, "one")
    golden = root / version / "golden.json"
    content = json.loads(golden.read_text())
    content["logits"][3][0] += 0.01
    golden.write_text(json.dumps(content))
    with pytest.raises(Damaged, match=r"golden\.json was changed"):
        store.verify(version)
    reranker = store_open_anyway(store, version)
    with pytest.raises(ProofFailed, match="differs from the published score"):
        check_golden_scores(reranker, root / version)


def store_open_anyway(store: ModelStore, version: str) -> Any:
    from models.reranker import Reranker

    return Reranker.open(store.folder(version))


def test_rerankers_are_activated_rolled_back_and_deactivated(
    root: Path, store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = named(store, "one"), named(store, "two")
    assert run(root, "deactivate") == 1
    assert "No reranker is requested" in capsys.readouterr().err
    assert run(root, "activate", one) == 0
    assert store.requested_reranker()[:2] == (one, None)
    store.note_served(one)
    assert run(root, "rollback", "--reranker") == 1
    assert "no reranker to go back to" in capsys.readouterr().err
    assert run(root, "activate", two) == 0
    assert run(root, "activate", two) == 0, "again"
    assert store.requested_reranker()[:2] == (two, one)
    store.note_served(two)
    assert run(root, "rollback", "--reranker") == 0
    assert store.requested_reranker()[:2] == (one, two)
    store.note_served(one)
    assert run(root, "deactivate") == 0
    assert store.requested_reranker()[:2] == (None, one)
    assert run(root, "rollback", "--reranker") == 0
    assert store.requested_reranker()[:2] == (one, None)
    assert store.requested() is None, "encoders have requests of their own"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("one", ("one", None)),
        ("one two", ("two", None)),
        ("one+ two", ("two", "one")),
        ("one+ two one", ("one", None)),
        ("one+ two one+ -", (None, "one")),
        ("one+ two classes", ("classes", "one")),
        ("one+ - two", ("two", "one")),
        ("one+ two+ classes two", ("two", None)),
        ("one+ one two", ("two", "one")),
        ("one+ two+ two", ("two", "one")),
        ("one+ - -", (None, "one")),
    ],
)
def test_the_previous_reranker_is_one_that_was_served(
    store: ModelStore, steps: str, expected: tuple[str | None, str | None]
) -> None:
    """A step requests a reranker. With a plus, a service serves it. A dash requests none."""
    for step in steps.split():
        store.request_reranker(None if step == "-" else named(store, step.rstrip("+")))
        if step.endswith("+"):
            store.note_served(named(store, step.rstrip("+")))
    found = store.requested_reranker()[:2]
    assert found == tuple(origin and named(store, origin) for origin in expected)


def test_a_request_of_an_earlier_build_counts_as_served(root: Path, store: ModelStore) -> None:
    one, two = named(store, "one"), named(store, "two")
    (root / "reranker.json").write_text(json.dumps({"version": one, "previous": None}))
    store.request_reranker(two)
    assert store.requested_reranker()[:2] == (two, one)


def test_the_active_reranker_is_not_pruned(store: ModelStore) -> None:
    one, two = named(store, "one"), named(store, "two")
    store.request_reranker(two)
    store.write_state({"live": named(store, "encoder"), "reranker": one})
    with pytest.raises(InUse, match="the active reranker"):
        store.prune(one)


def test_only_the_requested_reranker_is_noted_as_served(store: ModelStore) -> None:
    one, two = named(store, "one"), named(store, "two")
    serve(store, one)
    before = store.request_reranker(two)
    store.note_served(one)
    assert store.requested_reranker() == before


def serve(store: ModelStore, version: str) -> None:
    store.request_reranker(version)
    store.note_served(version)


def test_requested_rerankers_are_not_pruned(root: Path, store: ModelStore) -> None:
    one, two, classes = (named(store, origin) for origin in ("one", "two", "classes"))
    serve(store, one)
    store.request_reranker(two)
    for version, use in ((one, "previous reranker"), (two, "requested reranker")):
        with pytest.raises(InUse, match=use):
            store.prune(version)
    assert run(root, "prune", "--keep", "0") == 0
    assert store.names() == {one, two}
    assert classes not in store.names()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 3}',
        '{"version": "../x", "previous": null}',
        '{"other": 1}',
        '"one"',
    ],
)
def test_a_damaged_request_is_reported_and_replaced(
    root: Path, store: ModelStore, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "reranker.json").write_text(content)
    with pytest.raises(DamagedRequest, match="activate RERANKER"):
        store.requested_reranker()
    assert run(root, "prune", "--keep", "0") == 1, "which versions are in use is unknown"
    assert run(root, "rollback", "--reranker") == 1
    assert capsys.readouterr().err.count("request for a reranker is damaged") == 2
    assert run(root, "list") == 0
    assert "request for a reranker is damaged" in capsys.readouterr().out
    assert run(root, "activate", named(store, "one")) == 0
    assert store.requested_reranker().version == named(store, "one")


def test_a_damaged_request_can_be_withdrawn(root: Path, store: ModelStore) -> None:
    (root / "reranker.json").write_text("{")
    assert run(root, "deactivate") == 0
    assert store.requested_reranker().version is None


def test_fields_of_later_releases_in_the_request_are_ignored(root: Path, store: ModelStore) -> None:
    one, two = named(store, "one"), named(store, "two")
    (root / "reranker.json").write_text(json.dumps({"version": one, "previous": two, "later": [1]}))
    assert store.requested_reranker()[:2] == (one, two)


@pytest.mark.parametrize(
    "use",
    [
        lambda store, version: store.open(version),
        lambda store, version: store.request(version),
        lambda store, version: store.request(version, "activate"),
        lambda store, version: store.new_request(version, "rollback"),
        lambda store, version: pair(store, version, named(store, "encoder")),
        lambda store, version: pair(store, named(store, "encoder"), version),
    ],
)
def test_a_reranker_in_place_of_an_encoder_is_refused(
    store: ModelStore, use: Callable[[ModelStore, str], object]
) -> None:
    version = named(store, "one")
    with pytest.raises(WrongKind, match=f"{version} is a reranker.*models activate {version}"):
        use(store, version)
    assert not (store.root / "wanted").exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda store, version: store.open_reranker(version),
        lambda store, version: store.request_reranker(version),
    ],
)
def test_an_encoder_in_place_of_a_reranker_is_refused(
    store: ModelStore, use: Callable[[ModelStore, str], object]
) -> None:
    version = named(store, "encoder")
    with pytest.raises(WrongKind, match=f"{version} is an encoder.*Name a reranker"):
        use(store, version)
    assert not (store.root / "reranker.json").exists()


def test_an_unknown_reranker_is_refused(store: ModelStore) -> None:
    for use in (store.open_reranker, store.request_reranker):
        with pytest.raises(UnknownVersion):
            use("20260102T030405-none-12345678")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "encoder"),
        ("activation", "identity"),
        ("dimension", 2),
        ("max_length", 32),
        ("pooling", "mean"),
    ],
)
def test_a_manifest_that_contradicts_the_graph_is_damaged(
    root: Path, store: ModelStore, field: str, value: object
) -> None:
    version = named(store, "one")
    file = root / version / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(Damaged, match="its manifest says"):
        store.verify(version)


def test_the_manifest_of_an_encoder_has_no_new_fields(root: Path, store: ModelStore) -> None:
    """So that older releases read it; and manifests of older releases are encoders."""
    content = json.loads((root / named(store, "encoder") / "manifest.json").read_text())
    assert not {"kind", "labels", "activation"} & content.keys()
    assert Manifest.model_validate(content).kind == "encoder"


@needs_int8
def test_a_reranker_is_quantized(root: Path, store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    from models.engines.opening import INT8

    version = named(store, "one")
    time.sleep(1.1)  # a version is named after the second it was made in
    assert run(root, "quantize", version) == 0
    again = capsys.readouterr().out.split()[0]
    assert again != version
    cost = store.verify(again).quantised
    assert isinstance(cost, QuantizedScores)
    assert cost.correlation > 0.98
    reranker = store.open_reranker(again, form=INT8)
    assert check_golden_scores(reranker, store.folder(again)) < 0.06
    assert reranker.turned is not None
    assert 0 < reranker.turned.mean <= reranker.turned.most < 0.2


@pytest.mark.parametrize("labels", [(), ("no", "yes", "unknown")])
def test_a_cross_encoder_is_imported_without_torch(tmp_path: Path, labels: tuple[str, ...]) -> None:
    source = tiny_cross_encoder(tmp_path / "source", labels=labels)
    code = f"""
import sys
from functools import partial
from pathlib import Path
sys.modules["torch"] = sys.modules["transformers"] = None
from models.publishing import import_process
from models.publishing.publish import publish
from models.sources.folder import NO_OVERRIDES
from models.store import ModelStore
import_process.find_spec = lambda name: None
opened = partial(import_process.open_with_overrides, NO_OVERRIDES)
store = ModelStore(Path({str(tmp_path / "models")!r}))
print(publish(store, Path({str(source)!r}), opened=opened).kind)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("reranker\n", 0), done.stderr


def test_scores_do_not_depend_on_the_batch_or_on_repetition(store: ModelStore) -> None:
    from models.tokens.pairs import Pair

    reranker = store.open_reranker(named(store, "classes"))
    pairs = [Pair(f"river {at}", "stone " * (at % 9)) for at in range(40)]
    together = reranker.score(pairs)
    alone = np.concatenate([reranker.score([pair]) for pair in pairs])
    assert together.shape == (40, 3)
    np.testing.assert_allclose(together, alone, atol=1e-5, rtol=0)
    exact = store.open_reranker(named(store, "classes"), deterministic=True)
    assert np.array_equal(exact.score(pairs), np.concatenate([exact.score([each]) for each in pairs]))
    assert reranker.score([]).shape == (0, 3)
