"""Objectives of papers, compared with loops, values by hand and transformers' prediction layer."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name

from tests.parts.losses import check_gradient, softplus, vectors
from tests.training.pretrained import CLS, ROWS, SEP, encoder_of, materials_of, pretrained, trainer_of
from tests.training.recipe_cases import raw_source
from tests.training.vocabularies import build_rows
from training.errors import TrainingError
from training.methods.components import Clone, Frozen
from training.methods.objectives import Reps
from training.methods.recipe import load_recipe
from training.methods.sources import Given
from training.papers.crops import OrderedSentences
from training.papers.objectives import Anchor, MiJsd, MiJsdModule, Neighbors, SelfGuided, WordCe
from training.text.corpus import Corpus
from training.text.tokens import build_tokens

UNUSED: Any = None  # objectives without weights need no base


def test_a_text_finds_its_own_layers_among_those_of_the_others() -> None:
    """Two texts with two layers each, at τ = 1, with every term written out."""
    z = torch.tensor([[1.0, 0], [0, 1]])
    layers = torch.tensor([[[1.0, 0], [0, 1]], [[0, 1], [-1, 0]]])
    reps = Reps(torch.cat([z[:, None], layers], dim=1), torch.tensor([[1], [2]]))
    found = SelfGuided(tau=1.0).loss(reps).item()
    e = math.e
    losses = []
    for own, others in (((1, 0), (0, -1)), ((1, 0), (0, 1))):  # cosines of text 1, of text 2
        rest = sum(e**other for other in others)
        losses += [-math.log(e**each / (e**each + rest)) for each in own]
    assert found == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_equal_texts_guide_nobody_away() -> None:
    z = torch.cat([vectors(2, 3, 4), vectors(2, 3, 4)[:1]])
    texts = torch.tensor([[1], [2], [1]])
    module = SelfGuided(tau=0.5).build(UNUSED)
    with_copy = module(Reps(z, texts)).item()
    unit = torch.nn.functional.normalize(z.double(), dim=-1)
    losses = []
    for n, others in ((0, [1]), (1, [0, 2]), (2, [1])):
        rest = sum(math.exp(float(unit[n, 0] @ unit[m, k]) / 0.5) for m in others for k in (1, 2))
        for k in (1, 2):
            own = math.exp(float(unit[n, 0] @ unit[n, k]) / 0.5)
            losses.append(-math.log(own / (own + rest)))
    assert with_copy == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_the_frozen_twin_s_layers_are_the_means_that_transformers_gives(tmp_path: Path) -> None:
    theirs = pretrained(tmp_path / "raw")
    twin = Frozen().build(encoder_of(tmp_path / "raw"))
    found = twin.layers(ROWS)
    assert not any(tensor.requires_grad for tensor in twin.parameters())
    for row, (first, last) in enumerate(zip(ROWS.starts[:-1], ROWS.starts[1:], strict=True)):
        with torch.no_grad():
            states = theirs.bert(ROWS.ids[first:last][None], output_hidden_states=True).hidden_states
        expected = torch.stack([state[0].mean(0) for state in states])
        assert found.shape[1] == len(states)
        assert (found[row] - expected).abs().max() < 1e-5


def test_sg_opt_sees_the_first_token_and_then_the_twin_s_layers(tmp_path: Path) -> None:
    changes = {"head": "none", "dropout": 0.0, "optim.batch": 4, "optim.lr": 1e-2}
    trainer = trainer_of(load_recipe("sg-opt", changes), tmp_path / "raw")
    (column,) = trainer._source.batch(0).columns
    first = trainer.encoder(column).pooled.detach()
    twin: Any = trainer.model["twin"]
    layers = twin.layers(column)
    texts = trainer._source.batch(0).texts
    reps = Reps(torch.cat([first[:, None], layers], dim=1), texts)
    expected = SelfGuided(tau=0.01).loss(reps).item()
    begun = {name: tensor.clone() for name, tensor in trainer.model["twin"].state_dict().items()}
    assert trainer.step(0).loss == pytest.approx(expected, rel=1e-4), "the anchor is 0 in the first step"
    learned = [each.grad for each in trainer.encoder.parameters() if each.grad is not None]
    assert sum(float(grad.norm()) for grad in learned) > 1, "the loss reaches the encoder"
    assert trainer.step(1).loss > 0
    for name, tensor in trainer.model["twin"].state_dict().items():
        assert torch.equal(tensor, begun[name]), "the twin stays"


def test_the_anchor_is_the_squared_way_from_the_beginning(tmp_path: Path) -> None:
    encoder = encoder_of(raw_source(tmp_path / "raw"))
    module = Anchor().build(materials_of(encoder))
    reps = Reps(torch.zeros(1, 1, 1), torch.zeros(1, 1, dtype=torch.int64))
    assert module(reps).item() == 0
    bias = encoder.backbone.encoder.layer[0].output.dense.bias
    with torch.no_grad():
        bias[:3] += torch.tensor([1.0, -2.0, 0.5])
    loss = module(reps)
    assert loss.item() == pytest.approx(1 + 4 + 0.25, rel=1e-5)
    loss.backward()
    assert bias.grad[:4].tolist() == pytest.approx([2, -4, 1, 0], rel=1e-4)
    assert not list(module.parameters()), "its weights are the encoder's own"


def test_neighbors_are_asked_for_evenly_and_a_sentence_not_for_itself() -> None:
    """The labels name the documents. Sentences of different documents (7 and 9) are no neighbors."""
    f, g = vectors(4, 3, seed=1), vectors(4, 3, seed=2)
    labels = torch.tensor([7, 7, 7, 9])
    texts = torch.arange(4)[:, None].repeat(1, 2)
    reps = Reps(torch.stack([f, g], 1), texts, labels)
    found = Neighbors(reach=1).build(UNUSED)(reps).item()
    scores = (f.double() @ g.double().T).tolist()
    losses = []
    for n, near in ((0, [1]), (1, [0, 2]), (2, [1])):  # 9 stands alone and asks for nothing
        total = sum(math.exp(scores[n][m]) for m in range(4) if m != n)
        losses.append(-sum(math.log(math.exp(scores[n][m]) / total) for m in near) / len(near))
    assert found == pytest.approx(sum(losses) / 3, rel=1e-5)
    alone = reps._replace(labels=torch.arange(4))
    assert Neighbors().build(UNUSED)(alone).item() == 0


def test_gradients_are_those_of_finite_differences() -> None:
    texts, labels = torch.arange(4)[:, None].repeat(1, 3), torch.tensor([7, 7, 7, 9])
    guided = SelfGuided(tau=0.5).build(UNUSED)
    check_gradient(lambda z: guided(Reps(z, texts, labels)), vectors(4, 3, 5))
    near = Neighbors().build(UNUSED)
    check_gradient(lambda z: near(Reps(z, texts[:, :2], labels)), vectors(4, 2, 5) / 2)


def test_a_batch_is_a_run_of_sentences_in_their_order(tmp_path: Path) -> None:
    """A round has every sentence once. A batch has consecutive ones, and its labels name their documents."""
    encoder = encoder_of(raw_source(tmp_path / "raw"))
    words = "river stone market letter engine".split()
    texts = [". ".join(f"the {word} is a {word} {at} times" for at in "abc") + "." for word in words]
    given = Given(Corpus.of(texts, "documents"), encoder.tokenizer(64), batch=4, steps=4, seed=1)
    source = OrderedSentences().build(given)
    batches = [source.batch(step) for step in range(4)]
    assert sorted(len(batch.texts) for batch in batches) == [3, 4, 4, 4]
    seen = [row for batch in batches for row in build_rows(batch.columns[0])]
    assert len({tuple(row) for row in seen}) == 15
    for batch in batches:
        assert batch.labels is not None
        rows = build_rows(batch.columns[0])
        for at in range(len(rows) - 1):
            together = batch.labels[at] == batch.labels[at + 1]
            same_word = bool(set(rows[at][2:3]) & set(rows[at + 1][2:3]))
            assert bool(together) == same_word
    assert torch.equal(source.batch(1).columns[0].ids, batches[1].columns[0].ids)


def test_a_clone_sees_the_first_view_and_both_encoders_learn(tmp_path: Path) -> None:
    changes = {"dropout": 0.0, "optim.batch": 6, "optim.lr": 1e-2}
    trainer = trainer_of(load_recipe("ct", changes), tmp_path / "raw")
    assert isinstance(trainer._recipe.twin, Clone)
    with torch.no_grad():
        for tensor in trainer.model["twin"].parameters():
            tensor.mul_(1.1)  # so that it can be told apart
    (column,) = trainer._source.batch(0).columns
    u, v = (trainer.model[name](column).pooled.detach() for name in ("twin", "encoder"))
    own = (u * v).sum(1)
    expected = sum(softplus(-x) for x in own.tolist())
    for by in range(1, 6):
        expected += sum(softplus(x) for x in (u * v.roll(-by, 0)).sum(1).tolist())
    before = {name: tensor.clone() for name, tensor in trainer.model.named_parameters()}
    assert trainer.step(0).loss == pytest.approx(expected / 6, rel=1e-4)
    for part in ("twin", "encoder"):
        name = f"{part}.backbone.encoder.layer.0.output.dense.weight"
        assert not torch.equal(dict(trainer.model.named_parameters())[name], before[name]), part


WORDS = build_tokens(
    [[CLS, 90, SEP], [CLS, 91, 92, SEP], [CLS, 93, SEP], [CLS, SEP]]
)  # one, two, one, no token


def test_a_definition_names_its_word_by_the_prediction_layer_of_transformers(tmp_path: Path) -> None:
    theirs = pretrained(tmp_path / "raw")
    encoder = encoder_of(tmp_path / "raw")
    module = WordCe().build(materials_of(encoder))
    z = vectors(4, 2, 32)
    reps = Reps(z, torch.arange(8).reshape(4, 2), views=(ROWS, WORDS))
    with torch.no_grad():
        logits = theirs.cls(z[[0, 2], 0])
    expected = F.cross_entropy(logits, torch.tensor([90, 93])).item()
    assert module(reps).item() == pytest.approx(expected, rel=1e-5)
    assert not any(tensor.requires_grad for tensor in module.parameters()), "the prediction layer is frozen"
    with torch.no_grad():
        encoder.backbone.get_input_embeddings().weight.zero_()
    assert module(reps).item() == pytest.approx(expected, rel=1e-5), "and so is its word table"
    check_gradient(lambda x: module(reps._replace(z=x)), z)


def test_word_ce_without_a_prediction_layer_says_how_to_get_one(tmp_path: Path) -> None:
    encoder = encoder_of(raw_source(tmp_path / "raw", language=False))
    with pytest.raises(TrainingError, match="train mlm-head,defsent"):
        WordCe().build(materials_of(encoder))


def test_runs_are_convolutions_within_a_text(tmp_path: Path) -> None:
    """Compares token by token. Positions beyond the ends of a text count as zeros."""
    encoder = encoder_of(raw_source(tmp_path / "raw"))
    module = MiJsd().build(materials_of(encoder))
    assert isinstance(module, MiJsdModule)
    convolutions: Any = module.convolutions
    hidden = vectors(len(ROWS.ids), 32)
    found = module.runs(hidden, ROWS).detach()
    assert found.shape == (len(ROWS.ids), 32)
    for begin, end in itertools.pairwise(ROWS.starts.tolist()):
        for at in range(begin, end):
            parts = []
            for run, conv in zip((1, 3, 5), convolutions, strict=True):
                weight, bias = (tensor.detach() for tensor in (conv.weight, conv.bias))
                part = bias.clone()
                for offset in range(run):
                    place = at + offset - run // 2
                    if begin <= place < end:
                        part += weight[:, :, offset] @ hidden[place]
                parts.append(part)
            assert (found[at] - torch.cat(parts)).abs().max() < 1e-5


def test_mutual_information_by_loops_over_tokens_and_texts(tmp_path: Path) -> None:
    encoder = encoder_of(raw_source(tmp_path / "raw"))
    module = MiJsd().build(materials_of(encoder))
    assert isinstance(module, MiJsdModule)
    hidden, z = vectors(len(ROWS.ids), 32), vectors(4, 1, 32, seed=1)
    texts = torch.tensor([[1], [2], [3], [2]])  # the last is the second again
    found = module(Reps(z, texts, views=(ROWS,), hidden=(hidden,))).item()
    local = module.runs(hidden, ROWS).detach()
    total = 0.0
    for token, text in enumerate(ROWS.rows().tolist()):
        scores = [float(local[token] @ z[other, 0]) for other in range(4)]
        others = [other for other in range(4) if texts[other] != texts[text]]
        negative = sum(softplus(scores[other]) - math.log(2) for other in others) / len(others)
        total += negative - (math.log(2) - softplus(-scores[text]))
    assert found == pytest.approx(total / len(ROWS.ids), rel=1e-4)
    check_gradient(lambda x: module(Reps(x, texts, views=(ROWS,), hidden=(hidden,))), z)
