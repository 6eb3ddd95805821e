"""Reads for exploring a group: names to complete, why a fact is known, communities as one graph, exports."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import islice
from pathlib import Path

from kgray.communities.reading import list_of, owners_of
from kgray.domain.records import check_group
from kgray.domain.times import to_datetime
from kgray.errors import InputError, NotFound
from kgray.graph.stored import view_now
from kgray.io.interchange import exporting, formats
from kgray.memory import answers, results
from kgray.memory.options import When, check_limit, instant_of
from kgray.memory.outline import texts
from kgray.memory.reads import GroupReads, of_one_moment
from kgray.ports.ingest import Stop, never
from kgray.schema import reads, rows
from kgray.schema.record_rows import UnpackedRecords, judgements
from kgray.schema.rows import folded
from kgray.storage.ledger import episodes_at, sequences_of
from kgray.system.garbage import garbage_not_collected

_NEAR = 12  # log entries on each side among which the conversation around a message is looked for
_NAME_LISTS = 4  # groups whose names are held for completion
Names = list[tuple[str, str, str, str, int]]  # folded name, name, entity id, the entity's name, its facts


class Exploration(GroupReads):
    """Further reads of one store."""

    @of_one_moment
    def complete(self, /, query: str, *, group: str, limit: int = 10) -> list[results.NameMatch]:
        """Return entities with a name, or a word of a name, that begins with the query; most facts first.

        The names of a group are read once after each commit, then held.
        """
        check_limit(limit)
        beginning = folded(query)
        chosen: dict[str, results.NameMatch] = {}
        for begins in (True, False):
            for key, name, id_, entity_name, facts in self._names_of(group):
                if id_ not in chosen and (key.startswith(beginning) if begins else f" {beginning}" in key):
                    chosen[id_] = results.NameMatch(id=id_, name=entity_name, matched=name, facts=facts)
                    if len(chosen) == limit:
                        return [*chosen.values()]
        return [*chosen.values()]

    def _names_of(self, group: str) -> Names:
        """Return the names of a group; names of entities with most facts come first."""
        last = self.store.heads([group])[group].last_recorded
        cache: dict[str, tuple[int, Names]] = self.__dict__.setdefault("_names", {})
        at, names = cache.pop(group, (-1, []))
        if at != last:
            outline = self._outline_of(view_now(self.store, group), None)
            counts = dict(
                zip(texts(outline.entities), outline.degrees(outline.holding(None)).tolist(), strict=True)
            )
            with garbage_not_collected():
                names = [
                    (folded(name), name, entity.id, entity.name, counts.get(entity.id, 0))
                    for entity in self.store.rows(reads.ENTITY_NAMES, group)
                    for name in (entity.name, *entity.aliases)
                ]
            names.sort(key=lambda row: (-row[4], row[3], row[2], row[1] != row[3]))
        cache[group] = last, names
        for old in list(cache)[:-_NAME_LISTS]:
            cache.pop(old, None)
        return names

    @of_one_moment
    def provenance(
        self, /, identifier: str, *, group: str, around: int = 2, limit: int = 50
    ) -> results.Provenance:
        """Return the reasons for a fact: its spans, evidence, messages, its end, and the models' answers.

        identifier  of a fact or statement, or its beginning
        around      messages of the same source before and after each message of the evidence
        limit       of the evidence, and of the messages that support it or ended a span
        Raises NotFound where this names no fact.
        """
        check_limit(limit)
        if not 0 <= around <= _NEAR:
            raise InputError(f"around is {around}: use 0 to {_NEAR}", field="around")
        id_, view = answers.id_called(self.store, group, identifier), view_now(self.store, group)
        facts = view.facts([id_]) or view.facts_of([id_], None)
        if not facts:
            raise NotFound(f"group {group} has no fact {identifier!r}: it names something else")
        statement = facts[0].statement
        facts = sorted(view.facts_of([statement], None), key=lambda f: (f.valid_at or 0, f.id))
        ends = [fact.ended_by for fact in facts if fact.ended_by is not None][:limit]
        supporters = sorted({id_ for fact in facts for id_ in fact.episodes})
        support = sequences_of(self.store, group, supporters)
        evidence = self._evidence(group, support, statement)
        total, evidence = len(evidence), evidence[:limit]
        ending = sequences_of(self.store, group, sorted({id_ for id_, _ in ends}))
        marked = {(row.episode, row.ordinal) for row in evidence} | set(ends)
        chosen = dict.fromkeys(self._around([*support, *ending][:limit], group, around), "around")
        chosen |= dict.fromkeys(ending, "end") | dict.fromkeys(support, "evidence")
        episodes = answers.logged_episodes(self.store, group, sorted(chosen), marked)
        return results.Provenance(
            statement=statement,
            facts=answers.fact_spans(self.store, view, facts),
            evidence=tuple(evidence),
            verdicts=tuple(self._verdicts(group, {statement, *(row.recorded for row in evidence)})[:limit]),
            messages=tuple(
                results.SupportingEpisode(
                    **{field.name: getattr(episode, field.name) for field in fields(episode)},
                    role=chosen[episode.sequence],
                )
                for episode in episodes
            ),
            models=tuple(self._models(group, support)),
            truncated=total > limit,
        )

    def _evidence(self, group: str, sequences: list[int], statement: str) -> list[results.EvidenceRow]:
        """Return the evidence of these episodes about a statement as it shows."""
        records = UnpackedRecords()
        records.take(self.store.rows(reads.PACKED_AT, group, sequences), {})
        moved = self.store.rows(reads.SHOWN_BY_EVIDENCE, group, sequences)
        current = {(row.sequence, row.ordinal): row.shown for row in moved}
        ids = {record.sequence: record.id for record in episodes_at(self.store, group, sequences)}
        names = ("ordinal", "kind", "text", "from_precision", "to_precision", "inferred")
        return [
            results.EvidenceRow(
                episode=ids[record.sequence],
                statement=statement,
                recorded=record.statement,
                valid_from=None if record.valid_from is None else to_datetime(record.valid_from),
                valid_to=None if record.valid_to is None else to_datetime(record.valid_to),
                **{name: getattr(record, name) for name in names},
            )
            for record in records.evidence
            if current.get((record.sequence, record.ordinal), record.statement) == statement
        ]

    def _verdicts(self, group: str, statements: set[str]) -> list[results.ContradictionVerdict]:
        """Return the verdicts that exclude two of these statements; a pass over all verdicts of the group."""
        return [
            results.ContradictionVerdict(a=verdict.a, b=verdict.b, judge=verdict.judge, reason=verdict.reason)
            for row in self.store.rows(reads.JUDGED, group)
            for verdict, _ in judgements(row.judged).verdicts
            if verdict.exclusive and statements & {verdict.a, verdict.b}
        ]

    def _around(self, sequences: list[int], group: str, around: int) -> list[int]:
        """Return the sequences of the nearest live episodes of the same source, on both sides of each."""
        sequences_near: list[int] = []
        for sequence in sequences if around else ():
            start = max(0, sequence - _NEAR - 1)
            near = islice(self.store.rows(reads.EPISODE_HEADS, group, [start]), 2 * _NEAR + 1)
            heads = [row for row in near if row.retired_at is None and abs(row.sequence - sequence) <= _NEAR]
            source = next((row.source for row in heads if row.sequence == sequence), None)
            siblings = [row.sequence for row in heads if row.source == source]
            sequences_near += [s for s in siblings if s < sequence][-around:] + [
                s for s in siblings if s > sequence
            ][:around]
        return sequences_near

    def _models(self, group: str, sequences: list[int]) -> list[results.ModelReply]:
        """Return the models' answers about these episodes: facts, costs, and omitted content."""
        replies = []
        for row in self.store.rows(reads.EXTRACTIONS_AT, group, sequences):
            extraction, costs = rows.extraction(row), ("calls", "prompt_tokens", "completion_tokens")
            replies.append(
                results.ModelReply(
                    sequence=row.sequence,
                    model=extraction.model,
                    dropped=tuple(extraction.dropped),
                    reply=json.loads(row.body),
                    **{name: getattr(row, name) for name in costs},
                )
            )
        return replies

    @of_one_moment
    def overview(
        self, /, *, group: str, level: int = 0, limit: int = 200, known_at: When | None = None
    ) -> results.Overview:
        """Return a level's communities, largest first, and how many facts connect each two of them.

        The links are of today, with facts of any time; known_at chooses the run of the communities alone.
        """
        check_limit(limit)
        instant = instant_of(known_at, "known_at")
        every = list_of(self.store, group, level, instant)
        outline = self._outline_of(view_now(self.store, group), None)
        links = outline.links(
            owners_of(self.store, group, level, instant), [community.id for community in every[:limit]]
        )
        return results.Overview(
            communities=tuple(every[:limit]),
            links=tuple(links[: 4 * limit]),
            truncated=len(every) > limit,
            total={"communities": len(every), "links": len(links)},
        )

    async def export(
        self, path: str | Path, *, to: str, group: str,
        as_of: When | None = None, known_at: When | None = None, stop: Stop = never,
    ) -> formats.Report:  # fmt: skip
        """Write a group in another tool's format (docs/interchange.md); the same graph gives the same bytes.

        path    a file that is not there yet; for formats of several files a folder that is new or empty
        as_of   only facts that hold then; None = all spans
        stop    if it returns True, the export leaves nothing and raises Stopped
        Raises NotFound; InputError for an unknown format, or where something is at the path; StoreError.
        """
        moments = {"as_of": instant_of(as_of, "as_of"), "known_at": instant_of(known_at, "known_at")}
        if nothing := answers.no_group(self.store, check_group(group)):
            raise NotFound(nothing)
        return exporting.export(self.store, group, to, Path(path), stop=stop, **moments)
