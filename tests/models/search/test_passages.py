"""Long texts are split into passages that overlap, at the ends of sentences if possible."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

import models.search.passages as passages_module
from models.encoder import Encoder
from models.manifest import SearchDefaults
from models.search.content import Content
from models.search.passages import passage_tokens, split
from service import memory
from service.batching.request import Answer, Lane, Timing
from service.corpus.embedder import DocumentEncoder
from tests.tiny import MAX_LENGTH
from tests.waiting import LIMIT

# The tiny model reads 64 tokens. Two are special. Each of these words, and a full stop, is one token.
ROOM = MAX_LENGTH - 2
PARTS = ["a", "river", ". ", "”", ".", "\n", "。", "」", "語", "  ", "? ", ")"]
WORDS = "red green blue river stone market letter engine garden bridge".split()


def sentences(count: int, words: int = 10) -> list[str]:
    return [" ".join(WORDS[(at + word) % 10] for word in range(words)) + "." for at in range(count)]


def passages(text: str, encoder: Encoder, prompt: str = "") -> list[str]:
    found = split(Content(text), encoder, prompt)
    assert found is not None
    assert found.complete
    return [text[span.start : span.end] for span in (found.head, *found.others)]


def test_sentences_end_where_they_do_in_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(3)
    monkeypatch.setattr(passages_module, "PIECE", 16)
    for _ in range(300):
        parts = generator.choices(PARTS, k=60)
        text = "".join("".join(parts[at : at + 5]) + "b" for at in range(0, 60, 5))
        starts = np.arange(len(text))
        whole = {found.end() for found in passages_module.BORDER.finditer(text)}
        assert set(passages_module._borders(text, starts).tolist()) == whole, ascii(text)


def test_a_text_that_the_model_sees_whole_is_not_split(encoder: Encoder) -> None:
    assert split(Content(""), encoder) is None
    assert split(Content(" ".join(["red"] * ROOM)), encoder) is None
    assert split(Content(" ".join(["red"] * (ROOM + 1))), encoder) is not None


def test_passages_behind_the_head_begin_and_end_with_sentences_and_repeat_one(encoder: Encoder) -> None:
    """Worked by hand: a sentence has 11 tokens, a passage 60, the head 62 (five sentences and a part)."""
    given = sentences(20)
    head, *others = passages(" ".join(given), encoder)
    assert head == " ".join([*given[:5], " ".join(given[5].split()[:7])])
    assert others == [" ".join(given[start:end]) for start, end in ((5, 10), (9, 14), (13, 18), (15, 20))]


def test_without_sentences_a_passage_repeats_an_eighth_of_the_one_before(encoder: Encoder) -> None:
    words = [WORDS[at % 10] for at in range(200)]
    head, *others = passages(" ".join(words), encoder)
    assert head == " ".join(words[:62])
    assert others == [" ".join(words[start:end]) for start, end in ((55, 115), (108, 168), (140, 200))]


def test_sentences_of_chinese_and_japanese_end_without_a_space(encoder: Encoder) -> None:
    given = [f"{'東京都庁舎本部'}{number}。" for number in "一二三四五六七八九十百千"]  # 9 tokens each
    _, *others = passages("".join(given), encoder)
    assert others == ["".join(given[start:]) for start in (6,)]


def test_lines_are_borders_too(encoder: Encoder) -> None:
    given = [" ".join(WORDS) for _ in range(10)]  # 10 tokens each, and no full stop
    _, *others = passages("\n\n".join(given), encoder)
    assert others == ["\n\n".join(given[4:])]


def test_a_prompt_takes_room_in_every_passage(encoder: Encoder) -> None:
    text, prompt = " ".join(["red"] * 200), "blue " * 20
    for passage in passages(text, encoder, prompt):
        assert len(passage.split()) <= ROOM - 20
        assert not encoder.tokenize([prompt + passage])[0].truncated


def test_a_title_is_in_front_of_every_passage_and_places_are_those_of_the_text(encoder: Encoder) -> None:
    """Worked by hand: the title has 3 tokens. The head has 59 tokens of the text, other passages 57."""
    text = " ".join(sentences(20))
    found = split(Content(text, "Stone green cat"), encoder)
    assert found is not None
    assert found.complete
    assert found.lead == "Stone green cat\n"
    words = [WORDS[at % 10] for at in range(200)]
    plain = split(Content(" ".join(words), "Stone green cat"), encoder)
    assert plain is not None
    spans = [plain.head, *plain.others]
    cut = [" ".join(words)[slice(*span)].split() for span in spans]
    places = [(0, 59), (52, 109), (102, 159), (143, 200)]
    assert cut == [words[start:end] for start, end in places]
    shown = [plain.lead + " ".join(words)[slice(*span)] for span in spans]
    assert not any(row.truncated for row in encoder.tokenize(shown))


def test_a_text_that_is_seen_whole_without_its_title_is_split_behind_it(encoder: Encoder) -> None:
    text = " ".join(["red"] * (ROOM - 2))
    assert split(Content(text, "red green"), encoder) is None
    assert split(Content(text, "red green blue"), encoder) is not None


def test_a_title_as_long_as_a_text_leaves_three_quarters_of_a_passage_to_the_text(encoder: Encoder) -> None:
    title = " ".join(WORDS[at % 10] for at in range(ROOM + 40))
    text = " ".join(["red"] * 100)
    found = split(Content(text, title), encoder)
    assert found is not None
    assert tuple(found.head) == (0, 0), "the head is in the title"
    assert found.lead == " ".join(title.split()[: ROOM // 4]) + "\n"
    assert found.others[0].start == 0
    assert found.others[-1].end == len(text)
    assert not found.complete, "nothing shows the end of the title"
    shown = [found.lead + text[slice(*span)] for span in found.others]
    assert not any(row.truncated for row in encoder.tokenize(shown))


def test_a_prompt_that_leaves_hardly_any_room_leaves_the_text_whole(encoder: Encoder) -> None:
    assert split(Content(" ".join(["red"] * 200)), encoder, "blue " * (ROOM - 5)) is None
    assert split(Content(" ".join(["red"] * 200)), encoder, "blue " * (ROOM + 5)) is None
    found = split(Content(" ".join(["red"] * 200)), encoder, "blue " * (ROOM - 8))
    assert found is not None
    assert found.complete


def test_whatever_the_text_each_word_is_in_a_passage_that_the_model_sees_whole(encoder: Encoder) -> None:
    chance = random.Random(7)
    ends = ["", ". ", "! ", "? ", "…", "。", "\n", " ", '." ', ".)", ". . ."]
    for _ in range(60):
        text = "".join(
            f"{chance.choice(WORDS)}{chance.choice(ends) if chance.random() < 0.2 else ' '}"
            for _ in range(chance.randrange(70, 900))
        )
        found = split(Content(text), encoder)
        assert found is not None
        assert found.complete
        spans = [found.head, *found.others]
        assert found.head.start == 0
        assert spans[-1].end == len(text.rstrip())
        for before, after in itertools.pairwise(spans):
            assert before.start < after.start < before.end < after.end  # Each passage overlaps with the next.
        assert not any(row.truncated for row in encoder.tokenize([text[slice(*span)] for span in spans]))


@pytest.mark.parametrize("mark", [".", "!", "。", ".)", "\n", " ", '."'])
def test_a_text_of_marks_alone_takes_no_longer_than_another(encoder: Encoder, mark: str) -> None:
    started = time.process_time()
    split(Content(mark * 200_000), encoder)
    assert time.process_time() - started < 20  # Quadratic time would take minutes.


def test_a_huge_text_is_split_in_pieces_with_the_same_tokens(encoder: Encoder) -> None:
    text = " ".join(sentences(5000))  # 330,000 characters: read in six pieces
    whole = [(piece.start, piece.stop) for piece in encoder.pieces(text, add_special_tokens=False)]
    assert [tuple(span) for span in encoder.spans(text).tolist()] == whole


def test_a_text_that_nobody_waits_for_is_not_split_any_further(encoder: Encoder) -> None:
    requested = iter([True, False, False])
    assert split(Content("red river " * 100_000), encoder, is_needed=lambda: next(requested)) is None


def test_the_thread_of_a_document_that_nobody_waits_for_any_more_ends_and_gives_its_memory_back(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, given_back = threading.Event(), threading.Event(), threading.Event()

    def spans(text: str, requested: Callable[[], bool]) -> object:
        begun.set()
        while requested():
            ended.wait(0.01)
        ended.set()
        return np.empty((0, 2), np.int64)

    class Cuts:
        async def embed(self, _encoder: Encoder, texts: Sequence[str], **_options: object) -> Answer:
            return Answer(np.zeros((1, 2), np.float32), [64], [True], Timing(0, 0, 0), [0])

    monkeypatch.setattr(encoder, "spans", spans)
    monkeypatch.setattr(memory, "give_back", given_back.set)
    documents = DocumentEncoder(Cuts(), passages=True)  # type: ignore[arg-type]
    generation = SimpleNamespace(encoder=encoder, manifest=encoder.manifest)

    async def leave() -> None:
        embedding = asyncio.ensure_future(
            documents.embed(generation, [Content("red river " * 20_000)], ["default"], Lane.BACKGROUND)  # type: ignore[arg-type]
        )
        await asyncio.to_thread(begun.wait, LIMIT)
        embedding.cancel()
        await asyncio.gather(embedding, return_exceptions=True)

    try:
        asyncio.run(leave())
        assert ended.wait(LIMIT)
        assert given_back.wait(LIMIT)
    finally:
        documents.close()


def test_shorter_passages_begin_at_the_start_and_the_head_stays(encoder: Encoder) -> None:
    text = " ".join(sentences(12))
    whole = split(Content(text), encoder)
    assert split(Content(text), encoder, length=1000) == whole, "more than the model reads changes nothing"
    short = split(Content(text), encoder, length=24)
    assert whole is not None
    assert short is not None
    assert short.head == whole.head, "so that its vector is the same"
    assert short.complete
    parts = [text[slice(*span)] for span in short.others]
    assert parts[0] == " ".join(sentences(2))
    assert all(len(encoder.spans(part)) <= 24 for part in parts)
    left_out = [letter for at, letter in enumerate(text) if not any(a <= at < b for a, b in short.others)]
    assert {*left_out} <= {" "}


def test_a_text_within_one_short_passage_is_not_split(encoder: Encoder) -> None:
    [sentence] = sentences(1, words=20)
    assert split(Content(sentence), encoder, length=21) is None
    assert split(Content(sentence), encoder, length=20) is not None
    assert split(Content(sentence, "red"), encoder, length=21) is not None, "the title counts"


@pytest.mark.parametrize(
    ("reads", "learned", "tokens"),
    [(reads, None, half) for reads, half in ((256, 128), (512, 256), (128, 64), (64, 64), (32, 32))]
    + [(256, 64, 64), (64, 256, 64)],
)
def test_a_passage_has_half_of_what_the_model_reads_unless_another_length_was_learned(
    encoder: Encoder, reads: int, learned: int | None, tokens: int
) -> None:
    search = {"tickets": SearchDefaults(mode="dense", weight=1, passage_tokens=learned)}
    manifest = encoder.manifest.model_copy(update={"max_length": reads, "search": search})
    assert passage_tokens(manifest, "tickets") == tokens
    without = manifest.model_copy(update={"search": {}})
    assert passage_tokens(manifest, "notes") == passage_tokens(without, "notes")


def test_the_usual_passages_are_those_of_half_the_length(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(sentences(12))
    half = split(Content(text), encoder, length=ROOM // 2)
    monkeypatch.setattr(passages_module, "MIN_DEFAULT", 16)
    assert split(Content(text), encoder) == half
    assert half is not None
    assert [half.others[0].start, half.head.start] == [0, 0], "they begin at the start of the text"
    [sentence] = sentences(1, words=ROOM // 2)
    assert split(Content(sentence), encoder) is not None, "it has a full stop more"
    assert split(Content(sentence.removesuffix(".")), encoder) is None
