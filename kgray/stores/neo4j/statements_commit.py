"""Statements of a run's writes; the comment is the contract.

All take $rows, lists of maps that bear `group_id`, in portions of `rows.MAX_ROWS`. Values are
absolute: a batch that is sent again changes nothing, because what has ended is left out before.
"""

from __future__ import annotations

# $rows: {group_id, sequence, text: whether its words are wanted}. What each sequence is now:
# group, sequence; the episode's state, id, kind, client id, t_ref, speaker, content; the operation's state.
STANDING = """
UNWIND $rows AS row
OPTIONAL MATCH (e:KgrayEpisode {group_id: row.group_id, sequence: row.sequence})
OPTIONAL MATCH (o:KgrayOperation {group_id: row.group_id, sequence: row.sequence})
RETURN row.group_id, row.sequence, e.state, e.uuid, e.kind, e.client_id, e.said,
    CASE WHEN row.text THEN e.speaker END, CASE WHEN row.text THEN e.content END, o.state
"""
# Records, each list its own: $extractions, $answers, $births, $mentions, $evidence, $rulings, $verdicts.
# The first extraction, answers and birth stay. A place that is there already is an error of the caller.
RECORD = """
FOREACH (row IN $extractions |
    MERGE (x:KgrayExtraction {group_id: row.group_id, sequence: row.sequence}) ON CREATE SET x += row)
FOREACH (row IN $answers |
    MERGE (a:KgrayAnswer {group_id: row.group_id, request: row.request}) ON CREATE SET a += row)
FOREACH (row IN $births |
    MERGE (b:KgrayBirth {group_id: row.group_id, id: row.id}) ON CREATE SET b += row)
FOREACH (row IN $mentions | CREATE (m:KgrayMention) SET m = row)
FOREACH (row IN $evidence | CREATE (v:KgrayEvidence) SET v = row)
FOREACH (row IN $rulings | CREATE (r:KgrayRuling) SET r = row)
FOREACH (row IN $verdicts | CREATE (v:KgrayVerdict) SET v = row)
"""
# {group_id, sequence, request}: noted where there are such answers.
USE_ANSWERS = """
UNWIND $rows AS row
MATCH (a:KgrayAnswer {group_id: row.group_id, request: row.request})
MERGE (:KgrayUse {group_id: row.group_id, sequence: row.sequence, request: row.request})
"""
# {group_id, entity, digest, uses, born, put: {surface, folded, words}}: a name is made once, then counted.
USE_NAMES = """
UNWIND $rows AS row
MERGE (n:KgrayName {group_id: row.group_id, entity: row.entity, digest: row.digest})
ON CREATE SET n += row.put, n.born = row.born, n.uses = row.uses
ON MATCH SET n += row.put, n.uses = n.uses + row.uses, n.born = coalesce(n.born, row.born)
"""
# Vectors. {..., embedding, place}: an equal one stays as it is; one that replaces another is the newest of
# all (place). Rows: the groups in which one was replaced, and of statements their id.
PUT_NAME_VECTORS = """
UNWIND $rows AS row
MERGE (n:KgrayName {group_id: row.group_id, entity: row.entity, digest: row.digest})
ON CREATE SET n.surface = row.surface, n.folded = row.folded, n.uses = 0
WITH row, n, n.embedding IS NOT NULL AS replaced WHERE n.embedding IS NULL OR n.embedding <> row.embedding
SET n.place = row.place
WITH row, n, replaced
CALL db.create.setNodeVectorProperty(n, 'embedding', row.embedding)
WITH row, replaced WHERE replaced
RETURN row.group_id, row.entity
"""
PUT_STATEMENT_VECTORS = """
UNWIND $rows AS row
MERGE (n:KgrayStatement {group_id: row.group_id, id: row.id})
WITH row, n, n.embedding IS NOT NULL AS replaced WHERE n.embedding IS NULL OR n.embedding <> row.embedding
SET n.place = row.place
WITH row, n, replaced
CALL db.create.setNodeVectorProperty(n, 'embedding', row.embedding)
WITH row, replaced WHERE replaced
RETURN row.group_id, row.id
"""
PUT_EPISODE_VECTORS = """
UNWIND $rows AS row
MATCH (n:KgrayEpisode {group_id: row.group_id, sequence: row.sequence})
WITH row, n, n.embedding IS NOT NULL AS replaced WHERE n.embedding IS NULL OR n.embedding <> row.embedding
SET n.place = row.place
WITH row, n, replaced
CALL db.create.setNodeVectorProperty(n, 'embedding', row.embedding)
WITH row, replaced WHERE replaced
RETURN row.group_id, row.sequence
"""
# {group_id, id}: the facts of a statement whose vector was replaced take the new one.
RENEW_FACT_VECTORS = """
UNWIND $rows AS row
MATCH (n:KgrayStatement {group_id: row.group_id, id: row.id})
MATCH ()-[f:RELATES_TO {group_id: row.group_id, statement: row.id}]->()
SET f.fact_embedding = n.embedding
"""

