"""What one commit changes in the derived graph, computed for the touched part only (R2, R17).

`absorb` takes an episode's records into a GroupGraph and returns the rows that differ. It costs what the
touched components cost, whatever the size of the group. `compare` compares two whole graphs, for changes
that may affect records of any age (merges, removals, folded relation names).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from kgray.derivation.change import Difference, EpisodeChange
from kgray.derivation.group import GroupGraph, claim_of
from kgray.derivation.relations import as_flipped
from kgray.graph import Fact
from kgray.records import Place
from kgray.timeline import Claim, Span
from kgray.times import Instant

SpanChanges = dict[str, tuple[tuple[Span, ...], tuple[Span, ...]]]


def refolds(graph: GroupGraph, change: EpisodeChange, recorded_at: Instant) -> bool:
    """Whether the rulings change how stored names fold, so that the graph must be built anew."""
    telling = [r for r in change.rulings if r.aspect == "symmetric" or r.value in {"same_as", "inverse_of"}]
    if not telling:
        return False
    trial = graph.relations.copy()
    for ruling in change.rulings:
        trial.rule(ruling, recorded_at)
    for name in graph.relations.names():
        old, new = graph.relations.folded(name), trial.folded(name)
        if old[:2] != new[:2]:
            return True
        if graph.relations.traits(old.name).symmetric != trial.traits(new.name).symmetric:
            return True
    return False


def absorb(graph: GroupGraph, change: EpisodeChange, recorded_at: Instant) -> Difference:
    """Take an episode's records into the graph and return the difference."""
    before = graph.spans_of(_rivalry_changes(graph, change))
    graph.births.update((*change.entity_births, *change.statement_births))
    for evidence in change.evidence:
        graph.relations.use(evidence.relation, (evidence.sequence, evidence.ordinal))
    _take_rulings(graph, change, recorded_at)
    shown = {}
    for mention in change.mentions:
        note, changed = graph.take_mention(mention)
        if changed:
            shown[note.id] = note
    claims = _take_evidence(graph, change, recorded_at)
    for verdict in change.verdicts:
        graph.take_verdict(verdict.a, verdict.b, verdict.exclusive, recorded_at)
    for statement in dict.fromkeys((*claims, *(s for v in change.verdicts for s in (v.a, v.b)))):
        graph.link(statement)
    changes = _sweep_again(graph, before, claims) if before else _sweep_on(graph, claims)
    facts, gone = _fact_rows(graph, graph, changes)
    spoken = {c.said[1:]: s for s, taken in claims.items() for c in taken}
    places = [(e.sequence, e.ordinal) for e in change.evidence]
    return Difference(
        entities=tuple(shown[i].shown() for i in sorted(shown)),
        facts=facts,
        gone_facts=gone,
        shown=tuple((i, i) for i, _ in sorted(change.entity_births)),
        spoken=tuple((place, spoken.get(place)) for place in places),
    )


def _rivalry_changes(graph: GroupGraph, change: EpisodeChange) -> list[str]:
    """Return the stored statements whose rivals this episode's rulings or verdicts may change."""
    touched: list[str] = []
    for ruling in change.rulings:
        shown, flipped, _ = graph.relations.folded(ruling.name)
        if ruling.aspect == "cardinality":
            value = as_flipped(ruling.value) if flipped else ruling.value
            if graph.relations.traits(shown).cardinality != value:
                touched += graph.by_relation.get(shown, ())
        elif ruling.aspect == "pair" and ruling.value != "independent":
            for name in (shown, graph.relations.folded(ruling.other).name):
                touched += graph.by_relation.get(name, ())
    for verdict in change.verdicts:
        touched += [s for s in (verdict.a, verdict.b) if s in graph.statements]
    return touched


def _take_rulings(graph: GroupGraph, change: EpisodeChange, recorded_at: Instant) -> None:
    if not change.rulings:
        return
    for ruling in change.rulings:
        graph.relations.rule(ruling, recorded_at)
    for name in dict.fromkeys(graph.relations.folded(r.name).name for r in change.rulings):
        graph.reindex(name)


def _take_evidence(graph: GroupGraph, change: EpisodeChange, recorded_at: Instant) -> dict[str, list[Claim]]:
    """Add the new statements; return the new claims by statement, not yet added to them."""
    mentions = {m.ordinal: m for m in change.mentions}
    claims: dict[str, list[Claim]] = {}
    episode = change.episode
    for evidence in change.evidence:
        graph.texts[evidence.sequence, evidence.ordinal] = (evidence.text, episode.id)
        key = graph.target_of(evidence, mentions)
        if key is None:
            continue
        if evidence.statement not in graph.statements:
            graph.add_statement(evidence, key, evidence.statement, evidence.variant)
        claim = claim_of(evidence, evidence.statement, episode.reference_time, recorded_at)
        claims.setdefault(evidence.statement, []).append(claim)
    return claims


