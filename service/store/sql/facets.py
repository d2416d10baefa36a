"""Counts the values of metadata fields, for facets. Start at `count_facets` and `Columns.load`.

    revisions to count ─▶ columns: the values of each revision in memory ─▶ counts per value, or per range
                              └── revisions that are not in a column: their metadata is read once

A column has the values of one field by revision. The metadata of a revision never changes. So a column never
becomes wrong, and counting reads no metadata after the first time. Facet values are equal if filters treat
them as equal: 1 and 1.0 are one value, and so are two texts of the same moment. `values_at` returns the
values of a document. So a filter for a value matches exactly the counted documents.
"""

import heapq
import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.store.filters.grammar import INT64, values_at
from service.store.filters.ranges import cut_numbers, cut_times
from service.store.filters.times import parse_time, show_time
from service.store.scheduling import pause
from service.store.sql.bounded_cache import BoundedCache
from service.store.sql.records import Reading, parse_metadata
from service.store.values import Facet, FacetValue, Revisions

MAX_CHARACTERS = 256  # A longer text is not a value of a facet. It counts as other.
MAX_BYTES = 128 << 20  # Memory of all columns.
MAX_COLUMN_BYTES = 48 << 20  # A million documents with 150,000 different short texts.
# A field with too many different values is left out while the documents have this share of those values.
REFUSED_SHARE = 0.9
MAX_REFUSED, MAX_REFUSED_BYTES = 100, 32 << 20  # Limits for the record of recently left out fields.
STEP = 2000  # Documents that are read at a time, in some 10 ms.
OUTER_SHARE = 0.02  # Share of the values, at each end, that does not affect the width of ranges.
KEPT = 8  # Results that a column keeps.
DENSE = 16  # A table of flags is faster than a search if it has at most this many for each revision.
_VALUE_BYTES = 200  # Memory of a value, in addition to its characters.
_PLAIN = (str, int, float)  # Types of most values. Not bool, because True equals 1 in Python.
_TEXT, _NUMBER, _TIME, _OTHER, _UNLISTED = range(5)

Codes: TypeAlias = NDArray[np.int32]
Key: TypeAlias = tuple[int, Any]  # The kind of a value, and a form that is the same for equal values.


class _Rows(NamedTuple):
    """The values of revisions, as codes. Immutable.

    Attributes:
        revisions: The revisions, in ascending order.
        starts: For each revision, the start of its codes. Then the end of the last revision.
        codes: The codes of all values. A revision has each code once.
        exists: For each document, True if it has the field.
    """

    revisions: Revisions
    starts: NDArray[np.int64]
    codes: Codes
    exists: NDArray[np.bool_]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self)


class Column:
    """The values of one field. All reading threads share it; `Columns` locks it for changes.

    The code of a value is its position in `keys`.
    """

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self.rows = _Rows(none, np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, bool))
        self.keys: list[Key] = []
        self.kinds = bytearray()
        self.counted: deque[tuple[_Rows, Revisions, int, Facet]] = deque(maxlen=KEPT)  # The latest results.
        self._codes: dict[Key, int] = {}
        self._known: dict[str | float, int] = {}  # Codes of texts and numbers, as documents write them.
        self._orders: dict[int, tuple[list[int], NDArray[np.int64]]] = {}
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self._bytes

    def lacks(self, revisions: Revisions) -> Revisions:
        there = self.rows.revisions
        if np.array_equal(there, revisions):
            return revisions[:0]
        return revisions[~_is_among(revisions, there)]

    def add(self, read: Mapping[int, Sequence[Any]]) -> None:
        """Adds revisions, each with the values that the field refers to (`values_at`)."""
        new = self.lacks(np.array(sorted(read), np.int64))
        if not len(new):  # Another thread was faster.
            return
        added: list[int] = []
        counts: list[int] = []
        found = [read[revision] for revision in new.tolist()]
        for values in found:
            if len(values) == 1 and type(values[0]) in _PLAIN:
                added.append(self._code(values[0]))
                counts.append(1)
            else:
                codes = {self._code(member) for member in _list_members(values)}
                added += codes
                counts.append(len(codes))
        self._merge(new, counts, added, [bool(values) for values in found])

    def _merge(
        self, new: Revisions, counts: Sequence[int], added: Sequence[int], exist: Sequence[bool]
    ) -> None:
        old = self.rows
        revisions = np.concatenate([old.revisions, new])
        exists = np.concatenate([old.exists, np.array(exist, bool)])
        codes = np.concatenate([old.codes, np.array(added, np.int32)])
        lengths = np.concatenate([np.diff(old.starts), np.array(counts, np.int64)])
        if len(old.revisions) and new[0] < old.revisions[-1]:
            order = np.argsort(revisions, kind="stable")
            codes = codes[_places((np.cumsum(lengths) - lengths)[order], lengths[order])]
            revisions, exists, lengths = revisions[order], exists[order], lengths[order]
        self.rows = _Rows(revisions, np.concatenate([[0], np.cumsum(lengths)]), codes, exists)

    def _code(self, value: str | float | None) -> int:
        plain = type(value) in _PLAIN
        if plain and (code := self._known.get(value)) is not None:  # type: ignore[arg-type]
            return code
        key = _get_key(value)
        code = self._codes.setdefault(key, len(self.keys))
        is_new = code == len(self.keys)
        if is_new:
            self.keys.append(key)
            self.kinds.append(key[0])
        if plain and key[0] != _UNLISTED:
            self._known[value] = code  # type: ignore[index]
            self._bytes += _VALUE_BYTES + (len(value) if isinstance(value, str) else 0)
        elif is_new:
            self._bytes += _VALUE_BYTES
        return code

    def get_order(self, kind: int, codes: NDArray[np.intp]) -> tuple[list[int], NDArray[np.int64]]:
        """Returns the codes of a kind in the order of their values, and the place of each code in it.

        The result may have more codes than are given.

        Args:
            kind: The kind.
            codes: All codes of this kind below some code, in ascending order.
        """
        order, ranks = self._orders.get(kind, ([], np.empty(0, np.int64)))
        if len(order) < len(codes):
            order = sorted([*order, *codes[len(order) :].tolist()], key=lambda code: self.keys[code][1])
            ranks = np.empty(len(self.keys), np.int64)
            ranks[order] = np.arange(len(order))
            self._orders[kind] = order, ranks
        return order, ranks


