"""The tables of `kgray.sqlite3`, and the steps that bring an older file to them.

Keys: a group has a number `no`; `key` is no << 40 | n, so the rows of a group are one range of
keys and every read of them names its group. n is the sequence for episodes, extractions and
operations, else a count; of a vector's n the two highest bits are its kind.
Never run ANALYZE or PRAGMA optimize on this file: their samples keep words of removed episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

APPLICATION_ID = 0x6B677279  # "kgry", in the header of the file
FILE = "kgray.sqlite3"

# A vector of 1024 float32 and its names need 4.3 KB. Pages of 4 KB hold it as about 500 bytes in
# the leaf (names and sign bits, which scans read) and one full overflow page: 4.6 KB in all, measured;
# pages of 8 KB hold one vector each (8.2 KB), of 16 KB three (5.5 KB), of 32 KB seven (4.7 KB, and
# every small change rewrites 32 KB).
PAGE_BYTES = 4096

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;

-- name is NULL for a removed group: its digest, last sequence and last record time stay.
-- removals counts the deletions of its vectors: what a process keeps of them in memory is then stale.
CREATE TABLE groups (
    no INTEGER PRIMARY KEY, name TEXT UNIQUE, digest BLOB NOT NULL UNIQUE,
    last INTEGER NOT NULL DEFAULT 0, last_recorded INTEGER NOT NULL DEFAULT 0,
    removals INTEGER NOT NULL DEFAULT 0
) STRICT;

-- state: 0 accepted, 1 extracted, 2 committed, 3 failed. ended_at: record time of the commit or the
-- failure; retired_at: of the retraction or the retry.
CREATE TABLE episodes (
    key INTEGER PRIMARY KEY, no INTEGER NOT NULL, id TEXT NOT NULL, source TEXT NOT NULL,
    kind TEXT NOT NULL, text TEXT NOT NULL, reference_time INTEGER NOT NULL,
    content_sha256 TEXT NOT NULL, speaker TEXT, client_id TEXT, metadata TEXT NOT NULL,
    state INTEGER NOT NULL, ended_at INTEGER, retired_at INTEGER,
    failure_kind TEXT, failure_message TEXT, failure_raw TEXT, attempts INTEGER
) STRICT;
CREATE INDEX episodes_id ON episodes (no, id);
CREATE INDEX episodes_client ON episodes (no, client_id) WHERE client_id IS NOT NULL;
CREATE INDEX episodes_said ON episodes (no, source, reference_time);
CREATE INDEX episodes_state ON episodes (no, state, retired_at);
CREATE INDEX episodes_pending ON episodes (no) WHERE state < 2;

CREATE TABLE extractions (
    key INTEGER PRIMARY KEY, calls INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, body TEXT NOT NULL
) STRICT;

-- state: 0 pending, 1 done, 2 refused. The payload of an ended retract or remove is blank.
CREATE TABLE operations (
    key INTEGER PRIMARY KEY, no INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
    state INTEGER NOT NULL, recorded_at INTEGER, result TEXT
) STRICT;
CREATE INDEX operations_pending ON operations (no) WHERE state = 0;

CREATE TABLE answers (
    no INTEGER NOT NULL, request TEXT NOT NULL, body TEXT NOT NULL, calls INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, PRIMARY KEY (no, request)
) STRICT;
CREATE TABLE answer_uses (
    no INTEGER NOT NULL, sequence INTEGER NOT NULL, request TEXT NOT NULL,
    PRIMARY KEY (no, sequence, request)
) STRICT, WITHOUT ROWID;
CREATE INDEX answer_uses_request ON answer_uses (no, request);

CREATE TABLE births (
    no INTEGER NOT NULL, id TEXT NOT NULL, sequence INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    PRIMARY KEY (no, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE mentions (
    key INTEGER PRIMARY KEY, no INTEGER NOT NULL, sequence INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    surface TEXT NOT NULL, entity TEXT NOT NULL, type TEXT NOT NULL, sentence TEXT NOT NULL,
    span_from INTEGER, span_to INTEGER
) STRICT;
CREATE UNIQUE INDEX mentions_place ON mentions (no, sequence, ordinal);
-- kind and the precisions are indexes into the tuples of rows.py; shown: the derived statement.
CREATE TABLE evidence (
    key INTEGER PRIMARY KEY, no INTEGER NOT NULL, sequence INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    statement TEXT NOT NULL, variant INTEGER NOT NULL, kind INTEGER NOT NULL, relation TEXT NOT NULL,
    text TEXT NOT NULL, subject INTEGER NOT NULL, object INTEGER,
    value_type TEXT, value TEXT, unit TEXT, valid_from INTEGER, valid_to INTEGER,
    from_precision INTEGER, to_precision INTEGER, inferred INTEGER NOT NULL, fact_group INTEGER,
    shown TEXT
) STRICT;
CREATE UNIQUE INDEX evidence_place ON evidence (no, sequence, ordinal);
CREATE INDEX evidence_statement ON evidence (no, statement, shown);
CREATE TABLE rulings (
    no INTEGER NOT NULL, sequence INTEGER NOT NULL, ordinal INTEGER NOT NULL, name TEXT NOT NULL,
    aspect TEXT NOT NULL, value TEXT NOT NULL, judge TEXT NOT NULL, other TEXT NOT NULL,
    reason TEXT NOT NULL, recorded_at INTEGER NOT NULL, retired_at INTEGER,
    PRIMARY KEY (no, sequence, ordinal)
) STRICT, WITHOUT ROWID;
CREATE TABLE verdicts (
    no INTEGER NOT NULL, sequence INTEGER NOT NULL, ordinal INTEGER NOT NULL, a TEXT NOT NULL,
    b TEXT NOT NULL, exclusive INTEGER NOT NULL, judge TEXT NOT NULL, reason TEXT NOT NULL,
    recorded_at INTEGER NOT NULL, retired_at INTEGER, PRIMARY KEY (no, sequence, ordinal)
) STRICT, WITHOUT ROWID;

-- Each surface of each recorded entity once; uses: how many mentions bear it.
CREATE TABLE names (
    key INTEGER PRIMARY KEY, no INTEGER NOT NULL, entity TEXT NOT NULL, surface TEXT NOT NULL,
    uses INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX names_surface ON names (no, entity, surface);
-- vector: float32, little-endian; bits: its signs, one bit a dimension. bits stands before vector,
-- so that a scan of the bits does not read the overflow pages.
CREATE TABLE vectors (
    key INTEGER PRIMARY KEY, no INTEGER NOT NULL, kind INTEGER NOT NULL, owner TEXT NOT NULL,
    text TEXT NOT NULL, bits BLOB NOT NULL, vector BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX vectors_owner ON vectors (no, kind, owner, text);

-- Derived: an index over the records, never truth.
CREATE TABLE entities (
    no INTEGER NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, aliases TEXT NOT NULL,
    labels TEXT NOT NULL, born_sequence INTEGER NOT NULL, born_ordinal INTEGER NOT NULL,
    PRIMARY KEY (no, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE called (
    no INTEGER NOT NULL, folded TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (no, folded, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX called_id ON called (no, id);
CREATE TABLE shown_entities (
    no INTEGER NOT NULL, recorded TEXT NOT NULL, shown TEXT NOT NULL,
    PRIMARY KEY (no, recorded, shown)
) STRICT, WITHOUT ROWID;
CREATE TABLE facts (
    no INTEGER NOT NULL, id TEXT NOT NULL, statement TEXT NOT NULL,
    source TEXT NOT NULL, relation TEXT NOT NULL, text TEXT NOT NULL, created_at INTEGER NOT NULL,
    target TEXT, value_type TEXT, value TEXT, unit TEXT, valid_at INTEGER, invalid_at INTEGER,
    expired_at INTEGER, episodes TEXT NOT NULL, ended_episode TEXT, ended_ordinal INTEGER
) STRICT;
CREATE UNIQUE INDEX facts_id ON facts (no, id);
CREATE INDEX facts_statement ON facts (no, statement);
CREATE INDEX facts_source ON facts (no, source, created_at DESC, id);
CREATE INDEX facts_target ON facts (no, target, created_at DESC, id) WHERE target IS NOT NULL;

-- Ordinary FTS5 tables: they keep the indexed words themselves, so that a row can be deleted without
-- knowing how an older version of kgray (or of Unicode) split its text. Fed by words.py only;
-- `ascii` splits at the spaces that words.py left and changes nothing else.
CREATE VIRTUAL TABLE evidence_words USING fts5 (words, tokenize = 'ascii');
CREATE VIRTUAL TABLE name_words USING fts5 (words, tokenize = 'ascii');
CREATE VIRTUAL TABLE episode_words USING fts5 (words, tokenize = 'ascii');
-- Deleted entries are taken out of the index at once, not marked; see erasing.py.
INSERT INTO evidence_words (evidence_words, rank) VALUES ('secure-delete', 1);
INSERT INTO name_words (name_words, rank) VALUES ('secure-delete', 1);
INSERT INTO episode_words (episode_words, rank) VALUES ('secure-delete', 1);
CREATE VIRTUAL TABLE evidence_vocabulary USING fts5vocab ('evidence_words', 'row');
CREATE VIRTUAL TABLE name_vocabulary USING fts5vocab ('name_words', 'row');
CREATE VIRTUAL TABLE episode_vocabulary USING fts5vocab ('episode_words', 'row');
"""

# bulk: in the backfill lane. The index answers whether a group has anything else pending, however long
# its backfill is.
_SECOND = """
ALTER TABLE episodes ADD COLUMN bulk INTEGER NOT NULL DEFAULT 0;
CREATE INDEX episodes_live ON episodes (no) WHERE state < 2 AND bulk = 0;
"""

# STEPS[n] brings version n to n + 1. Add steps, never change one: files out there went through it.
STEPS: tuple[str, ...] = (_FIRST, _SECOND)
VERSION = len(STEPS)


def migrate(connection: apsw.Connection, steps: Sequence[str] = STEPS) -> int:
    """Bring the file to version len(steps) in one transaction; return the version it had.

    Safe for several processes at once: the one that comes second finds nothing to do.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        stored = version(connection)
        for step in steps[stored:]:
            connection.execute(step)
        if stored < len(steps):
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", len(steps))
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (len(steps),))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return stored


def version(connection: apsw.Connection) -> int:
    """Return the schema version in the file's header; 0 for an empty file."""
    return int(connection.pragma("user_version"))
