"""What is held out: by id, for ever, and a copy of it with it."""

from __future__ import annotations

import random
import subprocess
import sys

from training.retraining.documents import Document
from training.retraining.heldout import hold_out, place

WORDS = "river stone market letter engine garden bridge paper window forest harbour cat dog".split()


def documents(count: int, seed: int = 0) -> list[Document]:
    rng = random.Random(seed)
    return [Document(f"d{at}", "", " ".join(rng.choices(WORDS, k=30)) + f" {at}") for at in range(count)]


def test_about_the_share_is_held_out_and_nothing_is_in_both() -> None:
    split = hold_out(documents(2000), 0.1)
    assert 150 < len(split.held) < 250
    assert not {one.id for one in split.train} & {one.id for one in split.held}
    assert len(split.train) + len(split.held) + split.dropped == 2000


def test_what_is_added_moves_nothing_that_was_there() -> None:
    fewer, more = hold_out(documents(500), 0.2), hold_out(documents(900), 0.2)
    held = {one.id for one in more.held}
    assert {one.id for one in fewer.held} <= held
    assert not {one.id for one in fewer.train} & held


def test_the_place_of_an_id_is_the_same_in_another_process() -> None:
    code = "from training.retraining.heldout import place; print(place('ticket 4711'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(said) == place("ticket 4711")
    assert 0 <= place("ticket 4711") < 1


def test_near_duplicates_are_held_out_together() -> None:
    one, *rest = documents(300)
    held = next(f"copy {at}" for at in range(1000) if place(f"copy {at}") < 0.1)
    trained = next(f"copy {at}" for at in range(1000) if place(f"copy {at}") > 0.5)
    twins = [Document(trained, "", one.text + "!"), Document(held, "", one.text + "?")]
    split = hold_out([one, *rest, *twins], 0.1)
    there = {document.id for document in split.held}
    assert {one.id, held, trained} <= there
    assert split.moved == 1 + (place(one.id) >= 0.1)


def test_of_near_duplicates_to_train_on_the_first_is_kept() -> None:
    trained = [f"t{at}" for at in range(1000) if place(f"t{at}") > 0.5][:3]
    text = documents(1)[0].text
    twins = [Document(id, "", text + "." * at) for at, id in enumerate(trained)]
    split = hold_out([*twins, *documents(50, seed=1)], 0.1)
    assert [document.id for document in split.train if document.id in trained] == [trained[0]]
    assert split.dropped == 2
