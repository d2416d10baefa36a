"""The cost of a filter before any vector is compared: `python -m benchmarks.filters`.

A million documents with small metadata are put into a store by SQL, without texts worth reading or vectors;
then `matching` is timed for filters that pass about 0.01 %, 1 % and 50 %, with their fields declared and not,
and what `FilterCache` takes when a filter comes again: as it was, and behind each of some deletes.
"""

import sqlite3
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.places import arguments, say, scratch
from benchmarks.results import Spread
from benchmarks.tables import table
from service.store.filters.predicate import Predicate
from service.store.sqlite.filter_cache import FilterCache
from service.store.sqlite.filter_plan import matching
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import delete_some
from service.store.values import DEFAULT_COLLECTION

DECLARED = ("topic", "year", "owner", "half", "price")
FILTERS: dict[str, dict[str, Any]] = {
    "0.01 %, equal": {"owner": 77},
    "0.01 %, $in of 10 (of 100,000)": {"topic": {"$in": [f"t{at}" for at in range(10)]}},
    "0.01 %, between": {"price": {"$gte": 5000, "$lt": 5001}},
    "0.01 % and 50 %": {"owner": 77, "half": True},
    "0.01 % or 0.01 %": {"$or": [{"owner": 77}, {"owner": 78}]},
    "1 %, equal": {"year": 7},
    "1 % of 50 %": {"half": True, "year": {"$in": [7, 8]}},
    "50 %, equal": {"half": True},
    "50 %, range": {"price": {"$gte": 5000}},
    "50 %, not": {"half": {"$ne": True}},
    "25 %, two of 50 %": {"half": True, "price": {"$gte": 5000}},
}
FIRST = Predicate("revision = (SELECT min(revision) FROM documents)", [])
_FILL = """
    INSERT INTO documents (collection, id, text, metadata)
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?2 - 1)
    SELECT ?1, printf('document-%08d', i), 'a text of no length', json_object(
        'topic', 't' || (i * 7919 % 100000), 'year', i % 100, 'owner', i * 104729 % 10000,
        'half', json(iif(i % 2, 'true', 'false')), 'price', i * 31 % 1000003 * 0.01
    ) FROM n
"""


def main() -> None:
    parser = arguments("filters", __doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with scratch() as folder:
        path = folder / "simile.db"
        migrate(path)
        store = connect(path)
        store.execute("BEGIN")
        store.execute(_FILL, (DEFAULT_COLLECTION, options.documents))
        store.execute("COMMIT")
        before = path.stat().st_size
        started = time.perf_counter()
        bring_up_to_date(store)
        say(f"words of {options.documents:,} documents: {time.perf_counter() - started:.1f} s")
        started = time.perf_counter()
        bring_up_to_date(store, DECLARED)
        seconds = time.perf_counter() - started
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        grown = (path.stat().st_size - before) / 1e6
        say(f"{len(DECLARED)} fields: {seconds:.1f} s; words and fields take {grown:.0f} MB")
        rows = []
        for name, filter in FILTERS.items():
            found, times = timed(store, filter, DECLARED, options.repeats)
            scanned, [scan] = timed(store, filter, (), 1)
            if not np.array_equal(found, scanned):
                sys.exit(f"{name}: a lookup and a scan differ")
            again = timed_again(store, filter, options.repeats, writes=False)
            behind = timed_again(store, filter, options.repeats, writes=True)
            words = [Spread.of(each).words() for each in (times, again, behind)]
            rows.append([name, len(found), *words, f"{scan:.0f}"])
        print(table(("filter", "passes", "declared, ms", "again", "behind a write", "not declared"), rows))
        store.close()


def timed(
    store: sqlite3.Connection, filter: dict[str, Any], declared: Sequence[str], repeats: int
) -> tuple[Any, list[float]]:
    """The revisions that pass, and the milliseconds of each time."""
    milliseconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        found = matching(store, compile_filter(filter, declared), DEFAULT_COLLECTION)
        milliseconds.append((time.perf_counter() - started) * 1000)
    return found, milliseconds


def timed_again(
    store: sqlite3.Connection, filter: dict[str, Any], repeats: int, *, writes: bool
) -> list[float]:
    """The milliseconds of each time but the first; with `writes`, a document was changed before."""
    passing, where, milliseconds = FilterCache(), compile_filter(filter, DECLARED), []
    for _ in range(repeats + 1):
        if writes:
            store.execute("BEGIN")
            delete_some(
                Transaction(store), matching(store, FIRST, DEFAULT_COLLECTION).tolist(), DEFAULT_COLLECTION
            )
            store.execute("COMMIT")
        started = time.perf_counter()
        found = passing.of(store, where, DEFAULT_COLLECTION)
        milliseconds.append((time.perf_counter() - started) * 1000)
    if not np.array_equal(found, matching(store, where, DEFAULT_COLLECTION)):
        sys.exit(f"{filter}: what was kept is not what is there")
    return milliseconds[1:]


if __name__ == "__main__":
    main()
