"""Statements that read the graph and search it; the comment is the contract.

Values go in as parameters, never as text; the only text put together here, at import, are column
lists and conditions of ours. The group is matched in the statement itself, by an index that begins with it.
`place` in a row: which of what was asked it answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from kgray.ports import SearchScope
from kgray.stores.neo4j import schema
from kgray.stores.neo4j.statements import EPISODE

# Columns of `rows.fact` and `rows.entity`.
_FACT = (
    "f.uuid, f.statement, f.source, f.name, f.fact, f.created, f.target, f.value_type, f.value, f.unit, "
    "f.valid, f.invalid, f.expired, f.episodes, f.ended_episode, f.ended_ordinal"
)
_ENTITY = "e.uuid, e.name, e.aliases, e.labels, e.born_sequence, e.born_ordinal"
# $as_of: an instant, or null for any time.
_HOLDS = (
    "($as_of IS NULL OR (f.valid IS NULL OR f.valid <= $as_of) AND (f.invalid IS NULL OR $as_of < f.invalid))"
)

# ------------------------------------------------------------------------------------- the graph

# $group, $asked: recorded statements, $as_of. Rows: place, then a fact; one fact once a place.
FACTS_OF = f"""
UNWIND range(0, size($asked) - 1) AS place
MATCH (e:KgrayEvidence) WHERE e.group_id = $group AND e.statement = $asked[place]
WITH DISTINCT place, e.shown AS shown
MATCH ()-[f:RELATES_TO]->() WHERE f.group_id = $group AND f.statement = shown AND {_HOLDS}
RETURN place, {_FACT}
"""
# $group, $asked: [sequence, ordinal] each, $as_of. Rows as above.
FACTS_OF_EVIDENCE = f"""
UNWIND range(0, size($asked) - 1) AS place
MATCH (e:KgrayEvidence)
WHERE e.group_id = $group AND e.sequence = $asked[place][0] AND e.ordinal = $asked[place][1]
WITH place, e.shown AS shown
MATCH ()-[f:RELATES_TO]->() WHERE f.group_id = $group AND f.statement = shown AND {_HOLDS}
RETURN place, {_FACT}
"""
# $group, $asked: shown entities, $as_of, $limit: newest first, then by id. Each branch reads its index in
# that order and stops at the limit: a hub costs what is taken of it.
FACTS_AT = f"""
UNWIND $asked AS entity
CALL (entity) {{
    MATCH ()-[f:RELATES_TO]->()
    WHERE f.group_id = $group AND f.source = entity AND f.created IS NOT NULL AND {_HOLDS}
    RETURN f ORDER BY f.group_id DESC, f.source DESC, f.created DESC, f.uuid LIMIT $limit
    UNION
    MATCH ()-[f:RELATES_TO]->()
    WHERE f.group_id = $group AND f.target = entity AND f.created IS NOT NULL AND {_HOLDS}
    RETURN f ORDER BY f.group_id DESC, f.target DESC, f.created DESC, f.uuid LIMIT $limit
}}
WITH DISTINCT f ORDER BY f.created DESC, f.uuid LIMIT $limit
RETURN {_FACT}
"""
# $group, $asked: ids of facts. Rows: place, fact.
FACTS = f"""
UNWIND range(0, size($asked) - 1) AS place
MATCH ()-[f:RELATES_TO]->() WHERE f.group_id = $group AND f.uuid = $asked[place]
RETURN place, {_FACT}
"""
# $group, $asked: recorded ids. What each shows as; one that shows as nothing (a split made it) is itself.
# Rows: place, entity; several a place by birth.
SHOWN = f"""
UNWIND range(0, size($asked) - 1) AS place
CALL (place) {{
    MATCH (b:KgrayBirth)-[:SHOWS]->(e:Entity)
    WHERE b.group_id = $group AND b.id = $asked[place] AND e.group_id = $group
    RETURN e
    UNION
    MATCH (e:Entity) WHERE e.group_id = $group AND e.uuid = $asked[place]
        AND NOT EXISTS {{
            MATCH (b:KgrayBirth)-[:SHOWS]->(:Entity) WHERE b.group_id = $group AND b.id = $asked[place]
        }}
    RETURN e
}}
RETURN place, {_ENTITY} ORDER BY place, e.born_sequence, e.born_ordinal
"""
# $group, $asked: the shown ids that these stand for; one that is shown stands for itself alone.
SHOWN_IDS = """
UNWIND $asked AS id
CALL (id) {
    MATCH (e:Entity) WHERE e.group_id = $group AND e.uuid = id
    RETURN e
    UNION
    MATCH (b:KgrayBirth)-[:SHOWS]->(e:Entity) WHERE b.group_id = $group AND b.id = id AND e.group_id = $group
        AND NOT EXISTS { MATCH (own:Entity) WHERE own.group_id = $group AND own.uuid = id }
    RETURN e
}
RETURN DISTINCT e.uuid
"""
# $group, $folded: the digest of a folded name. The entities of this name, and those that a bearer of this
# surface shows as; after a split not all of them bear it. Oldest first.
ENTITIES_CALLED = f"""
CALL () {{
    MATCH (e:Entity) WHERE e.group_id = $group AND e.folded = $folded RETURN e
    UNION
    MATCH (n:KgrayName) WHERE n.group_id = $group AND n.folded = $folded
    MATCH (b:KgrayBirth) WHERE b.group_id = $group AND b.id = n.entity
    MATCH (b)-[:SHOWS]->(e:Entity) WHERE e.group_id = $group
    RETURN e
}}
WITH DISTINCT e
RETURN {_ENTITY} ORDER BY e.born_sequence, e.born_ordinal, e.uuid
"""
# $group, $asked: sequences. Rows: place, the columns of an episode that is committed and live.
EPISODES_SHOWN = f"""
UNWIND range(0, size($asked) - 1) AS place
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.sequence = $asked[place]
    AND e.state = 2 AND e.retired_at IS NULL
