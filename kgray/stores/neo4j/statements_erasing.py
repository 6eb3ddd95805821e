"""Statements of removal (R25, R27); the comment is the contract. Nodes are deleted for good, no mark stays.

$group is matched everywhere; `n.ordinal >= 0` and the like say nothing of the rows: an index over several
properties is used only where each is named.
"""

from __future__ import annotations

# $group, $sequences. Rows: the statements that they spoke of.
DROP_EVIDENCE = """
UNWIND $sequences AS sequence
MATCH (n:KgrayEvidence) WHERE n.group_id = $group AND n.sequence = sequence AND n.ordinal >= 0
WITH n, n.statement AS statement
DELETE n
RETURN DISTINCT statement
"""
# $group, $ids: those that nothing speaks of any more. One row: how many had a vector.
DROP_STATEMENTS = """
UNWIND $ids AS id
MATCH (s:KgrayStatement {group_id: $group, id: id})
WHERE NOT EXISTS { MATCH (n:KgrayEvidence) WHERE n.group_id = $group AND n.statement = id }
WITH s, s.embedding IS NOT NULL AS had
DELETE s
RETURN count(CASE WHEN had THEN 1 END)
"""
# $group, $sequences. Rows: entity, surface, how many mentions went.
DROP_MENTIONS = """
UNWIND $sequences AS sequence
MATCH (n:KgrayMention) WHERE n.group_id = $group AND n.sequence = sequence AND n.ordinal >= 0
WITH n, n.entity AS entity, n.surface AS surface
DELETE n
RETURN entity, surface, count(*)
"""
# $group, $rows: {entity, digest, uses}: so many mentions less; a name that none bears goes, its vector with
# it. One row: how many of those had one.
UNUSE_NAMES = """
UNWIND $rows AS row
MATCH (n:KgrayName {group_id: $group, entity: row.entity, digest: row.digest})
SET n.uses = n.uses - row.uses
WITH n WHERE n.uses <= 0
WITH n, n.embedding IS NOT NULL AS had
DELETE n
RETURN count(CASE WHEN had THEN 1 END)
"""
# $group, $sequences. One row: how many episodes had a vector.
DROP_EPISODES = """
UNWIND $sequences AS sequence
OPTIONAL MATCH (x:KgrayExtraction {group_id: $group, sequence: sequence})
DELETE x
WITH sequence
MATCH (e:KgrayEpisode {group_id: $group, sequence: sequence})
WITH e, e.embedding IS NOT NULL AS had
DETACH DELETE e
RETURN count(CASE WHEN had THEN 1 END)
"""
# $group, $sequences: the answers that they used, with everybody's notes of having used them.
DROP_ANSWERS = """
UNWIND $sequences AS sequence
MATCH (n:KgrayUse) WHERE n.group_id = $group AND n.sequence = sequence AND n.request > ''
WITH DISTINCT n.request AS request
MATCH (u:KgrayUse {group_id: $group, request: request})
DELETE u
WITH DISTINCT request
MATCH (a:KgrayAnswer {group_id: $group, request: request})
DELETE a
"""
# $group, $places: [[sequence, ordinal], ...]; RETIRE: $at, an earlier retirement stands.
_PLACES = (
    "UNWIND $places AS place\nMATCH (n:{label} {{group_id: $group, sequence: place[0], ordinal: place[1]}})"
)
_RULINGS, _VERDICTS = _PLACES.format(label="KgrayRuling"), _PLACES.format(label="KgrayVerdict")
DROP_RULINGS, DROP_VERDICTS = f"{_RULINGS} DELETE n", f"{_VERDICTS} DELETE n"
BLANK_RULINGS, BLANK_VERDICTS = f"{_RULINGS} SET n.reason = ''", f"{_VERDICTS} SET n.reason = ''"
RETIRE_RULINGS, RETIRE_VERDICTS = (
    f"{places} WITH n WHERE n.retired_at IS NULL SET n.retired_at = $at" for places in (_RULINGS, _VERDICTS)
)
# $group, $ids. A retracted episode's rows still need the births they name, for reads with an earlier
# `known_at`; what they show as goes in any case.
HIDE_BIRTHS = """
UNWIND $ids AS id
MATCH (:KgrayBirth {group_id: $group, id: id})-[s:SHOWS]->()
DELETE s
"""
DROP_BIRTHS = """
UNWIND $ids AS id
MATCH (b:KgrayBirth {group_id: $group, id: id})
WHERE NOT EXISTS {
        MATCH (n:KgrayName) WHERE n.group_id = $group AND n.entity = id AND n.digest > '' AND n.uses > 0 }
    AND NOT EXISTS { MATCH (v:KgrayEvidence) WHERE v.group_id = $group AND v.statement = id }
DETACH DELETE b
"""
# $group, $rows: {sequence, payload}: of operations that were carried out.
REWRITE_OPERATIONS = """
UNWIND $rows AS row
MATCH (o:KgrayOperation {group_id: $group, sequence: row.sequence}) WHERE o.state = 1
SET o.payload = row.payload
"""

