"""The tables in PostgreSQL, and how an older database becomes today's.

The tables are SQLite's (sqlite/schema.py), but for these:

    tally        documents and tokens that each write added to a collection: their sum is the collection's. A
                 counter in one row would make the writers of a collection wait for each other
    sizes        as tally: documents with vectors, and rows, that each write added to a generation
    postings     the words of documents, in blocks; `unfolded` is what is to be done to them (postings.py)
    vectors_N    the vectors of generation N, with their index
    lacking      the documents that a generation has no vector of yet, and which replica has taken them
    replicas     the processes that share the database, each with a lease (replicas.py)
    claims       what one of them does for all
    requests     the versions that were requested, in the order in which the database heard of them
    operations   a sequence alone: the number after a write

Texts are compared by their bytes (collation C), as SQLite does.
"""

from typing import LiteralString

import psycopg

from service.errors import StartupError
from service.store.postgres import schema_check
from service.store.postgres.connection import Raw
from service.store.postgres.errors import is_lost, reason

# One entry per schema version: the statements that lead to it from the one before.
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
    # The text of metadata: jsonb changes the order of names and -0.0. NULL: stored before this column.
    """
    ALTER TABLE documents ADD COLUMN sent text COLLATE "C";
    """,
    # Requests were ordered by the clocks of the machines that made them, so one may be of the future.
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
    # Rows of before name no visitor, and their keys are trusted: nothing said otherwise.
    """
    ALTER TABLE events ADD COLUMN visitor text COLLATE "C" NOT NULL DEFAULT '';
    ALTER TABLE events ADD COLUMN trusted integer NOT NULL DEFAULT 1;
    ALTER TABLE feedback ADD COLUMN visitor text COLLATE "C" NOT NULL DEFAULT '';
    ALTER TABLE feedback ADD COLUMN trusted integer NOT NULL DEFAULT 1;
    CREATE INDEX events_of_visitor ON events (visitor);
    CREATE INDEX feedback_of_visitor ON feedback (visitor);
    """,
    # What filters/paths.py and filters/times.py define. Indexes call them, so they name nothing outside of
    # pg_catalog.
    r"""
    CREATE OR REPLACE FUNCTION simile_values(metadata jsonb, field text) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
    DECLARE
        objects jsonb[] := ARRAY[metadata];
        rests text[] := ARRAY[field];  -- what is left of the field in each object
        at integer := 1;
        rest text;
        name text;
        value jsonb;
        start integer;
        dot integer;
        found jsonb;
    BEGIN
        WHILE at <= cardinality(objects) LOOP
            rest := rests[at];
            start := 1;
            LOOP
                dot := position('.' IN substr(rest, start));
                name := CASE dot WHEN 0 THEN rest ELSE left(rest, start + dot - 2) END;
                start := start + dot;
                value := objects[at] -> name;
                IF dot = 0 THEN
                    IF value IS NOT NULL THEN
                        found := coalesce(found, '[]') || CASE jsonb_typeof(value)
                            WHEN 'array' THEN value ELSE jsonb_build_array(value) END;
                    END IF;
                    EXIT;
                ELSIF jsonb_typeof(value) = 'object' THEN
                    objects := objects || value;
                    rests := rests || substr(rest, start);
                ELSIF jsonb_typeof(value) = 'array' THEN
                    FOR value IN SELECT member FROM jsonb_array_elements(value) AS member LOOP
                        IF jsonb_typeof(value) = 'object' THEN
                            objects := objects || value;
                            rests := rests || substr(rest, start);
                        END IF;
                    END LOOP;
                END IF;
            END LOOP;
            at := at + 1;
        END LOOP;
        RETURN found;
    END $$;

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
    # NULL: of a document from before, or from a replica of an older version. checksums.py fills it.
    """
    ALTER TABLE documents ADD COLUMN checksums bytea;
    CREATE INDEX documents_without_checksums ON documents (revision) WHERE checksums IS NULL;
    """,
    # A replica of an older version knows neither column, and would leave those of the document before.
    # Connections of this version say that they set both (connection.py).
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
)
SCHEMA_VERSION = len(MIGRATIONS)
_LOCK = 7_405_811  # a number of our own among the database's advisory locks


def migrate(raw: Raw) -> None:
    """Bring the database to today's schema; of several processes that start together one does it.

    Raises:
        StartupError: a newer version wrote it, pgvector is missing or too old, or a table, column, index or
            right is missing.

    """
    try:
        with raw.transaction():
            raw.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            raw.execute("CREATE TABLE IF NOT EXISTS simile_schema (version integer NOT NULL)")
            row = raw.execute("SELECT version FROM simile_schema").fetchone()
            version = 0 if row is None else int(row[0])
            if version > SCHEMA_VERSION:
                raise StartupError(
                    f"The database was written by a newer Simile (schema {version}, this one knows "
                    f"{SCHEMA_VERSION}). Install that version again, or set another SIMILE_DATABASE."
                )
            for statements in MIGRATIONS[version:]:
                raw.execute(statements)
            raw.execute("DELETE FROM simile_schema")
            raw.execute("INSERT INTO simile_schema VALUES (%s)", (SCHEMA_VERSION,))
        lacking = schema_check.problem(raw, MIGRATIONS)
    except psycopg.Error as error:
        if is_lost(error):
            raise
        raise StartupError(
            f"The database of SIMILE_DATABASE cannot be used: {reason(error)}. Its user needs the right to "
            "make tables, and the extension vector."
        ) from error
    if lacking is not None:
        raise StartupError(lacking)
