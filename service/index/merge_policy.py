"""Which segments of an index to merge next, so that they stay few and nothing is written again too often.

    small ──(apply writes them anew)──▶ 1,024 rows ──(4 of a size)──▶ 4,096 ──▶ 16,384 ──▶ … ──▶ the base

Exact segments of one size class become one of the next, so that a row is copied as often as the logarithm of
the rows says. Above `BASE_ROWS` rows there is one base (ivf.py), and the exact segments beside it
hold what was written since. When those have a tenth of its rows, or a fifth of its own are dead, all become
the new base. It keeps the old one's centres until it is twice as large: a stream of writes seldom trains.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from service.index.ivf import Clustered
from service.index.segments import Part

SMALL_ROWS = (
    1024  # a segment below this is written anew by each apply(): half a millisecond at 384 dimensions
)
FAN = 4  # segments of one size class that make one of the next
BASE_ROWS = 50_000  # up to here an exact search takes a few milliseconds, and there is nothing to train
DELTA_SHARE = 0.1  # of the base's rows, and `BASE_ROWS` at most: more written since make a new base
DEAD_SHARE = 0.2  # a segment with more dead rows than this is written anew


def due(parts: Sequence[Part]) -> list[Part]:
    """The segments to merge into one next; none when all is well. Small ones are left to `apply`."""
    base = [part for part in parts if isinstance(part.segment, Clustered)]
    exact = [part for part in parts if not isinstance(part.segment, Clustered)]
    written, settled = (sum(part.count for part in some) for some in (exact, base))
    if written > (min(BASE_ROWS, DELTA_SHARE * settled) if base else BASE_ROWS) or any(map(_wasted, base)):
        return list(parts)
    tiers: defaultdict[int, list[Part]] = defaultdict(list)
    for part in exact:
        if len(part) >= SMALL_ROWS:
            tiers[int(math.log(len(part) / SMALL_ROWS, FAN))].append(part)
    for _, tier in sorted(tiers.items()):
        if len(tier) >= FAN:
            return tier
        for part in tier:
            if _wasted(part):
                return [part]
    return []


def _wasted(part: Part) -> bool:
    """Whether too many rows are dead."""
    return part.count < (1 - DEAD_SHARE) * len(part)
