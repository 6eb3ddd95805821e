"""The statements that are written by hand; each comment is a contract.

They serve the database, the fence, groups, pending entries, facts at entities, and Graphiti's readers. Values
go in as parameters; text is composed only at import, from our own names. Reads also take $group, $group_key
and $copy (`statements.OPEN`); a statement with a `row` runs for each of $rows (`Connection.run_rows`).
"""

from __future__ import annotations

from typing import Any

from kgray.schema import kinds
from kgray.storage.neo4j.mapping import FACT_TIMES, STORED
from kgray.storage.neo4j.statements import DROP, OPEN, PATCH, PUT_NODES, datetimes

# One row: version, edition.
SERVER = """
CALL dbms.components() YIELD name, versions, edition WHERE name = 'Neo4j Kernel'
RETURN versions[0], edition
"""
# At most one row.
META = "MATCH (m:KgrayMeta {id: 'kgray'}) RETURN m.schema, m.embedder, m.dimensions"
# $schema, $embedder, $dimensions. The first of several processes creates it.
NEW_META = """
MERGE (m:KgrayMeta {id: 'kgray'})
ON CREATE SET m.schema = $schema, m.embedder = $embedder, m.dimensions = $dimensions
"""
# $names.
CONSTRAINTS = "SHOW CONSTRAINTS YIELD name WHERE name IN $names RETURN name"
# $names; with the indexes of constraints.
INDEXES = """
SHOW INDEXES YIELD name, entityType, labelsOrTypes, properties, state, populationPercent, failureMessage
WHERE name IN $names
RETURN name, entityType, labelsOrTypes, properties, state, populationPercent, failureMessage
"""
# Running statements, of any process, that create a constraint of ours.
MAKING = """
SHOW TRANSACTIONS YIELD currentQuery WHERE currentQuery STARTS WITH 'CREATE CONSTRAINT kgray_'
RETURN currentQuery
"""
# $token: ends the transaction that bears it in its metadata.
END = """
SHOW TRANSACTIONS YIELD transactionId AS id, metaData WHERE metaData.kgray = $token
TERMINATE TRANSACTIONS id YIELD message RETURN message
"""
PROBE = "CREATE (n:KgrayProbe) DELETE n"  # commits no change

