"""Judgements of searches, stored beside the documents: was this document what that query looked for?

A judgement is of a key: one per collection, query's exact text, document's id and name of the key, which is
empty where the service has no keys. The same key's newest replaces its earlier one, whichever visitor the two
name, and takes the next number, so that a reader who follows the numbers meets it; other keys' judgements of
the pair stay. A number is never used twice.

A judgement can be made only of a document that is there. Once made, it outlives the document's text: after an
update it still counts, and after a delete it stays, unlisted, until a document is stored under that id again.
A reader who wants every judgement that counts now therefore begins at 0. What shall be gone is forgotten by
name (`selected.forget`), whether its document is there or not.

Judgements teach models, so each key's are bounded (`Limits`). Each bound counts one key's own judgements:
no key can use up the room of another.

Here are queries, and jobs for the writer.
"""

from collections.abc import Sequence

from service.errors import Conflict, NotFound
from service.store.sql.connection import Connection
from service.store.sql.selection import condition_of, insert, matches, there_are, within
from service.store.values import NO_KEY, Judgement, JudgementSummary, Limits, Selection

NAMED = 10  # unknown ids that a refusal names at most
SHOWN_CHARACTERS = 80  # of a query or an id in a refusal
_LIVING = "EXISTS (SELECT 1 FROM documents d WHERE d.collection = f.collection AND d.id = f.id)"


def store(
    connection: Connection,
    judgements: Sequence[Judgement],
    collection: str,
    key: str = NO_KEY,
    limits: Limits | None = None,
) -> tuple[int, set[str]]:
    """Store `judgements` as `key`'s; of two about the same query and document the last wins.

    Returns:
        The number of the last one, and the ids of documents that are not there: theirs are not stored.

    Raises:
        NotFound: all are of documents that are not there; the ids are named.
        Conflict: the key would have more than a limit allows.

    """
    distinct = [(id,) for id in dict.fromkeys(judgement.id for judgement in judgements)]
    living = "d.collection = ? AND d.id = given.column1"
    there = {id for (id,) in matches(connection, "documents d", "d.id", living, (collection,), distinct)}
    unknown = [id for (id,) in distinct if id not in there]
    if len(unknown) == len(distinct):
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        raise NotFound(
            f"There is no document {', '.join(map(repr, unknown[:NAMED]))}{more}: never stored, or deleted "
            "since the search. Nothing was stored; leave out what was said of it."
        )
    last: dict[tuple[str, str], Judgement] = {}
    for given in judgements:  # the last of two takes the later place, too
        if given.id in there:
            last.pop((given.query, given.id), None)
            last[given.query, given.id] = given
    same = "f.collection = ? AND f.key = ? AND f.query = given.column1 AND f.id = given.column2"
    before = matches(connection, "feedback f", "f.sequence, f.query, f.id", same, (collection, key), [*last])
    connection.executemany(
        "DELETE FROM feedback WHERE sequence = ?", [(sequence,) for sequence, *_ in before]
    )
    insert(
        connection,
        "feedback",
        ("collection", "query", "id", "key", "relevant", "visitor", "trusted"),
        [
            (collection, each.query, each.id, key, int(each.relevant), each.visitor, int(each.trusted))
            for each in last.values()
        ],
    )
    replaced = {(query, id) for _, query, id in before}
    more_than_before = [each for name, each in last.items() if name not in replaced]
    if limits is not None and more_than_before:  # a refusal takes back what the job has written
        _refuse_too_many(connection, more_than_before, collection, key, limits)
    return int(connection.execute("SELECT max(sequence) FROM feedback").fetchone()[0]), {*unknown}


def _refuse_too_many(
    connection: Connection,
    judgements: Sequence[Judgement],
    collection: str,
    key: str,
    limits: Limits,
) -> None:
    whose = f"the key {key!r}" if key else "callers without a key"
    condition, parameters = condition_of(Selection(key=key))
    if limits.per_key and there_are(
        connection, f"feedback WHERE {condition}", *parameters, more_than=limits.per_key
    ):
        raise _too_many(limits.per_key, "in all", whose, "KEY")
    for column, noun, limit, names in (
        ("query", "query", limits.per_query, [given.query for given in judgements]),
        ("id", "document", limits.per_document, [given.id for given in judgements]),
    ):
        if not limit:
            continue
        full = (
            f"f.collection = ? AND f.key = ? AND f.{column} = given.column1 "
            f"GROUP BY f.{column} HAVING count(*) > ?"
        )
        named = [(name,) for name in dict.fromkeys(names)]
        found = matches(connection, "feedback f", f"f.{column}", full, (collection, key, limit), named)
        if found:
            first = next(name for name in named if name in {*found})[0]
            raise _too_many(limit, f"of the {noun} {first[:SHOWN_CHARACTERS]!r}", whose, noun.upper())


def _too_many(limit: int, what: str, whose: str, setting: str) -> Conflict:
    return Conflict(
        f"With these there would be more than {limit} judgements {what} from {whose} "
        f"(SIMILE_FEEDBACK_PER_{setting}). Nothing was stored; delete some (DELETE /feedback) or "
        "raise the setting."
    )


def page(
    connection: Connection, after: int, limit: int, selection: Selection, max_bytes: float
) -> tuple[list[tuple[int, Judgement]], bool]:
    """Judgements of living documents after the number `after`, each with its number, in order.

    As `selected.within` bounds them.
    """
    condition, parameters = _listed(selection)
    rows = connection.execute(
        "SELECT sequence, query, id, relevant, key, collection, visitor, trusted FROM feedback f "
        f"WHERE sequence > ? AND {condition} ORDER BY sequence LIMIT ?",
        [after, *parameters, limit + 1],
    )
    found, more = within(rows, limit, max_bytes)
    judgements = [
        (number, Judgement(query, id, bool(relevant), key, collection, visitor, bool(trusted)))
        for number, query, id, relevant, key, collection, visitor, trusted in found
    ]
    return judgements, more


def count(connection: Connection, selection: Selection) -> int:
    """The number of judgements that `page` lists in all."""
    condition, parameters = _listed(selection)
    sql = f"SELECT count(*) FROM feedback f WHERE {condition}"
    return int(connection.execute(sql, parameters).fetchone()[0])


def summary(connection: Connection, selection: Selection) -> JudgementSummary:
    """The judgements that `page` lists, summed up."""
    condition, parameters = _listed(selection)
    sql = (
        "SELECT count(*), coalesce(sum(relevant), 0), count(DISTINCT collection || '/' || query), "
        "count(DISTINCT CASE WHEN relevant = 1 THEN collection || '/' || query END) "
        f"FROM feedback f WHERE {condition}"
    )
    return JudgementSummary(*connection.execute(sql, parameters).fetchone())


def _listed(selection: Selection) -> tuple[str, list[str]]:
    condition, parameters = condition_of(selection, in_order=True)
    return f"{condition} AND {_LIVING}", parameters
