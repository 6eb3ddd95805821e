"""The Parquet tables of Microsoft's GraphRAG 3."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgray.graph import Entity, Fact
from kgray.interchange.files import Rows, sentence
from kgray.interchange.snapshot import ExportedCommunity, Snapshot
from kgray.interchange.tables import TEXTS, write_table
from kgray.prompting.tokens import count_tokens
from kgray.records import canonical, make_id
from kgray.times import show

_FACTS = 50  # of an entity, that its description tells
_DOCUMENT = 1_000_000  # characters of a document; a source with more becomes several documents
_COUNT_DEGREES = """
INSERT INTO degrees SELECT entity, count(*) FROM (
    SELECT source AS entity FROM facts WHERE target IS NOT NULL
    UNION ALL SELECT target FROM facts WHERE target IS NOT NULL
) GROUP BY entity
"""
# (source, characters): the characters of the source so far.
_ADD_SIZE = (
    "INSERT INTO sizes VALUES (?, ?) ON CONFLICT DO UPDATE SET size = size + excluded.size RETURNING size"
)
_DOCUMENTS = (
    "SELECT source, part, json_group_array(sequence ORDER BY sequence) FROM documents GROUP BY source, part "
    "ORDER BY min(sequence)"
)
_NUMBERS, _FINDINGS = (
    pa.list_(pa.int64()),
    pa.list_(pa.struct([("explanation", pa.string()), ("summary", pa.string())])),
)
_TYPES = {"text": pa.string(), "int": pa.int64(), "float": pa.float64(), "texts": TEXTS, "ints": _NUMBERS}
_CLOCKS = "valid_at invalid_at created_at expired_at"
_TABLES: Mapping[str, str] = {
    "documents": "id human_readable_id:int title text text_unit_ids:texts creation_date raw_data",
    "text_units": "id human_readable_id:int text n_tokens:int document_id entity_ids:texts "
    "relationship_ids:texts covariate_ids:texts client_id speaker reference_time recorded_at",
    "entities": "id human_readable_id:int title type description text_unit_ids:texts frequency:int "
    "degree:int name aliases:texts labels:texts",
    "relationships": "id human_readable_id:int source target description weight:float "
    f"combined_degree:int text_unit_ids:texts relation statement {_CLOCKS}",
    "communities": "id human_readable_id:int community:int level:int parent:int children:ints title "
    "entity_ids:texts relationship_ids:texts text_unit_ids:texts period size:int",
    "community_reports": "id human_readable_id:int community:int level:int parent:int children:ints title "
    "summary full_content rank:float rating_explanation findings:findings full_content_json period size:int",
    "covariates": "id human_readable_id:int covariate_type type description subject_id object_id status "
    f"start_date end_date source_text text_unit_id statement {_CLOCKS}",
}


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write a folder. A fact between entities is a relationship and a claim, one with a value a claim."""
    tables, about, rows = _Tables(snapshot), snapshot.about(), Rows()
    for name, columns in _TABLES.items():
        fields = [column.partition(":")[::2] for column in columns.split()]
        types = _TYPES | {"findings": _FINDINGS}
        schema = pa.schema([(column, types[type_ or "text"]) for column, type_ in fields])
        rows[name] = write_table(path / f"{name}.parquet", schema, getattr(tables, name)(), about)
    return rows


