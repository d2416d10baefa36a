"""The statistics of a live test: which outcomes count, and when they decide. Start at `decide`.

Each outcome is a win of the candidate or of the active version. The test may look after every outcome and
stop at any time. It is a mixture of likelihood ratios: for a win share p above 1/2,

    e = Σ prior(p) · (2p)^wins · (2(1-p))^losses

Its expectation is at most 1 as long as each outcome is a win with a probability of at most 1/2, so it ever
exceeds 1/ALPHA with a probability of at most ALPHA (Ville's inequality; Robbins, 1970; Howard et al., 2021).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.025  # Probability of accepting a candidate that is not better, at any stopping time.
MIN_ACCEPT, MIN_REJECT = 100, 30  # Outcomes before each decision.
MAX_DECIDED = 5000  # Without a decision by then, the candidate is rejected.
# One visitor, or one query, has at most this share of the outcomes, or this number at the beginning. Eight
# wins in a row are evidence enough, so the number is less.
MAX_SHARE, FIRST = 0.05, 5

# Win shares of real gains are near 1/2: three points of nDCG@10 are about 0.55.
_WINS = np.linspace(0.505, 0.995, 50)
_PRIOR = np.exp(-(_WINS - 0.5) / 0.06)
_LOG_PRIOR = np.log(_PRIOR / _PRIOR.sum())[:, None]
_LOG_WIN, _LOG_LOSS = np.log(2 * _WINS)[:, None], np.log(2 - 2 * _WINS)[:, None]

Decision = Literal["accepted", "rejected"]


class Outcome(NamedTuple):
    """A first click of a visitor after a tested search. `side` is 1 for the candidate, otherwise -1."""

    side: int
    collection: str
    query: str
    visitor: str
    key: str


class Standing(NamedTuple):
    """How a live test stands.

    Attributes:
        wins: Outcomes for the candidate.
        decided: All outcomes that count.
        evidence: Natural logarithm of the evidence that the candidate is better, now.
        decision: The decision, or None to go on.
        why: The reason for a rejection.
    """

    wins: int = 0
    decided: int = 0
    evidence: float = 0.0
    decision: Decision | None = None
    why: str = ""


def select(outcomes: Iterable[Outcome]) -> list[int]:
    """Returns the sides of the outcomes that count, in their order.

    A query of a visitor counts once. Outcomes without a visitor share their key's part. Which outcome counts
    depends only on earlier ones, so the test stays valid.
    """
    counted: list[int] = []
    seen: set[tuple[object, ...]] = set()
    shares = Counter[tuple[str, ...]]()
    for side, collection, query, visitor, key in outcomes:
        parts = ("query", collection, query), ("visitor", visitor) if visitor else ("key", key)
        limit = max(FIRST, MAX_SHARE * len(counted))
        if parts in seen or any(shares[part] >= limit for part in parts):
            continue
        seen.add(parts)
        shares.update(parts)
        counted.append(side)
    return counted


def measure_evidence(wins: NDArray[np.int64], losses: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the logarithm of the mixture for each pair of counts."""
    parts = _LOG_PRIOR + wins * _LOG_WIN + losses * _LOG_LOSS
    most = parts.max(axis=0)
    found: NDArray[np.float64] = most + np.log(np.exp(parts - most).sum(axis=0))
    return found


def decide(sides: Sequence[int]) -> Standing:
    """Returns how a test stands after outcomes, or stood when they decided it."""
    if not sides:
        return Standing()
    won = np.cumsum(np.array(sides) > 0, dtype=np.int64)
    decided = np.arange(1, len(sides) + 1)
    better, worse = measure_evidence(won, decided - won), measure_evidence(decided - won, won)
    certain = -np.log(ALPHA)
    accepts = (better >= certain) & (decided >= MIN_ACCEPT)
    rejects = (worse >= certain) & (decided >= MIN_REJECT)
    ends = accepts | rejects | (decided >= MAX_DECIDED)
    at = int(ends.argmax()) if ends.any() else len(sides) - 1
    decision: Decision | None = None
    why = ""
    if accepts[at]:
        decision = "accepted"
    elif rejects[at]:
        decision, why = "rejected", "The active version wins more."
    elif ends[at]:
        decision, why = "rejected", f"{MAX_DECIDED:,} searches did not show that it is better."
    return Standing(int(won[at]), int(decided[at]), float(better[at]), decision, why)
