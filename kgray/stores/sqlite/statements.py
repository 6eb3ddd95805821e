"""Every statement of the store, named; the comment is its contract.

Values go in as parameters, never as text. `?1` is the group's number where a read takes one: the
group is checked in the query itself. A list goes in as one JSON array (json_each) and joins its
index by CROSS JOIN, which fixes the order of the loops. The only text put together here, at
import, are column lists of ours.
"""
# ruff: noqa: S608 - the only text put into a statement is a list of columns from this file

from __future__ import annotations

# --------------------------------------------------------------------------------- meta and groups

EPOCH = "SELECT value FROM meta WHERE key = 'epoch'"
NEW_EPOCH = "UPDATE meta SET value = value + 1 WHERE key = 'epoch' RETURNING value"
# An erasure is marked until the file was rewritten (1) and the log cut (2), whatever comes between.
MARK_ERASED = "INSERT OR REPLACE INTO meta VALUES ('erased', 1)"
MARK_REWRITTEN = "INSERT OR REPLACE INTO meta VALUES ('erased', 2)"
ERASED = "SELECT value FROM meta WHERE key = 'erased'"
UNMARK_ERASED = "DELETE FROM meta WHERE key = 'erased'"

NEW_GROUP = "INSERT INTO groups (name, digest) VALUES (?, ?)"
GROUP_NUMBER = "SELECT no FROM groups WHERE digest = ?"
# Gives a removed group its name back; nothing is written where it has it.
NAME_GROUP = "UPDATE groups SET name = ? WHERE no = ? AND name IS NOT ?"
UNNAME_GROUP = "UPDATE groups SET name = NULL WHERE no = ?"
GROUPS = "SELECT name, no FROM groups WHERE name IS NOT NULL ORDER BY name"
GROUP_LAST = "SELECT last, last_recorded FROM groups WHERE no = ?"
# (JSON of numbers): no, last_recorded.
GROUPS_RECORDED = (
    "SELECT g.no, g.last_recorded FROM json_each(?1) AS asked CROSS JOIN groups AS g ON g.no = asked.value"
)
GROUP_REMOVALS = "SELECT removals FROM groups WHERE no = ?"
COUNT_REMOVAL = "UPDATE groups SET removals = removals + 1 WHERE no = ?"
TAKE_SEQUENCE = "UPDATE groups SET last = last + 1 WHERE no = ? RETURNING last"
# (now, no): max(clock, last + 1 microsecond), R4.
TAKE_RECORD_TIME = (
    "UPDATE groups SET last_recorded = max(?, last_recorded + 1) WHERE no = ? RETURNING last_recorded"
)
# (recorded_at, no, recorded_at): no row where the time is not past the group's last.
SET_RECORD_TIME = (
    "UPDATE groups SET last_recorded = ? WHERE no = ? AND last_recorded < ? RETURNING last_recorded"
)

# --------------------------------------------------------------------------------------- the log

