"""The parts of a hit that a search shows, as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from service.api.responses import in_chunks, json_array
from service.corpus.search import Hit
from service.errors import Validation
from service.store.turns import pause
from service.store.values import COLUMNS, Column, Record

MAX_FIELDS = 100
METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Shown:
    """Parts of a hit that are shown beside its id and its score."""

    columns: tuple[Column, ...] = COLUMNS
    paths: tuple[tuple[str, ...], ...] = ()  # of the metadata these alone, when there are any

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
            chosen = self._chosen(hit.document) if self.paths else hit.document.metadata_json
            parts += b',"metadata":', chosen
        if hit.passage is not None:
            start, end = hit.passage
            parts.append(b',"passage":{"start":%d,"end":%d}' % (start, end))
        parts.append(b"}")
        return parts

    def _chosen(self, document: Record) -> bytes:
        metadata = document.metadata
        chosen: dict[str, Any] = {}
        for *outer, last in self.paths:
            source, target = metadata, chosen
            for name in outer:
                source = source.get(name, {}) if isinstance(source, dict) else {}
            if not isinstance(source, dict) or last not in source:
                continue
            for name in outer:
                target = target.setdefault(name, {})
            target[last] = source[last]
        return orjson.dumps(chosen)


def shown_of(fields: Sequence[str] | None) -> Shown:
    """`title`, `text`, `metadata`, or `metadata.NAME`, where dots lead into objects; None is all there is.

    Raises:
        Validation: something else, or too many.

    """
    if fields is None:
        return Shown()
    if len(fields) > MAX_FIELDS:
        raise Validation(f"fields has {len(fields)} entries; at most {MAX_FIELDS} go in one request.")
    paths = []
    for field in fields:
        first, *names = field.split(".")
        if first not in COLUMNS or (names and first != METADATA) or "" in names:
            raise Validation(
                f"fields: {field[:80]!r} is nothing that a hit has. There are title, text, metadata, and one "
                "value of the metadata such as metadata.topic; id and score always come."
            )
        if names:
            paths.append(tuple(names))
    columns = tuple(column for column in COLUMNS if column in fields or (column == METADATA and paths))
    return Shown(columns, () if METADATA in fields else tuple(paths))