# Locks the meta node, so that taking a shard or moving a slot sees the current map. One row: the numbers of
# shards and slots.
LOCK_MAP = """
MATCH (m:KgrayMeta {id: 'kgray'}) SET m.locked = true
WITH m RETURN coalesce(m.shards, 1), COUNT { (:KgraySlot) }
"""
# One row: the next epoch, which never repeats. Locks the meta node.
NEW_EPOCH = "MATCH (m:KgrayMeta {id: 'kgray'}) SET m.epoch = coalesce(m.epoch, 0) + 1 RETURN m.epoch"
_FREE = "REMOVE o.holder, o.token, o.host, o.pid, o.beat, o.every"
# $last, $shards, $epoch. A new map: holders of the former map are stale.
DIVIDE_SLOTS = f"""
MATCH (m:KgrayMeta {{id: 'kgray'}}) SET m.shards = $shards
WITH m UNWIND range(0, $last) AS number MERGE (s:KgraySlot {{slot: number}})
SET s.shard = number % $shards, s.epoch = $epoch REMOVE s.target
WITH DISTINCT m MATCH (o:KgrayShard) SET o.epoch = $epoch {_FREE}
"""
# One row: the number of shards; a list of (slot, shard), empty before the first writer.
SHARD_MAP = """
MATCH (m:KgrayMeta {id: 'kgray'}) OPTIONAL MATCH (s:KgraySlot)
RETURN coalesce(m.shards, 1), collect(CASE WHEN s IS NULL THEN null ELSE [s.slot, s.shard] END)
"""
# $shards: the new number. The first counts the slots of the shards to drop; the second ends moves to them;
# the third, with $epoch, makes their holders stale.
SLOTS_BEYOND = "MATCH (s:KgraySlot) WHERE s.shard >= $shards RETURN count(s)"
END_MOVES_BEYOND = "MATCH (s:KgraySlot) WHERE s.target >= $shards REMOVE s.target"
SET_SHARDS = f"""
MATCH (m:KgrayMeta {{id: 'kgray'}}) SET m.shards = $shards
WITH m MATCH (o:KgrayShard) WHERE o.id >= $shards SET o.epoch = $epoch {_FREE}
"""
# $shards. Creates their nodes and locks them, in a common order: SET takes the lock before RETURN reads. The
# last two columns: the holder took every shard; milliseconds since its last beat by the server's clock.
LOCK_SHARDS = """
UNWIND $shards AS id MERGE (o:KgrayShard {id: id}) ON CREATE SET o.epoch = 0
SET o.locked = true WITH o
RETURN o.epoch, o.holder, o.token, o.host, o.pid, coalesce(o.every, false), timestamp() - coalesce(o.beat, 0)
"""
# $shards, $epoch, $holder, $token, $host, $pid, $every.
HOLD_SHARDS = """
MATCH (o:KgrayShard) WHERE o.id IN $shards
SET o.epoch = $epoch, o.holder = $holder, o.token = $token, o.host = $host, o.pid = $pid, o.every = $every,
    o.beat = timestamp()
"""
_OWN_SHARDS = """
UNWIND $shards AS id MATCH (o:KgrayShard {id: id}) SET o.locked = true
WITH o WHERE o.token = $token"""
# $shards, $token: no effect on shards of another holder.
RENEW_SHARDS = f"{_OWN_SHARDS} SET o.beat = timestamp()"
FREE_SHARDS = f"{_OWN_SHARDS} {_FREE}"
# $shards, $epoch. Waits for writes that hold the locks of slots, and locks in the common order. An incomplete
# move ends.
TAKE_SLOTS = """
MATCH (s:KgraySlot) WHERE s.shard IN $shards WITH s ORDER BY s.slot
SET s.epoch = $epoch REMOVE s.target
"""
# $shards. Rows: slot, epoch.
SLOTS_OF = "MATCH (s:KgraySlot) WHERE s.shard IN $shards RETURN s.slot, s.epoch"
# $slots, sorted. Locks them: the first statement of each write. Rows: the columns of `transactions.SlotRow`.
# The shard is read under the lock of the slot, and not locked itself: taking the shard waits for the slot.
LOCK_SLOTS = """
UNWIND $slots AS slot MATCH (s:KgraySlot {slot: slot}) SET s.locked = true
WITH s MATCH (o:KgrayShard {id: s.shard}) RETURN s.slot, s.shard, s.epoch, o.epoch, o.token
"""
# A move: $slots, sorted, $shard; $epoch.
MARK_SLOTS = "UNWIND $slots AS slot MATCH (s:KgraySlot {slot: slot}) SET s.target = $shard"
UNMARK_SLOTS = """
UNWIND $slots AS slot MATCH (s:KgraySlot {slot: slot}) SET s.locked = true
WITH s WHERE s.target = $shard REMOVE s.target
"""
# For locked slots. Rows: the slots that were still marked.
MOVE_SLOTS = """
UNWIND $slots AS slot MATCH (s:KgraySlot {slot: slot}) WHERE s.target = $shard
SET s.shard = $shard, s.epoch = $epoch REMOVE s.target RETURN s.slot
"""
# $slots: marks all their pending groups as recently appended, so that PENDING_GROUPS returns them.
NOTE_WAITING_IN = """
UNWIND $slots AS slot MATCH (g:KgrayGroup) WHERE g.slot = slot AND g.waiting > 0
SET g.waiting = timestamp() * 1000
"""

