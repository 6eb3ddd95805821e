"""Statements that read a group whole, page by page, and take one over; the comment is the contract.

$group is matched everywhere, $staged where what is taken over is not to be found yet (adopting.py).
Predicates that hold of every row, and the order by group, are there for the index that begins with it.
"""

from __future__ import annotations

from kgray.stores.neo4j.statements import EPISODE

# --------------------------------------------------------------------------------------- reading

# $id: name (none: removed, or being taken over), last, last_recorded, removals.
GROUP = "MATCH (g:KgrayGroup {id: $id}) RETURN g.name, g.last, g.last_recorded, g.removals"
# $after, $last: sequences, $limit: the columns of an episode, then what became of it.
EPISODES = f"""
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.sequence > $after AND e.sequence <= $last
RETURN {EPISODE}, e.ended_at, e.retired_at, e.failure_kind, e.failure_message, e.failure_raw, e.attempts
ORDER BY e.group_id, e.sequence LIMIT $limit
"""
OPERATIONS = """
MATCH (o:KgrayOperation) WHERE o.group_id = $group AND o.sequence > $after AND o.sequence <= $last
RETURN o.sequence, o.kind, o.payload, o.state, o.recorded_at, o.result
ORDER BY o.group_id, o.sequence LIMIT $limit
"""
EXTRACTIONS = """
MATCH (x:KgrayExtraction) WHERE x.group_id = $group AND x.sequence > $after AND x.sequence <= $last
RETURN x.sequence, x.calls, x.prompt_tokens, x.completion_tokens, x.body
ORDER BY x.group_id, x.sequence LIMIT $limit
"""
# $after: a request, $limit.
ANSWERS = """
MATCH (a:KgrayAnswer) WHERE a.group_id = $group AND a.request > $after
RETURN a.request, a.body, a.calls, a.prompt_tokens, a.completion_tokens
ORDER BY a.group_id, a.request LIMIT $limit
"""
# $first, $second: the key of the row before, $limit.
USES = """
MATCH (u:KgrayUse) WHERE u.group_id = $group AND u.sequence >= $first AND u.request > ''
    AND (u.sequence > $first OR u.request > $second)
RETURN u.sequence, u.request ORDER BY u.group_id, u.sequence, u.request LIMIT $limit
"""
_PLACES = (
    "MATCH (n:{label}) WHERE n.group_id = $group AND n.sequence >= $first AND n.ordinal >= 0 "
    "AND (n.sequence > $first OR n.ordinal > $second) RETURN n.sequence, n.ordinal, {columns} "
    "ORDER BY n.group_id, n.sequence, n.ordinal LIMIT $limit"
)
MENTIONS = _PLACES.format(
    label="KgrayMention", columns="n.surface, n.entity, n.type, n.sentence, n.span_from, n.span_to"
)
EVIDENCE = _PLACES.format(
    label="KgrayEvidence",
    columns="n.statement, n.variant, n.kind, n.relation, n.text, n.subject, n.object, n.value_type, n.value, "
    "n.unit, n.valid_from, n.valid_to, n.from_precision, n.to_precision, n.inferred, n.fact_group, n.shown",
)
RULINGS = _PLACES.format(
    label="KgrayRuling",
    columns="n.name, n.aspect, n.value, n.judge, n.other, n.reason, n.recorded_at, n.retired_at",
)
VERDICTS = _PLACES.format(
    label="KgrayVerdict", columns="n.a, n.b, n.exclusive, n.judge, n.reason, n.recorded_at, n.retired_at"
)
# At once: small columns, and no index has them in this order.
BIRTHS = """
MATCH (b:KgrayBirth) WHERE b.group_id = $group AND b.id > '' AND b.sequence IS NOT NULL
RETURN b.id, b.sequence, b.ordinal ORDER BY b.sequence, b.ordinal, b.id
"""
NAMES = """
MATCH (n:KgrayName) WHERE n.group_id = $group AND n.entity > '' AND n.digest > '' AND n.uses > 0
RETURN n.entity, n.surface, n.uses ORDER BY n.born
"""
SHOWN = """
MATCH (b:KgrayBirth)-[:SHOWS]->(e:Entity) WHERE b.group_id = $group AND b.id > ''
RETURN b.id, e.uuid ORDER BY b.id, e.uuid
"""
# $after: a place, $limit: place, owner, text, vector; in order of insertion.
VECTORS = {
    "name": """
MATCH (n:KgrayName) WHERE n.group_id = $group AND n.place > $after
RETURN n.place, n.entity, n.surface, n.embedding ORDER BY n.group_id, n.place LIMIT $limit
""",
    "statement": """
MATCH (n:KgrayStatement) WHERE n.group_id = $group AND n.place > $after
RETURN n.place, n.id, '', n.embedding ORDER BY n.group_id, n.place LIMIT $limit
""",
    "episode": """
MATCH (n:KgrayEpisode) WHERE n.group_id = $group AND n.place > $after
RETURN n.place, toString(n.sequence), '', n.embedding ORDER BY n.group_id, n.place LIMIT $limit
""",
}
# $after: an id, $limit: the columns of `rows.entity` and `rows.fact`.
ENTITIES = """
MATCH (e:Entity) WHERE e.group_id = $group AND e.uuid > $after
RETURN e.uuid, e.name, e.aliases, e.labels, e.born_sequence, e.born_ordinal
ORDER BY e.group_id, e.uuid LIMIT $limit
"""
FACTS = """
MATCH ()-[f:RELATES_TO]->() WHERE f.group_id = $group AND f.uuid > $after
RETURN f.uuid, f.statement, f.source, f.name, f.fact, f.created, f.target, f.value_type, f.value, f.unit,
    f.valid, f.invalid, f.expired, f.episodes, f.ended_episode, f.ended_ordinal
ORDER BY f.group_id, f.uuid LIMIT $limit
"""