class _Refused(NamedTuple):
    """Documents that have too many different values of a field, with the number of values of each."""

    revisions: Revisions
    counts: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        return max(self.revisions.nbytes + self.counts.nbytes, MAX_REFUSED_BYTES // MAX_REFUSED)

    def are_among(self, revisions: Revisions) -> bool:
        """Returns whether `revisions` have almost all of the values."""
        inside = self.counts[_is_among(self.revisions, revisions)]
        return bool(inside.sum() >= REFUSED_SHARE * self.counts.sum())


class Columns:
    """The columns of all fields that were counted lately. All reading threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refused = BoundedCache[_Refused](MAX_REFUSED_BYTES)
        self._columns: OrderedDict[tuple[str, str], Column] = OrderedDict()  # By last use.

    def load(
        self, connection: Reading, fields: Sequence[str], revisions: Revisions, collection: str
    ) -> dict[str, tuple[Column, _Rows] | None]:
        """Returns the columns of some fields with rows of at least `revisions`.

        The result has None for a field with too many different values.
        """
        refused = {field: self._refused.get((collection, field)) for field in fields}
        given = [field for field, some in refused.items() if some is None or not some.are_among(revisions)]
        with self._lock:
            columns = {field: self._columns.setdefault((collection, field), Column()) for field in given}
        before = {field: len(column.rows.revisions) for field, column in columns.items()}
        self._fill(connection, columns, revisions)
        # Columns that have grown too large are read again, without the values of deleted documents.
        again = {
            field: Column()
            for field, column in columns.items()
            if column.nbytes > MAX_COLUMN_BYTES and before[field]
        }
        self._fill(connection, again, revisions)
        columns |= again
        found = {
            field: None if column.nbytes > MAX_COLUMN_BYTES else (column, column.rows)
            for field, column in columns.items()
        }
        with self._lock:
            for field, column in columns.items():
                self._columns.pop((collection, field), None)
                if found[field] is not None:
                    self._columns[collection, field] = column
                else:
                    counts = np.diff(column.rows.starts).astype(np.int32)
                    self._refused.keep((collection, field), _Refused(column.rows.revisions, counts))
            while sum(column.nbytes for column in self._columns.values()) > MAX_BYTES:
                self._columns.popitem(last=False)
        return {field: found.get(field) for field in fields}

    def list_fields(self, declared: Sequence[str], collection: str) -> list[str]:
        """Returns the fields of a collection with columns, and declared fields while memory is left."""
        with self._lock:
            known = [field for name, field in self._columns if name == collection]
            has_room = sum(column.nbytes for column in self._columns.values()) < MAX_BYTES // 2
        return [*dict.fromkeys([*(declared if has_room else ()), *known])]

    def _fill(self, connection: Reading, columns: Mapping[str, Column], revisions: Revisions) -> None:
        lacking = [column.lacks(revisions) for column in columns.values()]
        needed = np.unique(np.concatenate([np.empty(0, np.int64), *lacking]))
        for start in range(0, len(needed), STEP):
            pause()
            filled = {field: column for field, column in columns.items() if column.nbytes <= MAX_COLUMN_BYTES}
            read: dict[str, dict[int, Sequence[Any]]] = {field: {} for field in filled}
            for revision, metadata in _read(connection, needed[start : start + STEP]):
                for field, rows in read.items():
                    if "." in field:
                        rows[revision] = [*values_at(metadata, field)]
                    else:
                        rows[revision] = [metadata[field]] if field in metadata else ()
            with self._lock:
                for field, column in filled.items():
                    column.add(read[field])


def _read(connection: Reading, revisions: Revisions) -> Iterator[tuple[int, dict[str, Any]]]:
    sql = f"SELECT revision, {connection.METADATA} FROM documents WHERE revision {connection.AMONG}"
    for revision, metadata in connection.execute(sql, (connection.listed(revisions.tolist()),)):
        yield revision, parse_metadata(metadata, connection.as_json)


def _list_members(values: Sequence[Any]) -> list[Any]:
    """Returns the values that a filter compares: arrays are replaced by their members."""
    members = [member for value in values for member in (value if isinstance(value, list) else [value])]
    return [member for member in members if not isinstance(member, list | dict)]


def _get_key(value: str | float | None) -> Key:
    if isinstance(value, str):
        if (time := parse_time(value)) is not None:
            return _TIME, time.instant
        # No filter has the character U+0000.
        return (_UNLISTED, "") if len(value) > MAX_CHARACTERS or "\0" in value else (_TEXT, value)
    if value is None or isinstance(value, bool):
        return _OTHER, str(value)
    # The number that is shown for equal numbers must not depend on the order of the documents.
    return _NUMBER, int(value) if abs(value) <= 2**53 and value == int(value) else value


def _places(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns all positions in some slices, given by their starts and lengths."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def count_facets(
    connection: Reading,
    columns: Columns,
    fields: Sequence[str],
    revisions: Revisions,
    collection: str,
    most: int,
) -> dict[str, Facet | None]:
    """Counts the values of fields, as `protocol.Snapshot.count_facets` says."""
    found: dict[str, Facet | None] = {}
    loaded = columns.load(connection, fields, revisions, collection)
    for field, column in loaded.items():
        pause()
        found[field] = None if column is None else _count(*column, revisions, most)
    return found


def _count(column: Column, rows: _Rows, revisions: Revisions, most: int) -> Facet:
    for known, same, values, facet in tuple(column.counted):  # Other threads append to it meanwhile.
        if known is rows and values == most and (same is revisions or np.array_equal(same, revisions)):
            return facet
    facet = _Counted(column, rows, revisions).sum_up(most)
    if len(revisions) == len(rows.revisions):
        column.counted.append((rows, rows.revisions, most, facet))
    elif not revisions.flags.writeable:  # The filter cache keeps this array until a write.
        column.counted.append((rows, revisions, most, facet))
    return facet


class _Counted:
    """The values of some documents.

    Args:
        column: The values of the field.
        rows: Rows that contain all documents.
        revisions: The documents, in ascending order.
    """

    def __init__(self, column: Column, rows: _Rows, revisions: Revisions) -> None:
        self._column = column
        lengths, exists, codes = np.diff(rows.starts), rows.exists, rows.codes
        if len(revisions) < len(rows.revisions):
            inside = _is_among(rows.revisions, revisions)
            codes = codes[np.repeat(inside, lengths)]
            lengths, exists = lengths[inside], exists[inside]
        self._codes = codes
        self._owners = np.repeat(np.arange(len(revisions)), lengths)  # The document of each code, ascending.
        self._has_one = bool((lengths <= 1).all())
        self._exist = int(np.count_nonzero(exists))
        self._documents = len(revisions)
        count = int(codes.max()) + 1 if len(codes) else 0
        self._kinds = np.frombuffer(bytes(column.kinds[:count]), np.uint8)
        self._counts = np.bincount(codes, minlength=count)

    def sum_up(self, most: int) -> Facet:
        """Returns the counts. Numbers, or times, become ranges if more than `most` of them are different."""
        different = np.bincount(self._kinds[self._counts > 0], minlength=_UNLISTED + 1)
        # In a filter for a range of times, other texts would be compared letter by letter.
        timed = not different[_TEXT] and not different[_UNLISTED]
        ranged = [kind for kind in (_NUMBER, _TIME) if different[kind] > most and (kind == _NUMBER or timed)]
        ranges = [each for kind in ranged for each in self._cut(kind, most)]
        listed = np.zeros(len(self._kinds), bool)
        for kind in ranged:
            listed |= self._kinds == kind
        shown = self._choose(listed, most)
        listed[shown] = True
        if self._has_one:
            covered = int(self._counts[listed].sum())
        else:
            covered = int(np.count_nonzero(np.diff(self._owners[listed[self._codes]], prepend=-1)))
        other = self._exist - covered
        values = [(_show(*self._column.keys[code]), int(self._counts[code])) for code in shown]
        return Facet(values, ranges, int(other), self._documents - self._exist)

    def _choose(self, ranged: NDArray[np.bool_], most: int) -> list[int]:
        """Returns the codes of the most frequent values; of equally frequent ones, the first in order."""
        keys = self._column.keys
        codes = np.flatnonzero((self._counts > 0) & ~ranged & (self._kinds != _UNLISTED))
        numbers = codes[self._kinds[codes] == _NUMBER].tolist()
        codes = np.setdiff1d(codes, [code for code in numbers if not _fits(keys[code][1])])
        counts = self._counts[codes]
        if len(codes) > most:
            least = np.partition(counts, -most)[-most]
            ties = codes[counts == least].tolist()
            codes = codes[counts > least]
            ties = heapq.nsmallest(most - len(codes), ties, key=keys.__getitem__)
            codes = np.concatenate([codes, np.array(ties, np.int64)])
        return sorted(codes.tolist(), key=lambda code: (-self._counts[code], keys[code]))

    def _cut(self, kind: int, most: int) -> Iterator[tuple[FacetValue, FacetValue, int]]:
        """Yields ranges that contain documents, each with the number of documents that a filter matches.

        A filter for a range also matches a document that has a value above the lower border and another
        value below the upper border.
        """
        keys = self._column.keys
        order, ranks = self._column.get_order(kind, np.flatnonzero(self._kinds == kind))
        codes = np.flatnonzero(self._kinds == kind)
        counts = np.zeros(len(order), np.int64)  # Count of each value, in order.
        counts[ranks[codes]] = self._counts[codes]
        below = below_lowest = below_highest = _sum_below(counts)
        total = documents = int(below[-1])
        if not self._has_one:
            inside = self._kinds[self._codes] == kind
            found, owners = ranks[self._codes[inside]], self._owners[inside]
            firsts = np.flatnonzero(np.diff(owners, prepend=-1))
            documents = len(firsts)
            lowest, highest = np.minimum.reduceat(found, firsts), np.maximum.reduceat(found, firsts)
            below_lowest = _sum_below(np.bincount(lowest, minlength=len(order)))
            below_highest = _sum_below(np.bincount(highest, minlength=len(order)))
        there = np.flatnonzero(counts)
        places = (
            int(there[0]),
            int(np.searchsorted(below, OUTER_SHARE * total, side="right")) - 1,
            int(np.searchsorted(below, (1 - OUTER_SHARE) * total)) - 1,
            int(there[-1]),
        )
        borders = _find_borders([keys[order[place]][1] for place in places], kind, most)
        ordered = [None if border is None else _get_key(border)[1] for border in borders]
        at = [
            0 if border is None else bisect_left(order, border, key=lambda code: keys[code][1])
            for border in ordered
        ]
        for (low, high), (first, last) in zip(pairwise(borders), pairwise(at), strict=True):
            above = documents if high is None else int(below_lowest[last])
            if count := above - int(below_highest[first]):
                yield low, high, count


def _sum_below(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the sum of the counts before each place, and the sum of all."""
    return np.concatenate([[0], np.cumsum(counts)])


def _is_among(some: Revisions, others: Revisions) -> NDArray[np.bool_]:
    """Returns which revisions are in another array. Both are in ascending order."""
    found = np.zeros(len(some), bool)
    if not len(some) or not len(others):
        return found
    first, last = min(some[0], others[0]), max(some[-1], others[-1])
    if last - first < DENSE * (len(some) + len(others)):
        table = np.zeros(last - first + 1, bool)
        table[others - first] = True
        found[:] = table[some - first]
    else:
        found[:] = others[np.minimum(np.searchsorted(others, some), len(others) - 1)] == some
    return found


def _find_borders(ends: Sequence[Any], kind: int, most: int) -> Sequence[FacetValue]:
    """Returns the borders of ranges.

    Args:
        ends: The smallest value, the values between which most others are, and the largest value.
        kind: Numbers or times.
        most: Maximum number of ranges.
    """
    if kind == _TIME:
        ends = [int(instant[:12]) for instant in ends]
    least, low, high, greatest = ends
    if low >= high:
        low, high = least, greatest
    if kind == _TIME:
        return cut_times(least, low, high, greatest, most)
    whole = all(isinstance(end, int) for end in ends)
    return cut_numbers(least, low, high, greatest, most, whole=whole)


def _fits(number: float) -> bool:
    """Returns whether a filter can compare a number for equality."""
    return -INT64 < number < INT64 or (isinstance(number, int) and number == -INT64)


def _show(kind: int, value: Any) -> FacetValue:
    if kind == _TIME:
        return show_time(int(value[:12]), value[12:])
    return {"True": True, "False": False, "None": None}[value] if kind == _OTHER else value
