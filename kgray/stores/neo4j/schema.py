"""Constraints and indexes of the database, and the steps that bring an older one to them.

Everything bears `group_id`, the name of its group, and every statement matches it: tenants share one
database (Community has no other). Instants of ours are integers, microseconds since 1970 (R1).

Bookkeeping
    KgrayMeta       id: 'kgray', schema, embedder, dimensions
    KgrayShard      id: "0"..., epoch, holder, beat: the fence and the lease of a shard's writer
    KgrayGroup      id: SHA-256 of the name, name (gone with a removed group), last, last_recorded, removals:
                    deletions of its vectors so far, so that what a process keeps of them is seen as stale;
                    adopting, portion: while another store's rows are taken over (adopting.py)
Records (place = sequence << 20 | ordinal, `rows.place_number`: their order)
    KgrayEpisode    sequence, uuid, kind, content, said (t_ref), source_description (our source), client_id,
                    speaker, metadata, content_sha256, state (rows.STATES), bulk, ended_at, retired_at,
                    failure_kind, failure_message, failure_raw, attempts; call: of the accepting call;
                    words, embedding, place: once committed. Live and committed: Episodic too, and with
                    Graphiti's name, source, valid_at, created_at, entity_edges
    KgrayOperation  sequence, kind, payload, state (rows.PENDING...), recorded_at, result, call
    KgrayPending    a second label of episodes and operations that have not ended
    KgrayExtraction sequence, calls, prompt_tokens, completion_tokens, body
    KgrayAnswer     request (its key, a digest), body, calls, prompt_tokens, completion_tokens
    KgrayUse        sequence, request: who used these answers
    KgrayBirth      id (recorded entity or statement), sequence, ordinal; (:KgrayBirth)-[:SHOWS]->(:Entity):
                    what a recorded entity shows as now, several after a split
    KgrayMention    sequence, ordinal, surface, entity, type, sentence, span_from, span_to
    KgrayEvidence   sequence, ordinal, statement, variant, kind, relation, text, subject, object, value_type,
                    value, unit, valid_from, valid_to, from_precision, to_precision, inferred, fact_group;
                    shown: the derived statement; words
    KgrayRuling     sequence, ordinal, name, aspect, value, judge, other, reason, recorded_at, retired_at
    KgrayVerdict    sequence, ordinal, a, b, exclusive, judge, reason, recorded_at, retired_at
    KgrayName       entity (recorded), surface, digest (of it), folded (digest of the folded surface), words,
                    uses: mentions that bear it, born: place of the first; embedding, place: its vector
    KgrayStatement  id (recorded), embedding, place
Derived, for Graphiti's readers too
    Entity          uuid, name, folded (digest of it folded), summary: '', labels, aliases, born_sequence,
                    born_ordinal, created_at, name_embedding
    Value           uuid: of its fact, name: as a person reads it; what a fact about a value ends at
    RELATES_TO      from Entity to Entity or Value: uuid, name (the relation), fact (the text), episodes,
                    statement, source, target (entity ids), value_type, value, unit, ended_episode,
                    ended_ordinal, fact_embedding; created, valid, invalid, expired: instants; created_at,
                    valid_at, invalid_at, expired_at: the same as datetimes
    MENTIONS        from Episodic to Entity: uuid, created_at

Full text is split by `stores.words`; each word bears its group's mark (`rows.mark`), so that the
index itself filters by group; the analyzer only splits at spaces. Beside them stand the full-text indexes
that Graphiti's readers ask by name, and vector indexes where they look for embeddings; ours ask neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Names of the indexes that reading asks by name.
EVIDENCE_WORDS, NAME_WORDS, EPISODE_WORDS = (
    "kgray_evidence_words",
    "kgray_name_words",
    "kgray_episode_words",
)
STATEMENT_VECTORS, NAME_VECTORS, EPISODE_VECTORS = (
    "kgray_statement_vectors",
    "kgray_name_vectors",
    "kgray_episode_vectors",
)
# For Graphiti's readers alone.
FACT_VECTORS, ENTITY_VECTORS = "kgray_fact_vectors", "kgray_entity_vectors"
MAX_DIMENSIONS = 4096  # of a vector index


@dataclass(frozen=True, slots=True)
class Rule:
    """One constraint or index: name, and the statement that makes it; dimensions go in as $dimensions."""

    name: str
    statement: str


def _unique(name: str, label: str, *properties: str) -> Rule:
    named = ", ".join(f"n.{p}" for p in properties)
    return Rule(name, f"CREATE CONSTRAINT {name} IF NOT EXISTS FOR (n:{label}) REQUIRE ({named}) IS UNIQUE")


def _unique_edge(name: str, kind: str, *properties: str) -> Rule:
    named = ", ".join(f"r.{p}" for p in properties)
    return Rule(
        name, f"CREATE CONSTRAINT {name} IF NOT EXISTS FOR ()-[r:{kind}]-() REQUIRE ({named}) IS UNIQUE"
    )


def _range(name: str, label: str, *properties: str) -> Rule:
    named = ", ".join(f"n.{p}" for p in properties)
    return Rule(name, f"CREATE RANGE INDEX {name} IF NOT EXISTS FOR (n:{label}) ON ({named})")


def _range_edge(name: str, kind: str, *properties: str) -> Rule:
    named = ", ".join(f"r.{p}" for p in properties)
    return Rule(name, f"CREATE RANGE INDEX {name} IF NOT EXISTS FOR ()-[r:{kind}]-() ON ({named})")


def _words(name: str, label: str) -> Rule:
    return Rule(
        name,
        f"CREATE FULLTEXT INDEX {name} IF NOT EXISTS FOR (n:{label}) ON EACH [n.words] "
        "OPTIONS {indexConfig: {`fulltext.analyzer`: 'whitespace'}}",
    )


def _graphiti_words(name: str, pattern: str, *properties: str) -> Rule:
    """Return a full-text index as Graphiti makes it, but off the commit's path: it follows within moments."""
    named = ", ".join(f"x.{p}" for p in (*properties, "group_id"))
    return Rule(
        name,
        f"CREATE FULLTEXT INDEX {name} IF NOT EXISTS FOR {pattern} ON EACH [{named}] "
        "OPTIONS {indexConfig: {`fulltext.eventually_consistent`: true}}",
    )


