"""Rules of trust: which clicks and judgments count when a retraining learns from the users of a service.

The rules:

1. Rows of an untrusted key count for nothing. Each row of `GET /events` and `GET /feedback` says whether it
   is trusted; the keys file of the service decides (docs/ACCESS.md).
2. A visitor is a row's `user`, whatever key sent it. Where a row names no user, its key is the visitor. If
   the same key also names users, such rows are not a further visitor, as a known user may have logged out.
3. One trusted judgment may move a result. Clicks and skips move a result only if they come from several
   visitors (`events.visitors`): a single visitor decides nothing, however often it clicks.
4. The share of each key and visitor is limited. Searches are read in rounds over the keys, and within a key
   over its visitors (`in_turns`). A round reads as many searches of a key as it has visitors, at most
   MAX_TURNS. This number is called the turns of the key. So if n keys send searches, a key with MAX_TURNS
   visitors keeps all its searches, or at least 1 / n of all that are read, however many users the other keys
   invent. If there is one other key, with one visitor, the share is MAX_TURNS / (MAX_TURNS + 1) instead.
   Within one query, a visitor's searches weigh as much as the median visitor's at most (`weights`). So of n
   visitors, no one has more than 2 / (n + 1) of the weight. Within a key and in weights, all rows of a key
   without a user are one visitor.

This module has only the rules, without click models, collections and HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from statistics import median_low

from models.messages import amount
from training.retraining.grouping import group

_VISITOR = "visitor "  # has a space, so no key has this name
SINGLE_VISITOR, UNTRUSTED_KEY, OVER_SHARE = "single visitor", "untrusted key", "over the share"
REASONS = (SINGLE_VISITOR, UNTRUSTED_KEY, OVER_SHARE)  # reasons to drop an answer
MAX_TURNS = 10  # maximum turns of a key in a round, even if it has more visitors (`in_turns`)

Caller = tuple[str, str]  # key and user of a row; the user is the hash that the service lists, or empty


def build_visitor(key: str, user: str) -> str:
    """Returns the name of the visitor who sent a row."""
    return f"{_VISITOR}{user}" if user else key


def get_number(callers: Iterable[Caller]) -> int:
    """Returns the minimum number of visitors behind `callers`.

    A caller without a user counts only if no other caller with the same key names a user.
    """
    distinct = {*callers}
    naming = {key for key, user in distinct if user}
    return len({build_visitor(key, user) for key, user in distinct if user or key not in naming})


def described(key: str) -> str:
    """Describes a key in a message."""
    return f"the key {key!r}" if key else "callers without a key"


def in_turns(callers: Sequence[Caller], most: int) -> list[int]:
    """Returns the indices of the searches to read, in order, at most `most`.

    In each round, a key with v visitors has min(v, MAX_TURNS) turns. Within a key, the latest search of each
    user comes before the second latest of any. Let w be the turns of a key in a round, and W those of all
    keys. Then the key keeps all its searches, or at least the first floor(most * w / W) in that order. Of k
    searches that a key with u users keeps, each user has at least floor(k / u), or all its searches. Searches
    without a user count as those of one more user.

    Args:
        callers: The key and the user of each search, oldest search first.
        most: Maximum number of searches to read.

    """
    if len(callers) <= most:
        return [*range(len(callers))]
    of_key = group((caller[0], caller) for caller in callers)
    turns = {key: min(get_number(each), MAX_TURNS) for key, each in of_key.items()}
    # The latest search of each caller, then the second latest of each, and so on.
    of_caller = group((callers[at], at) for at in reversed(range(len(callers))))
    rounds = sorted((number, -at) for some in of_caller.values() for number, at in enumerate(some))
    searches = group((callers[-place][0], place) for _, place in rounds)
    ranked = sorted(
        (turn / turns[key], place) for key, some in searches.items() for turn, place in enumerate(some, 1)
    )
    return sorted(-place for _, place in ranked[:most])


def weights(groups: Sequence[Hashable], visitors: Sequence[str]) -> list[float]:
    """Returns the weight of each search, at most 1.

    If a visitor has more searches of a group than the median visitor, the sum of its weights there is the
    median number of searches. For an even number of visitors, the lower of the two middle numbers is used.

    Args:
        groups: Group of each search, such as the query. Weights are computed within a group.
        visitors: Visitor of each search.

    """
    searches = [*zip(groups, visitors, strict=True)]
    counts = Counter(searches)
    of_group = group((name, number) for (name, _), number in counts.items())
    medians = {name: median_low(each) for name, each in of_group.items()}
    return [min(1.0, medians[name] / counts[name, visitor]) for name, visitor in searches]


def reason_for(kept: int, over_share: int, untrusted: int, *, least: int) -> str:
    """Returns the reason why a clicked document does not count as an answer.

    The reason is empty if the document simply has too few clicks.

    Args:
        kept: Number of read searches of trusted keys with a click on the document.
        over_share: Number of searches of trusted keys with such a click that exceeded a share and were not
            read.
        untrusted: Number of searches of untrusted keys with a click on the document.
        least: Number of searches that must agree.

    """
    counts = {SINGLE_VISITOR: kept, OVER_SHARE: over_share, UNTRUSTED_KEY: untrusted}
    enough = zip(counts, accumulate(counts.values()), strict=True)
    return next((reason for reason, count in enough if count >= least), "")


def dropped_line(dropped: Mapping[str, int]) -> str:
    """Formats the numbers of dropped answers by reason. Empty if no answer was dropped."""
    found = [f"{dropped[reason]:,} {reason}" for reason in REASONS if dropped.get(reason)]
    return f"{amount(sum(dropped.values()), 'answer')} dropped ({', '.join(found)})" if found else ""


def warnings(answers: int, dropped: Mapping[str, int], *, users: bool) -> list[str]:
    """Returns warnings if the rules drop most answers from clicks.

    Args:
        answers: Number of answers that count.
        dropped: Number of dropped answers by reason.
        users: True if any search that was read names a user.

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
        said.append("Look at the keys that the keys file calls untrusted (`simile keys list`).")
    if dropped.get(OVER_SHARE):
        said.append(
            "There are more searches than a run reads. Keys and their visitors took turns, and the older "
            "searches of those that sent more than their share were not read."
        )
    return [" ".join(said)]
