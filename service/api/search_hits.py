"""The parts of a hit that a search shows, as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from service.api.responses import in_chunks, json_array
from service.corpus.search import Hit
from service.errors import Validation
from service.store.filters.paths import MAX_FIELD_PARTS, objects_in, splits
from service.store.turns import pause
from service.store.values import COLUMNS, Column

MAX_FIELDS = 100
METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Shown:
    """Parts of a hit that are shown beside its id and its score."""

    columns: tuple[Column, ...] = COLUMNS
    fields: tuple[str, ...] = ()  # of the metadata these alone, when there are any

    def one_list(self, found: Sequence[Sequence[Hit]]) -> list[bytes]:
        """The hits of the one query as chunks of JSON; for a reading thread."""
        [hits] = found
        return in_chunks(json_array(map(self.of, hits)))

    def lists(self, found: Sequence[Sequence[Hit]]) -> list[bytes]:
        """The hits of each query as chunks of JSON; for a reading thread."""
        return in_chunks(json_array(json_array(map(self.of, hits)) for hits in found))

    def of(self, hit: Hit) -> list[bytes]:
        """A hit as parts of JSON."""
        pause()
        head = {"id": hit.document.id, "score": hit.score}
        parts = [orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]]
        if hit.document.title_json:
            parts += b',"title":', hit.document.title_json
        if "text" in self.columns:
            parts += b',"text":', hit.document.text_json
        if "metadata" in self.columns:
            chosen = hit.document.metadata_json
            if self.fields:
                chosen = orjson.dumps(_chosen(hit.document.metadata, self.fields))
            parts += b',"metadata":', chosen
        if hit.passage is not None:
            start, end = hit.passage
            parts.append(b',"passage":{"start":%d,"end":%d}' % (start, end))
        parts.append(b"}")
        return parts


def _chosen(metadata: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Returns what fields lead to (store/filters/paths.py), inside the objects and arrays around it."""
    inside: dict[str, list[str] | None] = {}  # name to the fields inside its value; None: all of it
    for field in fields:
        for name, rest in splits(field):
            if name not in metadata:
                continue
            wanted = inside.setdefault(name, [])
            if rest is None:
                inside[name] = None
            elif wanted is not None:
                wanted.append(rest)
    chosen: dict[str, Any] = {}
    for name, rests in inside.items():
        value = metadata[name]
        if rests is None:
            chosen[name] = value
        elif found := [part for inner in objects_in(value) if (part := _chosen(inner, rests))]:
            chosen[name] = found if isinstance(value, list) else found[0]
    return chosen


def shown_of(fields: Sequence[str] | None) -> Shown:
    """`title`, `text`, `metadata`, or `metadata.NAME`, with dots as in filters; None is all there is.

    Raises:
        Validation: something else, or too many.

    """
    if fields is None:
        return Shown()
    if len(fields) > MAX_FIELDS:
        raise Validation(f"fields has {len(fields)} entries; at most {MAX_FIELDS} go in one request.")
    named = []
    for field in fields:
        first, *names = field.split(".")
        if (
            first not in COLUMNS
            or (names and first != METADATA)
            or "" in names
            or len(names) > MAX_FIELD_PARTS
        ):
            raise Validation(
                f"fields: {field[:80]!r} is nothing that a hit has. There are title, text, metadata, and one "
                "value of the metadata such as metadata.topic; id and score always come."
            )
        if names:
            named.append(".".join(names))
    columns = tuple(column for column in COLUMNS if column in fields or (column == METADATA and named))
    return Shown(columns, () if METADATA in fields else tuple(named))
