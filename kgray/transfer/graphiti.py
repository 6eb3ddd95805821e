"""A Graphiti database as episodes of triples, one for each Graphiti episode, in their order of time.

Each episode states its facts with their spans. A fact whose episodes are gone gets an episode of its own. An
episode's text is kept in the metadata and beside its first triple, where a search of episodes finds it: under
the key EPISODE_TEXT, which has no meaning for the graph. Record times are kgray's; Graphiti's are metadata.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kgray import times
from kgray.errors import InputError
from kgray.intake import triples
from kgray.records import MAX_CLIENT_ID, Draft, canonical
from kgray.stores.neo4j.graphiti import GraphitiDatabase, Theirs
from kgray.times import Instant

SOURCE = "graphiti"
EPISODE_TEXT = "episode_text"
_PAGE = 100  # episodes whose texts are in memory at once
# The field of a refused triple -> why the fact is not mapped.
_REASONS = {
    "source": "facts whose subject has no usable name",
    "target": "facts whose object has no usable name",
    "relation": "facts whose relation is no name",
    "invalid_at": "facts whose end is not after their start",
    "valid_at": "facts with a time that cannot be read",
    "text": "facts whose sentence cannot be stored",
}
_FactTriple = tuple[Theirs, dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Import:
    """The import of one Graphiti group into a group of kgray; counts are final when `drafts` has ended."""

    database: GraphitiDatabase
    from_group: str
    group: str
    episodes: int = 0
    facts: int = 0
    lost: int = 0  # facts that were not mapped
    unmapped: Counter[str] = field(default_factory=Counter)  # reason -> how many things were not mapped

    def drafts(self) -> Iterator[Draft]:
        """Yield the episodes, oldest first; then those of facts whose episodes are gone."""
        uuids = self.database.said(self.from_group)
        by_episode, without_episode = self._facts(set(uuids))
        for start in range(0, len(uuids), _PAGE):
            for episode in self.database.episodes(self.from_group, uuids[start : start + _PAGE]):
                self.episodes += 1
                found = by_episode.get(episode["uuid"])
                if not found:
                    self.unmapped["episodes without facts"] += 1
                    continue
                yield from self._of_episode(episode, found)
        for fact, row in without_episode:
            at = fact["created_at"] if fact["valid_at"] is None else fact["valid_at"]
            yield self._draft(fact["uuid"], at, [row], {"facts": [_kept(fact)]})
        self.unmapped.update(self.database.besides(self.from_group))

    def _facts(self, there: set[str]) -> tuple[dict[str, list[_FactTriple]], list[_FactTriple]]:
        """Return the usable facts by episode, and those whose episodes are not in the database."""
        by_episode: dict[str, list[_FactTriple]] = defaultdict(list)
        without_episode: list[_FactTriple] = []
        for fact in self.database.facts(self.from_group):
            self.facts += 1
            reason, row = _triple(fact)
            if row is None:
                self.unmapped[reason] += 1
                self.lost += 1
                continue
            homes = [uuid for uuid in dict.fromkeys(fact["episodes"]) if uuid in there]
            for found in [by_episode[uuid] for uuid in homes] or [without_episode]:
                found.append((fact, row))
        return by_episode, without_episode

    def _of_episode(self, episode: Theirs, found: list[_FactTriple]) -> Iterator[Draft]:
        """Yield one draft; more where the episode has more facts than a draft takes."""
        at = episode["created_at"] if episode["valid_at"] is None else episode["valid_at"]
        text = episode["content"].replace("\0", "\ufffd")
        about = {
            "name": episode["name"],
            "source": episode["source"],
            "source_description": episode["source_description"],
            "text": text,
            "created_at": times.show(episode["created_at"]),
        }
        found = sorted(found, key=lambda pair: (pair[0]["created_at"] or 0, pair[0]["uuid"]))
        for part, start in enumerate(range(0, len(found), triples.MAX_TRIPLES)):
            portion = found[start : start + triples.MAX_TRIPLES]
            rows = [row for _, row in portion]
            if text.strip() and part == 0:
                rows[0] = rows[0] | {EPISODE_TEXT: text}
            facts = [_kept(fact) for fact, _ in portion]
            uuid = episode["uuid"]
            name = uuid if part == 0 else f"{uuid}#{part + 1}"
            yield self._draft(name, at, rows, about | {"uuid": uuid, "facts": facts})

    def _draft(
        self, uuid: str, at: Instant | None, rows: list[dict[str, Any]], about: Mapping[str, Any]
    ) -> Draft:
        return Draft(
            group=self.group,
            source=SOURCE,
            kind="triples",
            text=triples.normalise(rows, at),
            reference_time=at,
            client_id=uuid[:MAX_CLIENT_ID],
            metadata=canonical({"graphiti": about}),
        )


def _kept(fact: Theirs) -> dict[str, Any]:
    recorded = {name: times.show(fact[name]) for name in ("created_at", "expired_at")}
    return {"uuid": fact["uuid"]} | recorded


def _triple(fact: Theirs) -> tuple[str, dict[str, Any] | None]:
    """Return (reason it cannot be mapped or "", the triple or None)."""
    if fact["unread"]:
        return _REASONS["valid_at"], None
    row: dict[str, Any] = {
        "source": fact["source"],
        "relation": fact["name"],
        "target": fact["target"],
        "text": fact["fact"],
        "valid_at": times.show(fact["valid_at"]),
        "invalid_at": times.show(fact["invalid_at"]),
    }
    row = {key: value for key, value in row.items() if value is not None or key == "valid_at"}
    try:
        triples.normalise([row], None)
    except InputError as error:
        if "the same name" in str(error):
            return "facts from a thing to itself", None
        return _REASONS[(error.field or "").rpartition(".")[2]], None
    return "", row
