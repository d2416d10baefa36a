"""The tables in PostgreSQL: their migrations, and a check that a database has all of them.

Start reading at `MIGRATIONS`, `migrate` and `problem`. The tables are the same as in SQLite
(sqlite/schema.py), except for these:

    tally        the numbers of documents and tokens that each write added to a collection. Their sum is the
                 total. With a single counter, the writers of a collection would wait for each other.
    sizes        the same for a generation: numbers of documents with vectors, and of rows.
    term_postings  the terms of documents, in blocks; `term_changes` has the changes to apply to them
                   (fulltext.py).
    vocabulary   the words among these terms (vocabulary.py).
    vectors_N    the vectors of generation N, with their index.
    lacking      the documents without a vector, and which replica embeds them.
    replicas     the processes that share the database, each with a lease (replicas.py).
    claims       jobs that a single replica does for all replicas.
    requests     the requested versions, in the order of their arrival at the database.
    operations   a sequence, not a table: the operation number.

Texts are compared by their bytes (collation C), as in SQLite.
"""

from collections.abc import Iterator
from typing import LiteralString

import psycopg

from service.errors import StartupError
from service.store.postgres.connection import Connection, Raw, is_lost, reason
from service.store.postgres.vectors import HALF_DIMENSIONS, table
from service.store.sql.connection import COPYING, UNINDEXED, fact, fetch_column, fetch_value
from service.store.sql.generations import ACTIVE, BUILDING, DROPPED

