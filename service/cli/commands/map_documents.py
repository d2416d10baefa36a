"""`simile map`: computes a map of a collection, on which similar documents are close together.

Start reading at `run`. UMAP computes a point in the plane for each document from the active version's
vectors. Without umap-learn, a small collection is projected on its first two principal components. The result
is a file, and `GET /map` answers with it. The command reads the document store directly, so no service needs
to run. A map does not follow later writes, so run the command again after many of them.
"""

import argparse
import importlib
import re
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from models.errors import install_command
from models.files.fsync import replaced
from models.messages import amount, positive
from models.progress import Progress, counted
from models.search.terms import FUNCTION_WORDS
from service.errors import CommandError, unwritable
from service.index.kmeans import ROWS, assigned, cluster, nearest_rows
from service.index.segments import Vectors
from service.settings import MAP_MIN_DOCUMENTS, MAX_PLAIN, Settings
from service.store.sqlite.offline import ACTIVE, OfflineStore, reading
from service.store.values import DEFAULT_COLLECTION

NEIGHBORS = 15  # umap-learn's default
SIDE = 65_535  # Coordinates are integers from 0 to this.
CLIPPED = 0.001  # share of outliers on each side that are moved to the border

WORDS = 5  # words per group
MORE_FREQUENT = 2  # A word of a group is in this many times as many of its documents as of the others.
MAX_GROUPS = 24
PER_GROUP = 40  # approximate documents per group, below MAX_GROUPS groups
CHARACTERS = 1000  # characters of a text from which words are taken
MAX_VALUES = 30  # different values of a field that colors the map
MIN_SHARE = 0.2  # minimum share of documents that have such a field
STRAYS, COPIES = 20, 50
COPY = 0.98  # cosine
_WORD = re.compile(r"[^\W\d_]{3,}")

Plane = NDArray[np.float32]  # (n, 2)


class Points(NamedTuple):
    """The documents that a map shows, with their texts, metadata and vectors."""

    ids: list[str]
    texts: list[str]
    metadata: list[dict[str, Any]]
    rows: Vectors


class Earlier(NamedTuple):
    """The latest map of another version. `places` contains coordinates by document id."""

    version: str
    places: dict[str, tuple[int, int]]


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `map`."""
    parser.add_argument("--collection", default=DEFAULT_COLLECTION, help="instead of `default`")
    parser.add_argument(
        "--points", type=positive, default=100_000, metavar="N", help="at most N documents (default 100000)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Computes and writes the map. Returns the text to print.

    Raises:
        CommandError: UMAP is needed and not installed, the store is missing or has no active version, the
            collection has too few documents, or the file cannot be written.

    """
    began = time.monotonic()
    with reading(settings.data_dir) as store:
        version, points = _read(store, arguments.collection, arguments.points)
    umap = find_umap(len(points.ids))
    earlier = _earlier(settings.maps_dir, version, arguments.collection)
    content = {"version": version, "collection": arguments.collection} | _map(umap, points, earlier)
    file = settings.maps_dir / version / f"{arguments.collection}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as out:
            out.write(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY))
    except OSError as error:
        raise CommandError(unwritable(file, error, "No map remains.")) from error
    seconds = time.monotonic() - began
    mapped = amount(len(points.ids), "document is", "documents are")
    told = f"{mapped} on the map of {version} ({seconds:.0f} s): {file}"
    return told if umap else f"{told}\n`make map` separates groups better: it installs umap-learn."


def find_umap(documents: int) -> Any:
    """Imports and returns the module `umap`, or None if it is missing and not needed.

    Args:
        documents: Number of documents on the map.

    Raises:
        CommandError: UMAP is not installed, and the map has too many documents to do without.

    """
    try:
        return importlib.import_module("umap")
    except ModuleNotFoundError as error:
        if documents <= MAX_PLAIN:
            return None
        raise CommandError(
            f"A map of more than {MAX_PLAIN:,} documents needs umap-learn. `make map` installs it, or "
            f"{install_command('map')}"
        ) from error


def _read(store: OfflineStore, collection: str, most: int) -> tuple[str, Points]:
    """Returns the active version, and the documents to show on the map.

    Args:
        store: The document store.
        collection: The collection.
        most: Maximum number of documents.

    Raises:
        CommandError: No version is active, or the collection has too few documents.

    """
    active = next((row for row in store.generations() if row.state == ACTIVE), None)
    if active is None:
        raise CommandError("No version was active here yet. Start the service once.")
    dimension = store.number("SELECT dimension FROM generations WHERE number = ?", active.number)
    found = store.heads(active.number, dimension, collection, most, CHARACTERS)
    heads = list(counted(found, "documents read"))
    if len(heads) < MAP_MIN_DOCUMENTS:
        raise CommandError(
            f"The collection {collection!r} has {amount(len(heads), 'document')} with vectors; a map needs "
            f"{MAP_MIN_DOCUMENTS}."
        )
    ids, texts, metadata, vectors = zip(*heads, strict=True)
    return active.version, Points([*ids], [*texts], [*metadata], np.array(vectors, np.float32))


