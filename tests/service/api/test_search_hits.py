"""Fields of a hit: their values and their limits."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.search_plan import MAX_CHARACTERS, MAX_FIELDS, MAX_NAMES, parse_fields
from service.corpus.query import Hit
from service.errors import Validation
from service.store.filters.grammar import MAX_FIELD_PARTS, values_at
from service.store.values import Record
from tests.service.filtering import fields, metadatas, named_values


@settings(max_examples=100, deadline=None)
@given(st.data(), metadatas)
def test_a_hit_shows_what_its_fields_lead_to_and_no_more(
    data: st.DataObject, metadata: dict[str, Any]
) -> None:
    there = st.sampled_from([name for name, _ in named_values(metadata)]) if metadata else fields
    requested = data.draw(st.lists(there | fields, min_size=1, max_size=4))
    hit = Hit(Record("a", b'"a"', orjson.dumps(metadata)), np.float32(1))
    parts = parse_fields([f"metadata.{field}" for field in requested]).of(hit)
    shown = orjson.loads(b"".join(parts))["metadata"]
    for field in requested:
        assert [*values_at(shown, field)] == [*values_at(metadata, field)]
    for name, _ in named_values(shown):
        assert any(f"{name}.".startswith(f"{field}.") or field.startswith(f"{name}.") for field in requested)


LONG = ".".join(["metadata", *["x" * 100] * MAX_FIELD_PARTS])


@pytest.mark.parametrize(
    ("requested", "most"),
    [
        ([".".join(["metadata", *"x" * 511])] * MAX_FIELDS, f"{MAX_NAMES:,}"),
        ([".".join(["metadata", *"x" * 511])] * 3, f"{MAX_NAMES:,}"),
        ([f"metadata.{at}.a.b.c.d.e.f.g.h.i.j" for at in range(MAX_FIELDS)], f"{MAX_NAMES:,}"),
        ([f"metadata.{'x' * 1000}{at}" for at in range(MAX_FIELDS)], f"{MAX_CHARACTERS:,}"),
        ([LONG, LONG], f"{MAX_CHARACTERS:,}"),
        (["x" * MAX_CHARACTERS, "x"], f"{MAX_CHARACTERS:,}"),
    ],
)
def test_fields_have_limits_together(requested: list[str], most: str) -> None:
    with pytest.raises(Validation, match=f"^fields has .* at most {most} go in one request"):
        parse_fields(requested)


@pytest.mark.parametrize(
    "requested",
    [
        [f"metadata.{at}.a.b.c.d.e.f.g.h.i" for at in range(MAX_FIELDS)],
        [f"metadata.{'x' * 600}{at}" for at in range(MAX_FIELDS)],
        [".".join(["metadata", *"x" * MAX_FIELD_PARTS])] * 2,
        [LONG],
        ["title", "text", "metadata"],
    ],
)
def test_large_requests_within_the_limits_are_served(requested: list[str]) -> None:
    parse_fields(requested)
