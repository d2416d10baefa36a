"""Places of vectors in the plane: UMAP over their nearest neighbours."""

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import CommandError
from service.index.kmeans import ROWS
from service.index.segments import Vectors
from service.settings import MAP_LIBRARY

NEIGHBOURS = 15  # umap-learn's default
SIDE = 65_535  # places are integers from 0 to this
# A margin for what lies far out: the outermost share of points on each side is clipped to the border.
CLIPPED = 0.001

Plane = NDArray[np.float32]  # (n, 2)


def require_umap() -> Any:
    """The library; raises CommandError where it is not installed."""
    try:
        return importlib.import_module(MAP_LIBRARY)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"A map needs umap-learn. Install it: {sys.executable} -m pip install 'simile[map]'"
        ) from error


def laid_out(
    umap: Any, rows: Vectors, neighbours: NDArray[np.int64], cosines: NDArray[np.float32], start: Plane | None
) -> Plane:
    """Places (n, 2) of unit vectors (n, d); `neighbours` and `cosines` are (n, NEIGHBOURS).

    start: places to begin from, such as those of an earlier map; None: the two principal components.
    """
    distances = np.maximum(0, 1 - cosines)
    layout = umap.UMAP(
        n_neighbors=NEIGHBOURS,
        metric="cosine",
        init="pca" if start is None else start,
        precomputed_knn=(neighbours, distances, None),
        min_dist=0.05,
        random_state=0,
        n_jobs=1,
        verbose=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a later `transform` would need
        return np.asarray(layout.fit_transform(rows), np.float32)


def begun_from(before: Mapping[str, tuple[int, int]], ids: Sequence[str], rows: Vectors) -> Plane | None:
    """Places to begin from: those of an earlier map, and for new documents the place of the nearest old one.

    None when too few documents are on both.
    """
    known = [at for at, id in enumerate(ids) if id in before]
    if len(known) < max(NEIGHBOURS, len(ids) // 2):
        return None
    start = np.zeros((len(ids), 2), np.float32)
    start[known] = [before[ids[at]] for at in known]
    new = [at for at, id in enumerate(ids) if id not in before]
    old = rows[known]
    for first in range(0, len(new), ROWS):
        part = new[first : first + ROWS]
        start[part] = start[np.array(known)[np.argmax(rows[part] @ old.T, axis=1)]]
    # UMAP is used to a start that is ten wide; equal places are torn apart.
    apart = np.random.default_rng(0).normal(0, 0.01, start.shape)
    return (start / SIDE * 20 - 10 + apart).astype(np.float32)


def aligned(places: Plane, ids: Sequence[str], before: Mapping[str, tuple[int, int]]) -> Plane:
    """`places`, turned, mirrored, moved and scaled as a whole to lie over those of an earlier map.

    Orthogonal Procrustes: Schönemann, Psychometrika 31, 1966.
    """
    known = [at for at, id in enumerate(ids) if id in before]
    ours = places[known].astype(np.float64)
    theirs = np.array([before[ids[at]] for at in known], np.float64)
    centre, other = ours.mean(axis=0), theirs.mean(axis=0)
    left, _, right = np.linalg.svd((ours - centre).T @ (theirs - other))
    # To the same size: the least-squares scale would shrink maps that agree little.
    scale = np.linalg.norm(theirs - other) / max(1e-12, float(np.linalg.norm(ours - centre)))
    turned = (places - centre) @ (left @ right)
    room = np.where(turned > 0, SIDE - other, other) / np.maximum(np.abs(turned), 1e-12)
    moved = turned * min(scale, float(room.min())) + other
    return np.asarray(moved, np.float32)


def fitted(places: Plane) -> Plane:
    """`places`, scaled to 0..SIDE in both directions alike."""
    low = np.quantile(places, CLIPPED, axis=0)
    high = np.quantile(places, 1 - CLIPPED, axis=0)
    size = max(float((high - low).max()), 1e-9)
    middle = (low + high) / 2
    return np.asarray(np.clip((places - middle) / size * SIDE * 0.98 + SIDE / 2, 0, SIDE), np.float32)