_EPISODE = (
    "e.key, e.id, e.source, e.kind, e.text, e.reference_time, e.content_sha256, e.speaker, e.client_id, "
    "e.metadata, e.state, e.bulk"
)
NEW_EPISODE = (
    "INSERT INTO episodes (key, no, id, source, kind, text, reference_time, content_sha256, speaker, "
    "client_id, metadata, bulk, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
)
# The row that an id means: the last one that bears it.
EPISODE_BY_ID = (
    "SELECT key, id, client_id, source, content_sha256, retired_at FROM episodes WHERE no = ?1 AND id = ?2 "
    "ORDER BY key DESC LIMIT 1"
)
EPISODE_STATE = "SELECT state FROM episodes WHERE key = ?"
# Whether a sequence has a row: none was taken yet, or it was removed.
IS_HELD = "SELECT 1 FROM episodes WHERE key = ?1 UNION ALL SELECT 1 FROM operations WHERE key = ?1 LIMIT 1"
EPISODE_ID = "SELECT id FROM episodes WHERE key = ?"
EPISODE_TEXT = "SELECT speaker, text FROM episodes WHERE key = ?"
EPISODES_PENDING = (
    f"SELECT {_EPISODE} FROM episodes AS e INDEXED BY episodes_pending WHERE no = ?1 AND state < 2 "
    "AND key > ?2 ORDER BY key LIMIT ?3"
)
# R22: greatest (reference time, sequence) first, among smaller sequences said no later.
EPISODES_BEFORE = (
    f"SELECT {_EPISODE} FROM episodes AS e WHERE no = ?1 AND source = ?2 AND reference_time <= ?3 "
    "AND key < ?4 AND retired_at IS NULL ORDER BY reference_time DESC, key DESC LIMIT ?5"
)
EPISODES_FAILED = (
    f"SELECT {_EPISODE}, failure_kind, failure_message, failure_raw, attempts FROM episodes AS e "
    "WHERE no = ?1 AND state = 3 AND retired_at IS NULL ORDER BY key"
)
# (no, after, last, as of a record time or NULL, limit): the dump's episodes, a page after a key.
EPISODES_ENDED = (
    f"SELECT {_EPISODE} FROM episodes AS e WHERE key > ?1 AND key <= ?2 AND state >= 2 "
    "AND (?3 IS NULL AND retired_at IS NULL "
    "OR ended_at <= ?3 AND (retired_at IS NULL OR retired_at > ?3)) ORDER BY key LIMIT ?4"
)
EPISODES_SHOWN = (
    f"SELECT {_EPISODE} FROM json_each(?2) AS asked CROSS JOIN episodes AS e "
    "ON e.key = asked.value AND e.no = ?1 WHERE e.state = 2 AND e.retired_at IS NULL ORDER BY asked.key"
)
EXTRACT_EPISODE = "UPDATE episodes SET state = 1 WHERE key = ? AND state = 0"
COMMIT_EPISODE = "UPDATE episodes SET state = 2, ended_at = ? WHERE key = ?"
FAIL_EPISODE = (
    "UPDATE episodes SET state = 3, ended_at = ?, failure_kind = ?, failure_message = ?, failure_raw = ?, "
    "attempts = coalesce(attempts, 0) + ? WHERE key = ?"
)
# A retried row starts with the attempts of the row that it takes the place of.
CARRY_ATTEMPTS = "UPDATE episodes SET attempts = ? WHERE key = ?"
# An earlier retirement stands.
RETIRE_EPISODE = "UPDATE episodes SET retired_at = ? WHERE key = ? AND retired_at IS NULL"
SEQUENCES_OF_ID = (
    "SELECT key FROM episodes WHERE no = ?1 AND id = ?2 "
    "UNION SELECT key FROM episodes WHERE no = ?1 AND client_id = ?2 AND client_id IS NOT NULL"
)
SEQUENCES_OF_SOURCE = "SELECT key FROM episodes WHERE no = ?1 AND source = ?2"
SEQUENCES_ALL = "SELECT key FROM episodes WHERE key BETWEEN ?1 AND ?2"

NEW_OPERATION = "INSERT INTO operations (key, no, kind, payload, state) VALUES (?, ?, ?, ?, 0)"
OPERATION_STATE = "SELECT state, result FROM operations WHERE key = ?"
OPERATIONS_PENDING = (
    "SELECT key, kind, payload FROM operations INDEXED BY operations_pending "
    "WHERE no = ?1 AND state = 0 AND key > ?2 ORDER BY key LIMIT ?3"
)
# (no, after, limit): (key, whether it is an episode); the indexes hold all of it.
SEQUENCES_PENDING = (
    "SELECT key, 1 FROM episodes INDEXED BY episodes_pending WHERE no = ?1 AND state < 2 AND key > ?2 "
    "UNION ALL SELECT key, 0 FROM operations INDEXED BY operations_pending "
    "WHERE no = ?1 AND state = 0 AND key > ?2 ORDER BY 1 LIMIT ?3"
)
# Those that will take episodes away; usually none.
REMOVALS_PENDING = (
    "SELECT key, kind, payload FROM operations INDEXED BY operations_pending "
    "WHERE no = ?1 AND state = 0 AND kind IN ('retract', 'remove') ORDER BY key"
)
# (state, recorded_at, result, payload, key). What a retract or remove named is blanked: a client's ids may
# be a person's words. Of the others the payload is as carried out.
END_OPERATION = (
    "UPDATE operations SET state = ?, recorded_at = ?, result = ?, "
    "payload = CASE WHEN kind IN ('retract', 'remove') THEN '{}' ELSE coalesce(?, payload) END WHERE key = ?"
)
# (payload, key): of an operation that was carried out.
REWRITE_OPERATION = "UPDATE operations SET payload = ? WHERE key = ? AND state = 1"