_GROUP = (
    "g {asked: row.name, named: g.name IS NOT NULL, "
    ".last, .last_recorded, .removals, .adopting, .clearing, .waiting}"
)
# $rows: {id, slot, name}, sorted by id, the common order of locks. Creates groups that never existed, without
# a name. Rows: a map with the fields of `groups.LockedGroup`.
LOCK_GROUPS = f"""
MERGE (g:KgrayGroup {{id: row.id}})
ON CREATE SET g.slot = row.slot, g.last = 0, g.last_recorded = 0, g.removals = 0
SET g.locked = true WITH row, g RETURN {_GROUP}
"""
# The same, without creating groups.
LOCK_GROUPS_THERE = f"MATCH (g:KgrayGroup {{id: row.id}}) SET g.locked = true WITH row, g RETURN {_GROUP}"
# $rows: the fields of `groups.LockedGroup`, id, slot; appended: the group has new pending entries.
KEEP_GROUPS = """
MATCH (g:KgrayGroup {id: row.id}) SET g = row REMOVE g.appended, g.asked, g.named
SET g.waiting = CASE WHEN row.appended THEN timestamp() * 1000 ELSE row.waiting END,
    g.name = CASE WHEN row.named THEN row.asked END,
    g.cleared_name = CASE WHEN row.clearing IS NOT NULL THEN row.asked END
"""
# A single list (`Connection.one_list`): the driver takes 25 microseconds for a row, 0.4 for an inner list.
# Items: id, name, adopting, last, last_recorded, removals.
_HEAD = "collect([g.id, g.name, g.adopting, g.last, g.last_recorded, g.removals])"
HEADS_OF = f"UNWIND $ids AS id MATCH (g:KgrayGroup {{id: id}}) RETURN {_HEAD}"
# A comparison with null is null, so removed groups are left out too.
HEADS = f"MATCH (g:KgrayGroup) WHERE g.name <> '{kinds.OWN}' WITH g ORDER BY g.name RETURN {_HEAD}"
# The groups whose removal was cut off.
CLEARING = "MATCH (g:KgrayGroup) WHERE g.clearing IS NOT NULL RETURN g.cleared_name"
# $id: of the appending thread's node, which notes $call, the id of this append.
NOTE_CALL = "MERGE (c:KgrayCall {id: $id}) SET c.call = $call"
LAST_CALL = "MATCH (c:KgrayCall {id: $id}) RETURN c.call"
# $ids: when a process closes the store.
DROP_CALLS = "UNWIND $ids AS id MATCH (c:KgrayCall {id: id}) DELETE c"

