"""The parts of filters that the integrations build, by the reference of filters."""

from typing import Any

import pytest
from hypothesis import given, settings

from simile_client.filters import exclude, negate
from tests.service.filtering import cases, matches


@settings(max_examples=50, deadline=None)
@given(cases())
def test_a_negated_filter_matches_the_other_documents(
    case: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    filter, rows = case
    try:
        negated = negate(filter)
    except ValueError:
        assert any(operator in str(filter) for operator in ("$gt", "$lt", "$ids", "'$in': []"))
        return
    for row in rows:
        assert matches(negated, row) is not matches(filter, row)


@pytest.mark.parametrize("filter", [{"n": {"$gt": 1}}, {"n": {"$exists": True, "$lte": 1}}, {"$ids": ["a"]}])
def test_what_cannot_be_negated_is_refused(filter: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot negate"):
        negate(filter)


def test_a_field_with_several_operators_is_negated_as_one_condition() -> None:
    negated = negate({"n": {"$ne": 1, "$exists": True}})
    assert [n for n in (1, 2) if matches(negated, {"n": n})] == [1]
    assert matches(negated, {})
    assert matches(exclude("n", [1, 2]), {"n": 3})
    assert not matches(exclude("n", [1, 2]), {"n": 2})