# (name, whether any of it is live).
PENDING_GROUPS = (
    "SELECT name, live FROM (SELECT name, no, "
    "EXISTS (SELECT 1 FROM operations INDEXED BY operations_pending WHERE no = groups.no AND state = 0) OR "
    "EXISTS (SELECT 1 FROM episodes INDEXED BY episodes_live "
    "WHERE no = groups.no AND state < 2 AND bulk = 0) AS live FROM groups WHERE name IS NOT NULL) AS g "
    "WHERE live OR EXISTS (SELECT 1 FROM episodes INDEXED BY episodes_pending WHERE no = g.no AND state < 2) "
    "ORDER BY name"
)
# (no or NULL for all).
PENDING_COUNT = (
    "SELECT (SELECT count(*) FROM episodes INDEXED BY episodes_pending WHERE no = ?1 AND state < 2) + "
    "(SELECT count(*) FROM operations INDEXED BY operations_pending WHERE no = ?1 AND state = 0)"
)
# A group without a name may be on its way into the file (adopting.py).
PENDING_COUNT_ALL = (
    "WITH named AS (SELECT no FROM groups WHERE name IS NOT NULL) "
    "SELECT (SELECT count(*) FROM episodes INDEXED BY episodes_pending WHERE state < 2 AND no IN named) + "
    "(SELECT count(*) FROM operations INDEXED BY operations_pending WHERE state = 0 AND no IN named)"
)

NEW_EXTRACTION = "INSERT OR IGNORE INTO extractions VALUES (?, ?, ?, ?, ?)"
EXTRACTION = "SELECT calls, prompt_tokens, completion_tokens, body FROM extractions WHERE key = ?"
NEW_ANSWERS = "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?, ?)"
ANSWERS = "SELECT body FROM answers WHERE no = ?1 AND request = ?2"
USE_ANSWERS = "INSERT OR IGNORE INTO answer_uses VALUES (?, ?, ?)"

COUNT_STATES = "SELECT state, count(*) FROM episodes WHERE no = ?1 AND retired_at IS NULL GROUP BY state"
COUNT_DERIVED = (
    "SELECT (SELECT count(*) FROM entities WHERE no = ?1), (SELECT count(*) FROM facts WHERE no = ?1)"
)
# (first key, last key, no).
COUNT_CALLS = (
    "SELECT sum(calls), sum(prompt_tokens), sum(completion_tokens) FROM ("
    "SELECT calls, prompt_tokens, completion_tokens FROM extractions WHERE key BETWEEN ?1 AND ?2 UNION ALL "
    "SELECT calls, prompt_tokens, completion_tokens FROM answers WHERE no = ?3)"
)

# ------------------------------------------------------------------------------- a commit: records

