"""The rows that earlier versions stored: their kinds and columns, as data, and the port that reads them.

    SQLite schema   Neo4j schema
    9               8              version 0.1: `rulings` of models and of the ontology about relation names
    10              9              `declarations` of the ontology; how mentions were resolved

A column that a store does not have yet reads as its default. Derived rows are not listed, except entities
and facts, which are compared with this version's entities and facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kgray.ports import GroupHead, Store

OldRow = Any  # a named tuple with the columns of its kind


class OldColumn(NamedTuple):
    """One column; stored_as: its property in Neo4j; type: set if SQLite lacks it."""

    name: str
    stored_as: str
    is_key: bool
    type: str = ""
    default: object = None


@dataclass(frozen=True, slots=True)
class OldKind:
    """One kind of rows. key: the properties of its key in Neo4j; make: a row of its columns."""

    name: str
    label: str
    key: tuple[str, ...]
    columns: tuple[OldColumn, ...]
    make: Callable[..., OldRow]


# NAME LABEL, then columns: a star marks the key, "=property" the name in Neo4j, "/property" the indexed
# property, ":type" a type that SQLite lacks, "~False" the default of a column that came later.
_KINDS = """
episodes KgrayEpisode *sequence id=uuid source=source_description kind text=content reference_time=said
    content_sha256 speaker client_id metadata state bulk:bool attempts ended_at retired_at failure_kind
    failure_message failure_raw
operations KgrayOperation *sequence kind payload state recorded_at result
extractions KgrayExtraction *sequence calls prompt_tokens completion_tokens body
answers KgrayAnswer *request calls prompt_tokens completion_tokens body
answer_uses KgrayUse *sequence *request
holds KgrayHold *one sequence since again_at tries reason
births KgrayBirth *id sequence ordinal
mentions KgrayMention *sequence *ordinal surface entity type sentence key:bool resolved_by span_from span_to
evidence KgrayEvidence *sequence *ordinal statement variant kind relation text subject object value_type
    value unit valid_from valid_to from_precision to_precision inferred:bool fact_group every_variant:bool
    is_reversed:bool~False is_field:bool~False shown
rulings KgrayRuling *sequence *ordinal name aspect value judge other reason recorded_at retired_at
declarations KgrayDeclaration *sequence *ordinal name aspect value other recorded_at retired_at
verdicts KgrayVerdict *sequence *ordinal a b exclusive:bool judge reason recorded_at retired_at
name_vectors KgrayNameVector *entity *surface/surface_key sequence ordinal vector:bytes
statement_vectors KgrayStatementVector *id weights:bytes vector:bytes
episode_vectors KgrayEpisodeVector *sequence weights:bytes vector:bytes
entities Entity *id=uuid name aliases:texts labels:texts born_sequence born_ordinal
facts RELATES_TO *id=uuid statement source relation=name text=fact created_at=created target value_type
    value unit valid_at=valid invalid_at=invalid expired_at=expired episodes:texts event:bool ended_episode
    ended_ordinal
community_runs KgrayCommunityRun *run watermark recorded_at made_at cold:bool entities cold_entities writer
communities Community *run *id=uuid level parent size name summary report writer content members:texts
    sources:bytes vector:bytes
access_keys KgrayAccessKey *id sequence digest groups:texts scopes:texts rate created_at expires_at revoked_at
audit KgrayAudit *sequence at access_key action of_group asked
webhooks KgrayWebhook *id sequence of_group url made_at sent tries again_at fault
schedules KgraySchedule *name cron zone made_at begun tries ended_at said
"""


def _kinds() -> Iterator[OldKind]:
    for line in _KINDS.replace("\n    ", " ").strip().splitlines():
        name, label, *texts = line.split()
        key, columns = [], []
        for text in texts:
            match = re.fullmatch(r"(\*?)(\w+)(?:=(\w+))?(?:/(\w+))?(?::(\w+))?(~False)?", text)
            assert match is not None, text  # noqa: S101 - the table above
            star, column, stored_as, indexed, type_, default = match.groups()
            stored_as = stored_as or column
            columns.append(OldColumn(column, stored_as, bool(star), type_ or "", False if default else None))
            if star:
                key.append(indexed or stored_as)
        make = NamedTuple(name, [(column.name, Any) for column in columns])  # type: ignore[misc]
        yield OldKind(name, label, tuple(key), tuple(columns), make)


OLD_KINDS: Mapping[str, OldKind] = {kind.name: kind for kind in _kinds()}


class OldGroup(NamedTuple):
    """A group of an earlier store."""

    name: str
    head: GroupHead


class EarlierStore(Protocol):
    """A store of an earlier schema, which a single process upgrades.

    Its rows stay readable until `replace`. A kill at any moment leaves the earlier store, or a state that the
    next upgrade continues.
    """

    location: str
    schema: int
    schema_after: int
    is_first: bool  # of version 0.1
    is_in_place: bool  # rows move within one database: so everything is checked before any row moves
    report: str | None  # of an earlier run that had written everything
    kept_path: str  # where the earlier data are after `replace`; "" = they are gone

    @property
    def is_changed(self) -> bool:
        """True if an earlier run has begun to move rows."""

    def groups(self) -> list[OldGroup]:
        """Return the groups that have a name, sorted."""

    def rows(self, group: str, kind: OldKind) -> list[OldRow]:
        """Return a group's rows of a kind, in the order of their keys; [] if the store lacks the kind."""

    def successor(self) -> AbstractContextManager[Store]:
        """Lock other processes out, and open the new store for the groups; closed at the end.

        A group in the new store is complete. Raises Locked if another process has the earlier store open.
        """

    def replace(self, report: str) -> None:
        """Replace the earlier store by the closed successor: for readers, in one step.

        report: stored until then, so that the next run can return it after a kill
        """
