"""Tokens without padding, compared with plain lists of lists."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.vocabularies import build_rows
from training.text.tokens import NOT_A_TARGET, Tokens, build_tokens, join

Lists = list[list[int]]
ROWS = st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=6)


def marked(rows: Lists) -> Tokens:
    """Returns tokens whose targets and positions identify their ids: id + 1000 and id + 2000."""
    plain = build_tokens(rows)
    return Tokens(plain.ids, plain.starts, plain.ids + 1000, plain.ids + 2000)


def flat(rows: Lists) -> list[int]:
    return [id for row in rows for id in row]


@given(ROWS)
def test_rows_places_and_lengths_are_those_of_the_lists(rows: Lists) -> None:
    tokens = build_tokens(rows)
    assert len(tokens) == len(rows)
    assert build_rows(tokens) == rows
    assert tokens.lengths.tolist() == [len(row) for row in rows]
    assert tokens.rows().tolist() == [at for at, row in enumerate(rows) for _ in row]
    assert tokens.places().tolist() == [place for row in rows for place in range(len(row))]


@given(ROWS, st.data())
def test_selected_texts_come_in_the_order_asked_for_with_all_that_belongs_to_them(
    rows: Lists, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    found = marked(rows).select(torch.tensor(chosen, dtype=torch.int64))
    expected = [rows[row] for row in chosen]
    assert build_rows(found) == expected
    assert found.targets is not None
    assert found.positions is not None
    assert found.targets.tolist() == [id + 1000 for id in flat(expected)]
    assert found.positions.tolist() == [id + 2000 for id in flat(expected)]


@given(ROWS, st.data())
def test_what_is_not_kept_is_gone_and_its_text_stays(rows: Lists, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(flat(rows)), max_size=len(flat(rows))))
    lots = iter(kept)
    expected = [[id for id in row if next(lots)] for row in rows]
    found = marked(rows).keep(torch.tensor(kept, dtype=torch.bool))
    assert build_rows(found) == expected
    assert found.targets is not None
    assert found.targets.tolist() == [id + 1000 for id in flat(expected)]


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_joined_tokens_are_the_lists_one_after_another(parts: list[Lists]) -> None:
    found = join([build_tokens(part) for part in parts])
    assert build_rows(found) == [row for part in parts for row in part]
    assert found.targets is None
    assert found.positions is None


def test_joining_fills_in_the_targets_and_positions_that_a_part_has_not() -> None:
    found = join([build_tokens([[5, 6], [7]]), marked([[8, 9]])])
    assert found.targets is not None
    assert found.positions is not None
    assert found.targets.tolist() == [NOT_A_TARGET] * 3 + [1008, 1009]
    assert found.positions.tolist() == [0, 1, 0, 2008, 2009]


@given(ROWS.filter(flat))
def test_padded_rows_end_in_padding_and_the_mask_says_where(rows: Lists) -> None:
    ids, mask = build_tokens(rows).padded(77)
    longest = max(map(len, rows))
    assert ids.tolist() == [row + [77] * (longest - len(row)) for row in rows]
    assert mask.tolist() == [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