# $after, $limit: sequence, whether it is an episode. An index range for each (state, lane) reads episodes.
PENDING_SEQUENCES = f"""
{OPEN}
CALL () {{
    UNWIND [[0, false], [0, true], [1, false], [1, true]] AS part
    CALL (part) {{
        MATCH (n:KgrayEpisode)
        WHERE n.group_id = $group AND n.state = part[0] AND n.bulk = part[1] AND n.sequence > $after
        RETURN n ORDER BY n.group_id, n.state, n.bulk, n.sequence LIMIT $limit
    }}
    RETURN n
    UNION ALL
    MATCH (n:KgrayOperation) WHERE n.group_id = $group_key AND n.state = 0 AND n.sequence > $after
    RETURN n ORDER BY n.group_id, n.state, n.sequence LIMIT $limit
}}
WITH n ORDER BY n.sequence LIMIT $limit
RETURN n.sequence, n:KgrayEpisode ORDER BY n.sequence
"""
# Without the hints the planner may take the index of the key, and read the whole group.
_REQUESTED = (
    "MATCH (o:KgrayOperation) USING INDEX o:KgrayOperation(group_id, state, sequence) "
    "WHERE o.group_id = {key} AND o.state = 0 AND o.sequence IS NOT NULL"
)
_OPEN = (
    "MATCH (e:KgrayEpisode) USING INDEX e:KgrayEpisode(group_id, state, bulk, sequence) "
    "WHERE e.group_id = {name} AND e.state IN [0, 1] AND e.bulk {bulk} "
    "AND e.sequence IS NOT NULL"
)
_ANY_LANE = "IS NOT NULL"
_OPEN_IN_G, _ASKED_IN_G = _OPEN.format(name="g.name", bulk=_ANY_LANE), _REQUESTED.format(key="g.id")
# For a locked group, with or without a name.
WAITING = (
    f"RETURN EXISTS {{ {_OPEN.format(name='$group', bulk=_ANY_LANE)} }} "
    f"OR EXISTS {{ {_REQUESTED.format(key='$group_key')} }}"
)
_WAITS = "g.waiting > $mark AND g.name IS NOT NULL"
_WAITING = f"MATCH (g:KgrayGroup) USING INDEX g:KgrayGroup(waiting) WHERE {_WAITS}"
# $shard: its slots, without those that are being moved. If a shard has few slots, the first branch seeks each
# slot (20 microseconds a seek); otherwise the second branch seeks the groups that have changed in any slot. A
# branch always performs its seek, so the unused branch gets an empty list or a mark that no group exceeds.
_WAITING_IN_SHARD = f"""
MATCH (s:KgraySlot) WHERE s.shard = $shard AND s.target IS NULL
WITH collect(s.slot) AS slots
WITH slots, CASE WHEN size(slots) <= 64 THEN slots ELSE [] END AS few,
    CASE WHEN size(slots) > 64 THEN $mark ELSE {(1 << 63) - 1} END AS since
CALL (slots, few, since) {{
    MATCH (g:KgrayGroup) USING INDEX g:KgrayGroup(slot, waiting) WHERE g.slot IN few AND {_WAITS} RETURN g
    UNION ALL
    {_WAITING.replace("$mark", "since")} AND g.slot IN slots RETURN g
}}
"""
_PENDING_IN_G = f"""
CALL (g) {{ {_OPEN_IN_G} RETURN 1 AS one LIMIT $most UNION ALL {_ASKED_IN_G} RETURN 1 AS one LIMIT $most }}
WITH one LIMIT $most RETURN count(one)
"""
# $mark: 0, $most; $group: a name; $shard.
PENDING_COUNT = f"{_WAITING} WITH g {_PENDING_IN_G}"
PENDING_COUNT_OF = f"MATCH (g:KgrayGroup {{id: $group_key}}) WHERE {_WAITS} WITH g {_PENDING_IN_G}"
PENDING_COUNT_IN_SHARD = f"{_WAITING_IN_SHARD} WITH g {_PENDING_IN_G}"
# id: of a group with ended entries. A group that is being cleared has no name, so its pending entries stay
# marked.
SETTLE = f"""
MATCH (g:KgrayGroup {{id: id}}) USING INDEX g:KgrayGroup(id)
WHERE g.waiting > 0 AND g.name IS NOT NULL
    AND NOT EXISTS {{ {_OPEN_IN_G} }} AND NOT EXISTS {{ {_ASKED_IN_G} }}
SET g.waiting = null
"""
_PENDING_GROUPS = f"""
WITH g, EXISTS {{ {_OPEN.format(name="g.name", bulk="= false")} }} OR EXISTS {{ {_ASKED_IN_G} }} AS live
WHERE live OR EXISTS {{ {_OPEN.format(name="g.name", bulk="= true")} }}
WITH g, live ORDER BY g.name RETURN collect([g.name, live, g.waiting])
"""
# $mark; $shard. One list: group, whether any pending entry is live, the time of the last append. Corrections
# are live: they go before the backfill lane.
PENDING_GROUPS = f"{_WAITING} {_PENDING_GROUPS}"
PENDING_GROUPS_IN_SHARD = f"{_WAITING_IN_SHARD} {_PENDING_GROUPS}"
# $shard, or null for all. Rows: groups with a retraction or removal that was requested and not carried out.
WITHDRAWING = """
MATCH (o:KgrayOperation) USING INDEX o:KgrayOperation(state)
WHERE o.state = 0 AND o.kind IN ['remove', 'retract']
MATCH (g:KgrayGroup {id: o.group_id}) WHERE g.name IS NOT NULL
MATCH (s:KgraySlot {slot: g.slot}) WHERE $shard IS NULL OR s.shard = $shard AND s.target IS NULL
RETURN DISTINCT g.name ORDER BY g.name
"""
# $asked: (sequence, source, reference time) of episodes, $limit. R22. One list: each sequence, and the
# sequences before it. It reads the index in order up to the limit: without the hint, the whole group.
SAID_BEFORE = f"""
{OPEN}
UNWIND $asked AS asked
CALL (asked) {{
    MATCH (n:KgrayEpisode) USING INDEX n:KgrayEpisode(group_id, source_description, said, sequence)
    WHERE n.group_id = $group AND n.source_description = asked[1] AND n.said <= asked[2]
        AND n.sequence < asked[0] AND n.retired_at IS NULL
    WITH n ORDER BY n.group_id DESC, n.source_description DESC, n.said DESC, n.sequence DESC LIMIT $limit
    RETURN collect(n.sequence) AS before
}}
RETURN collect([asked[0], before])
"""
# {group_id, group_key, sequence}. One list: group and sequence of each entry, state and end of an episode,
# state and end of an operation.
STATES = """
OPTIONAL MATCH (e:KgrayEpisode {group_id: row.group_id, sequence: row.sequence})
OPTIONAL MATCH (o:KgrayOperation {group_id: row.group_key, sequence: row.sequence})
RETURN collect([row.group_id, row.sequence, [e.state, e.ended_at], [o.state, o.recorded_at]])
"""


