"""STS-B dev of a model folder or a run, for benches that choose or compare by it."""

from pathlib import Path

import torch

from benchmarks.places import BenchError
from training.evaluation.data import Pairs
from training.methods.recipe import Recipe
from training.methods.start import load_encoder
from training.runs.dev import read_dev, spearman


def needed_dev(data: Path) -> Pairs:
    """Raise BenchError where the folder has none."""
    dev = read_dev(data)
    if dev is None:
        raise BenchError(f"{data} has no stsb/dev.tsv.gz.")
    return dev


def dev_score(folder: Path, recipe: Recipe, dev: Pairs) -> float:
    """From -1 to 1 on the CPU, with the recipe's pooling; NaN when every cosine is the same."""
    encoder, _ = load_encoder(folder, recipe, torch.device("cpu"))
    return spearman(encoder.encode, dev)
