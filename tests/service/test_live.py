"""A generation closes when its last borrower leaves."""

import pytest

from models.encoder import Encoder
from service.active import ActiveGeneration, Generation, in_memory
from service.errors import Conflict
from tests.service.fakes import CountingEncoder


class ClosingEncoder(CountingEncoder):
    closed = False

    def close(self) -> None:
        self.closed = True


def generation(name: int) -> tuple[Generation, ClosingEncoder]:
    encoder = ClosingEncoder(name)
    return Generation(name, encoder.as_encoder(), in_memory()), encoder


def test_a_request_keeps_its_generation_when_another_takes_its_place() -> None:
    old, old_encoder = generation(1)
    new, new_encoder = generation(2)
    active = ActiveGeneration(old)
    with active.borrow() as borrowed:
        active.follow(new)
        active.replace(new)
        assert active.followers == (old,)
        active.leave(old)
        assert borrowed is old
        assert not old_encoder.closed
        with active.borrow() as later:
            assert later is new
    assert old_encoder.closed
    assert not new_encoder.closed


def test_a_pair_that_closes_is_told_of_for_both_of_its_encoders() -> None:
    """If `on_close` got only one encoder, the cache would keep the query encoder's vectors."""
    pair, encoder = generation(1)
    student = ClosingEncoder(2).as_encoder()
    encoder.queries = student
    told: list[Encoder] = []
    active = ActiveGeneration(pair, on_close=told.append)
    assert active.encoding == {"v1", "v2"}
    active.close()
    assert told == [pair.encoder, student]


def test_a_borrower_that_fails_gives_its_generation_back_which_closes_once_nobody_uses_it() -> None:
    old, encoder = generation(1)
    active = ActiveGeneration(old)
    with pytest.raises(ValueError, match="mine"), active.borrow():
        raise ValueError("mine")
    old.retire()
    assert encoder.closed
    old, encoder = generation(1)
    old.retire()
    assert encoder.closed


def test_who_comes_between_the_retirement_and_the_new_reference_gets_the_new_one() -> None:
    old, _ = generation(1)
    new, _ = generation(2)
    active = ActiveGeneration(old)
    enter = old.enter
    old.retire()

    def replaced_meanwhile() -> bool:
        active.replace(new)
        return enter()

    old.enter = replaced_meanwhile  # type: ignore[method-assign]
    with active.borrow() as borrowed:
        assert borrowed is new


def test_a_version_that_is_named_is_borrowed_while_it_follows() -> None:
    old, encoder = generation(1)
    new, _ = generation(2)
    active = ActiveGeneration(old)
    active.follow(new)
    active.replace(new)
    with active.borrow("v1") as named, active.borrow("v2") as served:
        assert (named, served) == (old, new)
        active.leave(old)
        assert not encoder.closed, "whoever has it keeps it"
        with pytest.raises(Conflict, match="v1 is not loaded; v2 can be used"), active.borrow("v1"):
            pass
    assert encoder.closed


def test_of_two_generations_of_one_version_the_whole_one_is_borrowed() -> None:
    active_one, _ = generation(1)
    active = ActiveGeneration(active_one)
    making, lingering = generation(2)[0], generation(2)[0]
    lingering.is_complete = True
    active.follow(making)
    active.follow(lingering)
    with active.borrow("v2") as named:
        assert named is lingering
    active.leave(lingering)
    with active.borrow("v2") as named:
        assert named is making