# ------------------------------------------------------------------------- the derived graph

# {group_id, uuid, at, put}. Rows: group, id of those whose name is new, whose embedding must follow.
PUT_ENTITIES = """
UNWIND $rows AS row
MERGE (e:Entity {group_id: row.group_id, uuid: row.uuid}) ON CREATE SET e.created_at = row.at
WITH row, e, e.name = row.put.name AND e.name_embedding IS NOT NULL AS same
SET e += row.put
WITH row, same WHERE coalesce(NOT same, true)
RETURN row.group_id, row.uuid
"""
# {group_id, id}: what it showed as is forgotten.
DROP_SHOWN = """
UNWIND $rows AS row
MATCH (:KgrayBirth {group_id: row.group_id, id: row.id})-[s:SHOWS]->() DELETE s
"""
# {group_id, id, shown}: one for each entity that it shows as.
PUT_SHOWN = """
UNWIND $rows AS row
MATCH (e:Entity {group_id: row.group_id, uuid: row.shown})
MERGE (b:KgrayBirth {group_id: row.group_id, id: row.id})
CREATE (b)-[:SHOWS {group_id: row.group_id}]->(e)
"""
# {group_id, uuid, digest (of its name)}: the vector of the name, from whichever recorded entity bears it;
# copied inside the server. None where there is none.
NAME_ENTITIES = """
UNWIND $rows AS row
MATCH (e:Entity {group_id: row.group_id, uuid: row.uuid})
OPTIONAL MATCH (e)<-[:SHOWS]-(b:KgrayBirth {group_id: row.group_id})
OPTIONAL MATCH (n:KgrayName {group_id: row.group_id, entity: b.id, digest: row.digest})
WITH e, head(collect(n.embedding)) AS found
SET e.name_embedding = found
"""
# {group_id, uuid, source, end (the target, or for a value the fact's own id), put (None: it goes), value}.
# A fact that keeps its ends is changed in place, else deleted, with its value. Rows: group, id of those kept.
CHANGE_FACTS = """
UNWIND $rows AS row
MATCH (s)-[f:RELATES_TO {group_id: row.group_id, uuid: row.uuid}]->(o)
WITH row, f, o, row.put IS NOT NULL AND s.uuid = row.source AND o.uuid = row.end AS kept,
    f.statement <> row.put.statement AS moved
FOREACH (_ IN CASE WHEN kept THEN [1] ELSE [] END | SET f += row.put)
FOREACH (_ IN CASE WHEN kept AND o:Value THEN [1] ELSE [] END | SET o.name = row.value)
FOREACH (_ IN CASE WHEN kept THEN [] ELSE [1] END | DELETE f)
FOREACH (_ IN CASE WHEN NOT kept AND o:Value THEN [1] ELSE [] END | DELETE o)
WITH row, kept, moved WHERE kept
RETURN row.group_id, row.uuid, moved
"""
# {group_id, uuid, source, end, put}. Rows: the facts that were made; of one that is not, an entity is not
# stored.
NEW_FACTS = """
UNWIND $rows AS row
MATCH (s:Entity {group_id: row.group_id, uuid: row.source})
MATCH (o:Entity {group_id: row.group_id, uuid: row.end})
CREATE (s)-[f:RELATES_TO]->(o) SET f = row.put
WITH row, f
OPTIONAL MATCH (n:KgrayStatement {group_id: row.group_id, id: row.put.statement})
SET f.fact_embedding = n.embedding
RETURN row.uuid
"""
NEW_VALUE_FACTS = """
UNWIND $rows AS row
MATCH (s:Entity {group_id: row.group_id, uuid: row.source})
CREATE (s)-[f:RELATES_TO]->(:Value {group_id: row.group_id, uuid: row.uuid, name: row.value}) SET f = row.put
WITH row, f
OPTIONAL MATCH (n:KgrayStatement {group_id: row.group_id, id: row.put.statement})
SET f.fact_embedding = n.embedding
RETURN row.uuid
"""
# {group_id, uuid}: with whatever still hangs on it.
DROP_ENTITIES = """
UNWIND $rows AS row
MATCH (e:Entity {group_id: row.group_id, uuid: row.uuid})
OPTIONAL MATCH (e)-[:RELATES_TO]->(v:Value)
DETACH DELETE v, e
"""
# {group_id, sequence, ordinal, shown}.
SHOW_EVIDENCE = """
UNWIND $rows AS row
MATCH (v:KgrayEvidence {group_id: row.group_id, sequence: row.sequence, ordinal: row.ordinal})
SET v.shown = row.shown
"""

