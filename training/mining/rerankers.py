"""Open the cross-encoder that labels pairs of texts.

It is a published reranker, the --out of a `train cross-encoder`, or a folder. It opens as in the service: a
model that is not published is first published into a temporary store. Start reading at `open_reranker`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import cpus
from models.messages import did_you_mean
from models.progress import step_to_stderr
from models.publishing.default import publish_named
from models.store import ModelStore, models_dir
from models.tokens.pairs import Pair
from training.errors import TrainingError
from training.model_names import find_model

Score = Callable[[Sequence[Pair]], NDArray[np.float32]]  # one score of each pair, shape (n,)


@contextmanager
def open_reranker(name: str, environ: Mapping[str, str], *, normalize: bool) -> Iterator[Score]:
    """Yields the function that scores pairs.

    Args:
        name: One of the forms in the module's docstring.
        environ: Environment variables, for the models folder.
        normalize: True for shares from 0 to 1, False for raw scores (logits).

    Raises:
        TrainingError: `name` is not a cross-encoder, has several scores of a pair, or has no shares.
        ModelError: The model cannot be opened.

    """
    store = ModelStore(models_dir(environ))
    found = find_model(name, store)
    if found is None:
        hint = did_you_mean(name, store.names())
        raise TrainingError(f"{name} is not a reranker.{hint} Name a version, a run or a folder.")
    with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
        version = found.folder.name
        if found.folder.resolve().parent != store.root.resolve():
            store = ModelStore(Path(temporary))
            version = publish_named(store, str(found.folder), say=step_to_stderr).version
        with closing(store.open_reranker(version, cpus.available())) as reranker:
            score = single(partial(reranker.score, normalize=normalize), reranker.dimension)
            if normalize and (activation := reranker.manifest.activation) != "sigmoid":
                raise TrainingError(
                    f"{name} has the activation {activation}, so its scores are not from 0 to 1. Train "
                    "a reranker on the gold pairs: `simile train cross-encoder-scores`."
                )
            yield score


def single(score: Score, outputs: int) -> Score:
    """Returns a function with shape (n,) for one with shape (n, 1).

    Raises:
        TrainingError: The cross-encoder has several scores of a pair.

    """
    if outputs > 1:
        raise TrainingError(f"The reranker has {outputs} scores of a pair, as a classifier has; 1 is needed.")
    return lambda pairs: score(pairs)[:, 0]
