"""Statements that read a group's records; the comment is the contract.

$group is matched everywhere. $known_at NULL: as of now, else as recorded by then.
"""

from __future__ import annotations

_STANDS = (
    "($known_at IS NULL AND n.retired_at IS NULL OR n.recorded_at <= $known_at "
    "AND (n.retired_at IS NULL OR n.retired_at > $known_at))"
)
# Live heads, the rule of GroupRecords: sequence, id, t_ref, record time.
HEADS = """
MATCH (n:KgrayEpisode) WHERE n.group_id = $group AND n.state = 2 AND n.sequence > 0
    AND ($known_at IS NULL AND n.retired_at IS NULL
        OR n.ended_at <= $known_at AND (n.retired_at IS NULL OR n.retired_at > $known_at))
RETURN n.sequence, n.uuid, n.said, n.ended_at ORDER BY n.sequence
"""
MENTIONS = """
MATCH (n:KgrayMention) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0
RETURN n.sequence, n.ordinal, n.surface, n.entity, n.type, n.sentence, n.span_from, n.span_to
ORDER BY n.sequence, n.ordinal
"""
EVIDENCE = """
MATCH (n:KgrayEvidence) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0
RETURN n.sequence, n.ordinal, n.statement, n.variant, n.kind, n.relation, n.text, n.subject, n.object,
    n.value_type, n.value, n.unit, n.valid_from, n.valid_to, n.from_precision, n.to_precision, n.inferred,
    n.fact_group
ORDER BY n.sequence, n.ordinal
"""
# The columns of a value, then its record time.
RULINGS = f"""
MATCH (n:KgrayRuling) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0 AND {_STANDS}
RETURN n.sequence, n.ordinal, n.name, n.aspect, n.value, n.judge, n.other, n.reason, n.recorded_at
ORDER BY n.sequence, n.ordinal
"""
VERDICTS = f"""
MATCH (n:KgrayVerdict) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0 AND {_STANDS}
RETURN n.sequence, n.ordinal, n.a, n.b, n.exclusive, n.judge, n.reason, n.recorded_at
ORDER BY n.sequence, n.ordinal
"""
# Sequence, kind, payload, record time.
OPERATIONS = """
MATCH (n:KgrayOperation) WHERE n.group_id = $group AND n.sequence > 0 AND n.state = 1
    AND n.kind IN ['merge', 'split', 'undo'] AND ($known_at IS NULL OR n.recorded_at <= $known_at)
RETURN n.sequence, n.kind, n.payload, n.recorded_at ORDER BY n.sequence
"""
# Recorded id, place.
BIRTHS = """
MATCH (n:KgrayBirth) WHERE n.group_id = $group AND n.id > '' AND n.sequence IS NOT NULL
RETURN n.id, n.sequence, n.ordinal
"""
# $after, $limit: pages in order of insertion: place, entity, surface, vector.
NAME_VECTORS = """
MATCH (n:KgrayName) WHERE n.group_id = $group AND n.place > $after
RETURN n.place, n.entity, n.surface, n.embedding ORDER BY n.place LIMIT $limit
"""
# $ids: id, vector.
STATEMENT_VECTORS = """
UNWIND $ids AS id
MATCH (n:KgrayStatement {group_id: $group, id: id}) WHERE n.embedding IS NOT NULL
RETURN n.id, n.embedding
"""