# --------------------------------------------------------------------------------- the ledger

# {group_id, sequence, put}: an episode that was extracted.
EXTRACT_EPISODES = """
UNWIND $rows AS row
MATCH (e:KgrayEpisode {group_id: row.group_id, sequence: row.sequence}) SET e += row.put
"""
# {group_id, sequence, put, attempts}: the attempts before a retry are added.
FAIL_EPISODES = """
UNWIND $rows AS row
MATCH (e:KgrayEpisode {group_id: row.group_id, sequence: row.sequence})
SET e += row.put, e.attempts = coalesce(e.attempts, 0) + row.attempts
REMOVE e:KgrayPending
"""
# {group_id, sequence, put}. Live and committed: Graphiti's readers see it from now on.
COMMIT_EPISODES = """
UNWIND $rows AS row
MATCH (e:KgrayEpisode {group_id: row.group_id, sequence: row.sequence})
SET e += row.put SET e:Episodic REMOVE e:KgrayPending
"""
# {group_id, sequence, state, recorded_at, result, payload}. What a retract or remove named is blanked: a
# client's ids may be a person's words. Of the others the payload is as carried out.
END_OPERATIONS = """
UNWIND $rows AS row
MATCH (o:KgrayOperation {group_id: row.group_id, sequence: row.sequence})
SET o.state = row.state, o.recorded_at = row.recorded_at, o.result = row.result,
    o.payload = CASE WHEN o.kind IN ['retract', 'remove'] THEN '{}' ELSE coalesce(row.payload, o.payload) END
REMOVE o:KgrayPending
"""
# {group_id, id}: recorded entities that moved. Rows: group, sequences that mention them.
MENTIONED_IN = """
UNWIND $rows AS row
MATCH (m:KgrayMention {group_id: row.group_id, entity: row.id})
RETURN DISTINCT m.group_id, m.sequence
"""
# {group_id, sequence}: an episode's edges to what its mentions show as now, made anew. Of a recorded
# entity that shows as several, the one that bears the surface.
DROP_LINKS = """
UNWIND $rows AS row
MATCH (:KgrayEpisode {group_id: row.group_id, sequence: row.sequence})-[l:MENTIONS]->() DELETE l
"""
LINK_MENTIONS = """
UNWIND $rows AS row
MATCH (e:KgrayEpisode {group_id: row.group_id, sequence: row.sequence}) WHERE e:Episodic
MATCH (m:KgrayMention) WHERE m.group_id = row.group_id AND m.sequence = row.sequence AND m.ordinal >= 0
MATCH (b:KgrayBirth {group_id: row.group_id, id: m.entity})-[:SHOWS]->(t:Entity)
WITH e, m, b, t, COUNT { (b)-[:SHOWS]->() } AS parts
WHERE parts = 1 OR m.surface = t.name OR m.surface IN t.aliases
WITH DISTINCT e, t
CREATE (e)-[:MENTIONS {group_id: e.group_id, uuid: e.uuid + '/' + t.uuid, created_at: e.created_at}]->(t)
"""
