"""Revisions of the documents that pass a filter, by lookups where its fields are declared.

What is left of the documents shrinks from part to part of an `and`: lookups first, the rarest of them at
the head, and the metadata of what passed them is read for the rest.
"""

import sqlite3
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import orjson

from service.store.filters.predicate import Lookup, Predicate, scoped
from service.store.values import Revisions

FEW = 1000  # documents whose metadata is read sooner than a lookup of any size is made
COUNTED = 1000  # values, at most, to find out which of two lookups is the rarer


def matching(connection: sqlite3.Connection, where: Predicate, collection: str) -> Revisions:
    """The revisions of a collection's documents that pass a filter, rising."""
    return _Search(connection, collection).matching(where, None)


def of_these(
    connection: sqlite3.Connection, where: Predicate, collection: str, revisions: Revisions
) -> Revisions:
    """The revisions, of a few, that live in a collection and pass a filter, rising."""
    return _Search(connection, collection).scan(where, revisions)


def is_narrow(connection: sqlite3.Connection, where: Predicate, collection: str, most: int) -> bool:
    """True when lookups show that at most `most` documents pass."""
    return _Search(connection, collection).bound(where, most) <= most


class _Search:
    def __init__(self, connection: sqlite3.Connection, collection: str) -> None:
        self._connection = connection
        self._collection = collection

    def matching(self, where: Predicate, among: Revisions | None) -> Revisions:
        """The revisions that pass, of `among`; None: of all."""
        if among is not None and not len(among):
            return among
        if not where.indexed or (among is not None and len(among) <= FEW):
            return self.scan(where, among)
        if where.kind == "lookup":
            return _common(self._looked_up(where.lookups), among)
        if where.kind == "and":
            for part in sorted(where.parts, key=self._cost):
                among = self.matching(part, among)
            return self._all() if among is None else among
        if where.kind == "or":
            return _rising(np.concatenate([self.matching(part, among) for part in where.parts]))
        among = self._all() if among is None else among
        [part] = where.parts
        return np.setdiff1d(among, self.matching(part, among), assume_unique=True)

    def _cost(self, where: Predicate) -> int:
        """The order of trial: the cheapest part comes first."""
        if where.kind == "lookup":
            return sum(self._count(lookup, COUNTED) for lookup in where.lookups)
        return COUNTED * 1000 if where.indexed else COUNTED * 2000

    def bound(self, where: Predicate, most: int) -> float:
        """Documents that pass at most, as far as it is known from one more than `most` of each lookup."""
        if where.kind == "lookup":
            return sum(self._count(lookup, most + 1) for lookup in where.lookups)
        if where.kind in ("and", "or"):
            bounds = (self.bound(part, most) for part in where.parts)
            return min(bounds, default=inf) if where.kind == "and" else sum(bounds)
        return inf

    def _count(self, lookup: Lookup, most: int) -> int:
        sql = f"SELECT count(*) FROM (SELECT 1 FROM fields WHERE collection = ? AND {lookup.sql} LIMIT ?)"
        parameters = [self._collection, *lookup.parameters, most]
        return int(self._connection.execute(sql, parameters).fetchone()[0])

    def _looked_up(self, lookups: Sequence[Lookup]) -> Revisions:
        found = [
            self._revisions(f"fields WHERE collection = ? AND {sql}", [self._collection, *parameters])
            for sql, parameters in lookups
        ]
        return _rising(np.concatenate([np.empty(0, np.int64), *found]))

    def scan(self, where: Predicate, among: Revisions | None) -> Revisions:
        sql, parameters = scoped(where, self._collection)
        if among is None:
            return np.sort(self._revisions(f"documents WHERE {sql}", parameters))
        listed = orjson.dumps(among, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        # The plus: by the revisions that are listed, not by all of the collection.
        some = f"documents WHERE revision IN (SELECT value FROM json_each(?)) AND +{sql}"
        return np.sort(self._revisions(some, [listed, *parameters]))

    def _all(self) -> Revisions:
        return np.sort(self._revisions("documents WHERE collection = ?", [self._collection]))

    def _revisions(self, source: str, parameters: list[Any]) -> Revisions:
        """Read revisions as one text: a row for each would take three times as long."""
        [text] = self._connection.execute(
            f"SELECT group_concat(revision) FROM {source}", parameters
        ).fetchone()
        return np.empty(0, np.int64) if text is None else np.fromstring(text, np.int64, sep=",")


def _common(found: Revisions, among: Revisions | None) -> Revisions:
    return found if among is None else found[np.isin(found, among, assume_unique=True)]


def _rising(revisions: Revisions) -> Revisions:
    """Each once. np.unique hashes, which takes a hundred times as long as to sort half a million numbers."""
    ordered = np.sort(revisions)
    return ordered[np.diff(ordered, prepend=-1) > 0]
