"""Statements of the database itself, of groups, and of the log; the comment is the contract.

Values go in as parameters, never as text; the only text put together here, at import, are column
lists of ours. The group is matched in the statement itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from kgray.stores.neo4j import schema

# ---------------------------------------------------------------------------------- the database

# One row: version, edition.
SERVER = """
CALL dbms.components() YIELD name, versions, edition WHERE name = 'Neo4j Kernel'
RETURN versions[0], edition
"""
# At most one row: schema, embedder, dimensions.
META = "MATCH (m:KgrayMeta {id: 'kgray'}) RETURN m.schema, m.embedder, m.dimensions"
# $schema, $embedder, $dimensions. The first of several processes makes it; the others find it.
NEW_META = """
MERGE (m:KgrayMeta {id: 'kgray'})
ON CREATE SET m.schema = $schema, m.embedder = $embedder, m.dimensions = $dimensions
"""
# $schema.
SET_SCHEMA = "MATCH (m:KgrayMeta {id: 'kgray'}) SET m.schema = $schema"
# $names. Rows of name, state, dimensions (of vector indexes), those behind constraints included.
INDEXES = """
SHOW INDEXES YIELD name, state, options WHERE name IN $names
RETURN name, state, options.indexConfig['vector.dimensions']
"""
DROP_VECTORS: Mapping[str, str] = {name: f"DROP INDEX {name} IF EXISTS" for name in schema.VECTORS}
# Makes a node, in a transaction that is rolled back.
PROBE = "CREATE (:KgrayProbe)"
# $seconds.
AWAIT_INDEXES = "CALL db.awaitIndexes($seconds)"

# ------------------------------------------------------------------------------------- the fence

# $shard. Makes the shard's node and locks it: SET takes the lock before RETURN reads.
# One row: epoch, holder, token, host, pid, milliseconds since its last beat by the server's clock.
LOCK_SHARD = """
MERGE (s:KgrayShard {id: $shard}) ON CREATE SET s.epoch = 0
SET s.locked = true
WITH s RETURN s.epoch, s.holder, s.token, s.host, s.pid, timestamp() - coalesce(s.beat, 0)
"""
# $shard, $epoch, $holder, $token, $host, $pid.
HOLD_SHARD = """
MATCH (s:KgrayShard {id: $shard})
SET s.epoch = $epoch, s.holder = $holder, s.token = $token, s.host = $host, s.pid = $pid,
    s.beat = timestamp()
"""
# $shard, $token: nothing happens where another holds it.
FREE_SHARD = """
MATCH (s:KgrayShard {id: $shard}) SET s.locked = true
WITH s WHERE s.token = $token REMOVE s.holder, s.token, s.host, s.pid, s.beat
"""
# $shard. Locks, renews the lease, and says who holds it (epoch, token): the first statement of each write.
# Where that is another, the transaction is rolled back, and the beat with it.
FENCE = """
MATCH (s:KgrayShard {id: $shard}) SET s.beat = timestamp()
WITH s RETURN s.epoch, s.token
"""

# ---------------------------------------------------------------------------------------- groups

# $rows: {id, name}, sorted by id: one order of locks for all. Makes groups, gives a removed one its name
# back, locks them. Rows: name, last, last_recorded, removals, whether a copy is on its way into it.
NAME_GROUPS = """
UNWIND $rows AS row
MERGE (g:KgrayGroup {id: row.id})
ON CREATE SET g.last = 0, g.last_recorded = 0, g.removals = 0
SET g.name = row.name, g.locked = true
WITH row, g RETURN row.name, g.last, g.last_recorded, g.removals, g.adopting IS NOT NULL
"""
# $rows: {id, name}, sorted by id. Locks those that were ever there. Rows as above.
LOCK_GROUPS = """
UNWIND $rows AS row
MATCH (g:KgrayGroup {id: row.id}) SET g.locked = true
WITH row, g RETURN row.name, g.last, g.last_recorded, g.removals, g.adopting IS NOT NULL
"""
# $rows: {id, last, last_recorded, removals}: of locked groups; absolute.
KEEP_GROUPS = """
UNWIND $rows AS row
MATCH (g:KgrayGroup {id: row.id})
SET g.last = row.last, g.last_recorded = row.last_recorded, g.removals = row.removals
"""
# $id.
UNNAME_GROUP = "MATCH (g:KgrayGroup {id: $id}) REMOVE g.name"
GROUPS = "MATCH (g:KgrayGroup) WHERE g.name IS NOT NULL RETURN g.name ORDER BY g.name"
# $id: last, last_recorded, removals.
GROUP = "MATCH (g:KgrayGroup {id: $id}) RETURN g.last, g.last_recorded, g.removals"

# $ids. Rows: id, last_recorded.
GROUPS_RECORDED = "UNWIND $ids AS id MATCH (g:KgrayGroup {id: id}) RETURN g.id, g.last_recorded"

# --------------------------------------------------------------------------------------- the log

# Columns of `rows.episode`.
EPISODE = (
    "e.sequence, e.uuid, e.source_description, e.kind, e.content, e.said, e.content_sha256, e.speaker, "
    "e.client_id, e.metadata, e.state, e.bulk"
)
# $rows: properties of episodes (`rows.new_episode`).
NEW_EPISODES = "UNWIND $rows AS row CREATE (e:KgrayEpisode:KgrayPending) SET e = row"
# $rows: {group_id, sequence, kind, payload, call}. They go before what is in the backfill lane.
NEW_OPERATIONS = """
UNWIND $rows AS row
CREATE (o:KgrayOperation:KgrayPending {state: 0, bulk: false}) SET o += row
"""
# $rows: {group_id, uuid}. The last row that bears each id: group, uuid, sequence, client_id, source,
# content hash, retired_at, call.
EPISODES_BY_ID = """
UNWIND $rows AS row
CALL (row) {
    MATCH (e:KgrayEpisode {group_id: row.group_id, uuid: row.uuid})
    RETURN e ORDER BY e.sequence DESC LIMIT 1
}
RETURN e.group_id, e.uuid, e.sequence, e.client_id, e.source_description, e.content_sha256, e.retired_at,
    e.call
