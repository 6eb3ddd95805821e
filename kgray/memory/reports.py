"""What the library answers, and its JSON form: the field names here are the promise of the commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kgray.graph import Entity, Fact, Hit
from kgray.intake.drafts import Refusal
from kgray.times import show


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of a submission.

    committed, failed   of all that was pending in the store, earlier leftovers included
    retracted           episodes that a replaced text file no longer holds
    untimed             accepted without a reference time: acceptance gave them one (R19)
    stopped             a signal, or a model out of reach beyond its patience (then `reason` says so), ended
                        the run; what was accepted is safe, and the next run goes on
    """

    accepted: int = 0
    duplicate: int = 0
    committed: int = 0
    failed: int = 0
    retracted: int = 0
    untimed: int = 0
    stopped: bool = False
    reason: str = ""
    refusals: tuple[Refusal, ...] = ()

    @property
    def refused(self) -> int:
        """How many rows were not taken."""
        return len(self.refusals)

    @property
    def exit_code(self) -> int:
        """75 stopped, 1 something refused or failed, 0 all done."""
        return 75 if self.stopped else 1 if self.refusals or self.failed else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray add --json` prints."""
        return {
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "refused": self.refused,
            "committed": self.committed,
            "failed": self.failed,
            "retracted": self.retracted,
            "refusals": [refusal.as_dict() for refusal in self.refusals],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Every span of an entity's facts. names: entity id -> name; clients: episode id -> the client's id."""

    group: str
    entity: Entity
    facts: tuple[Fact, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, str | None] = field(default_factory=dict)

    def target(self, fact: Fact) -> str | None:
        """Return the name of a fact's object, or its value's text."""
        if fact.value is not None:
            return fact.value.shown()
        return self.names.get(fact.target) if fact.target is not None else None

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray history --json` prints."""
        entity = self.entity
        return {
            "entity": {
                "id": entity.id,
                "name": entity.name,
                "aliases": list(entity.aliases),
                "labels": list(entity.labels),
            },
            "facts": [self._fact(fact) for fact in self.facts],
        }

    def _fact(self, fact: Fact) -> dict[str, Any]:
        head = {"scope": "fact", "id": fact.id, "text": fact.text, "group": self.group}
        supporters = tuple((episode, self.clients.get(episode)) for episode in fact.episodes)
        ended_by = list(fact.ended_by) if fact.ended_by else None
        tail = {"statement": fact.statement, "ended_by": ended_by}
        return head | fact_fields(fact, self.names.get(fact.source), self.target(fact), supporters) | tail


def fact_fields(
    fact: Fact, source: str | None, target: str | None, episodes: tuple[tuple[str, str | None], ...]
) -> dict[str, Any]:
    """Return the keys of a fact hit that only facts have."""
    return {
        "source_id": fact.source,
        "source": source,
        "relation": fact.relation,
        "target_id": fact.target,
        "target": target,
        "valid_at": show(fact.valid_at),
        "invalid_at": show(fact.invalid_at),
        "created_at": show(fact.created_at),
        "expired_at": show(fact.expired_at),
        "episodes": [{"id": episode, "client_id": client} for episode, client in episodes],
    }


def hit_row(hit: Hit) -> dict[str, Any]:
    """Return the form in which search and context print a hit."""
    row: dict[str, Any] = {
        "scope": hit.scope,
        "id": hit.id,
        "text": hit.text,
        "score": hit.score,
        "group": hit.group,
        "methods": dict(hit.methods),
    }
    if hit.fact is not None:
        row |= fact_fields(hit.fact, hit.source, hit.target, hit.episodes)
    elif hit.scope == "episode":
        row |= {
            "client_id": hit.client_id,
            "reference_time": show(hit.reference_time),
            "speaker": hit.speaker,
        }
    elif hit.entity is not None:
        row |= {"aliases": list(hit.entity.aliases), "labels": list(hit.entity.labels)}
    return row