# A place that is there already is an error of the caller, not a repetition: applying.py knows those.
NEW_BIRTH = "INSERT OR IGNORE INTO births VALUES (?, ?, ?, ?)"
NEW_MENTION = "INSERT INTO mentions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
NEW_EVIDENCE = "INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
NEW_RULING = "INSERT INTO rulings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
NEW_VERDICT = "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
# (first key, last key): the last key in use of a range; NULL where none is.
LAST_MENTION = "SELECT max(key) FROM mentions WHERE key BETWEEN ? AND ?"
LAST_EVIDENCE = "SELECT max(key) FROM evidence WHERE key BETWEEN ? AND ?"
LAST_NAME = "SELECT max(key) FROM names WHERE key BETWEEN ? AND ?"
LAST_VECTOR = "SELECT max(key) FROM vectors WHERE key BETWEEN ? AND ?"
# (key, no, entity, surface, uses): one row out; uses equal to those sent = it is new, with this key.
USE_NAME = (
    "INSERT INTO names VALUES (?, ?, ?, ?, ?) ON CONFLICT (no, entity, surface) "
    "DO UPDATE SET uses = uses + excluded.uses RETURNING key"
)
NEW_VECTOR = "INSERT INTO vectors VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING key"
VECTOR_OF = "SELECT key, vector FROM vectors WHERE no = ? AND kind = ? AND owner = ? AND text = ?"
INDEX_EVIDENCE = "INSERT INTO evidence_words (rowid, words) VALUES (?, ?)"
INDEX_NAME = "INSERT INTO name_words (rowid, words) VALUES (?, ?)"
INDEX_EPISODE = "INSERT OR REPLACE INTO episode_words (rowid, words) VALUES (?, ?)"

# ------------------------------------------------------------------------- a commit: the derived graph

DROP_FACT = "DELETE FROM facts WHERE no = ? AND id = ?"
# Absolute: a row sent again changes nothing.
PUT_FACT = (
    "INSERT INTO facts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (no, id) DO UPDATE SET statement = excluded.statement, source = excluded.source, "
    "relation = excluded.relation, text = excluded.text, created_at = excluded.created_at, "
    "target = excluded.target, value_type = excluded.value_type, value = excluded.value, "
    "unit = excluded.unit, valid_at = excluded.valid_at, invalid_at = excluded.invalid_at, "
    "expired_at = excluded.expired_at, episodes = excluded.episodes, ended_episode = excluded.ended_episode, "
    "ended_ordinal = excluded.ended_ordinal"
)
DROP_ENTITY = "DELETE FROM entities WHERE no = ? AND id = ?"
PUT_ENTITY = "INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?, ?, ?)"
DROP_CALLED = "DELETE FROM called WHERE no = ? AND id = ?"
PUT_CALLED = "INSERT OR IGNORE INTO called VALUES (?, ?, ?)"
DROP_SHOWN = "DELETE FROM shown_entities WHERE no = ? AND recorded = ?"
PUT_SHOWN = "INSERT OR IGNORE INTO shown_entities VALUES (?, ?, ?)"
# (shown, no, sequence, ordinal).
SHOW_EVIDENCE = "UPDATE evidence SET shown = ? WHERE no = ? AND sequence = ? AND ordinal = ?"

# ---------------------------------------------------------------------------------------- erasing

