"""Spans of documents: where they lie, how long they are, and the documents that are too short."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from models.tokens.tokenizer import Tokenizer
from tests.training.recipe_cases import WORDS, given_of, raw_source
from tests.training.vocabularies import build_rows
from training.errors import NothingToLearn, TrainingError
from training.methods.recipe import load_recipe
from training.methods.sources import Batch
from training.papers.spans import DocumentSpans
from training.runs.command import train
from training.runs.options import Options
from training.text.corpus import Corpus

PAPER = DocumentSpans(anchors=2, positives=2, shortest=32, longest=512)
SMALL = DocumentSpans(anchors=2, positives=1, shortest=4, longest=9)


@st.composite
def documents(draw: st.DrawFn) -> tuple[DocumentSpans, int]:
    """Draws a recipe, and the length in tokens of a document that is long enough for the recipe."""
    shortest = draw(st.integers(1, 20))
    recipe = DocumentSpans(
        draw(st.integers(1, 4)), draw(st.integers(1, 4)), shortest, draw(st.integers(shortest, 60))
    )
    return recipe, draw(st.integers(recipe.min_tokens(), 600))


@given(documents(), st.integers(0, 2**32))
def test_spans_lie_where_the_paper_puts_them(drawn: tuple[DocumentSpans, int], seed: int) -> None:
    recipe, length = drawn
    found = list(recipe.spans(length, np.random.default_rng(seed)))
    assert len(found) == recipe.anchors
    assert all(len(spans) == 1 + recipe.positives for spans in found)
    parts = []
    most = min(recipe.longest, length // (2 * recipe.anchors))
    for (begin, end), *positives in found:
        for first, last in [(begin, end), *positives]:
            assert 0 <= first < last <= length
            assert recipe.shortest <= last - first <= most
        for first, last in positives:  # inside, over an edge, or edge to edge: no token between them
            assert first <= end
            assert last >= begin
        assert begin // (2 * most) == (end - 1) // (2 * most)
        parts.append(begin // (2 * most))
    assert len(set(parts)) == recipe.anchors


def test_lengths_follow_the_paper_s_distributions() -> None:
    random = np.random.default_rng(0)
    anchors, positives = [], []
    for _ in range(3000):
        for (begin, end), *near in PAPER.spans(5000, random):
            anchors.append(end - begin)
            positives += [last - first for first, last in near]
    for lengths, beta in ((anchors, stats.beta(4, 2)), (positives, stats.beta(2, 4))):
        sure = 4 * 480 * beta.std() / len(lengths) ** 0.5
        assert abs(np.mean(lengths) - (32 + 480 * beta.mean() - 0.5)) < sure  # half a token is rounded off
        assert np.std(lengths) == pytest.approx(480 * beta.std(), rel=0.03)
    assert np.mean(anchors) == pytest.approx(351.5, abs=4)  # 32 + 480 x 2/3 - 1/2
    assert np.mean(positives) == pytest.approx(191.5, abs=4)  # 32 + 480 x 1/3 - 1/2


def test_a_positive_may_begin_anywhere_near_its_anchor() -> None:
    random = np.random.default_rng(0)
    where: list[float] = []
    inside = touching = 0
    one = DocumentSpans(1, 1, 5, 5)  # all of five tokens: 11 places to begin at, from edge to edge
    for _ in range(4000):
        for (begin, _), (first, _) in one.spans(400, random):
            where += [first - begin] if 5 <= begin <= 390 else []
            inside += first == begin
            touching += abs(first - begin) == 5
    counts = [where.count(shift) for shift in range(-5, 6)]
    assert sum(counts) == len(where)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert min(inside, touching) > 0


def texts_of(count: int, words: int) -> list[str]:
    """Returns texts: a word of the text alternates with `a`, `b` …, so a span shows its text and place."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [" ".join(f"{WORDS[n]} {letters[at % 26]}" for at in range(words // 2)) for n in range(count)]


def test_spans_are_pieces_of_their_document_between_the_special_tokens(tiny_source: Path) -> None:
    texts = texts_of(10, 60)
    base = given_of(tiny_source, texts)
    whole = {tokens.ids[1]: list(tokens.ids) for tokens in base.tokenizer.tokenize(texts)}
    source = SMALL.build(base)
    lengths = set()
    for step in range(30):
        batch = source.batch(step)
        first, second = map(build_rows, batch.columns)
        assert batch.texts.tolist() == np.arange(2 * len(first)).reshape(-1, 2).tolist()
        for rows in zip(first, second, strict=True):
            found = [set(row) & set(whole) for row in rows]
            assert found[0] == found[1]  # anchor and positive are of one document
            document = whole[found[0].pop()][1:-1]
            for row in rows:
                assert (row[0], row[-1]) == (2, 3)
                span = row[1:-1]
                lengths.add(len(span))
                assert any(document[at : at + len(span)] == span for at in range(len(document)))
    assert (min(lengths), max(lengths)) == (4, 8)  # shares below 1 are rounded down, so 9 never comes


