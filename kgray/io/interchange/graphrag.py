"""The Parquet tables of Microsoft's GraphRAG 3: facts are relationships and claims, episodes text units."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgray.domain.graph import Entity, Fact
from kgray.domain.records import canonical, make_id
from kgray.domain.times import show
from kgray.io.interchange.files import Rows, sentence
from kgray.io.interchange.gathering import Gathered, Unit
from kgray.io.interchange.importing import REPEATED, UNNAMED, Import, known_moment, text_of, time_text
from kgray.io.interchange.snapshot import ExportedCommunity, Snapshot
from kgray.io.interchange.tables import TEXTS, read_table, write_table
from kgray.models.prompting.tokens import count_tokens

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
_INNER_FACTS = "SELECT fact, is_edge, episodes FROM inner_facts WHERE community = ? ORDER BY place"
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
        """Assign the episodes of each source to documents of about _DOCUMENT characters."""
        self._scratch.execute("CREATE TABLE sizes (source TEXT PRIMARY KEY, size INT)")
        for exported in self._snapshot.episodes():
            episode, length = exported.episode, len(exported.spoken_text) + 1
            ((size,),) = self._scratch.rows(_ADD_SIZE, (episode.source, length))
            self._scratch.execute(
                "INSERT INTO documents VALUES (?, ?, ?)",
                (episode.sequence, episode.source, (size - length) // _DOCUMENT),
            )

    def documents(self) -> Iterator[tuple[Any, ...]]:
        for number, (source, part, sequences) in enumerate(self._scratch.rows(_DOCUMENTS)):
            texts, ids, first = list[str](), list[str](), ""
            for exported in self._snapshot.episodes_at(json.loads(sequences)):
                texts.append(exported.spoken_text)
                ids.append(exported.episode.id)
                first = first or show(exported.episode.reference_time) or ""
            yield self._document(source, part), number, source, "\n".join(texts), ids, first, ""

    def _document(self, source: str, part: int) -> str:
        return make_id("document", self._snapshot.group, source, *([str(part)] if part else []))

    def text_units(self) -> Iterator[tuple[Any, ...]]:
        for number, exported in enumerate(self._snapshot.episodes()):
            episode, text = exported.episode, exported.spoken_text
            facts = list(self._snapshot.facts_in(episode.id))
            (part,) = self._scratch.first(
                "SELECT part FROM documents WHERE sequence = ?", (episode.sequence,)
            )
            yield (
                episode.id, number, text, count_tokens(text),
                self._document(episode.source, part), self._snapshot.entities_in(episode.sequence),
                [f.id for f in facts if f.target is not None],
                [f.id for f in facts if f.episodes[0] == episode.id],
                episode.client_id or "", episode.speaker or "",
                show(episode.reference_time), show(exported.recorded_at),
            )  # fmt: skip

    def _degree(self, entity: str) -> int:
        row = self._scratch.first("SELECT degree FROM degrees WHERE entity = ?", (entity,))
        return row[0] if row else 0

    def entities(self) -> Iterator[tuple[Any, ...]]:
        for number, entity in enumerate(self._snapshot.entities()):
            episodes_of = self._snapshot.episodes_of(entity.id)
            facts = self._snapshot.facts_of(entity.id, limit=_FACTS)
            yield (
                entity.id, number, self._snapshot.name_of(entity.id),
                entity.labels[0] if entity.labels else "",
                _description(entity, facts), episodes_of, len(episodes_of), self._degree(entity.id),
                entity.name, list(entity.aliases), list(entity.labels),
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

    def _fill_inner(self) -> None:
        """Fill the table of the facts between the members of each community."""
        places = self._snapshot.places
        self._scratch.execute(
            "CREATE TABLE inner_facts (community INT, place INT, fact TEXT, is_edge INT, episodes TEXT, "
            "PRIMARY KEY (community, place)) WITHOUT ROWID"
        )

        def numbers(entity: str) -> set[int]:
            return {community.number for community in places.get(entity, ())}

        inner = (
            (number, place, fact.id, fact.target is not None, json.dumps(fact.episodes))
            for place, fact in enumerate(self._snapshot.facts("time") if places else ())
            for number in set.intersection(*map(numbers, fact.ends))
        )
        self._scratch.pour("INSERT INTO inner_facts VALUES (?, ?, ?, ?, ?)", inner)

    def communities(self) -> Iterator[tuple[Any, ...]]:
        self._fill_inner()
        for community in self._snapshot.communities:
            ids, episodes = list[str](), set[str]()
            for fact, is_edge, fact_episodes in self._scratch.rows(_INNER_FACTS, (community.number,)):
                ids += [fact] if is_edge else []
                episodes.update(json.loads(fact_episodes))
            # GraphRAG keeps a single report of each title, so titles are numbers.
            columns = (f"Community {community.number}", list(community.members), ids, sorted(episodes))
            period = community.text_time.date().isoformat()
            yield (*_place(community), *columns, period, len(community.members))

    def community_reports(self) -> Iterator[tuple[Any, ...]]:
        for community in self._snapshot.communities:
            report, summary = community.community.report, community.community.summary
            title, findings = community.title, community.findings
            rank, reason = float(report.get("rating") or 1.0), str(report.get("reason") or "")
            content = canonical({"title": title, "summary": summary, "rating": rank, "findings": findings})
            yield (
                *_place(community), title, summary, community.report_text, rank, reason, findings, content,
                community.text_time.date().isoformat(), len(community.members),
            )  # fmt: skip


def _place(community: ExportedCommunity) -> tuple[Any, ...]:
    """Return the first columns of a community, and of its report."""
    number, parent = community.number, -1 if community.parent is None else community.parent
    return community.community.id, number, number, community.depth, parent, list(community.children)


def _description(entity: Entity, facts: Iterable[Fact]) -> str:
    aliases = [f"Also called {', '.join(entity.aliases)}."] if entity.aliases else []
    return "\n".join([*aliases, *map(sentence, facts)]) or entity.summary or entity.name


def _clocks(fact: Fact) -> list[str]:
    return [show(getattr(fact, name)) or "" for name in _CLOCKS.split()]


_UNKNOWN = frozenset({"", "NONE"})


def units(path: Path, importing: Import) -> Iterator[Unit]:
    """Yield the text units, oldest first, then the facts without a text unit. Raises InputError."""
    gathered = importing.gathered
    for row in read_table(path / "entities.parquet", ("title",)):
        gathered.add_name(title := text_of(row["title"]), title)
    if (path / "covariates.parquet").exists():
        _gather_claims(path / "covariates.parquet", importing)
    _gather_relationships(path / "relationships.parquet", importing)
    if (path / "text_units.parquet").exists():
        _gather_texts(path, gathered)
    importing.omitted["entities in no fact"] += gathered.without_facts()
    for table in ("communities", "community_reports"):
        if (path / f"{table}.parquet").exists():
            count = sum(1 for _ in read_table(path / f"{table}.parquet", ("id",)))
            importing.omitted[f"{table.replace('_', ' ')}: `kgray communities refresh` makes them"] += count
    yield from gathered.units()


def _gather_claims(path: Path, importing: Import) -> None:
    columns = ("id", "type", "subject_id", "object_id", "status", "start_date", "end_date", "description")
    for row in read_table(path, columns, ("text_unit_id",)):
        status, name = text_of(row["status"]).upper(), text_of(row["object_id"])
        if status == "SUSPECTED":
            importing.omitted["claims that are only suspected"] += 1
            continue
        if name.upper() in _UNKNOWN:
            importing.omitted["claims without an object"] += 1
            continue
        is_entity = importing.gathered.name(name) is not None
        fact = {
            "source": text_of(row["subject_id"]),
            "relation": text_of(row["type"]),
            **({"target": name} if is_entity else {"value": {"type": "text", "value": name}}),
            "text": text_of(row["description"]),
            "valid_at": time_text(row["start_date"]),
            "invalid_at": time_text(row["end_date"]),
            **({"denied": True} if status == "FALSE" else {}),
        }
        home = text_of(row["text_unit_id"])
        is_new = importing.gathered.add_fact(text_of(row["id"]), fact, [home] if home else ())
        importing.omitted[REPEATED] += not is_new


def _gather_relationships(path: Path, importing: Import) -> None:
    """Add the relationships without a claim; kgray's own export has a claim of the same id for each."""
    pairs = ("id", "source", "target", "description", "text_unit_ids")
    for row in read_table(path, pairs, ("relation", "valid_at", "invalid_at"), lists=("text_unit_ids",)):
        id_, homes = text_of(row["id"]), list(map(text_of, row["text_unit_ids"] or ()))
        if importing.gathered.has_fact(id_):
            importing.gathered.support(id_, homes)
            continue
        if not (relation := text_of(row["relation"])):
            importing.changed[f"relationships without the name of a relation: {UNNAMED}"] += 1
        if not (start := time_text(row["valid_at"])):
            importing.changed["facts without dates"] += 1
        fact = {
            "source": text_of(row["source"]), "relation": relation or UNNAMED,
            "target": text_of(row["target"]), "text": text_of(row["description"]), "valid_at": start,
            "invalid_at": time_text(row["invalid_at"]),
        }  # fmt: skip
        importing.gathered.add_fact(id_, fact, homes)


def _gather_texts(path: Path, gathered: Gathered) -> None:
    """Add the text units; a unit without a time has the time of its document."""
    if (documents := path / "documents.parquet").exists():
        for row in read_table(documents, ("id", "title"), ("creation_date",)):
            at = known_moment(row["creation_date"])
            gathered.add_note(text_of(row["id"]), text_of(row["title"])[:256], at)
    optional, lists = (
        ("document_id", "document_ids", "reference_time"),
        ("document_ids",),
    )  # GraphRAG 2 has lists
    for row in read_table(path / "text_units.parquet", ("id", "text"), optional, lists=lists):
        document = row["document_id"] or next(iter(row["document_ids"] or ()), None)
        title, made_at = gathered.note(text_of(document)) or ("", None)
        at = known_moment(row["reference_time"]) if row["reference_time"] else made_at
        gathered.add_text(Unit(id=text_of(row["id"]), at=at, text=text_of(row["text"]), source=title))
