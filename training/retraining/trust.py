"""Trust: whose clicks and judgments count, for everything that learns from the use of a service.

The rule:

1. Rows of an untrusted key count for nothing. Each row of `GET /events` and `GET /feedback` says whether it
   is trusted; the keys file of the service decides (docs/ACCESS.md).
2. A visitor is a row's `user`, whatever key sent it. Where a row names no user, its key is the visitor.
3. One trusted judgment may move a result. Clicks and skips may only if they come from several visitors
   (`events.visitors`): a visitor alone decides nothing, however often it clicks.
4. Nobody has more than a share. Of the searches that are read, keys take turns, and within a key its
   visitors do (`in_turns`): a flood displaces only the searches of its own key and visitor. Within one query,
   a visitor's searches weigh as much as the median visitor's at most (`weights`). So of n visitors, no one
   has more than 2 / (n + 1) of the weight.

This module holds the rule alone. It knows nothing of click models, collections and HTTP.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import itemgetter

_VISITOR = "visitor "  # with a space, so it is no key's name
SINGLE_VISITOR, UNTRUSTED_KEY, OVER_SHARE = "single visitor", "untrusted key", "over the share"
REASONS = (SINGLE_VISITOR, UNTRUSTED_KEY, OVER_SHARE)  # for which an answer is dropped


def visitor_of(key: str, user: str) -> str:
    """The name of the visitor of a row. user: the hash that the service lists, or empty."""
    return f"{_VISITOR}{user}" if user else key


def described(visitor: str) -> str:
    """A visitor as a message names it: a key by its name, a user never by its hash."""
    if visitor.startswith(_VISITOR):
        return "one visitor"
    return f"the key {visitor!r}" if visitor else "callers without a key"


def in_turns(keys: Sequence[str], visitors: Sequence[str], most: int) -> list[int]:
    """The places of the searches to read, in order, at most `most`.

    The latest search of every key comes before the second latest of any, and so on. The searches of one key
    are ordered by the turns of its visitors in the same way.

    Args:
        keys: The key of each search, oldest search first.
        visitors: The visitor of each search.
        most: Searches that are read.

    """
    if len(keys) <= most:
        return [*range(len(keys))]
    latest_first = range(len(keys) - 1, -1, -1)
    return sorted(_turns(_turns(latest_first, visitors), keys)[:most])


def _turns(places: Iterable[int], owners: Sequence[str]) -> list[int]:
    """The places, with everyone's first before anyone's second."""
    turns = Counter[str]()
    ranked = []
    for place in places:
        ranked.append((turns[owners[place]], place))
        turns[owners[place]] += 1
    return [place for _, place in sorted(ranked, key=itemgetter(0))]


def weights(groups: Sequence[Hashable], visitors: Sequence[str]) -> list[float]:
    """The weight of each search, at most 1.

    A visitor with more searches of a group than the median visitor of that group gets the median's weight in
    sum. Of an even number of visitors, the median is the lower one of the two.

    Args:
        groups: What the search is weighed within, such as its query.
        visitors: The visitor of each search.

    """
    counts: defaultdict[Hashable, Counter[str]] = defaultdict(Counter)
    for group, visitor in zip(groups, visitors, strict=True):
        counts[group][visitor] += 1
    medians = {group: sorted(each.values())[(len(each) - 1) // 2] for group, each in counts.items()}
    return [
        min(1.0, medians[group] / counts[group][visitor])
        for group, visitor in zip(groups, visitors, strict=True)
    ]


def reason_for(kept: int, over_share: int, untrusted: int, *, least: int) -> str:
    """The reason why a document that was clicked is no answer; empty if it was clicked too seldom.

    Args:
        kept: Searches of trusted keys that led to it and were read.
        over_share: Those that were not read.
        untrusted: Searches of untrusted keys that led to it.
        least: Searches that must agree.

    """
    if kept >= least:
        return SINGLE_VISITOR
    if kept + over_share >= least:
        return OVER_SHARE
    return UNTRUSTED_KEY if kept + over_share + untrusted >= least else ""


def dropped_line(dropped: Mapping[str, int]) -> str:
    """The answers that were dropped, by reason; empty if there are none."""
    found = [f"{dropped[reason]:,} {reason}" for reason in REASONS if dropped.get(reason)]
    return f"{sum(dropped.values()):,} answers dropped ({', '.join(found)})" if found else ""


def warnings(answers: int, dropped: Mapping[str, int], *, users: bool) -> list[str]:
    """Warnings on clicks most of whose answers the rule drops.

    Args:
        answers: Those that count.
        dropped: Those that do not, by reason.
        users: Whether any search that was read names its user.

    """
    total = sum(dropped.values())
    if total <= answers:
        return []
    said = [f"The rule on trust drops most of what clicks say: {dropped_line(dropped)}, {answers:,} count."]
    if dropped.get(SINGLE_VISITOR):
        said.append("A single visitor's clicks decide nothing.")
        if not users:
            said.append(
                "No search names its user, so each key counts as one visitor: send an opaque `user` with "
                "each search or event."
            )
        said.append("Set events.visitors = 1 if one visitor's clicks may decide.")
    if dropped.get(UNTRUSTED_KEY):
        said.append("Look at the keys that the keys file calls untrusted (`python -m service keys list`).")
    if dropped.get(OVER_SHARE):
        said.append("One key or visitor sent most searches, and only its latest were read.")
    return [" ".join(said)]