EVIDENCE_OF = "SELECT key, statement FROM evidence WHERE no = ?1 AND sequence = ?2"
UNINDEX_EVIDENCE = "DELETE FROM evidence_words WHERE rowid = ?"
DROP_EVIDENCE = "DELETE FROM evidence WHERE key = ?"
HAS_EVIDENCE = "SELECT 1 FROM evidence WHERE no = ? AND statement = ? LIMIT 1"
MENTIONS_OF = "SELECT key, entity, surface FROM mentions WHERE no = ?1 AND sequence = ?2"
DROP_MENTION = "DELETE FROM mentions WHERE key = ?"
# (no, entity, surface): one mention less; (key, uses) out.
UNUSE_NAME = (
    "UPDATE names SET uses = uses - 1 WHERE no = ? AND entity = ? AND surface = ? RETURNING key, uses"
)
DROP_NAME = "DELETE FROM names WHERE key = ?"
UNINDEX_NAME = "DELETE FROM name_words WHERE rowid = ?"
DROP_VECTOR = "DELETE FROM vectors WHERE no = ? AND kind = ? AND owner = ? AND text = ? RETURNING key"
DROP_VECTOR_KEY = "DELETE FROM vectors WHERE key = ?"
UNINDEX_EPISODE = "DELETE FROM episode_words WHERE rowid = ?"
DROP_EPISODE = "DELETE FROM episodes WHERE key = ?"
DROP_EXTRACTION = "DELETE FROM extractions WHERE key = ?"
REQUESTS_OF = "SELECT request FROM answer_uses WHERE no = ?1 AND sequence = ?2"
DROP_ANSWERS = "DELETE FROM answers WHERE no = ? AND request = ?"
DROP_USES = "DELETE FROM answer_uses WHERE no = ? AND request = ?"
DROP_RULING = "DELETE FROM rulings WHERE no = ? AND sequence = ? AND ordinal = ?"
DROP_VERDICT = "DELETE FROM verdicts WHERE no = ? AND sequence = ? AND ordinal = ?"
BLANK_RULING = "UPDATE rulings SET reason = '' WHERE no = ? AND sequence = ? AND ordinal = ?"
BLANK_VERDICT = "UPDATE verdicts SET reason = '' WHERE no = ? AND sequence = ? AND ordinal = ?"
# (retired_at, no, sequence, ordinal).
RETIRE_RULING = (
    "UPDATE rulings SET retired_at = ? WHERE no = ? AND sequence = ? AND ordinal = ? AND retired_at IS NULL"
)
RETIRE_VERDICT = (
    "UPDATE verdicts SET retired_at = ? WHERE no = ? AND sequence = ? AND ordinal = ? AND retired_at IS NULL"
)
# A retracted episode's rows still need the births they name, for reads with an earlier `known_at`.
DROP_BIRTH = """
DELETE FROM births WHERE no = ?1 AND id = ?2
    AND NOT EXISTS (SELECT 1 FROM names WHERE no = ?1 AND entity = ?2)
    AND NOT EXISTS (SELECT 1 FROM evidence WHERE no = ?1 AND statement = ?2)
"""

# Taking a word out of the index at once costs a search each: 36 s for a group of 100,000 facts. There
# deletions are marked instead, and OPTIMIZE, before the file is rewritten, drops marks and words.
MARK_DELETIONS = (
    "INSERT INTO evidence_words (evidence_words, rank) VALUES ('secure-delete', 0)",
    "INSERT INTO name_words (name_words, rank) VALUES ('secure-delete', 0)",
    "INSERT INTO episode_words (episode_words, rank) VALUES ('secure-delete', 0)",
)
DELETE_AT_ONCE = (
    "INSERT INTO evidence_words (evidence_words, rank) VALUES ('secure-delete', 1)",
    "INSERT INTO name_words (name_words, rank) VALUES ('secure-delete', 1)",
    "INSERT INTO episode_words (episode_words, rank) VALUES ('secure-delete', 1)",
)
OPTIMIZE = (
    "INSERT INTO evidence_words (evidence_words) VALUES ('optimize')",
    "INSERT INTO name_words (name_words) VALUES ('optimize')",
    "INSERT INTO episode_words (episode_words) VALUES ('optimize')",
)
# A removed group: every row of it up to the removing sequence (first key, that sequence's key, no).
# What was accepted after it stays pending; nothing committed can be later than it.
FORGET_KEYED = (
    "DELETE FROM evidence_words WHERE rowid BETWEEN ?1 AND ?2",
    "DELETE FROM name_words WHERE rowid BETWEEN ?1 AND ?2",
    "DELETE FROM episode_words WHERE rowid BETWEEN ?1 AND ?2",
    "DELETE FROM evidence WHERE key BETWEEN ?1 AND ?2",
    "DELETE FROM mentions WHERE key BETWEEN ?1 AND ?2",
    "DELETE FROM names WHERE key BETWEEN ?1 AND ?2",
    "DELETE FROM vectors WHERE key BETWEEN ?1 AND ?2",
)
FORGET_SEQUENCED = (
    "DELETE FROM episodes WHERE key BETWEEN ?1 AND ?2",
    "DELETE FROM extractions WHERE key BETWEEN ?1 AND ?2",
    "DELETE FROM operations WHERE key BETWEEN ?1 AND ?2 - 1",
)
FORGET_NUMBERED = (
    "DELETE FROM births WHERE no = ?1",
    "DELETE FROM rulings WHERE no = ?1",
    "DELETE FROM verdicts WHERE no = ?1",
    "DELETE FROM entities WHERE no = ?1",
    "DELETE FROM called WHERE no = ?1",
    "DELETE FROM shown_entities WHERE no = ?1",
    "DELETE FROM facts WHERE no = ?1",
)
# (no, sequence): answers that a sequence up to this one used, or that none did.
FORGET_ANSWERS = (
    "DELETE FROM answers WHERE no = ?1 AND (request IN (SELECT request FROM answer_uses WHERE no = ?1 "
    "AND sequence <= ?2) OR request NOT IN (SELECT request FROM answer_uses WHERE no = ?1))"
)
FORGET_USES = (
    "DELETE FROM answer_uses WHERE no = ?1 AND request NOT IN (SELECT request FROM answers WHERE no = ?1)"
)

