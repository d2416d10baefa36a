"""A cross-encoder that was really trained, from the default model, as the service opens it."""

from pathlib import Path

import numpy as np
import pytest

from models.store import ModelStore
from models.tokens.pairs import Pair
from tests.evaldata import FOLDER, needs
from training.__main__ import main
from training.evaluation.data import load
from training.evaluation.sts import spearman

STEPS = 200  # of 1,428. All of them reach the figure in training/RESULTS.md.

pytestmark = pytest.mark.long


@needs("stsb")
def test_a_trained_cross_encoder_scores_unseen_pairs_as_people_and_as_sentence_transformers(
    tmp_path: Path,
) -> None:
    library = pytest.importorskip("sentence_transformers")
    gold, run, store = FOLDER / "stsb" / "train.tsv.gz", tmp_path / "run", tmp_path / "models"
    steps = ["--steps", str(STEPS), "--seed", "1"]
    assert main(["train", "cross-encoder-scores", "--corpus", str(gold), "--out", str(run), *steps]) == 0
    assert main(["export", str(run), "--models-dir", str(store)]) == 0
    pairs = load("stsb", FOLDER)
    reranker = ModelStore(store).open_reranker(ModelStore(store).versions()[0].version)
    scores = reranker.score([*map(Pair, pairs.left, pairs.right)])[:, 0]
    theirs = library.CrossEncoder(str(run / "best"), device="cpu")
    both = [*zip(pairs.left, pairs.right, strict=True)]
    assert np.abs(scores - theirs.predict(both, batch_size=16)).max() < 1e-5
    assert spearman(scores.astype(float), pairs.gold) > 0.5
