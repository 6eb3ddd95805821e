"""The Parquet tables of Microsoft's GraphRAG 3."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
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
        self._snapshot, self._names = snapshot, snapshot.names
        self._facts = snapshot.ordered_facts()
        self._mentions = snapshot.mentions()
        self._degrees = Counter(end for f in self._facts if f.target is not None for end in f.ends)
        self._sources: dict[str, list[str]] = defaultdict(list)
        self._episodes_of: dict[str, list[str]] = defaultdict(list)  # entity -> episodes
        for one in snapshot.episodes():
            self._sources[one.episode.source].append(one.episode.id)
            for entity in self._mentions.get(one.episode.sequence, ()):
                self._episodes_of[entity].append(one.episode.id)
        self._by_episode: dict[str, list[Fact]] = defaultdict(list)
        for fact in self._facts:
            for id_ in fact.episodes:
                self._by_episode[id_].append(fact)

    def documents(self) -> Iterator[tuple[Any, ...]]:
        texts, first = defaultdict[str, list[str]](list), dict[str, str]()
        for one in self._snapshot.episodes():
            texts[one.episode.source].append(one.spoken_text)
            first.setdefault(one.episode.source, show(one.episode.reference_time) or "")
        for number, (source, ids) in enumerate(self._sources.items()):
            text = "\n".join(texts.pop(source))
            yield self._document(source), number, source, text, ids, first[source], ""

    def _document(self, source: str) -> str:
        return make_id("document", self._snapshot.group, source)

    def text_units(self) -> Iterator[tuple[Any, ...]]:
        for number, item in enumerate(self._snapshot.episodes()):
            one, facts = item.episode, self._by_episode[item.episode.id]
            yield (
                one.id, number, item.spoken_text, count_tokens(item.spoken_text), self._document(one.source),
                self._mentions.get(one.sequence, []), [f.id for f in facts if f.target is not None],
                [f.id for f in facts if f.episodes[0] == one.id], one.client_id or "", one.speaker or "",
                show(one.reference_time), show(item.recorded_at),
            )  # fmt: skip

    def entities(self) -> Iterator[tuple[Any, ...]]:
        about = defaultdict[str, list[Fact]](list)
        for fact in self._facts:
            for end in fact.ends:
                if len(about[end]) < _FACTS:
                    about[end].append(fact)
        for number, one in enumerate(self._snapshot.entities):
            episodes_of = self._episodes_of[one.id]
            yield (
                one.id, number, self._names[one.id], one.labels[0] if one.labels else "",
                _description(one, about[one.id]), episodes_of, len(episodes_of), self._degrees[one.id],
                one.name, list(one.aliases), list(one.labels),
            )  # fmt: skip

    def relationships(self) -> Iterator[tuple[Any, ...]]:
        between = (fact for fact in self._facts if fact.target is not None)
        for number, fact in enumerate(between):
            yield (
                fact.id, number, self._names[fact.source], self._snapshot.object_of(fact), sentence(fact),
                float(len(fact.episodes)), sum(self._degrees[end] for end in fact.ends), list(fact.episodes),
                fact.relation, fact.statement, *_clocks(fact),
            )  # fmt: skip

    def covariates(self) -> Iterator[tuple[Any, ...]]:
        for number, fact in enumerate(self._facts):
            start, end = show(fact.valid_at) or "NONE", show(fact.invalid_at) or ""
            yield (
                fact.id, number, "claim", fact.relation, fact.text, self._names[fact.source],
                self._snapshot.object_of(fact), "TRUE", start, end, "", next(iter(fact.episodes), ""),
                fact.statement, *_clocks(fact),
            )  # fmt: skip

    @cached_property
    def _inside(self) -> dict[int, list[Fact]]:
        """Community -> the facts between its members."""
        places = defaultdict[str, set[int]](set)
        for one in self._snapshot.communities:
            for member in one.members:
                places[member].add(one.number)
        found = defaultdict[int, list[Fact]](list)
        for fact in self._facts:
            for number in set.intersection(*(places[end] for end in fact.ends)):
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


def _description(entity: Entity, facts: list[Fact]) -> str:
    known = [f"Also called {', '.join(entity.aliases)}."] if entity.aliases else []
    return "\n".join([*known, *map(sentence, facts)]) or entity.summary or entity.name


def _clocks(fact: Fact) -> list[str]:
    return [show(getattr(fact, name)) or "" for name in _CLOCKS.split()]
