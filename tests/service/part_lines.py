"""Lines about parts, whose codes have much in common."""

import random


def _lines() -> list[str]:
    pick = random.Random(5).choice
    return [
        f"Part {pick(['ABC', 'XR', 'KT', 'PGM', 'AR'])}-{pick([123, 7, 15, 200, 42, 1000])}-{pick('ABCD')}: "
        f"{pick(['ring', 'bolt', 'valve', 'hose', 'seal'])} for pump {pick(['ABC', 'XR', 'KT'])} "
        f"{pick([123, 7, 15])}, pack of {pick([15, 42, 200, 7])}, drawing {pick('ABCD')}."
        for _ in range(300)
    ]


LINES = _lines()
CODES = sorted({line.removeprefix("Part ").partition(":")[0] for line in LINES})
