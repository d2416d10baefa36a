"""Writes a map as `python -m service map` does, with invented positions in random groups."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

SIDE = 65_535
GROUPS = 16
WORDS = (
    "bone gene heart lung virus cell mouse trial cancer sleep diet stroke brain blood birth kidney".split()
)
KINDS = ["trial", "review", "note"]


def write_map(
    data: Path, version: str, ids: Sequence[str], collection: str = "default", aligned_to: str = ""
) -> None:
    """Write the map of `ids` into the data directory. Each version has a different map."""
    chance = random.Random(version)
    middles = [(chance.uniform(0.15, 0.85) * SIDE, chance.uniform(0.15, 0.85) * SIDE) for _ in range(GROUPS)]
    group = [min(GROUPS - 1, int(chance.expovariate(0.25))) for _ in ids]
    places = [[_near(chance, middles[number][axis]) for axis in (0, 1)] for number in group]
    content = {
        "version": version,
        "collection": collection,
        "made": "2026-11-20T02:11:00+00:00",
        "aligned_to": aligned_to or None,
        "ids": list(ids),
        "x": [place[0] for place in places],
        "y": [place[1] for place in places],
        "cluster": group,
        "clusters": [
            {
                "words": [WORDS[at], WORDS[at - 1], WORDS[at - 2]],
                "x": int(x),
                "y": int(y),
                "size": group.count(at),
            }
            for at, (x, y) in enumerate(middles)
        ],
        "fields": {"kind": {"values": KINDS, "of": [chance.randrange(-1, 3) for _ in ids]}},
        "strays": [0, 1, 2],
        "copies": [[3, 4]],
    }
    file = data / "maps" / version / f"{collection}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def _near(chance: random.Random, middle: float) -> int:
    return int(max(0, min(SIDE, chance.gauss(middle, SIDE / 22))))