def _counting(*, in_group: bool) -> tuple[str, str]:
    def each(kind: kinds.Kind[Any], key: str, clause: str) -> str:
        """Return a match of the rows of a kind as `n`, of $group by an index or of all, and a clause."""
        named = "".join(f" AND n.{name} IS NOT NULL" for name in STORED[kind].serving((key,)))
        condition = f"n.group_id = $group{named}" if in_group else "true"
        return f"MATCH {STORED[kind].pattern} WHERE {condition} {clause}"

    sums = "RETURN n.group_id AS g, {} AS e, {} AS f, {} AS c, {} AS p, {} AS t"
    costs = sums.format(0, 0, "sum(n.calls)", "sum(n.prompt_tokens)", "sum(n.completion_tokens)")
    totals = (
        each(kinds.ENTITIES, "id", sums.format("count(*)", 0, 0, 0, 0)),
        each(kinds.FACTS, "id", sums.format(0, "count(*)", 0, 0, 0)),
        each(kinds.EXTRACTIONS, "sequence", costs),
        each(kinds.ANSWERS, "request", costs),
    )
    by_state = "AND n.retired_at IS NULL RETURN n.group_id AS g, n.state AS s, count(*) AS c"
    states = each(kinds.EPISODES, "state", by_state)
    return (
        f"CALL () {{ {states} }} RETURN collect([g, s, c])",
        f"CALL () {{ {' UNION ALL '.join(totals)} }} RETURN collect([g, e, f, c, p, t])",
    )


# $slots, $groups, $entries: the rows of LOCK_SLOTS, LOCK_GROUPS_THERE and STATES, whose statements it runs in
# this order: the states are read under the locks. One row: a list of the rows of each. 1 round trip, not 3.
BEGIN_WRITE = f"""
CALL () {{
    {LOCK_SLOTS.strip().replace("RETURN ", "RETURN collect([")}]) AS slots
}}
CALL () {{
    UNWIND $groups AS row {LOCK_GROUPS_THERE.replace(_GROUP, f"collect({_GROUP}) AS groups")}
}}
CALL () {{ UNWIND $entries AS row {STATES.strip()} AS states }}
RETURN slots, groups, states
"""
# Counts of $group, and of all groups; each reads its rows once. A list of (group, state, number) of episodes
# that were neither retracted nor retried; a list of (group, other fields of GroupCounts), to add up.
COUNT, COUNT_ALL = _counting(in_group=True), _counting(in_group=False)