RETURN place, {EPISODE} ORDER BY place
"""
# $group, $asked: episode ids. The last row that bears an id comes last.
SUPPORTERS = """
UNWIND $asked AS id
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.uuid = id
RETURN e.uuid, e.client_id ORDER BY e.sequence
"""
# $group, $after, $known_at: a record time or null, $limit: the dump's episodes, a page after a sequence.
EPISODES_ENDED = f"""
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.sequence > $after AND e.state >= 2
    AND ($known_at IS NULL AND e.retired_at IS NULL
        OR e.ended_at <= $known_at AND (e.retired_at IS NULL OR e.retired_at > $known_at))
RETURN {EPISODE} ORDER BY e.sequence LIMIT $limit
"""

# ------------------------------------------------------------------------------------- look-ups

# $group, $id: sequences of the live episodes that bear it, as ours or as the client's.
LIVE_EPISODES = """
CALL () {
    MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.uuid = $id AND e.retired_at IS NULL
    RETURN e.sequence AS sequence
    UNION
    MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.client_id = $id AND e.retired_at IS NULL
    RETURN e.sequence AS sequence
}
RETURN sequence ORDER BY sequence
"""
# $group, $id. One row: whether an entity, a statement, a fact bears it, recorded or shown.
BEARERS = """
RETURN EXISTS { MATCH (e:Entity) WHERE e.group_id = $group AND e.uuid = $id }
    OR EXISTS {
        MATCH (b:KgrayBirth)-[:SHOWS]->(e:Entity)
        WHERE b.group_id = $group AND b.id = $id AND e.group_id = $group },
    EXISTS { MATCH ()-[f:RELATES_TO]->() WHERE f.group_id = $group AND f.statement = $id }
    OR EXISTS { MATCH (e:KgrayEvidence) WHERE e.group_id = $group AND e.statement = $id },
    EXISTS { MATCH ()-[f:RELATES_TO]->() WHERE f.group_id = $group AND f.uuid = $id }
"""
# $group, $ids: sequences of all rows that bear them, as ours or as the client's; retired ones too.
SEQUENCES_OF_IDS = """
UNWIND $ids AS id
CALL (id) {
    MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.uuid = id RETURN e.sequence AS sequence
    UNION
    MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.client_id = id RETURN e.sequence AS sequence
}
RETURN DISTINCT sequence
"""
# $group, $source.
SEQUENCES_OF_SOURCE = """
MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.source_description = $source RETURN e.sequence
"""
# $group.
SEQUENCES_ALL = "MATCH (e:KgrayEpisode) WHERE e.group_id = $group AND e.sequence > 0 RETURN e.sequence"
# $group, $without: sequences. In order of first mention.
SURFACES = """
MATCH (m:KgrayMention) WHERE m.group_id = $group AND m.sequence > 0 AND NOT m.sequence IN $without
WITH m ORDER BY m.sequence, m.ordinal
WITH m.surface AS surface, collect(m)[0] AS first
RETURN surface ORDER BY first.sequence, first.ordinal
"""

# ---------------------------------------------------------------------------------------- words

# $query: quoted terms that bear the group's mark; $group checks it a second time; $take: rows that are
# ranked, the best of the index; $limit. One row: what was found, each once, as [score, it], best first, ties
# by age; how many rows there were; the lowest score among them. Ordered by the server: 2,000 rows that
# score the same (all that bear a frequent word) took 50 ms to fetch, and 9 ms when it ordered them.
_BEST_FIRST = """
RETURN collect([score, found])[..$limit], sum(count), min(lowest)
"""
FIND_WORDS: Mapping[SearchScope, str] = {
    "fact": f"""
