"""Export of a run: verified against torch and published with its lineage, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from models.errors import ProofFailed
from models.publishing.from_torch.export import Forward, export, prepare_trained
from models.publishing.proof import check_golden
from models.publishing.publish import publish, publish_prepared
from models.sources.folder import read_source
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS
from tests.tiny import MAX_LENGTH
from tests.training.conftest import RECIPE_TEXT, Run
from tests.training.families import family_source
from training.__main__ import main
from training.errors import TrainingError
from training.methods.recipe import Recipe
from training.runs.export import export_run
from training.text.corpus import Corpus

FAMILIES = ["bert", "roberta", "distilbert"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_version_computes_what_torch_does_and_is_its_own_source(tmp_path: Path, family: str) -> None:
    source = family_source(tmp_path / family, family)
    store = ModelStore(tmp_path / "models")
    manifest = export(source, store, origin=family)
    folder, encoder = store.folder(manifest.version), store.open(manifest.version)
    rows = [tokens.ids for tokens in encoder.tokenize(PROOF_TEXTS)]
    together = encoder.forward(rows)
    expected = Forward.load(read_source(source)).embed(rows)
    assert np.abs(together - expected).max() < 1e-5
    assert np.abs(together - np.concatenate([encoder.forward([row]) for row in rows])).max() < 1e-6
    assert np.abs(together @ together.T - 1).max() > 0.1, "all texts would look alike"
    assert check_golden(encoder, folder) < 1e-6
    outputs = onnx.load(folder / "onnx/model.onnx", load_external_data=False).graph.output
    names = ["last_hidden_state", "sentence_embedding", "pooled_embedding"]
    assert [output.name for output in outputs] == names
    assert publish(store, folder) == manifest, "published again it must be the same version"
    assert export(source, store, origin=family) == manifest


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_changed_after_the_graph_was_written_are_refused(tmp_path: Path, family: str) -> None:
    prepared = prepare_trained(read_source(family_source(tmp_path / family, family)))
    forward = Forward.load(prepared.source)
    with torch.no_grad():
        for parameter in forward.backbone.parameters():
            parameter.mul_(1.01)
            break
    store = ModelStore(tmp_path / "models")
    with pytest.raises(
        ProofFailed, match=r"away from the same weights computed in torch|differs from the same"
    ):
        publish_prepared(store, prepared._replace(reference=forward.embed), origin="x", lineage={})
    assert store.versions() == []


def test_the_reference_has_no_dropout_even_if_something_left_training_on(tmp_path: Path) -> None:
    forward = Forward.load(read_source(family_source(tmp_path / "roberta", "roberta")))
    rows = [[2, 90, 91, 92, 3]]
    expected = forward.embed(rows)
    forward.backbone.train()
    assert np.array_equal(forward.embed(rows), expected)


def test_a_maximum_beyond_the_position_table_is_cut_to_it(tmp_path: Path) -> None:
    source = family_source(tmp_path / "roberta", "roberta")
    (source / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    manifest = export(source, ModelStore(tmp_path / "models"), origin="x")
    assert manifest.max_length == 127, "the first of 128 positions is the padding's"


def test_a_run_becomes_a_candidate_with_its_lineage(
    run: Run, recipe: Recipe, corpus: Corpus, tiny_models_dir: Path, tmp_path: Path
) -> None:
    (base,) = (path for path in tiny_models_dir.iterdir() if (path / "manifest.json").exists())
    result = run("out", base=base, base_name=base.name)
    store = ModelStore(tmp_path / "models")
    manifest = export_run(result.out, store)
    assert store.requested() is None
    assert manifest.parent == base.name
    assert manifest.origin == "simcse-unsup"
    assert manifest.max_length == MAX_LENGTH
    lineage = manifest.lineage
    assert (lineage["method"], lineage["corpus"], lineage["texts"]) == ("simcse-unsup", corpus.digest, 64)
    assert (lineage["seed"], lineage["steps"], lineage["base"]) == (42, 6, base.name)
    assert len(lineage["recipe"]) == 64
    trained = Forward.load(read_source(result.best))
    encoder = store.open(manifest.version)
    rows = [tokens.ids for tokens in encoder.tokenize(corpus.texts[:8])]
    assert np.abs(encoder.forward(rows) - trained.embed(rows)).max() < 1e-5
    before = Forward.load(read_source(base)).embed(rows)
    assert np.abs(encoder.forward(rows) - before).max() > 1e-4, "it must be the trained weights"


def test_a_head_that_the_recipe_keeps_is_published(run: Run, tmp_path: Path) -> None:
    from training.methods.recipe import load_recipe

    text = RECIPE_TEXT.replace("keep = false", "keep = true")
    (tmp_path / "kept.toml").write_text(text)
    base = family_source(tmp_path / "raw", "bert")
    (base / "modules.json").unlink()
    result = run("out", recipe=load_recipe(str(tmp_path / "kept.toml")), base=base)
    store = ModelStore(tmp_path / "models")
    manifest = export_run(result.out, store)
    assert manifest.pooling == "cls"
    assert (store.folder(manifest.version) / "2_Dense" / "model.safetensors").is_file()


def test_prompts_of_the_base_are_published_and_used_in_training(run: Run, tmp_path: Path) -> None:
    from tests.tiny import tiny_source

    prompts = {"query": "open ", "document": "close "}
    plain = run("plain", base=tiny_source(tmp_path / "plain_base"), steps=1)
    prompted = run("prompted", base=tiny_source(tmp_path / "base", prompts=prompts), steps=1)
    assert prompted.loss != plain.loss
    manifest = export_run(prompted.out, ModelStore(tmp_path / "models"))
    assert (manifest.search_prompt, manifest.document_prompt) == ("open ", "close ")


def test_an_unfinished_run_is_not_exported(run: Run, tmp_path: Path) -> None:
    result = run("out", steps=1)
    content = json.loads((result.out / "run.json").read_text())
    del content["finished"]
    (result.out / "run.json").write_text(json.dumps(content))
    with pytest.raises(TrainingError, match=r"is not finished. Continue it"):
        export_run(result.out, ModelStore(tmp_path / "models"))


def test_the_command_publishes_and_finds_it_published(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run("out", steps=1).out
    arguments = ["export", str(out), "--models-dir", str(tmp_path / "models")]
    assert main(arguments) == 0
    [version] = ModelStore(tmp_path / "models").names()
    command = f"simile models activate {version} --models-dir {tmp_path / 'models'}"
    said = f"Nothing serves it before `{command}`.\n"
    assert capsys.readouterr().out == f"{version} published. {said}"
    assert main([*arguments, "--step", "last"]) == 0
    assert capsys.readouterr().out == f"{version} was published before. {said}"