"""
# $groups. Pending operations that will take episodes away; usually none: group, sequence, kind, payload.
REMOVALS_PENDING = """
UNWIND $groups AS group
MATCH (o:KgrayPending) WHERE o.group_id = group AND o.bulk = false
    AND o:KgrayOperation AND o.kind IN ['retract', 'remove']
RETURN o.group_id, o.sequence, o.kind, o.payload ORDER BY o.group_id, o.sequence
"""
# $group, $call: what an earlier try of this very call appended, where it was not known whether it had.
OPERATION_OF_CALL = """
MATCH (o:KgrayOperation) WHERE o.group_id = $group AND o.sequence > 0 AND o.call = $call
RETURN o.sequence
"""
RETRIED_BY_CALL = """
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.sequence > 0 AND e.call = $call RETURN count(e)
"""
# $group, $after, $limit. What is next behind a sequence, in order; the columns of an episode, then kind and
# payload of an operation.
PENDING = f"""
MATCH (e:KgrayPending) WHERE e.group_id = $group AND e.sequence > $after
WITH e ORDER BY e.sequence LIMIT $limit
RETURN {EPISODE}, e:KgrayOperation, e.payload ORDER BY e.sequence
"""
# $group, $after, $limit. The same without the content: sequence, whether it is an operation.
SEQUENCES_PENDING = """
MATCH (e:KgrayPending) WHERE e.group_id = $group AND e.sequence > $after
RETURN e.sequence, e:KgrayOperation ORDER BY e.sequence LIMIT $limit
"""
# Rows: group, whether any of what is pending is live.
PENDING_GROUPS = """
MATCH (g:KgrayGroup) WHERE g.name IS NOT NULL
    AND EXISTS { MATCH (p:KgrayPending) WHERE p.group_id = g.name AND p.sequence > 0 }
RETURN g.name, EXISTS { MATCH (p:KgrayPending) WHERE p.group_id = g.name AND p.bulk = false } ORDER BY g.name
"""
# $group.
PENDING_COUNT = """
MATCH (p:KgrayPending) WHERE p.group_id = $group AND p.sequence > 0 RETURN count(p)
"""
PENDING_COUNT_ALL = "MATCH (p:KgrayPending) RETURN count(p)"
# $group, $source, $said, $before, $limit. R22: greatest (t_ref, sequence) first, of smaller sequences said
# no later. Read in the order of that index, up to the limit: without the hint all of the group are read.
EPISODES_BEFORE = f"""
MATCH (e:KgrayEpisode) USING INDEX e:KgrayEpisode(group_id, source_description, said, sequence)
WHERE e.group_id = $group AND e.source_description = $source AND e.said <= $said AND e.sequence < $before
    AND e.retired_at IS NULL
RETURN {EPISODE} ORDER BY e.group_id DESC, e.source_description DESC, e.said DESC, e.sequence DESC
LIMIT $limit
"""
# $group. Failed and neither retried nor retracted; the episode, then its failure.
EPISODES_FAILED = f"""
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.state = 3 AND e.sequence > 0 AND e.retired_at IS NULL
RETURN {EPISODE}, e.failure_kind, e.failure_message, e.failure_raw, e.attempts ORDER BY e.sequence
"""
# $rows: {group_id, sequence, at}: an earlier retirement stands.
RETIRE_EPISODES = """
UNWIND $rows AS row
MATCH (e:KgrayEpisode {group_id: row.group_id, sequence: row.sequence}) WHERE e.retired_at IS NULL
SET e.retired_at = row.at REMOVE e:Episodic
WITH e OPTIONAL MATCH (e)-[m:MENTIONS]->(:Entity) DELETE m
"""
# $groups (the name, and the mark of a removed one), $sequence: state, result.
OPERATION_STATE = """
UNWIND $groups AS group
MATCH (o:KgrayOperation {group_id: group, sequence: $sequence}) RETURN o.state, o.result
"""
# $group, $sequence.
EXTRACTION = """
MATCH (x:KgrayExtraction {group_id: $group, sequence: $sequence})
RETURN x.calls, x.prompt_tokens, x.completion_tokens, x.body
"""
# $group, $request.
ANSWERS = "MATCH (a:KgrayAnswer {group_id: $group, request: $request}) RETURN a.body"
# $group. Rows: state, how many.
COUNT_STATES = """
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.state >= 0 AND e.sequence > 0 AND e.retired_at IS NULL
RETURN e.state, count(*)
"""
# $group.
COUNT_DERIVED = """
CALL () { MATCH (e:Entity) WHERE e.group_id = $group AND e.uuid > '' RETURN count(e) AS entities }
CALL () { MATCH ()-[f:RELATES_TO]->() WHERE f.group_id = $group AND f.uuid > '' RETURN count(f) AS facts }
RETURN entities, facts
"""
# $group: calls, prompt tokens, completion tokens; of extractions, then of answers.
COUNT_CALLS = """
MATCH (x:KgrayExtraction) WHERE x.group_id = $group AND x.sequence > 0
RETURN sum(x.calls) AS calls, sum(x.prompt_tokens) AS prompt, sum(x.completion_tokens) AS completion
UNION ALL
MATCH (x:KgrayAnswer) WHERE x.group_id = $group AND x.request > ''
RETURN sum(x.calls) AS calls, sum(x.prompt_tokens) AS prompt, sum(x.completion_tokens) AS completion
"""
