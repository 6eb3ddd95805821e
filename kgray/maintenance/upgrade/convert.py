"""Convert the rows of an earlier version to values of this version, without calls of a model.

row of version 0.1          becomes
mention                     a mention; its name and the episode's answers say how it was resolved (R14a)
evidence                    evidence; its ends give the direction (R17c), its extraction says if it is a field
ruling of the ontology      a declaration, and a second declaration that the ontology lists the name
ruling of a model           see `kgray.maintenance.upgrade.rulings`
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kgray.domain.ontology import Ontology
from kgray.domain.records import Declaration, Evidence, Mention, ResolvedBy, Value, Verdict
from kgray.errors import Cost
from kgray.graph import names
from kgray.graph.names import FOLDS
from kgray.ingest.candidates import likeness
from kgray.maintenance.upgrade.content import Answer, GroupContent, NameVector, TextVector, Timed
from kgray.ports import GroupHead
from kgray.schema.kinds import COMMITTED, DONE, PENDING
from kgray.storage.earlier import OldRow

ONTOLOGY = "ontology"  # the judge of a ruling that people made
_UNCHANGED_KINDS = (
    "episodes operations extractions holds community_runs communities access_keys audit webhooks schedules"
).split()
_DATES = (
    "valid_from valid_to from_precision to_precision inferred fact_group every_variant is_reversed is_field"
)
_MENTION, _EVIDENCE = (
    "sequence ordinal surface entity type sentence key resolved_by",
    f"sequence ordinal statement variant kind relation text subject object {_DATES}",
)
_CODE = ("equal", "initials")  # the likenesses that let code identify two names (R15)
Read = Callable[[str], list[OldRow]]  # the rows of a kind, in order of their keys


def content_of(name: str, head: GroupHead, read: Read, ontology: Ontology, *, is_first: bool) -> GroupContent:
    """Return the content of a group, without the verdicts and attachments from rulings of models.

    read        reads a kind of rows of the group
    ontology    of the settings: it gives the main name of synonyms
    is_first    whether the rows are of version 0.1
    """
    content = GroupContent(
        name=name,
        head=head,
        rows={kind: read(kind) for kind in _UNCHANGED_KINDS},
        answers=_answers(read("answers"), read("answer_uses")),
        mentions=[_mention(row) for row in read("mentions")],
        evidence=[_evidence(row) for row in read("evidence")],
        births={row.id: (row.sequence, row.ordinal) for row in read("births")},
        declarations=[
            _timed(Declaration, "sequence ordinal name aspect value other", r) for r in read("declarations")
        ],
        verdicts=[
            _timed(Verdict, "sequence ordinal a b exclusive judge reason", r) for r in read("verdicts")
        ],
        names=[
            NameVector(row.entity, row.surface, (row.sequence, row.ordinal), row.vector)
            for row in sorted(read("name_vectors"), key=lambda row: (row.sequence, row.ordinal))
        ],
        statements={row.id: TextVector(row.vector, row.weights) for row in read("statement_vectors")},
        episodes={row.sequence: TextVector(row.vector, row.weights) for row in read("episode_vectors")},
    )
    _finish_removals(content)
    if is_first:
        content.mentions = _resolved(content)
        content.evidence = _directed(content)
        content.declarations = _declared(read("rulings"), content, ontology)
        _note_contexts(content)
    return content


def _mention(row: OldRow) -> Mention:
    span = None if row.span_from is None else (row.span_from, row.span_to)
    return Mention(**{column: getattr(row, column) for column in _MENTION.split()}, span=span)


def _evidence(row: OldRow) -> Evidence:
    value = None if row.value_type is None else Value(row.value_type, row.value, row.unit)
    return Evidence(**{column: getattr(row, column) for column in _EVIDENCE.split()}, value=value)


def _timed(made_as: Callable[..., Any], columns: str, row: OldRow) -> Timed[Any]:
    value = made_as(**{column: getattr(row, column) for column in columns.split()})
    return Timed(value, row.recorded_at, row.retired_at)


def _answers(rows: Iterable[OldRow], uses: Iterable[OldRow]) -> list[Answer]:
    used_by: dict[str, list[int]] = defaultdict(list)
    for use in uses:
        used_by[use.request].append(use.sequence)
    return [
        Answer(
            row.request,
            Cost(row.calls, row.prompt_tokens, row.completion_tokens),
            row.body,
            tuple(sorted(used_by[row.request])),
        )
        for row in rows
    ]


def _finish_removals(content: GroupContent) -> None:
    """Complete retractions and removals that were carried out in part, and drop the removed rows."""
    removed: set[int] = set()
    operations = []
    for row in content.rows["operations"]:
        if row.state == PENDING and row.result is not None:
            if row.kind == "remove":
                removed |= _named_by(row, content.rows["episodes"])
            row = row._replace(state=DONE, payload="{}")  # noqa: PLW2901 - the converted row
        operations.append(row)
    content.rows = {**content.rows, "operations": operations}
    if not removed:
        return
    for kind in ("episodes", "extractions"):
        content.rows[kind][:] = [row for row in content.rows[kind] if row.sequence not in removed]
    content.answers = [answer for answer in content.answers if removed.isdisjoint(answer.used_by)]
    content.mentions = [mention for mention in content.mentions if mention.sequence not in removed]
    content.evidence = [item for item in content.evidence if item.sequence not in removed]
    content.episodes = {at: vector for at, vector in content.episodes.items() if at not in removed}
    entities = {mention.entity for mention in content.mentions}
    entities |= {i for o in content.corrections() for i in (*o.entities, o.made)}
    statements = {item.statement for item in content.evidence}
    borne = {(mention.entity, mention.surface) for mention in content.mentions}
    content.names = [name for name in content.names if name[:2] in borne]
    content.statements = {id_: vector for id_, vector in content.statements.items() if id_ in statements}
    content.births = {id_: at for id_, at in content.births.items() if id_ in entities | statements}


def _named_by(removal: OldRow, episodes: Iterable[OldRow]) -> set[int]:
    payload = json.loads(removal.payload)
    ids, source, everything = (payload.get(name) for name in ("episodes", "source", "everything"))
    return {
        row.sequence
        for row in episodes
        if row.sequence < removal.sequence
        and (everything or row.source == source or {row.id, row.client_id} & set(ids or ()))
    }


def _resolved(content: GroupContent) -> list[Mention]:
    """Return the mentions with the method of their resolution, which version 0.1 did not record (R14a).

    The first mention of an entity, and of each of its names, was resolved by name. Code resolved another
    name if its letters say so; else a model did, if the episode used a model's answer.
    """
    with_answers = {sequence for answer in content.answers for sequence in answer.used_by}
    triples = {row.sequence for row in content.rows["episodes"] if row.kind == "triples"}
    bearing: dict[str, list[str]] = {}
    resolved = []
    for mention in content.mentions:
        surfaces = bearing.setdefault(mention.entity, [])
        method: ResolvedBy = "name"
        if surfaces and not mention.key and mention.sequence not in triples:
            keys = {names.key(surface) for surface in surfaces}
            if names.key(mention.surface) not in keys:
                alike = any(likeness(mention.surface, surface) in _CODE for surface in surfaces)
                method = "model" if mention.sequence in with_answers and not alike else "code"
        surfaces.append(mention.surface)
        resolved.append(mention._replace(resolved_by=method))
    return resolved


def _directed(content: GroupContent) -> list[Evidence]:
    """Return the evidence with its direction (R17c), and with `is_field`: a field of a record (R17)."""
    ends_of, fields = content.ends(), _fields_of_records(content)
    first: dict[str, tuple[str, str | None]] = {}
    directed = []
    for item in content.evidence:
        ends = ends_of(item)
        founding = first.setdefault(item.statement, ends)
        is_field = (item.sequence, item.relation, item.text) in fields
        turned = ends != founding and ends == founding[::-1]
        directed.append(item._replace(is_reversed=turned, is_field=is_field))
    return directed


def _fields_of_records(content: GroupContent) -> set[tuple[int, str, str]]:
    """Return (sequence, relation, sentence) of each fact that an extraction marks as a field's only value."""
    fields = set()
    for row in content.rows["extractions"]:
        for fact in json.loads(row.body)["facts"]:
            _, relation, text, *_, only = fact
            if only:
                fields.add((row.sequence, relation, text))
    return fields


