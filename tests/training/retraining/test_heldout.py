"""What is held out: by id, for ever, and a copy of it with it."""

from __future__ import annotations

import random
import subprocess
import sys

from training.mining.dedupe import jaccard, shingles
from training.retraining.documents import Document
from training.retraining.heldout import JUDGE, TRAIN, hold_out, part_of, place

WORDS = "river stone market letter engine garden bridge paper window forest harbour cat dog".split()


def documents(count: int, seed: int = 0) -> list[Document]:
    rng = random.Random(seed)
    return [Document(f"d{at}", "", " ".join(rng.choices(WORDS, k=30)) + f" {at}") for at in range(count)]


def test_about_the_share_is_held_out_and_nothing_is_in_both() -> None:
    split = hold_out(documents(2000), 0.1)
    assert 150 < len(split.held) < 250
    assert not {one.id for one in split.train} & {one.id for one in split.held}
    assert not {one.id for one in split.dev} & {one.id for one in (*split.train, *split.held)}
    assert 120 < len(split.dev) < 240
    assert len(split.train) + len(split.held) + len(split.dev) + len(split.copies) == 2000


def test_what_is_added_moves_nothing_that_was_there() -> None:
    fewer, more = hold_out(documents(500), 0.2), hold_out(documents(900), 0.2)
    held = {one.id for one in more.held}
    assert {one.id for one in fewer.held} <= held
    assert {one.id for one in fewer.dev} <= {one.id for one in more.dev}
    assert not {one.id for one in fewer.train} & held


def test_the_place_of_an_id_is_the_same_in_another_process() -> None:
    code = "from training.retraining.heldout import place; print(place('ticket 4711'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(said) == place("ticket 4711")
    assert 0 <= place("ticket 4711") < 1


def first(wanted: bool, name: str, count: int = 1) -> list[str]:
    """Ids that are held out, or are not, at a share of 0.1."""
    return [
        f"{name} {at}"
        for at in range(1000)
        if part_of(place(f"{name} {at}"), 0.1) == (JUDGE if wanted else TRAIN)
    ][:count]


def test_what_nearly_repeats_a_document_held_out_is_on_neither_side() -> None:
    [one] = documents(1)
    [held], [trained] = first(True, "a"), first(False, "b")
    twins = [Document(trained, "", one.text + "!"), Document(held, "", one.text + "?")]
    split = hold_out([*twins, *documents(200, seed=1)], 0.1)
    assert held in {document.id for document in split.held}
    assert trained not in {document.id for document in (*split.held, *split.train)}
    assert split.copies[trained] == held


def test_a_copy_of_a_copy_of_a_document_held_out_is_found() -> None:
    """The third resembles the second, which is held out as well, and the first hardly."""
    rng = random.Random(3)
    words = [str(rng.randrange(100_000, 1_000_000)) for _ in range(108)]
    texts = [" ".join(words[start : start + 100]) for start in (0, 4, 8)]
    similar = [jaccard(shingles(texts[at]), shingles(texts[at + 1])) for at in (0, 1)]
    assert min(similar) >= 0.9 > jaccard(shingles(texts[0]), shingles(texts[2]))
    ids = [*first(True, "a", 2), *first(False, "b")]
    split = hold_out([Document(id, "", text) for id, text in zip(ids, texts, strict=True)], 0.1)
    assert [document.id for document in split.held] == [ids[0]]
    assert split.train == ()
    assert split.copies == {ids[1]: ids[0], ids[2]: ids[0]}


def test_of_near_duplicates_one_judges_and_one_is_trained_on() -> None:
    text = documents(1)[0].text
    ids = [*first(True, "a", 3), *first(False, "b", 3)]
    other = documents(1, seed=5)[0].text
    texts = [text + "." * at for at in range(3)] + [other + "." * at for at in range(3)]
    split = hold_out([Document(id, "", each) for id, each in zip(ids, texts, strict=True)], 0.1)
    assert [document.id for document in split.held] == ids[:1]
    assert [document.id for document in split.train] == ids[3:4]
    assert split.copies == {ids[1]: ids[0], ids[2]: ids[0], ids[4]: ids[3], ids[5]: ids[3]}


def test_an_answer_goes_to_the_side_of_its_query() -> None:
    split = hold_out(documents(200), 0.2)
    moved = split.moved({split.train[0].id: JUDGE, split.held[0].id: TRAIN})
    assert split.train[0] in moved.held
    assert split.held[0] in moved.train
    assert len(moved.train) == len(split.train)
    assert {*moved.dev} == {*split.dev}
