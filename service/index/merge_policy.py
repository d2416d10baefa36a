"""Decides when the rows of an index are merged into a new base.

    writes ──▶ tail, exact search ──(50,000 rows, or a tenth of the base's)──▶ base, inverted lists

A larger index has one base (ivf.py), and a tail with later writes (exact.py). Both are merged when the tail
has a tenth of the base's rows, or a fifth of the base's rows are dead. The base is trained again only when it
is twice as large.
"""

from service.index.ivf import Clustered
from service.index.view import View

BASE_ROWS = 50_000  # Exact search of 50,000 rows takes a few milliseconds.
DELTA_SHARE = 0.1  # Largest tail as a share of the base, and at most `BASE_ROWS` rows.


def due(view: View) -> bool:
    """Returns whether all rows must be merged into a new base, or into an exact part if few are left."""
    base = [part for part in view.settled if isinstance(part.segment, Clustered)]
    if len(view.settled) > len(base):  # Exact rows were loaded, or their merge failed.
        return True
    most = min(BASE_ROWS, DELTA_SHARE * base[0].count) if base else BASE_ROWS
    return view.tail.count > most or any(part.is_wasteful for part in base)
