"""Runs of cross-encoders: they learn, resume exactly, and their folder opens in sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from models.errors import ModelError, Unsupported
from models.publishing.from_torch.backbone import quiet
from models.sources.folder import read_source
from models.store import ModelStore
from tests.tiny import HEADS, INNER, LAYERS, WIDTH, tiny_cross_encoder, tiny_source
from tests.training.recipe_cases import build_corpus
from tests.training.run_cases import losses, stop_after, weights
from training.__main__ import main
from training.errors import TrainingError
from training.methods.recipe import load_recipe
from training.model.reranker import load_reranker
from training.runfile import Result
from training.runs.command import warn_of_scale
from training.runs.export import export_run
from training.text.corpus import Corpus

RECIPES = {
    "cross-encoder": ("cross-encoder", {}),
    "listwise": ("cross-encoder", {"objectives": ["list_softmax"]}),
    "scores": ("cross-encoder-scores", {}),
    "relations": ("cross-encoder-nli", {}),
}
FAST = {"optim.lr": 3e-3, "dropout": 0.0, "optim.warmup": 0.0}
_SHAPE = {
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
FAMILIES: dict[str, Any] = {
    "bert": {"type_vocab_size": 2},
    "roberta": {"type_vocab_size": 1},
    "xlm-roberta": {"type_vocab_size": 1},
    "distilbert": {"n_layers": LAYERS, "n_heads": HEADS, "dim": WIDTH, "hidden_dim": INNER},
    "electra": {"embedding_size": WIDTH, "type_vocab_size": 2},
    "mpnet": {},
    "deberta-v2": {"type_vocab_size": 0},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "global_attn_every_n_layers": 1},
}
PAIRS = [
    ("river stone market", "the river and the market"),
    ("letter", ""),
    ("cat [SEP] dog", "animal sleeps [SEP] runs"),
    ("how do i reset my password", "open the account and close it " * 20),
    ("stone " * 50, "garden " * 60),
    ("天地人", "paper window forest harbour"),
]
TrainIt = Callable[..., Result]


def family_base(folder: Path, family: str) -> Path:
    """Writes a random encoder of a family without a head, with the tokenizer of the tiny BERT."""
    tiny_source(folder)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    vocabulary = json.loads((folder / "config.json").read_bytes())["vocab_size"]
    config = transformers.AutoConfig.for_model(family, **_SHAPE | FAMILIES[family], vocab_size=vocabulary)
    torch.manual_seed(0)
    with quiet():
        model = transformers.AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        model.save_pretrained(folder)
    return folder


def train_reranker(run: TrainIt, out: str, case: str = "cross-encoder", **changed: Any) -> Result:
    name, changes = RECIPES[case]
    recipe = load_recipe(name, FAST | changes)
    return run(out, recipe=recipe, corpus=build_corpus(recipe.source.kind), **changed)


@pytest.mark.parametrize("case", RECIPES)
def test_a_run_lowers_the_loss(case: str, run: TrainIt) -> None:
    found = losses(train_reranker(run, "out", case, steps=40, batch=32))
    assert found[40] < 0.7 * found[1], found


def test_chunks_give_the_gradient_of_the_whole_batch(run: TrainIt) -> None:
    whole, chunked = (losses(train_reranker(run, f"{chunk}", steps=3, chunk=chunk)) for chunk in (None, 5))
    assert chunked == pytest.approx(whole, rel=1e-4)


def test_a_stopped_run_resumes_exactly(run: TrainIt, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_reranker(run, "whole")
    with monkeypatch.context() as stopping:
        stop_after(stopping, 3)
        assert train_reranker(run, "parts").interrupted
    resumed = train_reranker(run, "parts", resume=True)
    assert losses(resumed) == losses(whole)
    assert weights(resumed.last) == weights(whole.last)


def test_a_resumed_run_of_another_recipe_is_refused(run: TrainIt) -> None:
    train_reranker(run, "out")
    with pytest.raises(TrainingError, match="another recipe"):
        train_reranker(run, "out", "listwise", resume=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", ["cross-encoder", "relations"])
def test_the_folder_has_equal_scores_in_sentence_transformers(
    family: str, case: str, run: TrainIt, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    base = family_base(tmp_path / "base", family)
    best = train_reranker(run, "out", case, base=base, steps=2).best
    ours = load_reranker(best)
    assert (ours.width, ours.source.max_length) == ((3, 64) if case == "relations" else (1, 64))
    with quiet():
        theirs = library.CrossEncoder(str(best), device="cpu")
    logits = torch.nn.Identity()
    expected = theirs.predict(PAIRS, batch_size=4, activation_fn=logits).reshape(len(PAIRS), -1)
    assert np.abs(ours.score(PAIRS) - expected).max() < 1e-5
    assert [ours.score([pair])[0] for pair in PAIRS] == pytest.approx(expected, abs=1e-5)
    if case == "relations":
        labels = theirs.model.config.id2label
        assert labels == {0: "entailment", 1: "neutral", 2: "contradiction"}


def test_a_cross_encoder_is_a_base_that_keeps_its_head(run: TrainIt, tmp_path: Path) -> None:
    first = train_reranker(run, "first", steps=2)
    again = train_reranker(run, "again", "scores", base=first.best, steps=1)
    moved = np.abs(load_reranker(again.best).score(PAIRS) - load_reranker(first.best).score(PAIRS)).max()
    assert moved < 0.2  # one step of the base; another head would give other scores
    other = train_reranker(run, "other", "relations", base=first.best, steps=1)
    assert load_reranker(other.best).width == 3


RELATIONS = ("entailment", "neutral", "contradiction")


def classifier(folder: Path, family: str, labels: Sequence[str]) -> Path:
    """Writes a random classifier of a family, with a head whose scores differ much."""
    family_base(folder, family)
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: at for at, name in enumerate(labels)}}
    with quiet():
        config = transformers.AutoConfig.from_pretrained(folder, **names)
        model = transformers.AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]
        model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("family", "labels"),
    [
        *((family, ("contradiction", "entailment", "neutral")) for family in FAMILIES),
        ("bert", ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")),
        ("roberta", ("Neutral", "Contradiction", "Entailment")),
        ("distilbert", RELATIONS),
    ],
)
def test_a_kept_head_has_its_scores_under_the_same_names(
    family: str, labels: Sequence[str], tmp_path: Path
) -> None:
    base = classifier(tmp_path / "base", family, labels)
    before, after = load_reranker(base), load_reranker(base, 3, RELATIONS)
    assert tuple(after.backbone.config.id2label.values()) == RELATIONS
    order = [[name.lower() for name in labels].index(name) for name in RELATIONS]
    assert after.score(PAIRS) == pytest.approx(before.score(PAIRS)[:, order], abs=1e-6)


@pytest.mark.parametrize(
    ("family", "given"),
    [
        ("bert", {"model_input_names": ["input_ids", "attention_mask"]}),
        ("bert", {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("bert", {"tokenizer_class": "BertTokenizer"}),
        ("electra", {"tokenizer_class": "ElectraTokenizerFast"}),
        ("electra", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    ],
)
def test_a_cross_encoder_begins_with_its_scores_whatever_token_types_it_has(
    family: str, given: dict[str, Any], run: TrainIt, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    base = classifier(tmp_path / "base", family, RELATIONS)
    file = base / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | given))
    with quiet():
        theirs = library.CrossEncoder(str(base), device="cpu")
    expected = theirs.predict(PAIRS, activation_fn=torch.nn.Identity())
    assert load_reranker(base).score(PAIRS) == pytest.approx(expected, abs=1e-5)
    assert load_reranker(base, 3, RELATIONS).score(PAIRS) == pytest.approx(expected, abs=1e-5)
    best = train_reranker(run, "out", "relations", base=base, steps=1).best
    assert read_source(best).scoring.typed == read_source(base).scoring.typed  # type: ignore[union-attr]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_with_other_names_is_not_kept(family: str, tmp_path: Path) -> None:
    base = classifier(tmp_path / "base", family, ("LABEL_0", "LABEL_1", "LABEL_2"))
    before, *new = (load_reranker(base, *given) for given in ((None,), (3, RELATIONS), (3, RELATIONS)))
    other = load_reranker(base, 3, RELATIONS, seed=1)
    scores = [model.score(PAIRS) for model in (before, *new, other)]
    for one, two in ((0, 1), (0, 3), (1, 3)):
        assert np.abs(scores[one] - scores[two]).max() > 1e-3
    assert np.array_equal(scores[1], scores[2])


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no weights", "has no layers in a model.safetensors"),
        ("pickle", "has no layers in a model.safetensors"),
        ("no separator", "no token between two texts"),
        ("half the weights", "are incomplete"),
        ("no folder", "is not a folder"),
    ],
)
def test_a_base_that_cannot_read_pairs_is_refused_before_the_run(
    case: str, says: str, run: TrainIt, tmp_path: Path
) -> None:
    base = family_base(tmp_path / "base", "bert")
    weights = base / "model.safetensors"
    if case == "no weights":
        weights.unlink()
    elif case == "pickle":
        weights.rename(base / "pytorch_model.bin")
    elif case == "no separator":
        tokenizer = json.loads((base / "tokenizer.json").read_bytes())
        (base / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    elif case == "half the weights":
        kept = {name: each for name, each in load_file(weights).items() if "layer.1" not in name}
        save_file(kept, weights, metadata={"format": "pt"})
    else:
        base = tmp_path / "nothing"
    with pytest.raises((TrainingError, ModelError), match=says):
        train_reranker(run, "out", base=base)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    [
        "bert.embeddings.word_embeddings.weight",
        "bert.embeddings.position_embeddings.weight",
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.1.intermediate.dense.bias",
        "bert.encoder.layer.1.output.LayerNorm.weight",
        "bert.pooler.dense.weight",
        "classifier.weight",
    ],
)
def test_a_tensor_of_another_size_is_not_trained_from_random_weights(name: str, tmp_path: Path) -> None:
    folder = tiny_cross_encoder(tmp_path / "base", labels=("a", "b", "c"))
    weights = load_file(folder / "model.safetensors")
    for each in (name, "classifier.bias") if name == "classifier.weight" else (name,):
        weights[each] = weights[each][:-1]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    says = rf"do not fit its config.json: {name.replace('weight', '')}|A Dense after the pooling has weights"
    for outputs in (None,) if "classifier" in name else (None, 1, 3):  # A new classifier may have any size.
        with pytest.raises(Unsupported, match=says):
            load_reranker(folder, outputs)


def test_an_encoder_is_no_cross_encoder_to_score_with(tiny_source: Path) -> None:
    with pytest.raises(TrainingError, match="is not a cross-encoder"):
        load_reranker(tiny_source)


def test_an_encoder_does_not_begin_with_a_published_reranker(run: TrainIt, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    version = export_run(train_reranker(run, "out", steps=1).out, store).version
    with pytest.raises(TrainingError, match="is a reranker, and the recipe trains an encoder"):
        run("encoder", base=store.folder(version))


@pytest.mark.parametrize("recipe", ["cross-encoder-scores", "sbert-regression"])
@pytest.mark.parametrize(
    ("scores", "most", "warned"),
    [
        ((0.1, 1.0), "1", True),
        ((0.0, 2.49), "2.49", True),
        ((0.0, 0.0), "0", True),
        ((0.0, 100.0), "100", True),
        ((4.0, 5.1), "5.1", True),
        ((0.5, 2.5), "", False),
        ((0.0, 5.0), "", False),
    ],
)
def test_scores_of_another_scale_than_the_recipe_are_warned_of(
    recipe: str, scores: tuple[float, ...], most: str, warned: bool
) -> None:
    pairs = [(("a", "b"), (scores[0],)), (("c", "d"), (scores[1],))]
    found = warn_of_scale(load_recipe(recipe), Corpus.of_rows(pairs, "gold"))
    assert bool(found) == warned
    if warned:
        assert f"The highest score is {most}, and the recipe's `highest` is 5" in found


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("name", ["highest = 5.0", "highest = 1.0"])
def test_the_command_warns_of_scores_of_another_scale(
    name: str, tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gold.tsv").write_text("anchor\tpositive\tscore\na\tb\t1\nc\td\t0\ne\tf\t0.5\n")
    change = f'objectives=[{{ name = "score_mse", {name} }}]'
    given = ["--corpus", str(tmp_path / "gold.tsv"), "--base", str(tiny_source), "--set", change]
    out = ["--out", str(tmp_path / "out"), "--steps", "1", "--threads", "1"]
    assert main(["train", "cross-encoder-scores", *given, *out]) == 0
    assert ("! The highest score is 1, and" in capsys.readouterr().err) == ("5" in name)


def test_no_scale_is_warned_of_without_scores() -> None:
    for name in ("cross-encoder", "cross-encoder-nli", "distil-rerank"):
        recipe = load_recipe(name)
        assert warn_of_scale(recipe, build_corpus(recipe.source.kind)) == ""


@pytest.mark.parametrize("command", ["evaluate", "mine dedupe"])
def test_a_reranker_is_no_encoder_to_evaluate(
    command: str, run: TrainIt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = train_reranker(run, "out", steps=1).out
    (tmp_path / "texts.txt").write_text("a text\nanother text")
    given = {
        "evaluate": ["evaluate", str(out), "--data", str(tmp_path)],
        "mine dedupe": ["mine", "pairs", "--model", str(out), "--corpus", str(tmp_path / "texts.txt")],
    }[command]
    assert main([*given, *(["--out", str(tmp_path / "o.jsonl")] if "mine" in command else [])]) == 1
    assert "is a reranker" in capsys.readouterr().err


def test_a_reranker_is_not_retrained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "\n".join(json.dumps({"anchor": f"a {at}", "positive": "b", "negative": "c"}) for at in range(200))
    )
    given = ["--recipe", "cross-encoder", "--corpus", str(rows), "--models-dir", str(tmp_path)]
    assert main(["retrain", *given]) == 1
    assert "makes a reranker" in capsys.readouterr().err