CALL db.index.fulltext.queryNodes('{schema.EVIDENCE_WORDS}', $query, {{limit: $take}}) YIELD node AS n, score
WHERE n.group_id = $group
WITH [n.sequence, n.ordinal] AS found, score, score AS lowest, 1 AS count
ORDER BY score DESC, found
{_BEST_FIRST}""",
    # An entity has a row for each of its surfaces; it is as old as the oldest that matches.
    "entity": f"""
CALL db.index.fulltext.queryNodes('{schema.NAME_WORDS}', $query, {{limit: $take}}) YIELD node AS n, score
WHERE n.group_id = $group
WITH n.entity AS found, max(score) AS score, min(score) AS lowest, count(*) AS count, min(n.born) AS born
ORDER BY score DESC, born
{_BEST_FIRST}""",
    "episode": f"""
CALL db.index.fulltext.queryNodes('{schema.EPISODE_WORDS}', $query, {{limit: $take}}) YIELD node AS n, score
WHERE n.group_id = $group
WITH [n.sequence, 0] AS found, score, score AS lowest, 1 AS count
ORDER BY score DESC, found
{_BEST_FIRST}""",
}

# -------------------------------------------------------------------------------------- vectors

# The kinds of vectors: label, what owns one, index.
_VECTORS: Mapping[SearchScope, tuple[str, str, str]] = {
    "fact": ("KgrayStatement", "n.id", schema.STATEMENT_VECTORS),
    "entity": ("KgrayName", "n.entity", schema.NAME_VECTORS),
    "episode": ("KgrayEpisode", "toString(n.sequence)", schema.EPISODE_VECTORS),
}
_SCORED = "vector.similarity.cosine(n.embedding, $vector)"  # (1 + cosine) / 2

# $group, $bound: how many vectors the group has, at most `bound`; it counts no further.
COUNT_VECTORS: Mapping[SearchScope, str] = {
    scope: f"""
MATCH (n:{label}) WHERE n.group_id = $group AND n.place IS NOT NULL
WITH n LIMIT $bound RETURN count(n)
"""
    for scope, (label, _, _) in _VECTORS.items()
}
# $group, $vector, $limit: every vector of the group compared. Rows: owner, score; an owner once, at its best;
# best first, ties by insertion.
NEAREST_EXACT: Mapping[SearchScope, str] = {
    scope: f"""
MATCH (n:{label}) WHERE n.group_id = $group AND n.place IS NOT NULL AND n.embedding IS NOT NULL
WITH {owner} AS owner, {_SCORED} AS score, n.place AS place ORDER BY score DESC, place
WITH owner, collect([score, place])[0] AS best
RETURN owner, best[0] ORDER BY best[0] DESC, best[1] LIMIT $limit
"""
    for scope, (label, owner, _) in _VECTORS.items()
}
# $group, $vector, $take: the group's `take` nearest as the index knows them, scored exactly. Rows: owner,
# score; an owner once for each of its vectors; best first, ties by insertion.
NEAREST_INSIDE: Mapping[SearchScope, str] = {
    scope: f"""
CYPHER 25
MATCH (n:{label})
SEARCH n IN (VECTOR INDEX {index} FOR $vector WHERE n.group_id = $group LIMIT $take)
WITH {owner} AS owner, {_SCORED} AS score, n.place AS place
RETURN owner, score ORDER BY score DESC, place
"""
    for scope, (label, owner, index) in _VECTORS.items()
}
# The same where an index knows no groups: the `take` nearest of all groups, and this group's of those.
NEAREST_AMONG_ALL: Mapping[SearchScope, str] = {
    scope: f"""
CALL db.index.vector.queryNodes('{index}', $take, $vector) YIELD node AS n WHERE n.group_id = $group
WITH {owner} AS owner, {_SCORED} AS score, n.place AS place
RETURN owner, score ORDER BY score DESC, place
"""
    for scope, (_, owner, index) in _VECTORS.items()
}