# --------------------------------------------------------------------------------- reading: records

# (no, first key, last key, as of a record time or NULL). Live heads: the rule of GroupRecords.
HEADS = (
    "SELECT key, id, reference_time, ended_at FROM episodes WHERE key BETWEEN ?1 AND ?2 AND state = 2 "
    "AND (?3 IS NULL AND retired_at IS NULL "
    "OR ended_at <= ?3 AND (retired_at IS NULL OR retired_at > ?3)) ORDER BY key"
)
# (first key, last key).
MENTIONS = (
    "SELECT sequence, ordinal, surface, entity, type, sentence, span_from, span_to FROM mentions "
    "WHERE key BETWEEN ?1 AND ?2 ORDER BY key"
)
EVIDENCE = (
    "SELECT sequence, ordinal, statement, variant, kind, relation, text, subject, object, value_type, value, "
    "unit, valid_from, valid_to, from_precision, to_precision, inferred, fact_group FROM evidence "
    "WHERE key BETWEEN ?1 AND ?2 ORDER BY key"
)
# (no, as of a record time or NULL).
_STANDS = (
    "(?2 IS NULL AND retired_at IS NULL OR recorded_at <= ?2 AND (retired_at IS NULL OR retired_at > ?2))"
)
RULINGS = (
    "SELECT sequence, ordinal, name, aspect, value, judge, other, reason, recorded_at FROM rulings "
    f"WHERE no = ?1 AND {_STANDS} ORDER BY sequence, ordinal"
)
VERDICTS = (
    "SELECT sequence, ordinal, a, b, exclusive, judge, reason, recorded_at FROM verdicts "
    f"WHERE no = ?1 AND {_STANDS} ORDER BY sequence, ordinal"
)
# (first key, last key, as of a record time or NULL).
OPERATIONS = (
    "SELECT key, kind, payload, recorded_at FROM operations WHERE key BETWEEN ?1 AND ?2 AND state = 1 "
    "AND kind IN ('merge', 'split', 'undo') AND (?3 IS NULL OR recorded_at <= ?3) ORDER BY key"
)
# (first key, last key, sequences as JSON): in order of first mention.
SURFACES = (
    "SELECT surface, min(key) AS first FROM mentions WHERE key BETWEEN ?1 AND ?2 "
    "AND sequence NOT IN (SELECT value FROM json_each(?3)) GROUP BY surface ORDER BY first"
)
BIRTHS = "SELECT id, sequence, ordinal FROM births WHERE no = ?1"

# --------------------------------------------------------------------------------- reading: vectors