def fetch_documents(batch: Batch, tokenizer: Tokenizer) -> list[int]:
    names = {tokenizer.tokenize([word])[0].ids[1]: at for at, word in enumerate(WORDS)}
    return [next(names[id] for id in row if id in names) for row in build_rows(batch.columns[0])[::2]]


def test_each_round_sees_every_document_that_is_long_enough_once(tiny_source: Path) -> None:
    texts = texts_of(10, 60)
    texts[4] = texts[4][: len(texts[4]) // 5]  # 12 words, and 2 x 2 x 4 are needed
    base = given_of(tiny_source, texts)
    source = SMALL.build(base)
    assert source.distinct() == 9
    steps = [fetch_documents(source.batch(step), base.tokenizer) for step in range(6)]
    assert [len(step) for step in steps] == [4, 4, 1] * 2
    rounds = [list(itertools.chain(*steps[:3])), list(itertools.chain(*steps[3:]))]
    assert all(sorted(seen) == [0, 1, 2, 3, 5, 6, 7, 8, 9] for seen in rounds)
    assert rounds[0] != rounds[1]
    again, other = source.batch(4), source.batch(1)  # out of order: a batch follows from its step
    assert fetch_documents(again, base.tokenizer) == steps[4]
    assert build_rows(again.columns[0]) == build_rows(SMALL.build(base).batch(4).columns[0])
    assert build_rows(other.columns[0]) != build_rows(SMALL.build(base._replace(seed=4)).batch(1).columns[0])


def test_spans_of_a_document_are_drawn_anew_in_each_round(tiny_source: Path) -> None:
    source = SMALL.build(given_of(tiny_source, texts_of(2, 60)))
    rounds = [sorted(map(tuple, build_rows(source.batch(step).columns[0]))) for step in range(5)]
    assert len(set(map(tuple, rounds))) == 5


def test_documents_that_are_too_short_are_counted(tiny_source: Path) -> None:
    texts = [*texts_of(3, 14), *texts_of(1, 16)]  # 2 x 2 x 4 tokens are just enough
    with pytest.raises(NothingToLearn) as refused:
        SMALL.build(given_of(tiny_source, texts))
    assert str(refused.value) == (
        "1 of 4 documents have the 16 tokens that 2 anchors of 4 tokens need. Lower the recipe's `shortest`."
    )
    assert SMALL.build(given_of(tiny_source, texts_of(2, 16))).distinct() == 2


def test_spans_fit_the_tokens_that_a_row_may_have(tiny_source: Path) -> None:
    base = given_of(tiny_source, texts_of(8, 400), longest=12)
    source = replace(SMALL, longest=50).build(base)
    longest = [int(column.lengths.max()) for step in range(50) for column in source.batch(step).columns]
    assert max(longest) == 11  # 9 tokens and two special ones; a share of 1 would have given 10
    assert min(longest) >= 6
    with pytest.raises(TrainingError, match=r"spans have 4 tokens or more, and no row may have more than 3 "):
        SMALL.build(base._replace(longest=5))


def test_a_base_whose_rows_are_shorter_than_the_recipe_s_spans_can_be_trained(tmp_path: Path) -> None:
    recipe = load_recipe("declutr")  # spans of 32 to 512 tokens; the base has 128 positions
    recipe = replace(recipe, optim=replace(recipe.optim, batch=2))
    base = raw_source(tmp_path / "base")
    corpus = Corpus.of(texts_of(4, 1200), "documents")  # so long that spans could have 300 tokens
    result = train(recipe, corpus, base, tmp_path / "out", Options(precision="fp32", steps=2, threads=1))
    assert result.finished


def test_equal_documents_are_read_once(tiny_source: Path) -> None:
    """Spellings of one text have the same tokens, and would be negatives of each other."""
    texts = texts_of(3, 60)
    source = SMALL.build(given_of(tiny_source, [*texts, texts[0].upper(), texts[1] + " "]))
    assert source.distinct() == 3
    assert source.remark == "2 documents with the tokens of others left out"


@given(documents(), st.integers(0, 2**32))
def test_positives_lie_in_their_anchor_or_beside_it(drawn: tuple[DocumentSpans, int], seed: int) -> None:
    recipe, length = drawn
    for (begin, end), *positives in replace(recipe, near="subsuming").spans(
        length, np.random.default_rng(seed)
    ):
        assert all(begin <= first < last <= end for first, last in positives)
        assert all(last - first >= recipe.shortest for first, last in positives)
    for (begin, end), *positives in replace(recipe, near="adjacent").spans(
        length, np.random.default_rng(seed)
    ):
        assert all(0 <= first < last <= length for first, last in positives)
        assert all(last == begin or first == end for first, last in positives)
