"""The view `cutoff`, compared with transformers on embeddings with the same zeros, and `shuffle`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.families import family_source
from tests.training.pretrained import ROWS, bert_of, encoder_of, pretrained
from tests.training.vocabularies import seeded
from training.errors import TrainingError
from training.methods.views import Cutoff, Shuffle
from training.model.encoder import kept
from training.runs.forward import random_state, set_random_state
from training.text.lexicon import Lexicon
from training.text.tokens import Tokens, join


def kept_of(tokens: Tokens, width: int) -> Tensor:
    assert tokens.cutoff is not None
    return kept(tokens.cutoff, tokens, width)


def cut(share: tuple[float, float], lexicon: Lexicon) -> Tokens:
    return Cutoff(*share)(ROWS, seeded(), lexicon)


def test_what_is_cut_off_is_zero_behind_the_embeddings_and_nothing_else_is(tmp_path: Path) -> None:
    theirs = pretrained(tmp_path / "raw")
    encoder = encoder_of(tmp_path / "raw")
    view = cut((0.3, 0.4), encoder.lexicon)
    state = random_state()
    keep = kept_of(view, 32)
    set_random_state(state)
    found = encoder(view).hidden.detach()
    for first, last in zip(ROWS.starts[:-1], ROWS.starts[1:], strict=True):

        def zero(_module: Any, _inputs: Any, embedded: Tensor, part: Tensor = keep[first:last]) -> Tensor:
            return embedded * part

        hook = theirs.bert.embeddings.register_forward_hook(zero)
        with torch.no_grad():
            expected = theirs.bert(ROWS.ids[first:last][None]).last_hidden_state[0]
        hook.remove()
        assert (found[first:last] - expected).abs().max() < 1e-5
    plain = encoder(ROWS).hidden.detach()
    assert (found - plain).abs().max() > 0.1
    assert torch.equal(encoder(ROWS).hidden, plain), "the hook is gone"


def test_features_are_cut_for_a_whole_text_and_tokens_for_all_features(tmp_path: Path) -> None:
    lexicon = bert_of(tmp_path / "raw").lexicon
    many = join([ROWS] * 200)
    features = kept_of(Cutoff(features=0.3)(many, seeded(), lexicon), 32)
    of_text = [features[many.rows() == row] for row in range(8)]
    assert all((part == part[0]).all() for part in of_text)
    assert features.mean().item() == pytest.approx(0.7, abs=0.02)
    tokens = kept_of(Cutoff(tokens=0.3)(many, seeded(), lexicon), 32)
    assert ((tokens == 0).all(1) | (tokens == 1).all(1)).all()
    assert tokens.mean().item() == pytest.approx(0.7, abs=0.02)


def test_joined_and_chosen_texts_keep_their_own_cutoff(tmp_path: Path) -> None:
    lexicon = bert_of(tmp_path / "raw").lexicon
    both = join([ROWS, cut((0.0, 1.0), lexicon)])
    assert both.cutoff is not None
    assert both.cutoff[:, 1].tolist() == [0] * 4 + [1] * 4
    chosen = both.select(torch.tensor([5, 1]))
    assert chosen.cutoff is not None
    assert chosen.cutoff[:, 1].tolist() == [1, 0]
    assert kept_of(chosen, 8).sum(1).tolist() == [0] * 3 + [8] * 3


def test_shuffled_positions_are_a_permutation_within_each_text(tmp_path: Path) -> None:
    lexicon = bert_of(tmp_path / "raw").lexicon
    orders = set()
    for seed in range(30):
        found = Shuffle()(ROWS, seeded(seed), lexicon)
        assert torch.equal(found.ids, ROWS.ids)
        assert found.positions is not None
        for first, last in zip(ROWS.starts[:-1], ROWS.starts[1:], strict=True):
            assert sorted(found.positions[first:last].tolist()) == list(range(last - first))
        orders.add(tuple(found.positions[:3].tolist()))
    assert len(orders) > 20


def test_a_family_without_embeddings_of_its_own_is_refused(tmp_path: Path) -> None:
    encoder = encoder_of(family_source(tmp_path / "distilbert", "distilbert"))
    tokens = replace(ROWS, cutoff=torch.ones(4, 2))
    with pytest.raises(TrainingError, match="The view `cutoff` works for bert, roberta"):
        encoder(tokens)
