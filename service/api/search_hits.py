"""The parts of a hit that a search shows, as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from service.corpus.search import Hit
from service.errors import Validation
from service.http.bodies import in_chunks, json_array
from service.store.filters.grammar import MAX_FIELD_PARTS, objects_in
from service.store.scheduling import pause
from service.store.values import COLUMNS, Column

MAX_FIELDS = 100
MAX_NAMES = 1024  # of all fields together, between their dots
MAX_CHARACTERS = 65_536  # of all fields together
METADATA = "metadata"

_Tree: TypeAlias = dict[str | None, "_Tree"]  # names between the dots of fields, each below the one before it
_END = None  # stands below the last name of a field


@dataclass(frozen=True, slots=True)
class Shown:
    """Parts of a hit that are shown beside its id and its score."""

    columns: tuple[Column, ...] = COLUMNS
    fields: _Tree | None = None  # of the metadata these alone

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
            if self.fields is not None:
                chosen = orjson.dumps(_chosen(hit.document.metadata, self.fields))
            parts += b',"metadata":', chosen
        if hit.passage is not None:
            start, end = hit.passage
            parts.append(b',"passage":{"start":%d,"end":%d}' % (start, end))
        parts.append(b"}")
        return parts


def _tree(fields: Iterable[str]) -> _Tree:
    tree: _Tree = {}
    for field in fields:
        inside = tree
        for name in field.split("."):
            inside = inside.setdefault(name, {})
        inside[_END] = {}
    return tree


def _chosen(metadata: dict[str, Any], fields: _Tree) -> dict[str, Any]:
    """Returns what fields lead to (store/filters/grammar.py), inside the objects and arrays around it.

    Each name is looked at once, whatever the fields are.
    """
    chosen: dict[str, Any] = {}
    for name, value in metadata.items():
        inside = _below(fields, name)
        if inside is None:
            continue
        if _END in inside:
            chosen[name] = value
        elif found := [kept for inner in objects_in(value) if (kept := _chosen(inner, inside))]:
            chosen[name] = found if isinstance(value, list) else found[0]
    return chosen


def _below(fields: _Tree, name: str) -> _Tree | None:
    for part in name.split("."):
        if part not in fields:
            return None
        fields = fields[part]
    return fields


def parse_fields(fields: Sequence[str] | None) -> Shown:
    """`title`, `text`, `metadata`, or `metadata.NAME`, with dots as in filters; None is all there is.

    Raises:
        Validation: something else, or too many.

    """
    if fields is None:
        return Shown()
    if len(fields) > MAX_FIELDS:
        raise Validation(f"fields has {len(fields)} entries; at most {MAX_FIELDS} go in one request.")
    for count, what, most in (
        (sum(field.count(".") for field in fields), "names behind dots", MAX_NAMES),
        (sum(map(len, fields)), "characters", MAX_CHARACTERS),
    ):
        if count > most:
            raise Validation(
                f"fields has {count:,} {what}; at most {most:,} go in one request. Ask for fewer fields, or "
                "for the object around them."
            )
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
    return Shown(columns, _tree(named) if named and METADATA not in fields else None)