# ----------------------------------------------------------------------------------- taking over

# $id: name, last, token of who takes it over. Locks the node, where there is one.
HELD = "MATCH (g:KgrayGroup {id: $id}) SET g.locked = true RETURN g.name, g.last, g.adopting"
# $id, $token.
STAGE = """
MERGE (g:KgrayGroup {id: $id})
SET g.last = 0, g.last_recorded = 0, g.removals = 0, g.adopting = $token, g.portion = 0
"""
# $id, $token, $number: the number of the portion before, which this one's takes the place of.
STEP = """
MATCH (g:KgrayGroup {id: $id}) WHERE g.adopting = $token
WITH g, g.portion AS before SET g.portion = $number
RETURN before
"""
# $rows: properties, and whether Graphiti's readers shall see it.
EPISODES_IN = """
UNWIND $rows AS row
CREATE (e:KgrayEpisode) SET e = row.put
FOREACH (_ IN CASE WHEN row.live THEN [1] ELSE [] END | SET e:Episodic)
"""
OPERATIONS_IN = "UNWIND $rows AS row CREATE (o:KgrayOperation) SET o = row"
# $rows: {id, shown}.
SHOWN_IN = """
UNWIND $rows AS row
MATCH (e:Entity {group_id: $staged, uuid: row.shown})
MERGE (b:KgrayBirth {group_id: $group, id: row.id})
CREATE (b)-[:SHOWS {group_id: $group}]->(e)
"""
# $rows: {uuid, digest (of its name)}: as NAME_ENTITIES.
NAME_ENTITIES_IN = """
UNWIND $rows AS row
MATCH (e:Entity {group_id: $staged, uuid: row.uuid})
OPTIONAL MATCH (e)<-[:SHOWS]-(b:KgrayBirth {group_id: $group})
OPTIONAL MATCH (n:KgrayName {group_id: $group, entity: b.id, digest: row.digest})
WITH e, head(collect(n.embedding)) AS found
SET e.name_embedding = found
"""
# $rows: {uuid, source, end, put, value}. Rows: the facts that were made.
FACTS_IN = """
UNWIND $rows AS row
MATCH (s:Entity {group_id: $staged, uuid: row.source})
MATCH (o:Entity {group_id: $staged, uuid: row.end})
CREATE (s)-[f:RELATES_TO]->(o) SET f = row.put
WITH row, f
OPTIONAL MATCH (n:KgrayStatement {group_id: $group, id: row.put.statement})
SET f.fact_embedding = n.embedding
RETURN row.uuid
"""
VALUE_FACTS_IN = """
UNWIND $rows AS row
MATCH (s:Entity {group_id: $staged, uuid: row.source})
CREATE (s)-[f:RELATES_TO]->(:Value {group_id: $group, uuid: row.uuid, name: row.value}) SET f = row.put
WITH row, f
OPTIONAL MATCH (n:KgrayStatement {group_id: $group, id: row.put.statement})
SET f.fact_embedding = n.embedding
RETURN row.uuid
"""
# $rows: {sequence, edges}: an episode's facts, and its edges to what it mentions; as LINK_MENTIONS.
LINK_IN = """
UNWIND $rows AS row
MATCH (e:KgrayEpisode {group_id: $staged, sequence: row.sequence}) SET e.entity_edges = row.edges
WITH e WHERE e:Episodic
MATCH (m:KgrayMention) WHERE m.group_id = $group AND m.sequence = e.sequence AND m.ordinal >= 0
MATCH (b:KgrayBirth {group_id: $group, id: m.entity})-[:SHOWS]->(t:Entity)
WITH e, m, b, t, COUNT { (b)-[:SHOWS]->() } AS parts
WHERE parts = 1 OR m.surface = t.name OR m.surface IN t.aliases
WITH DISTINCT e, t
CREATE (e)-[:MENTIONS {group_id: $group, uuid: e.uuid + '/' + t.uuid, created_at: e.created_at}]->(t)
"""
# What was kept out of sight is found from now on; one transaction runs them all.
REVEAL = (
    """
MATCH (e:KgrayEpisode) WHERE e.group_id = $staged AND e.sequence > 0
SET e.group_id = $group
FOREACH (_ IN CASE WHEN e.state < 2 THEN [1] ELSE [] END | SET e:KgrayPending)
""",
    """
MATCH (o:KgrayOperation) WHERE o.group_id = $group AND o.sequence > 0 AND o.state = 0
SET o:KgrayPending
""",
    "MATCH (e:Entity) WHERE e.group_id = $staged AND e.uuid > '' SET e.group_id = $group",
    """
MATCH (v:KgrayEvidence)
WHERE v.group_id = $group AND v.sequence > 0 AND v.ordinal >= 0 AND v.adopted IS NOT NULL
SET v.shown = v.adopted REMOVE v.adopted
""",
)
# $id, $last, $last_recorded.
COUNT_GROUP = "MATCH (g:KgrayGroup {id: $id}) SET g.last = $last, g.last_recorded = $last_recorded"
# $id, $token, $group: the group is there.
NAME_GROUP = """
MATCH (g:KgrayGroup {id: $id}) WHERE g.adopting = $token OR g.name = $group
SET g.name = $group REMOVE g.adopting, g.portion
RETURN g.name
"""
# $id, $token.
UNSTAGE = "MATCH (g:KgrayGroup {id: $id}) WHERE g.adopting = $token DELETE g"
# $groups: the name and what stands for it while it is staged. In transactions of the server's own.
CLEAR = tuple(
    f"MATCH (n:{label}) WHERE n.group_id IN $groups {more} "
    "CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 1000 ROWS"
    for label, more in (
        ("KgrayEpisode", "AND n.sequence > 0"),
        ("KgrayOperation", "AND n.sequence > 0"),
        ("KgrayExtraction", "AND n.sequence > 0"),
        ("KgrayAnswer", "AND n.request > ''"),
        ("KgrayUse", "AND n.sequence > 0 AND n.request > ''"),
        ("KgrayBirth", "AND n.id > ''"),
        ("KgrayMention", "AND n.sequence > 0 AND n.ordinal >= 0"),
        ("KgrayEvidence", "AND n.sequence > 0 AND n.ordinal >= 0"),
        ("KgrayRuling", "AND n.sequence > 0 AND n.ordinal >= 0"),
        ("KgrayVerdict", "AND n.sequence > 0 AND n.ordinal >= 0"),
        ("KgrayName", "AND n.entity > '' AND n.digest > ''"),
        ("KgrayStatement", "AND n.id > ''"),
        ("Value", "AND n.uuid > ''"),
        ("Entity", "AND n.uuid > ''"),
    )
)
