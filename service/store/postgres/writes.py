"""Jobs that write documents in PostgreSQL. Each job is one transaction, with one statement for all documents.

Start reading at `put`. Two writes of one document wait for each other. Rows are locked in the order of their
ids, so writes never cause a deadlock.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from service.store.filters.grammar import Predicate, scoped
from service.store.postgres import documents, fulltext, vectors
from service.store.postgres.connection import Again, Connection
from service.store.postgres.documents import sequence
from service.store.postgres.fulltext import Terms, parse_terms
from service.store.postgres.generations import share_states
from service.store.postgres.writer import in_turn
from service.store.sql import feedback, tokens
from service.store.sql.connection import fetch_column, fetch_value
from service.store.sql.feedback import (
    DELETED_ROWS,
    delete_rows,
    forget_clicked,
    forget_judgment_state,
    store_events,
)
from service.store.sql.generations import get_active_number, kept_numbers
from service.store.sql.records import has_collection, refuse_another, refuse_hidden, unembedded
from service.store.sql.synonyms import forget_synonyms
from service.store.values import (
    DEFAULT_COLLECTION,
    DELETE_DOCUMENTS,
    MAX_COLLECTIONS,
    Document,
    Embedding,
    Event,
    EventLimits,
    NeedsVectors,
    Put,
    Recorded,
    Step,
)

COUNTS = 1000  # Rows of counts before they are summed up.
_COLLECTIONS_LOCK = 7_405_813
# The checksums of a row of `given` in the collection of `d`.
_GIVEN_SUMS = documents.checksums_sql(
    "d.collection", "given.id", "given.title", "given.text", "given.metadata"
)


class StoredContent(NamedTuple):
    """The stored document with a given id, and how it differs from the new document."""

    revision: int
    same_content: bool
    same_metadata: bool


def put(
    connection: Connection,
    documents: Sequence[Document],
    embedded: Mapping[int, Mapping[int, Embedding]],
    *,
    split: bool = False,
    collection: str = DEFAULT_COLLECTION,
    max_collections: int = MAX_COLLECTIONS,
    within: Predicate | None = None,
) -> Put:
    """Stores documents, as `protocol.Documents.put` says, with one statement for all of them."""
    share_states(connection)
    active = get_active_number(connection)
    numbers = {active, *kept_numbers(connection)}
    _make_collection(connection, collection, max_collections)
    before = find_stored(connection, documents, collection)
    refuse_hidden(connection, [documents[at].id for at in before], collection, within)
    embedded = dict(embedded)  # The event loop may add embeddings meanwhile.
    same = {at: found.revision for at, found in before.items() if found.same_content}
    given: dict[int, dict[int, Embedding]] = {}  # New embeddings, by position.
    kept: dict[int, dict[int, Embedding]] = {}  # Stored embeddings of the same texts.
    for number in numbers:
        given[number] = {**embedded.get(number, {})}
        of_revision = vectors.stored(connection, number, [*same.values()]) if same else {}
        kept[number] = {
            at: of_revision[revision]
            for at, revision in same.items()
            if revision in of_revision and not (split and of_revision[revision].cut)
        }
    lacking = [at for at in range(len(documents)) if at not in given[active] and at not in kept[active]]
    if lacking:
        raise NeedsVectors(lacking, active)
    changed = [
        at
        for at in range(len(documents))
        if at not in before or not (before[at].same_content and before[at].same_metadata)
    ]
    replaced = [before[at].revision for at in changed if at in before]
    removed = _clear(connection, replaced, collection)
    revisions = _update(connection, {before[at].revision: documents[at] for at in changed if at in before})
    revisions |= _insert(connection, [documents[at] for at in changed if at not in before], collection)
    of_position = {at: revisions[documents[at].id] for at in changed}
    _add_words(connection, {of_position[at]: documents[at] for at in changed}, collection, removed)
    gaps = set()
    for number in numbers:
        rows: dict[int, Embedding | None] = {
            of_position[at]: given[number].get(at) or kept[number].get(at) for at in changed
        }
        anew = [at for at in given[number] if at not in of_position and at not in kept[number]]
        rows |= {before[at].revision: given[number][at] for at in anew}
        vectors.remove(connection, number, [before[at].revision for at in anew])
        there = {revision: embedding for revision, embedding in rows.items() if embedding is not None}
        vectors.insert(connection, number, collection, there)
        if missing := [revision for revision, embedding in rows.items() if embedding is None]:
            connection.execute(
                "INSERT INTO lacking (generation, revision) SELECT ?, unnest(?::bigint[]) "
                "ON CONFLICT DO NOTHING",
                (number, missing),
            )
        if len({*given[number], *kept[number]}) < len(documents):
            gaps.add(number)
    truncated = sum((given[active].get(at) or kept[active][at]).truncated for at in range(len(documents)))
    done = _sequence(connection, len(changed) + len(removed))
    return Put(truncated, done, frozenset(gaps), len(documents) - len(before))


def find_stored(
    connection: Connection, documents: Sequence[Document], collection: str
) -> dict[int, StoredContent]:
    """Returns the stored documents by position in `documents`.

    Their rows are locked until the transaction ends.
    """
    rows = connection.execute(
        "SELECT at, revision, d.title = given.title AND d.text = given.text, "
        "coalesce(d.sent = given.metadata, FALSE) AND d.metadata = given.metadata::jsonb "
        f"AND (d.checksums IS NULL OR d.checksums = {_GIVEN_SUMS}) "
        "FROM unnest(?::text[], ?::text[], ?::text[], ?::text[]) WITH ORDINALITY "
        "AS given (id, title, text, metadata, at) JOIN documents d ON d.collection = ? AND d.id = given.id "
        "ORDER BY d.id FOR UPDATE OF d",
        (*_columns(documents), collection),
    )
    return {at - 1: StoredContent(revision, *same) for at, revision, *same in rows}


def _columns(documents: Iterable[Document]) -> tuple[list[str], ...]:
    rows = [(each.id, each.title, each.text, each.metadata_json) for each in documents]
    return tuple([row[at] for row in rows] for at in range(4))


def _update(connection: Connection, documents: Mapping[int, Document]) -> dict[str, int]:
    """Gives documents new revisions with new content. Returns the new revisions by id.

    The rows must be locked. They are updated in place, so that transactions that wait for them find them.

    Args:
        connection: A connection in a transaction.
        documents: The new documents by their old revisions.
    """
    if not documents:
        return {}
    rows = connection.execute(
        "UPDATE documents d SET revision = DEFAULT, title = given.title, text = given.text, "
        f"metadata = given.metadata::jsonb, sent = given.metadata, checksums = {_GIVEN_SUMS} "
        "FROM unnest(?::bigint[], ?::text[], ?::text[], ?::text[], ?::text[]) "
        "AS given (revision, id, title, text, metadata) WHERE d.revision = given.revision "
        "RETURNING d.id, d.revision",
        ([*documents], *_columns(documents.values())),
    )
    return dict(rows.fetchall())


def _insert(connection: Connection, documents: Sequence[Document], collection: str) -> dict[str, int]:
    """Inserts documents with new ids. Returns their revisions by id.

    Raises:
        Again: Another write has just inserted one of the ids.
    """
    if not documents:
        return {}
    rows = connection.execute(
        "INSERT INTO documents (collection, id, title, text, metadata, sent, checksums) "
        f"SELECT collection, id, title, text, metadata::jsonb, metadata, {_GIVEN_SUMS} "
        "FROM (SELECT ?::text AS collection) d, "
        "unnest(?::text[], ?::text[], ?::text[], ?::text[]) "
        'AS given (id, title, text, metadata) ORDER BY id COLLATE "C" '
        "ON CONFLICT DO NOTHING RETURNING id, revision",
        (collection, *_columns(documents)),
    ).fetchall()
    if len(rows) < len(documents):  # Another write has just inserted one of these ids.
        raise Again
    return dict(rows)


def _add_words(
    connection: Connection, documents: Mapping[int, Document], collection: str, removed: Mapping[int, Terms]
) -> None:
    """Stores the terms of documents by revision. `removed` are the terms of documents that were replaced."""
    terms = parse_terms([document.content for document in documents.values()])
    fulltext.change_postings(connection, collection, dict(zip(documents, terms, strict=True)), removed)
    tokens = sum(each.length for each in terms) - sum(each.length for each in removed.values())
    _count(connection, collection, len(documents) - len(removed), tokens)


def _clear(connection: Connection, revisions: Sequence[int], collection: str) -> dict[int, Terms]:
    """Deletes the vectors of documents that are about to be replaced or deleted.

    Returns the documents' terms by revision.
    """
    if not revisions:
        return {}
    gone = unembedded(connection, revisions)
    terms = dict(zip(gone, parse_terms([each.content for each in gone.values()]), strict=True))
    for number in kept_numbers(connection):
        vectors.remove(connection, number, [*gone])
    tokens.remove(connection, gone)
    return terms


def delete_one(connection: Connection, id: str, collection: str, within: Predicate | None = None) -> Step:
    """Deletes a document that matches a filter.

    If the document has many events, deletes only some events, and `done` is 0.
    """
    share_states(connection)
    sql, parameters = scoped(within, collection)
    # Waits for an update in progress, which changes the revision.
    sql = f"SELECT revision FROM documents WHERE {sql} AND id = ? FOR UPDATE"
    revisions = fetch_column(connection, sql, *parameters, id)
    if not revisions:
        return Step(1, 0, sequence(connection))
    return delete_some(connection, revisions, collection)


def delete_some(connection: Connection, revisions: Sequence[int], collection: str) -> Step:
    """Deletes the documents of the first `revisions`, as many as one job should. Skips missing revisions.

    If the documents have very many events, this step deletes only events, and a later step the documents.
    """
    share_states(connection)
    some = [*revisions[:DELETE_DOCUMENTS]]
    sql = "SELECT id FROM documents WHERE revision = ANY(?) ORDER BY id FOR UPDATE"
    ids = fetch_column(connection, sql, some)
    if delete_rows(connection, "events", "collection = ? AND id = ANY(?)", collection, ids) == DELETED_ROWS:
        return Step(0, 0, sequence(connection))
    forget_clicked(connection, collection, ids)
    removed = _clear(connection, some, collection)
    connection.execute("DELETE FROM documents WHERE revision = ANY(?)", ([*removed],))
    fulltext.change_postings(connection, collection, {}, removed)
    _count(connection, collection, -len(removed), -sum(terms.length for terms in removed.values()))
    return Step(len(some), len(removed), _sequence(connection, len(removed)))


def record_events(
    connection: Connection, given: Sequence[Event], limits: EventLimits, within: Predicate | None = None
) -> Recorded:
    """Stores events like `store_events`. Deletes of their documents wait for the transaction."""
    sql, parameters = scoped(within, given[0].collection)
    sql = f"SELECT id FROM documents WHERE {sql} AND id = ANY(?) ORDER BY id FOR KEY SHARE"
    there = fetch_column(connection, sql, *parameters, [event.id for event in given])
    return in_turn(store_events)(connection, given, limits, there={*there})


def replace_clicked(
    connection: Connection, answers: Mapping[str, Mapping[str, float]], collection: str
) -> int:
    """Replaces clicked answers like `feedback.replace_clicked`. Deletes of their documents wait for this."""
    sql = "SELECT id FROM documents WHERE collection = ? AND id = ANY(?) ORDER BY id FOR KEY SHARE"
    connection.execute(sql, (collection, [*answers]))
    return in_turn(feedback.replace_clicked)(connection, answers, collection)


def drop_collection(connection: Connection, collection: str) -> None:
    """Deletes a collection if it is empty. The default collection always stays."""
    _hold_collections(connection)
    connection.execute("SELECT pg_advisory_xact_lock(?)", (fulltext.POSTINGS_LOCK,))
    # Waits for every write that has found the collection.
    connection.execute("SELECT 1 FROM collections WHERE name = ? FOR UPDATE", (collection,))
    written_to = connection.execute("SELECT 1 FROM documents WHERE collection = ? LIMIT 1", (collection,))
    if written_to.fetchone() is not None:
        return
    forget_synonyms(connection, collection)
    forget_judgment_state(connection, collection)
    if collection != DEFAULT_COLLECTION:
        connection.execute("DELETE FROM collections WHERE name = ?", (collection,))
        for table in ("tally", "term_postings", "term_changes", "vocabulary"):
            connection.execute(f"DELETE FROM {table} WHERE collection = ?", (collection,))


def _make_collection(connection: Connection, collection: str, most: int) -> None:
    """Creates a collection if it does not exist, and prevents its deletion until the transaction ends.

    Args:
        connection: A connection in a transaction.
        collection: Name of the collection.
        most: Maximum number of collections.
    """
    there = "SELECT 1 FROM collections WHERE name = ? FOR KEY SHARE"
    if connection.execute(there, (collection,)).fetchone() is not None:
        return
    _hold_collections(connection)
    if has_collection(connection, collection):
        return
    refuse_another(connection, collection, most)
    connection.execute("INSERT INTO collections (name) VALUES (?)", (collection,))


def _hold_collections(connection: Connection) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_COLLECTIONS_LOCK,))


def _count(connection: Connection, collection: str, documents: int, tokens: int) -> None:
    if documents or tokens:
        connection.execute("INSERT INTO tally VALUES (?, ?, ?)", (collection, documents, tokens))


def fold(connection: Connection) -> bool:
    """Replaces the rows of counts of one collection or generation by their sum, if it has many rows.

    Returns whether rows were replaced.
    """
    for table, of, counted in (("tally", "collection", "tokens"), ("sizes", "generation", "rows")):
        sql = f"SELECT {of} FROM {table} GROUP BY {of} HAVING count(*) > ? LIMIT 1"
        one = fetch_value(connection, sql, COUNTS)
        if one is not None:
            connection.execute(
                f"WITH gone AS (DELETE FROM {table} WHERE {of} = ? RETURNING *) INSERT INTO {table} "
                f"SELECT {of}, sum(documents), sum({counted}) FROM gone GROUP BY {of}",
                (one,),
            )
            return True
    return False


def _sequence(connection: Connection, operations: int) -> int:
    """Increases the operation number by `operations`, and returns the new number."""
    connection.execute("SELECT nextval('operations') FROM generate_series(1, ?)", (operations,))
    return sequence(connection)
