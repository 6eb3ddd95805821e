"""The reads of `Memory` beside its searches: of one group, as of any moment, as known at any moment.

None asks a model. The cost of a neighbourhood grows with the facts in reach of its centre, or without a
centre with the group; a difference costs a pass over each of its two views; likely duplicates cost look-ups
for each name of the group; changes and a page of the log cost as much as they return.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial, wraps
from itertools import groupby
from operator import itemgetter
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from kgray.communities.reading import one_of, owners_of
from kgray.domain.graph import Entity, Fact
from kgray.domain.records import check_group
from kgray.domain.times import Instant, to_datetime
from kgray.errors import InputError, NotFound
from kgray.graph import dump as dumping
from kgray.graph.names import EntityNote
from kgray.graph.names import digits as digits_of
from kgray.graph.stored import View, in_pieces, stored_names, stored_records, view_now
from kgray.ingest.candidates import Likeness, code_match, likeness
from kgray.ingest.resolve import NAME_FLOOR
from kgray.ingest.state import GroupState
from kgray.memory import answers, results
from kgray.memory.options import When, check_limit, instant_of
from kgray.memory.outline import Outline, differences, facts_of, texts
from kgray.ports import GraphView, GroupCounts, Store, at_one_moment
from kgray.schema import kinds, reads, rows
from kgray.schema.reads import EndedEpisodeRow, EndedOperationRow
from kgray.search import spans_of
from kgray.search.context import profile_of
from kgray.storage import ledger
from kgray.storage.ledger import Failure, episodes_at, failures, result, sequences_of
from kgray.system.garbage import garbage_not_collected

MAX_DEPTH = 4
MAX_NODES, MAX_FACTS = 2000, 20_000  # of a neighbourhood
_MAX_EXAMINED = 20_000  # the most episodes that a page of the log examines
_VIEWS = 2  # known_at views kept: searches at one moment often follow one another
_OUTLINES = 4  # kept outlines: 7 MB each at 100,000 facts
# Likely duplicates: a pair keeps its best likeness; a cosine scores half its value.
_NEAREST = 6  # nearest names that are looked up by vector, the name itself included
_SHARED = 0.05  # added for each shared neighbour, at most two
_LIKENESS_SCORES: dict[Likeness, tuple[float, str]] = {
    "equal": (0.9, "the same name"),
    "initials": (0.8, "initials or short forms of the same words"),
    "subset": (0.65, "one name holds the other"),
    "acronym": (0.6, "one name is a code for the other"),
    "surname": (0.5, "the same last name"),
}
# The last: the total numbers of entities and facts, before the limits.
_Neighbourhood = tuple[list[Entity], list[Fact], dict[str, int]]
_T = TypeVar("_T")
_P = ParamSpec("_P")
_Reads = TypeVar("_Reads", bound="GroupReads")


def group_sizes(counts: Mapping[str, GroupCounts]) -> list[results.GroupSize]:
    """Return the sizes of groups from their counts."""
    return [
        results.GroupSize(group=name, episodes=episodes, entities=row.entities, facts=row.facts)
        for name, row in counts.items()
        for episodes in [row.accepted + row.extracted + row.committed + row.failed]
    ]


def ledger_of(counts: Mapping[str, GroupCounts]) -> results.Status:
    """Return the ledger of groups from their counts."""
    states, costs = fields(results.GroupLedger), fields(results.ModelCost)
    return results.Status(
        groups={
            name: results.GroupLedger(**{state.name: getattr(row, state.name) for state in states})
            for name, row in counts.items()
        },
        model=results.ModelCost(
            **{cost.name: sum(getattr(row, cost.name) for row in counts.values()) for cost in costs}
        ),
    )


def of_one_moment(
    read: Callable[Concatenate[_Reads, _P], _T],
) -> Callable[Concatenate[_Reads, _P], Coroutine[Any, Any, _T]]:
    """Turn a method that reads a group into a coroutine method whose reads all see one moment."""

    @wraps(read)
    async def verb(self: _Reads, /, *args: _P.args, **options: _P.kwargs) -> _T:
        if "group" in options:  # else the method says what is missing
            group: Any = options["group"]
            check_group(group)
        return at_one_moment(self.store, partial(read, self, *args, **options))

    return verb


class GroupReads:
    """Reads of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._views: dict[tuple[str, Instant, Instant], View] = {}
        self._outlines: dict[tuple[str, Instant | None, Instant], Outline] = {}
        self.on_view: Callable[[], None] = lambda: None  # called when a past view is derived

    async def status(self, *, group: str | None = None) -> results.Status:
        """Return the numbers of episodes by group and state, and the cost of the model."""
        return ledger_of(ledger.counts(self.store, None if group is None else check_group(group)))

    async def groups(self) -> list[results.GroupSize]:
        """Return the groups with their sizes."""
        return group_sizes(ledger.counts(self.store))

    async def failures(self, *, group: str | None = None) -> list[results.EpisodeFailure]:
        """Return the failed episodes with their reasons, and where each held group stopped."""
        if group is not None:
            check_group(group)
        with self.store.reading():
            failed = [
                (row.episode.group, row.episode.sequence, row.failure) for row in failures(self.store, group)
            ]
            failed += [
                (name, hold.sequence, Failure(kind="Held", message=hold.reason, attempts=hold.tries))
                for name, hold in ledger.held(self.store).items()
                if group in (None, name)
            ]
            episodes = {
                (name, episode.sequence): episode
                for name, rows_of_group in groupby(failed, itemgetter(0))
                for episode in episodes_at(self.store, name, [sequence for _, sequence, _ in rows_of_group])
            }
        return [answers.failure_of(name, episodes.get((name, at)), failure) for name, at, failure in failed]

    @of_one_moment
    def entities(self, query: str = "", *, group: str, limit: int = 20) -> list[answers.EntityCount]:
        """Return entities with a name like the query, best first; "": those with most facts first."""
        return answers.entities_like(self.store, group, query, limit)

    @of_one_moment
    def history(
        self, name_or_id: str, *, group: str, as_of: When | None = None, known_at: When | None = None
    ) -> answers.History:
        """Return the spans of an entity's facts, in order of their start.

        name_or_id  a name or an alias that it showed at `known_at`, its id, or the beginning of its id
        as_of       None = the spans of any time
        Raises NotFound, and Ambiguous where several entities have the name.
        """
        moment, known = instant_of(as_of, "as_of"), instant_of(known_at, "known_at")
        return answers.history_of(self.store, self.view_at(group, known), name_or_id, moment, known)

    @of_one_moment
    def show(self, identifier: str, *, group: str) -> answers.Shown:
        """Return an episode, entity, statement or fact, and all that belongs to it.

        identifier  an id or the beginning of one, an episode's client id, or an entity's name
        The marks of its episodes are the words behind the facts. Raises NotFound, and Ambiguous where several
        items have the name.
        """
        id_, view = answers.id_called(self.store, group, identifier), view_now(self.store, group)
        by_type: dict[str, list[dumping.DumpRow]] = defaultdict(list)
        for record in (records := answers.shown(self.store, group, id_)):
            by_type[record["type"]].append(record)
        entities = tuple(view.entities([record["id"] for record in by_type["entity"]]))
        facts = view.facts([record["id"] for record in by_type["fact"]])
        facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
        spans, clients = spans_of(view, facts)
        sequences = sorted(record["sequence"] for record in by_type["episode"])
        evidence = {(record["episode"], record["ordinal"]) for record in by_type["evidence"]}
        entity = next((entity for entity in entities if entity.id == id_), None)
        profile, sources = profile_of(self.store, view, id_) if entity else ("", ())
        return answers.Shown(
            id=id_,
            records=records,
            episodes=tuple(answers.logged_episodes(self.store, group, sequences, evidence)),
            entities=entities,
            facts=tuple(spans.values()),
            clients=clients,
            summary=entity.summary if entity else "",
            profile=profile,
            profile_sources=sources,
        )

    @of_one_moment
    def duplicates(self, *, group: str, limit: int = 50) -> list[results.LikelyPair]:
        """Return pairs of entities that may be the same, likeliest first.

        Pairs that a `distinct` record separates are omitted.
        """
        if limit < 1:
            raise InputError(f"limit is {limit!r}: use 1 or more", field="limit")
        with garbage_not_collected():
            stored = stored_records(self.store, group)
            names = list(stored_names(self.store, group, stored.saved_at))
            state = GroupState(stored.live, iter(names), self.store.dimensions)
        vectors = {(name.entity, name.surface): rows.as_vector(name.vector) for name in names}
        neighbours = defaultdict[str, set[str]](set)
        for statement in state.graph.statements.values():
            if statement.object is not None:
                neighbours[statement.subject].add(statement.object)
                neighbours[statement.object].add(statement.subject)
        pairs: dict[tuple[str, str], results.LikelyPair] = {}
        for note in state.graph.entities.values():
            for candidate, score, why in _alike(state, note, vectors):
                first, second = sorted((note, candidate), key=lambda n: (n.born, n.id))
                if first.id == second.id or state.graph.fold.are_apart(first.id, second.id):
                    continue
                shared = sorted(neighbours[first.id] & neighbours[second.id])[:2]
                neighbour_names = [state.graph.entities[s].name for s in shared if s in state.graph.entities]
                pair = results.LikelyPair(
                    a=first.id,
                    b=second.id,
                    names=(first.name, second.name),
                    why="; ".join([why, *(f"both are tied to {name}" for name in neighbour_names)]),
                    score=min(1.0, score + _SHARED * len(neighbour_names)),
                )
                former = pairs.get((pair.a, pair.b))
                if former is None or former.score < pair.score:
                    pairs[pair.a, pair.b] = pair
        likeliest = sorted(pairs.values(), key=lambda pair: (-pair.score, pair.a, pair.b))[:limit]
        return [replace(pair, score=round(pair.score, 3)) for pair in likeliest]

    @of_one_moment
    def dump(self, *, group: str, known_at: When | None = None) -> list[str]:
        """Return the lines of the whole graph, sorted, without their newlines."""
        return dumping.lines(answers.dumped(self.store, group, instant_of(known_at, "known_at")))

    @of_one_moment
    def dump_hash(self, *, group: str, known_at: When | None = None) -> str:
        """Return the SHA-256 of the dump, in hex."""
        return dumping.digest(answers.dumped(self.store, group, instant_of(known_at, "known_at")))

    @of_one_moment
    def neighbourhood(
        self, centre: str | None = None, *, group: str,
        as_of: When | None = None, known_at: When | None = None, depth: int = 1, limit: int = 200,
        most_facts: int | None = None, community: str | None = None, level: int | None = None,
    ) -> results.Neighbourhood:  # fmt: skip
        """Return the entities around one, nearest first, and the facts between them, with both clocks.

        centre      a name or id; None = begin with the entities with most facts
        as_of       None = facts of all spans
        limit       entities, at most 2,000; most_facts: facts, at most 20,000; None = as many as entities
        community   choose among its members; only without a centre
        level       give each entity its community of this level
        """
        moment, instant = instant_of(as_of, "as_of"), instant_of(known_at, "known_at")
        check_limit(limit, MAX_NODES)
        most_facts = limit if most_facts is None else most_facts
        check_limit(most_facts, MAX_FACTS)
        if not 0 <= depth <= MAX_DEPTH:
            raise InputError(f"depth is {depth}: use 0 to {MAX_DEPTH}", field="depth")
        view = self.view_at(group, instant)
        if centre is None:
            entities, facts, total = self._most_connected(view, moment, instant, limit, most_facts, community)
        else:
            entities, facts, total = self._around_one(view, centre, moment, depth, limit)
            facts = facts[:most_facts]
        owners = None if level is None else owners_of(self.store, group, level, instant)
        return results.Neighbourhood(
            entities=answers.entity_nodes(entities, owners),
            facts=answers.fact_spans(self.store, view, facts),
            truncated=len(entities) < total["entities"] or len(facts) < total["facts"],
            total=total,
        )

    def _most_connected(
        self, view: GraphView, moment: Instant | None, known: Instant | None, limit: int, most_facts: int,
        community: str | None,
    ) -> _Neighbourhood:  # fmt: skip
        """Return the entities with most facts, of a group or a community."""
        outline = self._outline_of(view, known)
        members = (
            None
            if community is None
            else [id_ for id_, _ in one_of(self.store, view.group, community, known).members]
        )
        ids, between, total = outline.most_connected(moment, limit, members)
        entities = answers.entities_of(self.store, view, texts(ids))
        return entities, facts_of(view, between[:most_facts]), total

    def _around_one(
        self, view: GraphView, centre: str, moment: Instant | None, depth: int, limit: int
    ) -> _Neighbourhood:
        """Return the entities around one, nearest first."""
        frontier = [answers.entity_called(self.store, view, centre).id]
        steps, walked = dict.fromkeys(frontier, 0), dict[str, Fact]()
        for step in range(1, depth + 1):
            reached = view.facts_at(frontier, moment, None) if frontier else []
            walked.update((fact.id, fact) for fact in reached)
            ends = dict.fromkeys(end for fact in reached for end in fact.ends)
            frontier = [end for end in ends if end not in steps]
            steps.update(dict.fromkeys(frontier, step))
        ordered = sorted(view.entities(list(steps)), key=lambda e: (steps[e.id], e.born, e.id))
        shown_ids = {entity.id for entity in ordered[:limit]}
        facts = [fact for fact in walked.values() if shown_ids.issuperset(fact.ends)]
        facts.sort(key=lambda f: (f.valid_at is not None, f.valid_at or 0, f.id))
        return ordered[:limit], facts, {"entities": len(ordered), "facts": len(walked)}

    @of_one_moment
    def diff(
        self, *, group: str, from_known_at: When | None = None, to_known_at: When | None = None,
        from_as_of: When | None = None, to_as_of: When | None = None, limit: int = 200,
    ) -> results.Diff:  # fmt: skip
        """Return the differences of a group between two moments, in both directions.

        known_at    what this memory knew then; None = now
        as_of       what was true then; None = facts of all spans
        Each list of the result has at most `limit` items.
        """
        known = instant_of(from_known_at, "from_known_at"), instant_of(to_known_at, "to_known_at")
        moments = instant_of(from_as_of, "from_as_of"), instant_of(to_as_of, "to_as_of")
        check_limit(limit)
        old, new = (self.view_at(group, at) for at in known)
        changes = differences(
            (self._outline_of(old, known[0]), moments[0]), (self._outline_of(new, known[1]), moments[1])
        )
        facts = {
            name: answers.fact_spans(self.store, view, facts_of(view, getattr(changes, name)[:limit]))
            for name, view in (("opened", new), ("ended", old), ("former", old), ("current", new))
        }
        entities = {
            name: answers.entities_of(self.store, view, texts(getattr(changes, name)[:limit]))
            for name, view in (("entities_new", new), ("entities_gone", old), ("entities_renamed", new))
        }
        total = {"opened": len(changes.opened), "ended": len(changes.ended), "changed": len(changes.current)}
        total |= {name: len(getattr(changes, name)) for name in entities}
        changed = zip(facts.pop("former"), facts.pop("current"), strict=True)
        lists: dict[str, Any] = {name: answers.entity_nodes(some) for name, some in entities.items()}
        return results.Diff(
            **lists | facts,
            changed=tuple(results.FactChange(before=former, after=current) for former, current in changed),
            merged=tuple(
                results.MergedEntity(id=entity.id, name=entity.name, into=into[0].id, into_name=into[0].name)
                for entity in entities["entities_gone"]
                if (into := new.entities([entity.id]))
            ),
            truncated=any(count > limit for count in total.values()),
            total=total,
        )

    @of_one_moment
    def changes(self, *, group: str, since: int = 0, limit: int = 200) -> results.Changes:
        """Return the commits after `since`, the number (record time) of a commit, in order.

        Each has its ended entries, and its opened and ended facts. Returns about `limit` rows; a commit is
        never cut in two.
        """
        check_limit(limit)
        if not 0 <= since <= 1 << 62:
            raise InputError("since must be the number of a commit, or 0", field="since")
        begin = [since + 1]
        opened = ((row.created_at, row.id) for row in self.store.rows(reads.FACTS_OPENED, group, begin))
        expired = ((row.expired_at, row.id) for row in self.store.rows(reads.FACTS_EXPIRED, group, begin))
        if in_pieces(self.store, group):  # the stored rows are outdated (R27)
            facts = answers.derived(self.store, group, None).all_facts()
            opened = (pair for pair in sorted((f.created_at, f.id) for f in facts) if pair[0] > since)
            expired = (pair for pair in sorted((f.expired_at or 0, f.id) for f in facts) if pair[0] > since)

        def entry(
            row: EndedEpisodeRow | EndedOperationRow, at: Instant, kind: str, state: str, **ids: str | None
        ) -> tuple[Any, ...]:
            return at, "entries", results.LogEntry(type=kind, sequence=row.sequence, state=state, **ids)

        events = heapq.merge(
            (
                entry(
                    row, row.ended_at, "episode", rows.STATES[row.state], id=row.id, client_id=row.client_id
                )
                for row in self.store.rows(reads.EPISODES_SINCE, group, begin)
                if row.state in (kinds.COMMITTED, kinds.FAILED)
            ),
            (
                entry(row, row.recorded_at, row.kind, "done" if row.state == kinds.DONE else "refused")
                for row in self.store.rows(reads.OPERATIONS_SINCE, group, begin)
            ),
            ((at, "opened", id_) for at, id_ in opened),
            ((at, "ended", id_) for at, id_ in expired),
            key=itemgetter(0),
        )
        commits, size, last, more = list[results.Commit](), 0, since, False
        for at, commit_events in groupby(events, key=itemgetter(0)):
            if more := size >= limit:
                break
            items: dict[str, list[Any]] = {"entries": [], "opened": [], "ended": []}
            for _, kind, item in commit_events:
                items[kind].append(item)
            size += 1 + sum(map(len, items.values()))
            last = at
            lists: dict[str, Any] = {kind: tuple(listed) for kind, listed in items.items()}
            commits.append(results.Commit(commit=at, at=to_datetime(at), **lists))
        return results.Changes(commits=tuple(commits), last=last, more=more)

    @of_one_moment
    def log(
        self, *, group: str, after: int = 0, state: str | None = None, limit: int = 100
    ) -> results.LogPage:
        """Return a page of the accepted episodes, by sequence.

        It omits retired episodes, and may be shorter than `limit`: follow `next`.
        """
        check_limit(limit)
        if not 0 <= after <= 1 << 62:
            raise InputError("after must be a sequence, or 0", field="after")
        if state is not None and state not in rows.STATES:
            raise InputError(f"state {state!r} is none of {', '.join(rows.STATES)}", field="state")
        chosen, at, next_sequence = list[int](), after, None
        for looked, row in enumerate(self.store.rows(reads.EPISODE_HEADS, group, [at])):
            if looked == _MAX_EXAMINED or len(chosen) == limit:
                next_sequence = at
                break
            at = row.sequence
            if row.retired_at is None and (state is None or rows.STATES[row.state] == state):
                chosen.append(at)
        episodes = answers.logged_episodes(self.store, group, chosen)
        return results.LogPage(episodes=tuple(episodes), next=next_sequence)

    @of_one_moment
    def episode(self, identifier: str, *, group: str) -> results.LoggedEpisode:
        """Return one episode by its id or the client's: text, state, both clocks. Raises NotFound."""
        sequences = sequences_of(self.store, group, [identifier])
        episodes = [*answers.logged_episodes(self.store, group, sequences)]
        if not episodes:
            raise NotFound(f"group {group} has no episode {identifier!r}")
        return episodes[-1]

    @of_one_moment
    def operation(self, sequence: int, *, group: str) -> results.Operation:
        """Return a correction with its state and result. Raises NotFound."""
        for row in self.store.rows(reads.OPERATIONS_AT, group, [sequence]):
            states: tuple[Literal["pending", "done", "refused"], ...] = ("pending", "done", "refused")
            answer = result(self.store, group, sequence)
            return results.Operation(sequence=sequence, kind=row.kind, state=states[row.state], result=answer)
        raise NotFound(f"group {group} has no operation {sequence}")

    def view_at(self, group: str, known_at: Instant | None) -> GraphView:
        """Return the graph as known then (None: now); to be called within the snapshot that reads it."""
        last = self.store.heads([group])[group].last_recorded if known_at is not None else 0
        if known_at is None or known_at >= last:  # nothing was recorded since: the store holds what was known
            return view_now(self.store, group)
        # A view is valid until the group's next record, because what is removed since must not show.
        key = (group, known_at, last)
        if (view := self._views.pop(key, None)) is None:
            self.on_view()
            view = answers.derived(self.store, group, known_at)
        self._views[key] = view
        for old in list(self._views)[:-_VIEWS]:
            self._views.pop(old, None)  # None: another thread may have removed it
        return view

    def _outline_of(self, view: GraphView, known_at: Instant | None) -> Outline:
        """Return the outline of a view of `view_at`; kept until the group's next record, as views are."""
        key = (view.group, known_at, self.store.heads([view.group])[view.group].last_recorded)
        if (outline := self._outlines.pop(key, None)) is None:
            outline = Outline.read(self.store, view)
        self._outlines[key] = outline
        for old in list(self._outlines)[:-_OUTLINES]:
            self._outlines.pop(old, None)
        return outline


