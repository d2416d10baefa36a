"""A sample of a collection's documents, for what may be wrong with a filter that nothing passed."""

from typing import Any

import orjson

from service.store.filters.explain import FieldSample
from service.store.sql.records import Reading
from service.store.turns import pause

DOCUMENTS = 1000  # that are read at most, half of them from each end of the order of ids
TOGETHER = 100
MAX_BYTES = 2 << 20  # of metadata: some 20 ms


def field_sample(connection: Reading, collection: str) -> FieldSample:
    """Reads the fields of the first and the last documents of a collection, by id."""
    sample, left, last = FieldSample(), MAX_BYTES, ""
    for order, bound in (("ASC", DOCUMENTS // 2), ("DESC", DOCUMENTS)):
        before = ""  # of the documents from the end: those that come next have smaller ids
        while sample.documents < bound:
            at = ("AND id < ? ", [before]) if before else ("", [])
            rows = connection.execute(
                f"SELECT id, {connection.METADATA} FROM documents WHERE collection = ? AND id > ? {at[0]}"
                f"ORDER BY id {order} LIMIT ?",
                [collection, last, *at[1], TOGETHER],
            ).fetchall()
            for id, metadata in rows:
                left -= len(metadata)
                sample.add(_object(connection, metadata))
                last, before = (id, before) if order == "ASC" else (last, id)
                if left <= 0:
                    sample.complete = False
                    return sample
            pause()
            if len(rows) < TOGETHER:
                return sample
    sample.complete = False
    return sample


def _object(connection: Reading, metadata: Any) -> dict[str, Any]:
    """Returns metadata; what is damaged has no field, and `check --data` names its document."""
    try:
        parsed = orjson.loads(connection.as_json(metadata))
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