_SET_FACT_TIMES = datetimes("f", FACT_TIMES)
_FACT = ", ".join(f"f.{STORED[kinds.FACTS].property_of(c)}" for c in kinds.FACTS.names)
_HOLDS = (
    "($as_of IS NULL OR (f.valid IS NULL OR f.valid <= $as_of) AND (f.invalid IS NULL OR $as_of < f.invalid))"
)
_FACTS_AT = f"""
    MATCH ()-[f:RELATES_TO]->()
    WHERE f.group_id = $group AND f.{{0}} = entity AND f.created IS NOT NULL AND {_HOLDS}
    RETURN f ORDER BY f.group_id DESC, f.{{0}} DESC, f.created DESC, f.uuid LIMIT $limit
"""
# $asked: entities, $as_of: an instant, or null for any time, $limit: the columns of FACTS. Each branch reads
# its index in that order and stops at the limit, so that a hub costs only the rows taken.
FACTS_AT = f"""
{OPEN}
UNWIND $asked AS entity
CALL (entity) {{ {" UNION ".join(map(_FACTS_AT.format, ("source", "target")))} }}
WITH DISTINCT f ORDER BY f.created DESC, f.uuid LIMIT $limit
RETURN {_FACT}
"""

# $rows, a map of lists; any list may be missing:
#     patches         {group_id, sequence, put: properties}, of episodes
#     a kind's name   all properties of its rows, which are nodes
#     gone            {group_id, uuid}, of facts. A fact that is put again is included: its ends may change
#     relations       all properties of facts between entities; attributes: of facts about values
#     mentions        {group_id, entity, sequence}. The first episode that mentions an entity dates it
#     counters        rows of KEEP_GROUPS
#     settled         ids of groups, for SETTLE: it sees the states of entries that are written before it
# One row: the ids of the created facts, the number of created mentions; a missing fact lacks a stored end.
# A single statement saves round trips, and a tenth of the server's CPU against five. A single parameter,
# because the server replans a statement for each mixture of empty, short and long lists.
WRITE = f"""
CALL () {{ UNWIND $rows.patches AS row {PATCH[kinds.EPISODES]} }}
{PUT_NODES}
WITH 1 AS one
CALL () {{ UNWIND $rows.gone AS row {DROP[kinds.FACTS]} }}
CALL () {{
    UNWIND $rows.relations AS row
    MATCH (s:Entity {{group_id: row.group_id, uuid: row.source}})
    MATCH (o:Entity {{group_id: row.group_id, uuid: row.target}})
    CREATE (s)-[f:RELATES_TO]->(o) SET f = row, {_SET_FACT_TIMES}
    RETURN collect(row.uuid) AS relations
}}
CALL () {{
    UNWIND $rows.attributes AS row
    MATCH (s:Entity {{group_id: row.group_id, uuid: row.source}})
    WITH row, s, CASE WHEN row.unit <> '' THEN row.value + ' ' + row.unit ELSE row.value END AS shown
    CREATE (s)-[f:RELATES_TO]->(:Value {{group_id: row.group_id, uuid: row.uuid, name: shown}})
    SET f = row, {_SET_FACT_TIMES}
    RETURN collect(row.uuid) AS attributes
}}
CALL () {{
    UNWIND $rows.mentions AS row
    MATCH (e:KgrayEpisode {{group_id: row.group_id, sequence: row.sequence}})
    MATCH (t:Entity {{group_id: row.group_id, uuid: row.entity}})
    MERGE (e)-[m:MENTIONS {{group_id: row.group_id, entity: row.entity, sequence: row.sequence}}]->(t)
    SET m.uuid = e.uuid + '/' + row.entity, m.created_at = e.created_at,
        t.created_at = coalesce(t.created_at, e.created_at)
    RETURN count(*) AS mentions
}}
CALL () {{ UNWIND $rows.counters AS row {KEEP_GROUPS} }}
CALL () {{ UNWIND $rows.settled AS id {SETTLE} }}
RETURN relations + attributes, mentions
"""
# {group_id, uuid, edges}: more facts that name an episode, of a copy.
ADD_EDGES = """
MATCH (e:Episodic {group_id: row.group_id, uuid: row.uuid})
SET e.entity_edges = [id IN e.entity_edges WHERE NOT id IN row.edges] + row.edges
"""