def _note_contexts(content: GroupContent) -> None:
    """Mark each extracted name as absent from the previous context: unknown names cost a question (R14a)."""
    rows = []
    for row in content.rows["extractions"]:
        body = json.loads(row.body)
        body["entities"] = [[*entity[:4], False] for entity in body["entities"]]
        rows.append(row._replace(body=json.dumps(body, separators=(",", ":"), ensure_ascii=False)))
    content.rows = {**content.rows, "extractions": rows}


def _declared(
    rulings: Sequence[OldRow], content: GroupContent, ontology: Ontology
) -> list[Timed[Declaration]]:
    """Convert the ontology's rulings to declarations, and add a declaration for each name that it lists.

    Version 0.1 recorded a pair of names in both directions; the ontology gives the main name of the pair.
    A declaration outlives a retraction while a later episode exists (R26).
    """
    live = [
        row.sequence for row in content.rows["episodes"] if row.state == COMMITTED and row.retired_at is None
    ]
    last = max(live, default=0)
    declared: dict[tuple[Any, ...], Timed[Declaration]] = {}
    uses: dict[str, tuple[int, int]] = {}  # name -> (sequence, record time) of the first use
    for row in rulings:
        if row.judge != ONTOLOGY:
            continue
        name, partner, value = row.name, row.other, row.value
        if row.aspect == "pair" and value in FOLDS and _leads(ontology, partner, value, name):
            name, partner = partner, name
        value = "none" if row.aspect == "pair" and value == "independent" else value
        declaration = Declaration(
            sequence=row.sequence,
            ordinal=row.ordinal,
            name=name,
            aspect=row.aspect,
            value=value,
            other=partner,
        )
        retired_at = None if row.sequence <= last else row.retired_at
        timed = Timed(declaration, row.recorded_at, retired_at)
        declared.setdefault((row.sequence, name, row.aspect, partner, value), timed)
        for relation in (row.name, row.other):
            uses.setdefault(relation, (row.sequence, row.recorded_at))
    ended = {row.sequence: row.ended_at for row in content.rows["episodes"]}
    for item in content.evidence:
        uses.setdefault(item.relation, (item.sequence, ended[item.sequence]))
    next_ordinals = Counter(row.sequence for row in rulings)  # their ordinals are 0, 1, ...
    for name, (sequence, recorded_at) in uses.items():
        if ontology.get(name) is not None:
            declaration = Declaration(
                sequence=sequence, ordinal=next_ordinals[sequence], name=name, aspect="listed", value="yes"
            )
            next_ordinals[sequence] += 1
            declared[sequence, name, "listed"] = Timed(declaration, recorded_at)
    return sorted(declared.values(), key=lambda timed: (timed.value.sequence, timed.value.ordinal))


def _leads(ontology: Ontology, name: str, value: str, main_name: str) -> bool:
    kind = ontology.get(name)
    return kind is not None and main_name == (kind.same_as if value == "same_as" else kind.inverse_of)