def _vectors(name: str, pattern: str, owner: str, *, filters: bool) -> Rule:
    """Return a vector index; filters: with the group inside it, where the server can."""
    on = f"ON {owner} WITH [{owner[0]}.group_id]" if filters else f"ON ({owner})"
    version = "CYPHER 25 " if filters else ""
    config = "`vector.dimensions`: $dimensions, `vector.similarity_function`: 'cosine'"
    if name in _SOUGHT:
        config += f", `vector.hnsw.m`: {_SOUGHT_M}, `vector.hnsw.ef_construction`: {_SOUGHT[name]}"
    return Rule(
        name,
        f"{version}CREATE VECTOR INDEX {name} IF NOT EXISTS FOR {pattern} {on} "
        f"OPTIONS {{indexConfig: {{{config}}}}}",
    )


# M and ef_construction of the HNSW graphs of what search asks; Graphiti's have the server's own 16 and 100.
# Vectors that are much alike leave some that no edge leads to, and asking for more candidates does not help.
# Statements of the generated people, written 96 a transaction to 5.26, of a query's 20 nearest among 200
# candidates: 16, 400: 0.971 of 100,000; 16, 800: 0.979; 32, 800: 0.990. Of 40,000: 32, 800: 0.995; 48, 800:
# 0.992; 32, 1600: 1.000, for 40 % more time in the second half. 1,200 is between them, and gave 0.993
# of 100,000 in `python -m bench store`; names and episodes were not measured apart.
_SOUGHT_M = 32
_SOUGHT = {STATEMENT_VECTORS: 1_200, NAME_VECTORS: 800, EPISODE_VECTORS: 800}
_GRAPHITI_WORDS = (
    _graphiti_words("edge_name_and_fact", "()-[x:RELATES_TO]-()", "name", "fact"),
    _graphiti_words("node_name_and_content", "(x:Entity)", "name", "summary"),
    _graphiti_words("episode_content", "(x:Episodic)", "content", "source", "source_description"),
    _graphiti_words("community_name", "(x:Community)", "name"),
)
_PLACE = ("group_id", "sequence", "ordinal")
_FIRST: tuple[Rule, ...] = (
    _unique("kgray_meta", "KgrayMeta", "id"),
    _unique("kgray_shard", "KgrayShard", "id"),
    _unique("kgray_group", "KgrayGroup", "id"),
    _unique("kgray_episode", "KgrayEpisode", "group_id", "sequence"),
    _unique("kgray_operation", "KgrayOperation", "group_id", "sequence"),
    _unique("kgray_extraction", "KgrayExtraction", "group_id", "sequence"),
    _unique("kgray_answer", "KgrayAnswer", "group_id", "request"),
    _unique("kgray_use", "KgrayUse", "group_id", "sequence", "request"),
    _unique("kgray_birth", "KgrayBirth", "group_id", "id"),
    _unique("kgray_mention", "KgrayMention", *_PLACE),
    _unique("kgray_evidence", "KgrayEvidence", *_PLACE),
    _unique("kgray_ruling", "KgrayRuling", *_PLACE),
    _unique("kgray_verdict", "KgrayVerdict", *_PLACE),
    _unique("kgray_name", "KgrayName", "group_id", "entity", "digest"),
    _unique("kgray_statement", "KgrayStatement", "group_id", "id"),
    _unique("kgray_entity", "Entity", "group_id", "uuid"),
    _unique("kgray_value", "Value", "group_id", "uuid"),
    # A replaced episode keeps its id: of the rows that bear it, one is live.
    _unique("kgray_episodic", "Episodic", "group_id", "uuid"),
    _unique_edge("kgray_relates_to", "RELATES_TO", "group_id", "uuid"),
    _unique_edge("kgray_mentions", "MENTIONS", "group_id", "uuid"),
    _range("kgray_episode_id", "KgrayEpisode", "group_id", "uuid"),
    _range("kgray_episode_client", "KgrayEpisode", "group_id", "client_id"),
    _range("kgray_episode_said", "KgrayEpisode", "group_id", "source_description", "said", "sequence"),
    _range("kgray_episode_state", "KgrayEpisode", "group_id", "state", "sequence"),
    _range("kgray_pending", "KgrayPending", "group_id", "sequence"),
    _range("kgray_pending_lane", "KgrayPending", "group_id", "bulk"),
    _range("kgray_use_request", "KgrayUse", "group_id", "request"),
    _range("kgray_mention_entity", "KgrayMention", "group_id", "entity"),
    _range("kgray_evidence_statement", "KgrayEvidence", "group_id", "statement"),
    _range("kgray_name_folded", "KgrayName", "group_id", "folded"),
    _range("kgray_entity_folded", "Entity", "group_id", "folded"),
    _range("kgray_name_place", "KgrayName", "group_id", "place"),
    _range("kgray_statement_place", "KgrayStatement", "group_id", "place"),
    _range("kgray_episode_place", "KgrayEpisode", "group_id", "place"),
    _range_edge("kgray_fact_statement", "RELATES_TO", "group_id", "statement"),
    # Newest first from a hub, in the order of the index.
    _range_edge("kgray_fact_source", "RELATES_TO", "group_id", "source", "created"),
    _range_edge("kgray_fact_target", "RELATES_TO", "group_id", "target", "created"),
    _words(EVIDENCE_WORDS, "KgrayEvidence"),
    _words(NAME_WORDS, "KgrayName"),
    _words(EPISODE_WORDS, "KgrayEpisode"),
    *_GRAPHITI_WORDS,
)
# Made anew where the database was emptied and another embedder comes.
_VECTORS = (
    (NAME_VECTORS, "(n:KgrayName)", "n.embedding"),
    (STATEMENT_VECTORS, "(n:KgrayStatement)", "n.embedding"),
    (EPISODE_VECTORS, "(n:KgrayEpisode)", "n.embedding"),
    (FACT_VECTORS, "()-[r:RELATES_TO]-()", "r.fact_embedding"),
    (ENTITY_VECTORS, "(n:Entity)", "n.name_embedding"),
)
VECTORS = tuple(name for name, _, _ in _VECTORS)


def vector_rules(*, filters: bool) -> tuple[Rule, ...]:
    """Return the vector indexes; filters: the server filters inside them (2026.01 and newer)."""
    return tuple(_vectors(name, pattern, owner, filters=filters) for name, pattern, owner in _VECTORS)


# STEPS[n] brings version n to n + 1. Add steps, never change one: databases out there went through it.
STEPS: tuple[tuple[Rule, ...], ...] = (_FIRST,)
VERSION = len(STEPS)


def rules(stored: int, *, filters: bool) -> Sequence[Rule]:
    """Return what brings a database of version `stored` to this one."""
    steps = [rule for step in STEPS[stored:] for rule in step]
    return (*steps, *vector_rules(filters=filters))