def _earlier(maps: Path, version: str, collection: str) -> Earlier | None:
    files = [file for file in maps.glob(f"*/{collection}.json") if file.parent.name != version]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        try:
            found = orjson.loads(file.read_bytes())
            places = dict(zip(found["ids"], zip(found["x"], found["y"], strict=True), strict=True))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # A damaged map is ignored.
        return Earlier(file.parent.name, places)
    return None


def _map(umap: Any, points: Points, earlier: Earlier | None) -> dict[str, Any]:
    """Computes the content of the file, except version and collection.

    Args:
        umap: The module `umap`, or None for principal components.
        points: The documents.
        earlier: The map of another version, to which the new map is aligned if they share enough documents.

    """
    progress = Progress("documents compared", len(points.ids))
    near, cosines = nearest_rows(points.rows, NEIGHBORS, lambda done: progress.tell(done, done))
    start = None if earlier is None else begun_from(earlier.places, points.ids, points.rows)
    if umap is None:
        places = projected(points.rows)
    else:
        progress.note("Laying them out; this takes about a minute for 20,000 …")
        places = laid_out(umap, points.rows, near, cosines, start)
    if earlier is None or start is None:
        places = fitted(places)
    else:
        places = aligned(places, points.ids, earlier.places)
    progress.end()
    group = groups(points.rows)
    named = find_terms(points.texts, group)
    middles = [np.median(places[group == number], axis=0).round().astype(int) for number in range(len(named))]
    sizes = np.bincount(group)
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "aligned_to": None if earlier is None or start is None else earlier.version,
        "ids": points.ids,
        "x": places[:, 0].round().astype(int),
        "y": places[:, 1].round().astype(int),
        "cluster": group,
        "clusters": [
            {"words": words, "x": int(x), "y": int(y), "size": int(size)}
            for words, (x, y), size in zip(named, middles, sizes, strict=True)
        ],
        "fields": coloring(points.metadata),
        **odd(near, cosines),
    }


def projected(rows: Vectors) -> Plane:
    """Projects vectors on their first two principal components. Returns shape (n, 2)."""
    centered = rows - rows.mean(axis=0)
    _, _, components = np.linalg.svd(centered, full_matrices=False)
    return np.asarray(centered @ components[:2].T, np.float32)


