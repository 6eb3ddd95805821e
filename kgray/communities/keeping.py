"""When a model's text is kept though its community has changed: while it is true, and says most of it.

A text is made of the best of what there is. So a few newcomers change what would be shown now, and not what
the text says. What was shown is noted with the answer, in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from kgray.communities.export import Snapshot
from kgray.communities.found import Found
from kgray.communities.texts import Text, best_facts, card, key_of, parts_of, shown_members
from kgray.graph import Fact
from kgray.prompting.prompts import load
from kgray.search.profiles import told
from kgray.times import Instant

_LEFT = 0.2  # of what was shown at most so much has moved to another community
_GROWN = 0.25  # of its members and facts at most so many have come or gone


class Kept:
    """What holds in a snapshot of a group, to compare texts of earlier ones with."""

    def __init__(self, snapshot: Snapshot) -> None:
        """snapshot: the present."""
        self._snapshot = snapshot

    @cached_property
    def _holding(self) -> Mapping[str, Fact]:
        return {fact.id: fact for fact in self._snapshot.facts if fact.holds_at(self._snapshot.recorded_at)}

    def note(self, one: Found, texts: Mapping[str, Text]) -> dict[str, Any]:
        """Return what to keep with a text: the ids and the hash of what was shown, of how many, and when."""
        shown = sorted(set(self._shown(one, texts)))
        inside = sorted(_inside(one))
        counted = {"of": len(inside), "inside": key_of(*inside), "at": self._snapshot.recorded_at}
        return {"shown": shown, "said": self._said(one, shown, texts), **counted}

    def since(self, note: Mapping[str, Any], one: Found, texts: Mapping[str, Text]) -> Instant | None:
        """Return as of when a text with this note says what is so; None where it is to be written anew."""
        inside, shown = _inside(one), note["shown"]
        if self._said(one, shown, texts) != note["said"]:
            return None  # something of it does not hold any more
        if key_of(*sorted(inside)) == note["inside"]:
            return self._snapshot.recorded_at
        all_of_it = len(shown) == note["of"]
        few = abs(len(inside) - note["of"]) <= _GROWN * note["of"]
        there = len(inside.intersection(shown)) >= (1 - _LEFT) * len(shown)
        since: Instant = note["at"]
        return since if few and there and not all_of_it else None

    def _shown(self, one: Found, texts: Mapping[str, Text]) -> Iterable[str]:
        yield from (child.id for child in one.children)
        yield from () if one.children else shown_members(one)
        yield from (fact.id for fact in best_facts(self._snapshot, one))
        for part in parts_of(one, texts):
            yield from self._shown(part, texts)

    def _said(self, one: Found, ids: Iterable[str], texts: Mapping[str, Text]) -> str:
        """Return the hash of the prompt's head and what these ids say by now; "" of one that is gone."""
        entities = self._snapshot.entities

        def say(id_: str) -> str:
            if id_ in self._holding:
                return told(self._holding[id_])
            return card(entities[id_]) if id_ in entities else texts[id_].text if id_ in texts else ""

        return key_of(load("community_report" if one.children else "community"), *map(say, ids))


def _inside(one: Found) -> set[str]:
    """Return the ids of all that a text on a community can be made of."""
    own = [child.id for child in one.children] or one.members
    return {*own, *(fact.id for fact in one.facts)}