class _Tables:
    """Yields the rows of each table. No text is null: a model would read "nan"."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._scratch = snapshot, snapshot.scratch
        self._scratch.execute("CREATE TABLE degrees (entity TEXT PRIMARY KEY, degree INT)")
        self._scratch.execute("CREATE TABLE documents (sequence INTEGER PRIMARY KEY, source TEXT, part INT)")
        snapshot.fact_rows.execute(_COUNT_DEGREES)
        self._divide_sources()

    def _divide_sources(self) -> None:
        """Assign the episodes to documents: those of a source, at most _DOCUMENT characters each."""
        self._scratch.execute("CREATE TABLE sizes (source TEXT PRIMARY KEY, size INT)")
        for one in self._snapshot.episodes():
            source, length = one.episode.source, len(one.spoken_text) + 1
            ((size,),) = self._scratch.rows(_ADD_SIZE, (source, length))
            self._scratch.execute(
                "INSERT INTO documents VALUES (?, ?, ?)",
                (one.episode.sequence, source, (size - length) // _DOCUMENT),
            )

    def documents(self) -> Iterator[tuple[Any, ...]]:
        for number, (source, part, sequences) in enumerate(self._scratch.rows(_DOCUMENTS)):
            texts, ids, first = list[str](), list[str](), ""
            for one in self._snapshot.episodes_at(json.loads(sequences)):
                texts.append(one.spoken_text)
                ids.append(one.episode.id)
                first = first or show(one.episode.reference_time) or ""
            yield self._document(source, part), number, source, "\n".join(texts), ids, first, ""

    def _document(self, source: str, part: int) -> str:
        return make_id("document", self._snapshot.group, source, *([str(part)] if part else []))

    def text_units(self) -> Iterator[tuple[Any, ...]]:
        for number, item in enumerate(self._snapshot.episodes()):
            one, facts = item.episode, list(self._snapshot.facts_in(item.episode.id))
            (part,) = self._scratch.first("SELECT part FROM documents WHERE sequence = ?", (one.sequence,))
            yield (
                one.id, number, item.spoken_text, count_tokens(item.spoken_text),
                self._document(one.source, part), self._snapshot.entities_in(one.sequence),
                [f.id for f in facts if f.target is not None],
                [f.id for f in facts if f.episodes[0] == one.id], one.client_id or "", one.speaker or "",
                show(one.reference_time), show(item.recorded_at),
            )  # fmt: skip

    def _degree(self, entity: str) -> int:
        row = self._scratch.first("SELECT degree FROM degrees WHERE entity = ?", (entity,))
        return row[0] if row else 0

    def entities(self) -> Iterator[tuple[Any, ...]]:
        for number, one in enumerate(self._snapshot.entities()):
            episodes_of = self._snapshot.episodes_of(one.id)
            facts = self._snapshot.facts_of(one.id, limit=_FACTS)
            yield (
                one.id, number, self._snapshot.name_of(one.id), one.labels[0] if one.labels else "",
                _description(one, facts), episodes_of, len(episodes_of), self._degree(one.id),
                one.name, list(one.aliases), list(one.labels),
            )  # fmt: skip

    def relationships(self) -> Iterator[tuple[Any, ...]]:
        between = (fact for fact in self._snapshot.facts("time") if fact.target is not None)
        for number, fact in enumerate(between):
            yield (
                fact.id, number, self._snapshot.name_of(fact.source), self._snapshot.object_of(fact),
                sentence(fact), float(len(fact.episodes)), sum(map(self._degree, fact.ends)),
                list(fact.episodes), fact.relation, fact.statement, *_clocks(fact),
            )  # fmt: skip

    def covariates(self) -> Iterator[tuple[Any, ...]]:
        for number, fact in enumerate(self._snapshot.facts("time")):
            start, end = show(fact.valid_at) or "NONE", show(fact.invalid_at) or ""
            yield (
                fact.id, number, "claim", fact.relation, fact.text, self._snapshot.name_of(fact.source),
                self._snapshot.object_of(fact), "TRUE", start, end, "", next(iter(fact.episodes), ""),
                fact.statement, *_clocks(fact),
            )  # fmt: skip

    @cached_property
    def _inside(self) -> dict[int, list[Fact]]:
        """Community -> the facts between its members."""
        places = self._snapshot.places
        found = defaultdict[int, list[Fact]](list)
        for fact in self._snapshot.facts("time") if places else ():
            for number in set.intersection(
                *({one.number for one in places.get(end, ())} for end in fact.ends)
            ):
                found[number].append(fact)
        return found

    def communities(self) -> Iterator[tuple[Any, ...]]:
        for one in self._snapshot.communities:
            inside = self._inside[one.number]
            units = sorted({id_ for fact in inside for id_ in fact.episodes})
            ids = [fact.id for fact in inside if fact.target is not None]
            # GraphRAG keeps one report of those with one title.
            columns = (f"Community {one.number}", list(one.members), ids, units)
            yield (*_place(one), *columns, one.text_time.date().isoformat(), len(one.members))

    def community_reports(self) -> Iterator[tuple[Any, ...]]:
        for one in self._snapshot.communities:
            report, summary = one.community.report, one.community.summary
            rank, reason = float(report.get("rating") or 1.0), str(report.get("reason") or "")
            period = one.text_time.date().isoformat()
            written = canonical(
                {"title": one.title, "summary": summary, "rating": rank, "findings": one.findings}
            )
            yield (
                *_place(one), one.title, summary, one.report_text, rank, reason, one.findings, written,
                period, len(one.members),
            )  # fmt: skip


def _place(one: ExportedCommunity) -> tuple[Any, ...]:
    """Return the columns with which a community and its report begin."""
    parent = -1 if one.parent is None else one.parent
    return one.community.id, one.number, one.number, one.depth, parent, list(one.children)


def _description(entity: Entity, facts: Iterable[Fact]) -> str:
    known = [f"Also called {', '.join(entity.aliases)}."] if entity.aliases else []
    return "\n".join([*known, *map(sentence, facts)]) or entity.summary or entity.name


def _clocks(fact: Fact) -> list[str]:
    return [show(getattr(fact, name)) or "" for name in _CLOCKS.split()]