# (first key, last key, limit): pages in order of insertion.
NAME_VECTORS = (
    "SELECT key, owner, text, vector FROM vectors WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT ?3"
)
STATEMENT_VECTORS = (
    "SELECT owner, vector FROM json_each(?3) AS asked CROSS JOIN vectors "
    "ON no = ?1 AND kind = ?2 AND owner = asked.value"
)
BITS = "SELECT key, bits FROM vectors WHERE key BETWEEN ?1 AND ?2 ORDER BY key"
VECTORS = "SELECT key, vector FROM vectors WHERE key BETWEEN ?1 AND ?2 ORDER BY key"
# (keys as JSON): any order.
VECTORS_AT = (
    "SELECT vectors.key, vector FROM json_each(?1) AS asked CROSS JOIN vectors ON vectors.key = asked.value"
)
OWNERS_AT = (
    "SELECT vectors.key, owner FROM json_each(?1) AS asked CROSS JOIN vectors ON vectors.key = asked.value"
)

# ----------------------------------------------------------------------------------- reading: words

# (query, first key, last key, limit): BM25, best first (FTS5 gives the best the lowest), ties by key.
# The terms of the query bear the group already; the range of keys checks it a second time.
FIND_EVIDENCE = (
    "SELECT sequence, ordinal FROM (SELECT rowid AS found, bm25(evidence_words) AS score FROM evidence_words "
    "WHERE evidence_words MATCH ?1 AND rowid BETWEEN ?2 AND ?3 ORDER BY score, found LIMIT ?4) "
    "CROSS JOIN evidence ON evidence.key = found ORDER BY score, found"
)
FIND_NAMES = (
    "SELECT entity FROM (SELECT rowid AS found, bm25(name_words) AS score FROM name_words "
    "WHERE name_words MATCH ?1 AND rowid BETWEEN ?2 AND ?3 ORDER BY score, found LIMIT ?4) "
    "CROSS JOIN names ON names.key = found ORDER BY score, found"
)
FIND_EPISODES = (
    "SELECT rowid, bm25(episode_words) AS score FROM episode_words "
    "WHERE episode_words MATCH ?1 AND rowid BETWEEN ?2 AND ?3 ORDER BY score, rowid LIMIT ?4"
)
EVIDENCE_FREQUENCY = "SELECT doc FROM evidence_vocabulary WHERE term = ?"
NAME_FREQUENCY = "SELECT doc FROM name_vocabulary WHERE term = ?"
EPISODE_FREQUENCY = "SELECT doc FROM episode_vocabulary WHERE term = ?"
LAST_EPISODE = "SELECT max(key) FROM episodes WHERE key BETWEEN ? AND ?"

# ------------------------------------------------------------------------------- reading: the graph

_FACT = (
    "f.id, f.statement, f.source, f.relation, f.text, f.created_at, f.target, f.value_type, f.value, f.unit, "
    "f.valid_at, f.invalid_at, f.expired_at, f.episodes, f.ended_episode, f.ended_ordinal"
)
_HOLDS = (
    "(?3 IS NULL OR (f.valid_at IS NULL OR f.valid_at <= ?3) AND (f.invalid_at IS NULL OR ?3 < f.invalid_at))"
)
_ENTITY = "e.id, e.name, e.aliases, e.labels, e.born_sequence, e.born_ordinal"

