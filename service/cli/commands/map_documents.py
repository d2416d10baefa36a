"""`python -m service map`: places of the documents in the plane, by the live version's vectors.

Read straight from the store, whether a service runs there or not; `GET /map` answers with the file. The map
of a version stays as it was made: run it again when many documents came.
"""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from models.files.fsync import replaced
from models.messages import positive
from models.progress import Progress
from service.cli.commands import map_groups, map_layout
from service.errors import CommandError, unwritable
from service.index.kmeans import nearest_rows
from service.index.segments import Vectors
from service.settings import MAP_LEAST, Settings
from service.store.sqlite.offline import OfflineStore, reading
from service.store.values import DEFAULT_COLLECTION


class Points(NamedTuple):
    ids: list[str]
    texts: list[str]
    metadata: list[dict[str, Any]]
    rows: Vectors


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `map`."""
    parser.add_argument("--collection", default=DEFAULT_COLLECTION, help="another one than `default`")
    parser.add_argument(
        "--points",
        type=positive,
        default=100_000,
        metavar="N",
        help="at most so many documents (default 100000)",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Do it; what to print.

    Raises:
        CommandError: the library or the store is not there, or it holds too few documents.

    """
    umap, began = map_layout.require_umap(), time.monotonic()
    with reading(settings.data_dir) as store:
        version, points = _read(store, arguments.collection, arguments.points)
    earlier = _earlier(settings.maps_dir, version, arguments.collection)
    content = {"version": version, "collection": arguments.collection} | _map(umap, points, earlier)
    file = settings.maps_dir / version / f"{arguments.collection}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as out:
            out.write(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY))
    except OSError as error:
        raise CommandError(unwritable(file, error, "No map was left behind.")) from error
    seconds = time.monotonic() - began
    return f"{len(points.ids)} documents are on the map of {version} ({seconds:.0f} s): {file}"


def _read(store: OfflineStore, collection: str, most: int) -> tuple[str, Points]:
    """The live version, and the documents to place."""
    live = next((row for row in store.generations() if row.is_active), None)
    if live is None:
        raise CommandError("No version was live here yet. Start the service once.")
    dimension = store.number("SELECT dimension FROM generations WHERE number = ?", live.number)
    progress = Progress("documents read")
    heads = []
    for head in store.heads(live.number, dimension, collection, most, map_groups.CHARACTERS):
        heads.append(head)
        progress.tell(len(heads))
    progress.end()
    if len(heads) < MAP_LEAST:
        raise CommandError(
            f"The collection {collection!r} has {len(heads)} documents with vectors; a map needs {MAP_LEAST}."
        )
    ids, texts, metadata, vectors = zip(*heads, strict=True)
    return live.version, Points([*ids], [*texts], [*metadata], np.array(vectors, np.float32))


class Earlier(NamedTuple):
    """The latest map of another version: the places of its documents by id."""

    version: str
    places: dict[str, tuple[int, int]]


def _earlier(maps: Path, version: str, collection: str) -> Earlier | None:
    files = [file for file in maps.glob(f"*/{collection}.json") if file.parent.name != version]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        try:
            found = orjson.loads(file.read_bytes())
            places = dict(zip(found["ids"], zip(found["x"], found["y"], strict=True), strict=True))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of no use; a new one is made all the same
        return Earlier(file.parent.name, places)
    return None


def _map(umap: Any, points: Points, earlier: Earlier | None) -> dict[str, Any]:
    """The content of the file, without the names of version and collection."""
    progress = Progress("documents compared", len(points.ids))
    near, cosines = nearest_rows(points.rows, map_layout.NEIGHBOURS, lambda done: progress.tell(done, done))
    progress.note("Laying them out; this takes about a minute for 20,000 …")
    start = None if earlier is None else map_layout.begun_from(earlier.places, points.ids, points.rows)
    places = map_layout.laid_out(umap, points.rows, near, cosines, start)
    if earlier is None or start is None:
        places = map_layout.fitted(places)
    else:
        places = map_layout.aligned(places, points.ids, earlier.places)
    progress.end()
    group = map_groups.groups(points.rows)
    named = map_groups.words_of(points.texts, group)
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
        "fields": map_groups.colouring(points.metadata),
        **map_groups.odd(near, cosines),
    }
