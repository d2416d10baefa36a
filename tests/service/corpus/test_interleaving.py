"""Team-draft interleaving: fair, without repeated hits, and the same on every page."""

from base64 import urlsafe_b64decode
from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from service.corpus.interleaving import Coins, Side, draft, name_search

SIDES: tuple[Side, ...] = (-1, 0, 1)


def coins(seed: int) -> Coins:
    return Coins("test", f"visitor-{seed}", "default", "red river")


def reference(active: str, candidate: str, flips: list[bool]) -> list[tuple[str, Side]]:
    """The rule in words: what both want next belongs to neither, otherwise the sides choose in turn."""
    chosen: list[tuple[str, Side]] = []
    waiting: list[Side] = []
    while True:
        taken = {hit for hit, _ in chosen}
        ours = [hit for hit in active if hit not in taken][:1]
        theirs = [hit for hit in candidate if hit not in taken][:1]
        if ours == theirs:
            if not ours:
                return chosen
            chosen.append((ours[0], 0))
            continue
        if not waiting:
            waiting = [1, -1] if flips.pop(0) else [-1, 1]
        side = waiting.pop(0)
        chosen += [(hit, side) for hit in (theirs if side == 1 else ours)]


@pytest.mark.parametrize("length", [3, 4])
def test_every_pair_of_rankings_is_drafted_as_the_reference_says(length: int) -> None:
    for candidate in permutations("abcde", length):
        for seed in range(4):
            flips = [*coins(seed).flip(10)]
            theirs = "".join(candidate)
            found = draft("abcd", theirs, iter(flips))
            assert found == reference("abcd", theirs, [*flips])
            assert sorted(hit for hit, _ in found) == sorted({*"abcd", *theirs})


def test_equal_rankings_and_equal_beginnings_decide_nothing() -> None:
    assert draft("abc", "abc", iter([])) == [("a", 0), ("b", 0), ("c", 0)]
    assert draft("", "", iter([])) == []
    for seed in range(20):
        found = draft("abcd", "abdc", coins(seed).flip(4))
        assert found[:2] == [("a", 0), ("b", 0)]
        assert Counter(side for _, side in found[2:]) in ({-1: 1, 1: 1}, {-1: 1, 0: 1}, {1: 1, 0: 1})


def test_each_side_has_half_of_the_first_places() -> None:
    first = [draft("abcd", "wxyz", coins(seed).flip(8))[0] for seed in range(2000)]
    share = np.mean([side == 1 for _, side in first])
    assert abs(share - 0.5) < 4 * np.sqrt(0.25 / 2000)
    assert {hit for hit, _ in first} == {"a", "w"}


def test_a_longer_page_begins_with_the_shorter_one() -> None:
    random = np.random.default_rng(0)
    for seed in range(100):
        active, candidate = random.permutation(60)[:40].tolist(), random.permutation(60)[:40].tolist()
        whole = draft(active, candidate, coins(seed).flip(40))[:40]
        for reach in (1, 7, 10, 39):
            assert draft(active[:reach], candidate[:reach], coins(seed).flip(reach))[:reach] == whole[:reach]


def test_a_share_of_the_visitors_and_queries_is_tested() -> None:
    shares = np.array([coins(seed).share for seed in range(2000)])
    assert abs(np.mean(shares < 0.3) - 0.3) < 4 * np.sqrt(0.21 / 2000)
    assert coins(7).share == coins(7).share != Coins("other", "visitor-7", "default", "red river").share


def test_only_the_coins_of_a_search_read_its_sides() -> None:
    sides: list[Side] = [1, -1, 0, 1, -1]
    hits = [(f"d{at}", sides[at % 5]) for at in range(20)]
    names = [name_search(hits, coins(1)) for _ in range(500)]
    assert [coins(1).find_side(names[0], id) for id, _ in hits] == [side for _, side in hits]
    assert {len(name) for name in (*names, name_search(hits, None))} == {64}
    others = (coins(2), Coins("another", "visitor-1", "default", "red river"))
    wrong = [other.find_side(name, id) for other in others for name in names for id, _ in hits]
    assert sum(map(abs, wrong)) < 0.01 * len(wrong)
    assert {coins(1).find_side(name, "d0") for name in ("short", "é" * 12, "?" * 64, "")} == {0}


def test_a_search_id_shows_no_side() -> None:
    """Each bit is as often set in the codes of either side, and no code comes back in another search."""
    ends = [
        [urlsafe_b64decode(name_search([("a", side)], coins(at)) + "==")[-2:] for at in range(2000)]
        for side in SIDES
    ]
    bits = np.array([[[*f"{int.from_bytes(end):016b}"] for end in each] for each in ends], int)
    assert np.abs(bits.mean(axis=1) - 0.5).max() < 4.5 * np.sqrt(0.25 / 2000)
    assert len({name_search([("a", 1)], coins(1)) for _ in range(100)}) == 100
