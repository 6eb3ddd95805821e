"""Statements that read a group whole, page by page, and write it anew; the comment is the contract.

A page is what comes after the key of the row before it, which stands first in each row. ?1 is the group's
number, or the first two are keys of its range; the last is the limit.
"""

from __future__ import annotations

# --------------------------------------------------------------------------------------- reading

# (after, last key, limit): the columns of `rows.episode`, then what became of it.
EPISODES = (
    "SELECT key, id, source, kind, text, reference_time, content_sha256, speaker, client_id, metadata, "
    "state, bulk, ended_at, retired_at, failure_kind, failure_message, failure_raw, attempts FROM episodes "
    "WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3"
)
OPERATIONS = (
    "SELECT key, kind, payload, state, recorded_at, result FROM operations "
    "WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3"
)
EXTRACTIONS = (
    "SELECT key, calls, prompt_tokens, completion_tokens, body FROM extractions "
    "WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3"
)
NAMES = "SELECT key, entity, surface, uses FROM names WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3"
VECTORS = (
    "SELECT key, kind, owner, text, vector FROM vectors WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT ?3"
)
# (no, after, limit).
ANSWERS = (
    "SELECT request, body, calls, prompt_tokens, completion_tokens FROM answers "
    "WHERE no = ?1 AND request > ?2 ORDER BY request LIMIT ?3"
)
ENTITIES = (
    "SELECT id, name, aliases, labels, born_sequence, born_ordinal FROM entities "
    "WHERE no = ?1 AND id > ?2 ORDER BY id LIMIT ?3"
)
FACTS = (
    "SELECT id, statement, source, relation, text, created_at, target, value_type, value, unit, valid_at, "
    "invalid_at, expired_at, episodes, ended_episode, ended_ordinal FROM facts "
    "WHERE no = ?1 AND id > ?2 ORDER BY id LIMIT ?3"
)
# (no, after, after, limit).
USES = (
    "SELECT sequence, request FROM answer_uses WHERE no = ?1 AND (sequence, request) > (?2, ?3) "
    "ORDER BY sequence, request LIMIT ?4"
)
MENTIONS = (
    "SELECT sequence, ordinal, surface, entity, type, sentence, span_from, span_to FROM mentions "
    "WHERE no = ?1 AND (sequence, ordinal) > (?2, ?3) ORDER BY sequence, ordinal LIMIT ?4"
)
EVIDENCE = (
    "SELECT sequence, ordinal, statement, variant, kind, relation, text, subject, object, value_type, value, "
    "unit, valid_from, valid_to, from_precision, to_precision, inferred, fact_group, shown FROM evidence "
    "WHERE no = ?1 AND (sequence, ordinal) > (?2, ?3) ORDER BY sequence, ordinal LIMIT ?4"
)
RULINGS = (
    "SELECT sequence, ordinal, name, aspect, value, judge, other, reason, recorded_at, retired_at "
    "FROM rulings WHERE no = ?1 AND (sequence, ordinal) > (?2, ?3) ORDER BY sequence, ordinal LIMIT ?4"
)
VERDICTS = (
    "SELECT sequence, ordinal, a, b, exclusive, judge, reason, recorded_at, retired_at FROM verdicts "
    "WHERE no = ?1 AND (sequence, ordinal) > (?2, ?3) ORDER BY sequence, ordinal LIMIT ?4"
)
SHOWN = (
    "SELECT recorded, shown FROM shown_entities WHERE no = ?1 AND (recorded, shown) > (?2, ?3) "
    "ORDER BY recorded, shown LIMIT ?4"
)
# (no): name (none: removed, or being taken over), last, last_recorded.
GROUP = "SELECT name, last, last_recorded FROM groups WHERE no = ?"
# (no): three small columns, at once: no index has them in this order.
BIRTHS = "SELECT id, sequence, ordinal FROM births WHERE no = ?1 ORDER BY sequence, ordinal, id"

# --------------------------------------------------------------------------------------- writing

# Columns in the order of the tables.
PUT_EPISODE = (
    "INSERT INTO episodes (key, no, id, source, kind, text, reference_time, content_sha256, speaker, "
    "client_id, metadata, state, bulk, ended_at, retired_at, failure_kind, failure_message, failure_raw, "
    "attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
PUT_OPERATION = "INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_RULING = "INSERT INTO rulings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PUT_VERDICT = "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PUT_NAME = "INSERT INTO names VALUES (?, ?, ?, ?, ?)"
# (digest): the row of a group that is being taken over, without a name.
STAGE_GROUP = "INSERT INTO groups (digest) VALUES (?)"
# (last, last_recorded, no).
COUNT_GROUP = "UPDATE groups SET last = ?, last_recorded = ? WHERE no = ?"
# (name, digest, no).
NAME_GROUP = "UPDATE groups SET name = ?, digest = ? WHERE no = ?"
# (digest): name, last.
HELD_GROUP = "SELECT name, last FROM groups WHERE digest = ?"
