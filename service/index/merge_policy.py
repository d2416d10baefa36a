"""When the rows of an index are to be merged into a new base.

    writes ──▶ tail, searched exactly ──(50,000 rows, or a tenth of the base's)──▶ the base, in inverted lists

Up to `BASE_ROWS` rows there is the tail alone (exact.py). Above them there is one base (ivf.py), and the tail
holds what was written since. When the tail has a tenth of the base's rows, or a fifth of the base's own are
dead, both become the new base. It keeps the old one's centres until it is twice as large: a stream of writes
seldom trains.
"""

from service.index.ivf import Clustered
from service.index.view import View

BASE_ROWS = 50_000  # up to here an exact search takes a few milliseconds, and there is nothing to train
DELTA_SHARE = 0.1  # of the base's rows, and `BASE_ROWS` at most: more written since make a new base


def due(view: View) -> bool:
    """A new base is to be made of all rows: or, where too few are left for one, an exact part."""
    base = [part for part in view.settled if isinstance(part.segment, Clustered)]
    if len(view.settled) > len(base):  # exact rows that were loaded, or whose merge failed
        return True
    most = min(BASE_ROWS, DELTA_SHARE * base[0].count) if base else BASE_ROWS
    return view.tail.count > most or any(part.is_wasteful for part in base)
