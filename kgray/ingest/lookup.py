"""Candidates by name, exact and deterministic, from our own look-ups (R14, R15).

Blocking keys: the whole name, every telling token, the initials of names of several words, the
letters of an acronym. What they bring together is then compared with the name shown.
"""

from __future__ import annotations

from typing import Literal

from kgray.derivation import names

Likeness = Literal["equal", "initials", "subset", "acronym"]

# A token borne by more names than this blocks nothing ("team", "report"): a rarer one of the same
# name does, and deciding stays flat however large the group. The oldest bearers still count.
MAX_POSTING = 64


class NameIndex:
    """The names and aliases of a group's entities, by key, token and initials; grows with commits."""

    def __init__(self) -> None:
        """Start with no name."""
        self._by_key: dict[str, list[str]] = {}
        self._by_token: dict[str, list[str]] = {}
        self._by_initials: dict[str, list[str]] = {}

    def add(self, entity: str, surface: str) -> None:
        """Note that an entity bears a surface."""
        _note(self._by_key, names.key(surface), entity)
        for token in names.tokens(surface):
            _note(self._by_token, token, entity)
        if short := names.initials(surface):
            _note(self._by_initials, short, entity)

    def bearers(self, surface: str) -> list[str]:
        """Return the entities that bear this full name or alias."""
        return self._by_key.get(names.key(surface), [])

    def bears_word(self, token: str) -> list[str]:
        """Return the entities one of whose names holds this token."""
        return self._by_token.get(token, [])

    def near(self, surface: str) -> list[str]:
        """Return the entities that share a blocking key with the surface, each once."""
        found: dict[str, None] = {}
        postings = sorted((self._by_token.get(t, []) for t in names.tokens(surface)), key=len)
        for posting in postings:
            found.update(dict.fromkeys(posting[:MAX_POSTING]))
        if names.is_acronym(surface):
            found.update(dict.fromkeys(self._by_initials.get(surface.casefold(), [])[:MAX_POSTING]))
        if short := names.initials(surface):
            found.update(dict.fromkeys(self._by_key.get(short, [])[:MAX_POSTING]))
        return list(found)


def likeness(surface: str, shown: str) -> Likeness | None:
    """Return how two names may be one by their letters alone; None where each holds what the other lacks."""
    a, b = names.tokens(surface), names.tokens(shown)
    if sorted(a) == sorted(b):
        return "equal"
    if names.is_acronym(surface) and names.initials(shown) == surface.casefold():
        return "acronym"
    if names.is_acronym(shown) and names.initials(surface) == shown.casefold():
        return "acronym"
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    left = list(many)
    for token in few:
        partner = next((t for t in left if _pairs(token, t)), None)
        if partner is None:
            return None
        left.remove(partner)
    return "subset" if left else "initials"


def _pairs(a: str, b: str) -> bool:
    """Whether one token equals, or is an initial or prefix of, the other; digits must agree (R15)."""
    if a == b:
        return True
    if any(c.isdigit() for c in a + b):
        return False
    return a.startswith(b) or b.startswith(a)


def _note(index: dict[str, list[str]], key: str, entity: str) -> None:
    # The same entity comes back with each new alias that shares a token: usually the newest entry.
    posting = index.setdefault(key, [])
    if entity not in posting[-MAX_POSTING:] and entity not in posting[:MAX_POSTING]:
        posting.append(entity)