def _alike(
    state: GroupState, note: EntityNote, vectors: dict[tuple[str, str], Any]
) -> Iterator[tuple[EntityNote, float, str]]:
    """Yield (entity, score, reason) for entities with a similar name, by the look-ups that resolve mentions.

    Digits must agree, and known types must overlap.
    """

    def may_be_one(candidate: EntityNote) -> bool:
        types_agree = (
            not note.labels or not candidate.labels or not set(note.labels).isdisjoint(candidate.labels)
        )
        return candidate.id != note.id and types_agree and digits_of(note.name) == digits_of(candidate.name)

    for surface, owner in note.surfaces.items():
        match = code_match(surface)
        for id_ in dict.fromkeys((*state.names.near(surface), *state.names.coded(surface))):
            candidate = state.graph.entities.get(id_)
            if candidate is None or not may_be_one(candidate):
                continue
            kind = likeness(surface, candidate.name)
            if kind is None and any(match(name) is not None for name in candidate.surfaces):
                kind = "acronym"
            if kind is not None and (kind != "surname" or "Person" in (*note.labels, *candidate.labels)):
                yield candidate, *_LIKENESS_SCORES[kind]
        vector = vectors.get((owner, surface))
        near = () if vector is None else state.near_scored(vector, NAME_FLOOR, _NEAREST)
        for cosine, id_ in near:
            if may_be_one(candidate := state.graph.entities[id_]):
                yield candidate, 0.5 * cosine, f"names of like spelling or meaning (cosine {cosine:.2f})"