# The statements of each schema version. They run after the statements of the version before.
MIGRATIONS: tuple[LiteralString, ...] = (
    """
    CREATE EXTENSION IF NOT EXISTS vector;
    CREATE SEQUENCE operations;
    CREATE TABLE collections (name text COLLATE "C" PRIMARY KEY);
    INSERT INTO collections (name) VALUES ('default');
    CREATE TABLE documents (
        revision   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        collection text COLLATE "C" NOT NULL,
        id         text COLLATE "C" NOT NULL,
        title      text COLLATE "C" NOT NULL,
        text       text COLLATE "C" NOT NULL,
        metadata   jsonb NOT NULL,
        UNIQUE (collection, id)
    );
    CREATE TABLE tally (
        collection text COLLATE "C" NOT NULL,
        documents  bigint NOT NULL,
        tokens     bigint NOT NULL
    );
    CREATE INDEX tally_of_collection ON tally (collection) INCLUDE (documents, tokens);
    CREATE TABLE sizes (
        generation bigint NOT NULL,
        documents  bigint NOT NULL,
        rows       bigint NOT NULL
    );
    CREATE TABLE postings (
        collection text COLLATE "C" NOT NULL,
        term       text COLLATE "C" NOT NULL,
        first      bigint NOT NULL,  -- revisions of the block, as `last`
        last       bigint NOT NULL,
        body       bytea STORAGE PLAIN NOT NULL,
        PRIMARY KEY (collection, term, first) INCLUDE (last)
    );
    CREATE INDEX open_postings ON postings (collection, term) WHERE octet_length(body) < 2000;
    CREATE TABLE unfolded (
        number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        collection text COLLATE "C" NOT NULL,
        gained     text[] NOT NULL,
        lost       text[] NOT NULL,
        removed    bigint[] NOT NULL,
        cost       bigint NOT NULL
    );
    CREATE INDEX unfolded_removals ON unfolded (collection) WHERE removed <> '{}';
    CREATE TABLE generations (
        number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        version     text COLLATE "C" NOT NULL,
        fingerprint text COLLATE "C" NOT NULL,
        form        text COLLATE "C" NOT NULL,
        dimension   integer NOT NULL,
        state       text COLLATE "C" NOT NULL,
        listed      boolean NOT NULL DEFAULT FALSE,  -- `lacking` has every document that was there before it
        called      timestamptz  -- since then a replica that is ready for it has waited for the others
    );
    CREATE UNIQUE INDEX one_is_live ON generations (state) WHERE state = 'active';
    CREATE TABLE lacking (
        generation  bigint NOT NULL,
        revision    bigint NOT NULL,
        taken_by    text COLLATE "C",
        taken_until timestamptz NOT NULL DEFAULT '-infinity',
        PRIMARY KEY (generation, revision)
    );
    CREATE TABLE replicas (
        id        text COLLATE "C" PRIMARY KEY,
        serves    bigint,   -- generation
        candidate bigint,   -- the one that it makes, or has ready to go over to
        ready     boolean NOT NULL DEFAULT FALSE,
        until     timestamptz NOT NULL
    );
    CREATE TABLE claims (
        name   text COLLATE "C" PRIMARY KEY,
        holder text COLLATE "C" NOT NULL,
        made   timestamptz NOT NULL DEFAULT now(),
        result text  -- NULL while the holder is at it
    );
    CREATE TABLE skipped (
        generation bigint NOT NULL,
        revision   bigint NOT NULL,
        reason     text NOT NULL,
        PRIMARY KEY (generation, revision)
    );
    CREATE TABLE history (
        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        version  text COLLATE "C" NOT NULL
    );
    CREATE TABLE verdicts (
        version text COLLATE "C" PRIMARY KEY,
        state   text NOT NULL CHECK (state IN ('failed', 'rolled back')),
        reason  text NOT NULL
    );
    CREATE TABLE facts (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
    CREATE TABLE feedback (
        sequence   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        collection text COLLATE "C" NOT NULL,
        query      text COLLATE "C" NOT NULL,
        id         text COLLATE "C" NOT NULL,
        key        text COLLATE "C" NOT NULL,
        relevant   integer NOT NULL
    );
    -- A query is too long for an index of its own.
    CREATE UNIQUE INDEX one_judgement ON feedback (collection, id, key, md5(query));
    CREATE INDEX feedback_of_query ON feedback USING hash (query);
    CREATE INDEX feedback_of_key ON feedback (key);
    CREATE TABLE events (
        sequence   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        collection text COLLATE "C" NOT NULL,
        key        text COLLATE "C" NOT NULL,
        event_id   text COLLATE "C" NOT NULL,
        search_id  text COLLATE "C" NOT NULL,
        query      text COLLATE "C" NOT NULL,
        id         text COLLATE "C" NOT NULL,
        type       text COLLATE "C" NOT NULL,
        position   bigint,
        shown      text NOT NULL,  -- JSON
        at         double precision NOT NULL,
        UNIQUE (key, collection, event_id)
    );
    CREATE INDEX events_of_document ON events (collection, id, key);
    CREATE INDEX events_by_time ON events (at);
    """,
    # The metadata as text, because jsonb changes the order of names and -0.0. NULL in older rows.
    """
    ALTER TABLE documents ADD COLUMN sent text COLLATE "C";
    """,
    # Earlier requests have times from the clocks of different machines, so a time may lie in the future.
    """
    CREATE TABLE requests (
        number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id      text COLLATE "C" NOT NULL UNIQUE,
        version text COLLATE "C" NOT NULL,
        kind    text COLLATE "C" NOT NULL,
        at      timestamptz NOT NULL DEFAULT now()
    );
    INSERT INTO requests (version, kind, id, at)
        SELECT wish ->> 0, wish ->> 1, wish ->> 2,
            to_timestamp(least((wish ->> 3)::float8, extract(epoch FROM now())::float8))
        FROM (SELECT value::json AS wish FROM facts WHERE name = 'wish') AS wishes;
    DELETE FROM facts WHERE name = 'wish';
    """,
    # Older rows have no visitor, and their keys count as trusted.
    """
    ALTER TABLE events ADD COLUMN visitor text COLLATE "C" NOT NULL DEFAULT '';
    ALTER TABLE events ADD COLUMN trusted integer NOT NULL DEFAULT 1;
    ALTER TABLE feedback ADD COLUMN visitor text COLLATE "C" NOT NULL DEFAULT '';
    ALTER TABLE feedback ADD COLUMN trusted integer NOT NULL DEFAULT 1;
    CREATE INDEX events_of_visitor ON events (visitor);
    CREATE INDEX feedback_of_visitor ON feedback (visitor);
    """,
    # `values_at` of filters/grammar.py, and the instants of filters/times.py. Indexes call these functions,
    # so they use only pg_catalog.
    r"""
    CREATE OR REPLACE FUNCTION simile_values(metadata jsonb, field text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
        WITH RECURSIVE walk (value, rest) AS (  -- `rest` is what is left of the field
            SELECT metadata, field
            UNION ALL
            SELECT inside.value, inside.rest FROM walk, LATERAL (
                SELECT pair.value, substr(walk.rest, length(pair.key) + 2) FROM jsonb_each(
                    CASE jsonb_typeof(walk.value) WHEN 'object' THEN walk.value ELSE '{}' END
                ) AS pair WHERE starts_with(walk.rest || '.', pair.key || '.')
                UNION ALL
                SELECT member, walk.rest FROM jsonb_array_elements(
                    CASE jsonb_typeof(walk.value) WHEN 'array' THEN walk.value ELSE '[]' END
                ) AS member WHERE jsonb_typeof(member) = 'object'
            ) AS inside (value, rest) WHERE walk.rest <> ''
        )
        SELECT CASE WHEN count(*) > 0
            THEN coalesce(jsonb_agg(member) FILTER (WHERE member IS NOT NULL), '[]') END
        FROM walk LEFT JOIN jsonb_array_elements(
            CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE jsonb_build_array(value) END
        ) AS member ON TRUE WHERE rest = '';
    $$;

    CREATE OR REPLACE FUNCTION simile_instant(value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
    DECLARE
        year integer;
        month integer;
        last integer;  -- day of the month
        zone text;
        whole bigint;
    BEGIN
        -- Without groups that capture, which would take ten times as long.
        IF value !~ ('^[0-9]{4}-(?:0[1-9]|1[0-2])-[0-3][0-9]'
            '(?:[Tt ](?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:[.][0-9]{1,30})?'
            '(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?)?$') THEN
            RETURN NULL;
        END IF;
        year := left(value, 4);
        month := substr(value, 6, 2);
        last := substr('312831303130313130313031', 2 * month - 1, 2)::integer
            + (month = 2 AND year % 4 = 0 AND (year % 100 <> 0 OR year % 400 = 0))::integer;
        IF substr(value, 9, 2)::integer NOT BETWEEN 1 AND last THEN
            RETURN NULL;
        END IF;
        -- There is no year 0 in PostgreSQL; the calendar repeats itself after 400 years of 146,097 days.
        whole := make_date(CASE year WHEN 0 THEN 400 ELSE year END, month, substr(value, 9, 2)::integer)
            - make_date(1970, 1, 1) + 719529 - CASE year WHEN 0 THEN 146097 ELSE 0 END;
        whole := whole * 86400;
        IF length(value) = 10 THEN
            RETURN lpad(whole::text, 12, '0');
        END IF;
        whole := whole + substr(value, 12, 2)::integer * 3600 + substr(value, 15, 2)::integer * 60
            + substr(value, 18, 2)::integer;
        zone := substring(value FROM '[-+Zz][0-9:]*$');
        IF length(zone) = 6 THEN
            whole := whole - (left(zone, 1) || '60')::integer
                * (substr(zone, 2, 2)::integer * 60 + substr(zone, 5, 2)::integer);
        END IF;
        IF substr(value, 18, 2) = '60' AND whole % 86400 <> 0 THEN
            RETURN NULL;
        END IF;
        RETURN lpad(whole::text, 12, '0') || rtrim(coalesce(substring(value FROM '[.]([0-9]+)'), ''), '0');
    END $$;
    """,
    # NULL in older rows, and in rows from replicas of an older version. documents.py fills it.
    """
    ALTER TABLE documents ADD COLUMN checksums bytea;
    CREATE INDEX documents_without_checksums ON documents (revision) WHERE checksums IS NULL;
    """,
    # When a replica of an older version replaces a document, it would keep both columns of the previous
    # document. Connections of this version declare that they set both (connection.py).
    """
    CREATE OR REPLACE FUNCTION simile_unsummed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.sent := NULL;
        NEW.checksums := NULL;
        RETURN NEW;
    END $$;
    CREATE TRIGGER documents_of_older BEFORE UPDATE OF revision ON documents
        FOR EACH ROW WHEN (current_setting('simile.sums', true) IS DISTINCT FROM 'on')
        EXECUTE FUNCTION simile_unsummed();
    """,
    # The rules for terms changed, and fulltext.py fills the tables again. A replica of an older version would
    # add terms by its own rules, so it must not find the tables.
    """
    ALTER TABLE postings RENAME TO term_postings;
    ALTER TABLE unfolded RENAME TO term_changes;
    TRUNCATE term_postings, term_changes;
    """,
    """
    CREATE TABLE tokens (
        revision bigint NOT NULL,
        space    text COLLATE "C" NOT NULL,
        body     bytea STORAGE EXTERNAL NOT NULL,
        PRIMARY KEY (revision, space)
    );
    """,
    # The words among the terms of postings. They serve to correct misspelled words. fulltext.py maintains
    # the table.
    """
    CREATE TABLE vocabulary (
        number     bigint GENERATED ALWAYS AS IDENTITY,
        collection text COLLATE "C" NOT NULL,
        term       text COLLATE "C" NOT NULL,
        PRIMARY KEY (collection, term)
    );
    CREATE INDEX vocabulary_by_number ON vocabulary (collection, number) INCLUDE (term);
    INSERT INTO vocabulary (collection, term) SELECT DISTINCT collection, term FROM term_postings
        WHERE char_length(term) BETWEEN 3 AND 32;
    """,
    # The live test to which an event belongs as an outcome, and the side of the event: 1 for the candidate,
    # -1 for the active version.
    """
    ALTER TABLE events ADD COLUMN test text COLLATE "C" NOT NULL DEFAULT '';
    ALTER TABLE events ADD COLUMN side integer NOT NULL DEFAULT 0;
    CREATE INDEX events_of_test ON events (test, sequence) WHERE test <> '';
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)
_OF_EVENTS = "at visitor trusted test side"
_INDEXES_OF_EVENTS = "events_by_time events_of_visitor events_of_test"
# The columns and indexes of each table after all migrations. A test compares them with a new database.
TABLES = {
    "collections": ("name", "collections_pkey"),
    "documents": (
        "revision collection id title text metadata sent checksums",
        "documents_pkey documents_collection_id_key documents_without_checksums",
    ),
    "tally": ("collection documents tokens", "tally_of_collection"),
    "sizes": ("generation documents rows", ""),
    "term_postings": ("collection term first last body", "postings_pkey open_postings"),
    "term_changes": ("number collection gained lost removed cost", "unfolded_pkey unfolded_removals"),
    "generations": (
        "number version fingerprint form dimension state listed called",
        "generations_pkey one_is_live",
    ),
    "lacking": ("generation revision taken_by taken_until", "lacking_pkey"),
    "replicas": ("id serves candidate ready until", "replicas_pkey"),
    "claims": ("name holder made result", "claims_pkey"),
    "skipped": ("generation revision reason", "skipped_pkey"),
    "history": ("position version", "history_pkey"),
    "verdicts": ("version state reason", "verdicts_pkey"),
    "facts": ("name value", "facts_pkey"),
    "feedback": (
        "sequence collection query id key relevant visitor trusted",
        "feedback_pkey one_judgement feedback_of_query feedback_of_key feedback_of_visitor",
    ),
    "events": (
        f"sequence collection key event_id search_id query id type position shown {_OF_EVENTS}",
        f"events_pkey events_key_collection_event_id_key events_of_document {_INDEXES_OF_EVENTS}",
    ),
    "requests": ("number id version kind at", "requests_pkey requests_id_key"),
    "tokens": ("revision space body", "tokens_pkey"),
    "vocabulary": ("number collection term", "vocabulary_pkey vocabulary_by_number"),
}
SEQUENCES = ["operations"]
FUNCTIONS = ["simile_instant", "simile_unsummed", "simile_values"]
SCHEMA_TABLE = "simile_schema"
MIN_PGVECTOR = (0, 8)  # The first version with iterative scans.
RIGHTS = ["SELECT", "INSERT", "UPDATE", "DELETE"]
_NAMED = 5  # Maximum number of missing parts that a message names.
_LOCK = 7_405_811  # An advisory lock.

# For each relation: if it exists, its columns, its valid indexes, and the rights that this role is missing.
_LOOK = """
    SELECT name, oid IS NOT NULL,
        ARRAY(SELECT attname::text FROM pg_attribute
            WHERE attrelid = oid AND attnum > 0 AND NOT attisdropped),
        ARRAY(SELECT relname::text FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            WHERE indrelid = wanted.oid AND indisvalid),
        ARRAY(SELECT needed FROM unnest(%s::text[]) AS needed WHERE NOT has_table_privilege(oid, needed))
    FROM (SELECT name, to_regclass(name)::oid AS oid FROM unnest(%s::text[]) AS name) AS wanted
"""


def migrate(raw: Raw) -> None:
    """Migrates the database to the current schema. Processes that start at the same time do this in turn.

    Raises:
        StartupError: A newer version wrote the database, pgvector is missing or too old, or a table, column,
            index or right is missing.
    """
    try:
        with raw.transaction():
            raw.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            raw.execute("CREATE TABLE IF NOT EXISTS simile_schema (version integer NOT NULL)")
            version = fetch_value(Connection(raw), "SELECT version FROM simile_schema") or 0
            if version > SCHEMA_VERSION:
                raise StartupError(
                    f"The database was written by a newer Simile (schema {version}, this one knows "
                    f"{SCHEMA_VERSION}). Install that version again, or set another SIMILE_DATABASE."
                )
            for statements in MIGRATIONS[version:]:
                raw.execute(statements)
            raw.execute("DELETE FROM simile_schema")
            raw.execute("INSERT INTO simile_schema VALUES (%s)", (SCHEMA_VERSION,))
        lacking = problem(raw)
    except psycopg.Error as error:
        if is_lost(error):
            raise
        raise StartupError(
            f"The database of SIMILE_DATABASE cannot be used: {reason(error)}. Its user needs the right to "
            "make tables, and the extension vector."
        ) from error
    if lacking is not None:
        raise StartupError(lacking)


def problem(raw: Raw) -> str | None:
    """Returns a sentence about missing parts of the database or a different schema version, or else None.

    This takes a few milliseconds.
    """
    rows = raw.execute(_LOOK, (RIGHTS, [SCHEMA_TABLE])).fetchall()
    if not rows[0][1]:
        return _sentence([f"the table {SCHEMA_TABLE}"])
    if "SELECT" in rows[0][4]:
        return _sentence([f"the right SELECT on {SCHEMA_TABLE}"])
    version = fetch_value(Connection(raw), f"SELECT version FROM {SCHEMA_TABLE}") or 0
    if version < SCHEMA_VERSION:
        return (
            f"The database has schema {version}, and this version of Simile needs {SCHEMA_VERSION}. "
            "Was an older backup restored? Start the service again: it brings the schema up to date."
        )
    if version > SCHEMA_VERSION:
        return (
            f"A newer Simile has changed the database to schema {version}, and this one knows "
            f"{SCHEMA_VERSION}. Start this service with that version."
        )
    lacking = list(_lacking(raw))
    return _sentence(lacking) if lacking else None


def _sentence(lacking: list[str]) -> str:
    shown = ", ".join(lacking[:_NAMED])
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    return (
        f"The database lacks {shown}{more}. Restore a backup (pg_restore), or recreate the missing parts "
        "(docs/REPLICAS.md)."
    )


def _lacking(raw: Raw) -> Iterator[str]:
    """Yields the missing parts of the database, such as `the table facts`, for a message."""
    connection = Connection(raw)
    found = fetch_value(connection, "SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    if found is None:
        yield "the extension vector"
    elif tuple(map(int, found.split(".")[:2])) < MIN_PGVECTOR:
        yield f"pgvector 0.8 or later (it has {found})"
    for name, there, columns, indexes, denied in raw.execute(_LOOK, (RIGHTS, [*TABLES])).fetchall():
        needed = [{*names.split()} for names in TABLES[name]]
        yield from _of_table(name, there, needed[0] - {*columns}, needed[1] - {*indexes}, denied)
    for name in SEQUENCES:
        [there, usable] = raw.execute(
            "SELECT oid IS NOT NULL, oid IS NULL OR (has_sequence_privilege(oid, 'SELECT') "
            "AND has_sequence_privilege(oid, 'USAGE, UPDATE')) "  # One of the two is enough.
            "FROM (SELECT to_regclass(%s)::oid AS oid) AS sequence",
            (name,),
        ).fetchone() or (False, True)
        if not there:
            yield f"the sequence {name}"
        elif not usable:
            yield f"the right SELECT, USAGE on {name}"
    sql = "SELECT name FROM unnest(?::text[]) AS name WHERE NOT EXISTS "
    sql += "(SELECT 1 FROM pg_proc WHERE proname = name AND pg_function_is_visible(oid)) ORDER BY name"
    yield from (f"the function {name}" for name in fetch_column(connection, sql, FUNCTIONS))
    readable = "SELECT bool_and(has_table_privilege(to_regclass(name), 'SELECT')) "
    readable += "FROM unnest(ARRAY['generations', 'facts']) AS name HAVING count(to_regclass(name)) = 2"
    if fetch_value(connection, readable):
        yield from _lacking_vectors(raw)


def _lacking_vectors(raw: Raw) -> Iterator[str]:
    """Yields the missing tables, indexes and rights of generations, except those that are being built.

    Only the active generation must have a vector index. While data is copied or loaded, it has none yet: the
    index is built at the end.
    """
    unindexed = any(fact(Connection(raw), name) is not None for name in (COPYING, UNINDEXED))
    dimensions = {
        table(number): (state, dimension)
        for number, state, dimension in raw.execute(
            "SELECT number, state, dimension FROM generations WHERE state NOT IN (%s, %s)",
            (DROPPED, BUILDING),
        ).fetchall()
    }
    for name, there, _, indexes, denied in raw.execute(_LOOK, (RIGHTS, [*dimensions])).fetchall():
        state, dimension = dimensions[name]
        indexed = {f"{name}_pkey"}
        if state == ACTIVE and dimension <= HALF_DIMENSIONS and not unindexed:
            indexed.add(f"{name}_nearest")
        yield from _of_table(name, there, set(), indexed - {*indexes}, denied)


def _of_table(
    name: str, there: bool, columns: set[str], indexes: set[str], denied: list[str]
) -> Iterator[str]:
    if not there:
        yield f"the table {name}"
        return
    yield from (f"the column {name}.{column}" for column in sorted(columns))
    yield from (f"the index {index}" for index in sorted(indexes))
    if denied:
        yield f"the right {', '.join(denied)} on {name}"


def drop_everything(raw: Raw) -> None:
    """Drops all tables, sequences and functions of this schema, with the vectors of every generation."""
    sql = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^vectors_[0-9]+$' AND "
    vectors = fetch_column(Connection(raw), f"{sql} pg_table_is_visible(oid)")
    tables = [SCHEMA_TABLE, *TABLES, *vectors]
    raw.execute(f"DROP TABLE IF EXISTS {', '.join(tables)}".encode())
    raw.execute(f"DROP SEQUENCE IF EXISTS {', '.join(SEQUENCES)}".encode())
    # Triggers and indexes that use these functions were dropped with the tables.
    raw.execute(f"DROP FUNCTION IF EXISTS {', '.join(FUNCTIONS)}".encode())