# ------------------------------------------------------------------------------- a whole group

_OF_GROUP = (
    ("MATCH ()-[n:RELATES_TO]->() WHERE n.group_id = $group AND n.uuid > ''", "DELETE"),
    ("MATCH (n:KgrayEvidence) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0", "DELETE"),
    ("MATCH (n:KgrayMention) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0", "DELETE"),
    ("MATCH (n:KgrayRuling) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0", "DELETE"),
    ("MATCH (n:KgrayVerdict) WHERE n.group_id = $group AND n.sequence > 0 AND n.ordinal >= 0", "DELETE"),
    ("MATCH (n:KgrayName) WHERE n.group_id = $group AND n.entity > '' AND n.digest > ''", "DELETE"),
    ("MATCH (n:KgrayStatement) WHERE n.group_id = $group AND n.id > ''", "DELETE"),
    ("MATCH (n:KgrayBirth) WHERE n.group_id = $group AND n.id > ''", "DETACH DELETE"),
    ("MATCH (n:Entity) WHERE n.group_id = $group AND n.uuid > ''", "DETACH DELETE"),
    ("MATCH (n:Value) WHERE n.group_id = $group AND n.uuid > ''", "DETACH DELETE"),
    ("MATCH (n:KgrayExtraction) WHERE n.group_id = $group AND n.sequence <= $sequence", "DELETE"),
    ("MATCH (n:KgrayOperation) WHERE n.group_id = $group AND n.sequence < $sequence", "DELETE"),
    ("MATCH (n:KgrayEpisode) WHERE n.group_id = $group AND n.sequence <= $sequence", "DETACH DELETE"),
    # Answers that a sequence up to this one used, or that none did.
    (
        """
MATCH (n:KgrayAnswer) WHERE n.group_id = $group AND n.request > '' AND (
    EXISTS { MATCH (u:KgrayUse)
        WHERE u.group_id = $group AND u.request = n.request AND u.sequence <= $sequence }
    OR NOT EXISTS { MATCH (u:KgrayUse) WHERE u.group_id = $group AND u.request = n.request })
""",
        "DELETE",
    ),
    (
        """
MATCH (n:KgrayUse) WHERE n.group_id = $group AND n.sequence > 0 AND n.request > ''
    AND NOT EXISTS { MATCH (a:KgrayAnswer) WHERE a.group_id = $group AND a.request = n.request }
""",
        "DELETE",
    ),
)
# $group, $sequence, $most: at most so many rows of the group up to the removing sequence, of each kind in
# turn: what speaks of a thing before the thing, so that a group of which a part is gone can be read as one of
# which less was said. What was accepted after it stays pending; nothing committed can be later. One row: how
# many.
FORGET = tuple(f"{match} WITH n LIMIT $most {delete} n RETURN count(*)" for match, delete in _OF_GROUP)
# $group, $sequence. One row: how many rows those are.
GROUP_SIZE = "RETURN " + " + ".join(f"COUNT {{ {match} }}" for match, _ in _OF_GROUP)
# $group, $sequence. A row where the operation waits to be carried out.
PENDING_OPERATION = """
MATCH (o:KgrayOperation:KgrayPending {group_id: $group, sequence: $sequence}) RETURN o.kind
"""
# $group, $mark, $sequence. The removing operation's row, which must not bear the group's name.
UNNAME_OPERATION = """
MATCH (o:KgrayOperation {group_id: $group, sequence: $sequence}) SET o.group_id = $mark
"""