def _sweep_on(graph: GroupGraph, claims: dict[str, list[Claim]]) -> SpanChanges:
    """Add the claims, where the rivalry between stored statements is unchanged."""
    parts: dict[Hashable, tuple[Hashable | None, list[str], list[Claim]]] = {}
    for statement, added in claims.items():
        key, members = graph.component(statement)
        part = parts.setdefault(key if key is not None else tuple(members), (key, members, []))
        part[2].extend(added)
    changes: SpanChanges = {}
    for key, members, added in parts.values():
        changes.update(graph.kept_sweep(key, members).add(added))
    for statement, added in claims.items():
        graph.statements[statement].claims.extend(added)
    return changes


def _sweep_again(
    graph: GroupGraph, before: dict[str, tuple[Span, ...]], claims: dict[str, list[Claim]]
) -> SpanChanges:
    """Add the claims and sweep anew, where rivalry between stored statements changed.

    before: spans of the statements concerned; those of further touched ones are added.
    """
    graph.forget_sweeps()
    for statement in claims:
        _, members = graph.component(statement)
        missing = [m for m in members if m not in before]
        if missing:
            found = graph.spans_of(missing)
            before.update((m, found[m]) for m in missing)
    for statement, added in claims.items():
        graph.statements[statement].claims.extend(added)
    after = graph.spans_of(dict.fromkeys((*before, *claims)))
    return {s: (before.get(s, ()), spans) for s, spans in after.items() if before.get(s, ()) != spans}


def _fact_rows(
    old: GroupGraph, new: GroupGraph, changes: SpanChanges
) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
    rows: list[Fact] = []
    gone: set[str] = set()
    kept: set[str] = set()
    for earlier, later in changes.values():
        was = {fact.id: fact for fact in map(old.fact, earlier)}
        now = {fact.id: fact for fact in map(new.fact, later)}
        rows += [fact for i, fact in now.items() if was.get(i) != fact]
        kept.update(now)
        gone.update(was)
    return tuple(sorted(rows, key=lambda f: f.id)), tuple(sorted(gone - kept))


# ------------------------------------------------------------------ two graphs


def compare(old: GroupGraph, new: GroupGraph) -> Difference:
    """Return the difference between two graphs of one group; sweeps only the statements that changed."""
    facts, gone = _fact_rows(old, new, _changed_spans(old, new, _moved_statements(old, new)))
    entities = []
    for entity, note in new.entities.items():
        was = old.entities.get(entity)
        if was is None or was.shown() != note.shown():
            entities.append(note.shown())
    shows_before, shows_now = _shown_pairs(old), _shown_pairs(new)
    return Difference(
        entities=tuple(sorted(entities, key=lambda e: e.id)),
        gone_entities=tuple(sorted(old.entities.keys() - new.entities.keys())),
        facts=facts,
        gone_facts=gone,
        shown=tuple(sorted(shows_now - shows_before)),
        unshown=tuple(sorted(shows_before - shows_now)),
        spoken=_statement_moves(old, new),
    )


def _moved_statements(old: GroupGraph, new: GroupGraph) -> set[str]:
    touched = set(old.statements.keys() ^ new.statements.keys())
    for statement, now in new.statements.items():
        was = old.statements.get(statement)
        if was is not None and (was.key != now.key or was.variant != now.variant or was.claims != now.claims):
            touched.add(statement)
    for name in old.by_relation.keys() | new.by_relation.keys():
        if old.relations.traits(name) != new.relations.traits(name):
            touched.update(old.by_relation.get(name, ()), new.by_relation.get(name, ()))
    for statement in old.verdicts.keys() | new.verdicts.keys():
        if old.verdicts.get(statement) != new.verdicts.get(statement):
            touched.add(statement)
    for place in old.moved.keys() | new.moved.keys():
        if old.moved.get(place) != new.moved.get(place):
            touched.update(s for g in (old, new) if (s := g.statement_at(place)) is not None)
    return touched


def _changed_spans(old: GroupGraph, new: GroupGraph, touched: Iterable[str]) -> SpanChanges:
    """Return old and new spans of the touched statements and of their components in either graph."""
    asked = set(touched)
    while True:
        was = old.spans_of(s for s in sorted(asked) if s in old.statements)
        now = new.spans_of(s for s in sorted(asked) if s in new.statements)
        reached = was.keys() | now.keys()
        if reached <= asked:
            return {s: (was.get(s, ()), now.get(s, ())) for s in sorted(asked)}
        asked |= reached


def _statement_moves(old: GroupGraph, new: GroupGraph) -> tuple[tuple[Place, str | None], ...]:
    was, now = old.places(), new.places()
    return tuple(
        (place, now.get(place))
        for place in sorted(was.keys() | now.keys())
        if was.get(place) != now.get(place)
    )


def _shown_pairs(graph: GroupGraph) -> set[tuple[str, str]]:
    return {(recorded, i) for recorded, shown in graph.shown_by_recorded().items() for i in shown}