def laid_out(
    umap: Any, rows: Vectors, neighbors: NDArray[np.int64], cosines: NDArray[np.float32], start: Plane | None
) -> Plane:
    """Computes coordinates with UMAP, shape (n, 2).

    Args:
        umap: The module `umap`.
        rows: Unit vectors, shape (n, d).
        neighbors: Indices of the nearest neighbors of each row, shape (n, NEIGHBORS).
        cosines: Cosines between each row and its neighbors, shape (n, NEIGHBORS).
        start: Initial coordinates. None means the first two principal components.

    """
    distances = np.maximum(0, 1 - cosines)
    layout = umap.UMAP(
        n_neighbors=NEIGHBORS,
        metric="cosine",
        init="pca" if start is None else start,
        precomputed_knn=(neighbors, distances, None),
        min_dist=0.05,
        random_state=0,
        n_jobs=1,
        verbose=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The warnings concern a later call of `transform`.
        return np.asarray(layout.fit_transform(rows), np.float32)


def begun_from(before: Mapping[str, tuple[int, int]], ids: Sequence[str], rows: Vectors) -> Plane | None:
    """Returns initial coordinates for UMAP, or None if too few documents are on the earlier map.

    A document that is on the earlier map starts at its old position. Any other document starts close to its
    nearest neighbor among the old documents.

    Args:
        before: Coordinates on the earlier map, by document id.
        ids: Ids of the documents.
        rows: Unit vectors of the documents, shape (n, d).

    """
    known = [at for at, id in enumerate(ids) if id in before]
    if len(known) < max(NEIGHBORS, len(ids) // 2):
        return None
    start = np.zeros((len(ids), 2), np.float32)
    start[known] = [before[ids[at]] for at in known]
    new = [at for at, id in enumerate(ids) if id not in before]
    old = rows[known]
    for first in range(0, len(new), ROWS):
        part = new[first : first + ROWS]
        start[part] = start[np.array(known)[np.argmax(rows[part] @ old.T, axis=1)]]
    # UMAP expects a start about ten wide. Noise separates equal places.
    apart = np.random.default_rng(0).normal(0, 0.01, start.shape)
    return (start / SIDE * 20 - 10 + apart).astype(np.float32)


def aligned(places: Plane, ids: Sequence[str], before: Mapping[str, tuple[int, int]]) -> Plane:
    """Rotates, mirrors, moves and scales a map so that it matches an earlier map.

    This is the orthogonal Procrustes method (Schönemann, Psychometrika 31, 1966).

    Args:
        places: Coordinates of the documents, shape (n, 2).
        ids: Ids of the documents.
        before: Coordinates on the earlier map, by document id.

    """
    known = [at for at, id in enumerate(ids) if id in before]
    ours = places[known].astype(np.float64)
    theirs = np.array([before[ids[at]] for at in known], np.float64)
    center, other = ours.mean(axis=0), theirs.mean(axis=0)
    left, _, right = np.linalg.svd((ours - center).T @ (theirs - other))
    # Both maps get the same size. The least-squares scale would shrink maps that agree little.
    scale = np.linalg.norm(theirs - other) / max(1e-12, float(np.linalg.norm(ours - center)))
    turned = (places - center) @ (left @ right)
    room = np.where(turned > 0, SIDE - other, other) / np.maximum(np.abs(turned), 1e-12)
    moved = turned * min(scale, float(room.min())) + other
    return np.asarray(moved, np.float32)


def fitted(places: Plane) -> Plane:
    """Scales a map to 0..SIDE, by the same factor in both directions. Outliers move to the border."""
    low = np.quantile(places, CLIPPED, axis=0)
    high = np.quantile(places, 1 - CLIPPED, axis=0)
    size = max(float((high - low).max()), 1e-9)
    middle = (low + high) / 2
    return np.asarray(np.clip((places - middle) / size * SIDE * 0.98 + SIDE / 2, 0, SIDE), np.float32)


def groups(rows: Vectors) -> NDArray[np.int64]:
    """Assigns each row to a group by spherical k-means, and returns the group numbers.

    Group 0 is the largest.
    """
    count = int(np.clip(len(rows) // PER_GROUP, min(4, len(rows)), MAX_GROUPS))
    order = np.random.default_rng(0).permutation(len(rows))
    centers = cluster(rows[order], count, lambda: False)
    found = np.concatenate([labels for _, labels in assigned(rows, centers, lambda: False)])
    rank = np.empty(count, np.int64)
    rank[np.argsort(-np.bincount(found, minlength=count), kind="stable")] = np.arange(count)
    return np.asarray(rank[found])


def find_terms(texts: Sequence[str], group: NDArray[np.int64]) -> list[list[str]]:
    """Returns the most typical words of each group, by class-based TF-IDF (Grootendorst, arXiv:2203.05794).

    The score counts the documents that contain a word, so a single long text cannot dominate a group. Words
    that are about as frequent outside a group, such as its function words, do not describe it.

    Args:
        texts: Texts of the documents.
        group: Group number of each document.

    """
    counts: list[Counter[str]] = [Counter() for _ in range(int(group.max()) + 1)]
    for text, number in zip(texts, group.tolist(), strict=True):
        found = {word.lower() for word in _WORD.findall(text[:CHARACTERS])}
        counts[number].update(found - FUNCTION_WORDS)
    everywhere: Counter[str] = sum(counts, Counter())
    mean = sum(everywhere.values()) / max(1, len(counts))
    named = []
    for own, size in zip(counts, np.bincount(group).tolist(), strict=True):
        total, others = max(1, sum(own.values())), len(texts) - size
        several = {word: n for word, n in own.items() if n > 1}
        typical = [
            word for word, n in several.items() if n * others >= MORE_FREQUENT * (everywhere[word] - n) * size
        ]
        score = {
            word: several[word] / total * np.log1p(mean / everywhere[word]) for word in typical or several
        }
        named.append(sorted(score, key=lambda word: (-score[word], word))[:WORDS])
    return named


def coloring(metadata: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the metadata fields that can color the map, which are fields with few different values.

    For each field, `values` lists the values, and `of` contains the index of each document's value, or -1.
    """
    # A text with the type keeps `true`, `1` and `"1"` apart, as filters do.
    plain = [
        {
            name: f"{type(value).__name__}:{value}"
            for name, value in one.items()
            if isinstance(value, str | int | float)
        }
        for one in metadata
    ]
    fields = {}
    for name, times in Counter(name for texts in plain for name in texts).most_common():
        if times < MIN_SHARE * len(metadata):
            break
        counts = Counter(texts[name] for texts in plain if name in texts)
        if not 2 <= len(counts) <= MAX_VALUES:
            continue
        first = {texts[name]: one[name] for texts, one in zip(plain, metadata, strict=True) if name in texts}
        place = {text: at for at, (text, _) in enumerate(counts.most_common())}
        of = [place[texts[name]] if name in texts else -1 for texts in plain]
        fields[name] = {"values": [first[text] for text in place], "of": of}
    return fields


def odd(neighbors: NDArray[np.int64], cosines: NDArray[np.float32]) -> dict[str, Any]:
    """Finds the documents farthest from all others (`strays`), and pairs of near duplicates (`copies`).

    Args:
        neighbors: Indices of the nearest neighbors of each document, shape (n, NEIGHBORS).
        cosines: Cosines between each document and its neighbors, shape (n, NEIGHBORS).

    """
    own = np.arange(len(neighbors))
    others = np.where(neighbors == own[:, None], -1.0, cosines)
    best = others.max(axis=1)
    partner = neighbors[own, others.argmax(axis=1)]
    pairs = {
        (min(at, other), max(at, other))
        for at, other in zip(own.tolist(), partner.tolist(), strict=True)
        if best[at] >= COPY
    }
    return {"strays": np.argsort(best)[:STRAYS].tolist(), "copies": sorted(pairs)[:COPIES]}