# (no, recorded statements, as_of): in the order asked, then by start; a fact once for each asked.
FACTS_OF = (
    f"SELECT {_FACT} FROM (SELECT DISTINCT asked.key AS place, evidence.shown FROM json_each(?2) AS asked "
    "CROSS JOIN evidence ON evidence.no = ?1 AND evidence.statement = asked.value) AS s "
    f"CROSS JOIN facts AS f ON f.no = ?1 AND f.statement = s.shown WHERE {_HOLDS} "
    "ORDER BY s.place, f.valid_at, f.id"
)
# (no, [[sequence, ordinal], ...], as_of).
FACTS_OF_EVIDENCE = (
    f"SELECT {_FACT} FROM json_each(?2) AS asked CROSS JOIN evidence ON evidence.no = ?1 "
    "AND evidence.sequence = json_extract(asked.value, '$[0]') "
    "AND evidence.ordinal = json_extract(asked.value, '$[1]') "
    f"CROSS JOIN facts AS f ON f.no = ?1 AND f.statement = evidence.shown WHERE {_HOLDS} "
    "ORDER BY asked.key, f.valid_at, f.id"
)
# (no, entity, as_of, limit): newest first by the index; a hub costs what is taken of it.
FACTS_FROM = (
    f"SELECT f.created_at, f.id FROM facts AS f WHERE f.no = ?1 AND f.source = ?2 AND {_HOLDS} "
    "ORDER BY f.created_at DESC, f.id LIMIT ?4"
)
FACTS_TO = (
    f"SELECT f.created_at, f.id FROM facts AS f WHERE f.no = ?1 AND f.target = ?2 AND {_HOLDS} "
    "ORDER BY f.created_at DESC, f.id LIMIT ?4"
)
FACTS = (
    f"SELECT {_FACT} FROM json_each(?2) AS asked CROSS JOIN facts AS f ON f.no = ?1 AND f.id = asked.value "
    "ORDER BY asked.key"
)
# (no, recorded ids): what each shows as; an id that no mention was recorded with (a split's) is itself.
SHOWN = (
    f"SELECT {_ENTITY}, asked.key AS place FROM json_each(?2) AS asked CROSS JOIN shown_entities AS s "
    "ON s.no = ?1 AND s.recorded = asked.value CROSS JOIN entities AS e ON e.no = ?1 AND e.id = s.shown "
    f"UNION ALL SELECT {_ENTITY}, asked.key FROM json_each(?2) AS asked "
    "CROSS JOIN entities AS e ON e.no = ?1 AND e.id = asked.value WHERE NOT EXISTS "
    "(SELECT 1 FROM shown_entities AS s WHERE s.no = ?1 AND s.recorded = asked.value) "
    "ORDER BY place, e.born_sequence, e.born_ordinal"
)
# (no, ids): the shown ids that these stand for; one that is shown stands for itself alone.
SHOWN_IDS = (
    "SELECT e.id FROM json_each(?2) AS asked CROSS JOIN entities AS e ON e.no = ?1 AND e.id = asked.value "
    "UNION SELECT s.shown FROM json_each(?2) AS asked CROSS JOIN shown_entities AS s "
    "ON s.no = ?1 AND s.recorded = asked.value WHERE NOT EXISTS "
    "(SELECT 1 FROM entities AS e WHERE e.no = ?1 AND e.id = asked.value)"
)
ENTITIES_CALLED = (
    f"SELECT {_ENTITY} FROM called CROSS JOIN entities AS e ON e.no = ?1 AND e.id = called.id "
    "WHERE called.no = ?1 AND called.folded = ?2 ORDER BY e.born_sequence, e.born_ordinal, e.id"
)
# (no, episode ids).
SUPPORTERS = (
    "SELECT e.id, e.client_id FROM json_each(?2) AS asked CROSS JOIN episodes AS e "
    "ON e.no = ?1 AND e.id = asked.value ORDER BY e.key"
)
LIVE_EPISODES = (
    "SELECT key FROM episodes WHERE no = ?1 AND id = ?2 AND retired_at IS NULL "
    "UNION SELECT key FROM episodes WHERE no = ?1 AND client_id = ?2 AND client_id IS NOT NULL "
    "AND retired_at IS NULL ORDER BY key"
)
IS_ENTITY = (
    "SELECT 1 FROM entities WHERE no = ?1 AND id = ?2 "
    "UNION ALL SELECT 1 FROM shown_entities WHERE no = ?1 AND recorded = ?2 LIMIT 1"
)
IS_STATEMENT = (
    "SELECT 1 FROM facts WHERE no = ?1 AND statement = ?2 "
    "UNION ALL SELECT 1 FROM evidence WHERE no = ?1 AND statement = ?2 LIMIT 1"
)
IS_FACT = "SELECT 1 FROM facts WHERE no = ?1 AND id = ?2"
