"""Candidates by name, exact and deterministic, from our own look-ups (R14, R15).

Blocking keys: the whole name, every telling token, the initials of names of several words, the
letters of an acronym. What they bring together is then compared with the name shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from kgray.derivation import names

Likeness = Literal["equal", "initials", "subset", "acronym", "surname"]


class Postings(Protocol):
    """Blocking key -> the entities that bear it, oldest first: a dict, or what is layered over one."""

    def get(self, key: str, /) -> list[str] | None:
        """Return the entities; None where there are none."""
        ...


# Of a token that more names bear, the oldest bearers count: what blocks is the rarest tokens of a
# name, so deciding stays flat however large the group. More Alices than that are no question for a model.
MAX_POSTING = 12
_RAREST = 2


class NameLookUp:
    """Entities by what their names and aliases are made of."""

    def __init__(
        self, by_key: Postings, by_token: Postings, by_initials: Postings, by_short: Postings
    ) -> None:
        """Look up by whole name, token, initials, and by first initial and last token ("M. Webb")."""
        self._by_key, self._by_token = by_key, by_token
        self._by_initials, self._by_short = by_initials, by_short

    def bearers(self, surface: str) -> list[str]:
        """Return the entities that bear this full name or alias."""
        return self._by_key.get(names.key(surface)) or []

    def bears_word(self, token: str) -> list[str]:
        """Return the entities one of whose names holds this token."""
        return self._by_token.get(token) or []

    def near(self, surface: str) -> list[str]:
        """Return the entities that share a blocking key with the surface, each once."""
        tokens = names.tokens(surface)
        postings = sorted((p for t in tokens if (p := self._by_token.get(t))), key=len)[:_RAREST]
        postings += [self._by_key.get(letters) or [] for letters in names.initials(surface)]
        if len(tokens) > 1:
            postings.append(self._by_short.get(_short(surface)) or [])
            postings += [self._by_key.get(token) or [] for token in tokens]
        if names.is_acronym(surface):
            postings.append(self._by_initials.get(surface.casefold()) or [])
        found: dict[str, None] = {}
        for posting in postings:
            found.update(dict.fromkeys(posting[:MAX_POSTING]))
        return list(found)


class NameIndex(NameLookUp):
    """The names and aliases of a group's entities; grows with commits."""

    def __init__(self) -> None:
        """Start with no name."""
        self._keys: dict[str, list[str]] = {}
        self._tokens: dict[str, list[str]] = {}
        self._initials: dict[str, list[str]] = {}
        self._shorts: dict[str, list[str]] = {}
        super().__init__(self._keys, self._tokens, self._initials, self._shorts)

    def seen_through(self, view: Callable[[Postings, str], Postings]) -> NameLookUp:
        """Return a look-up of this index through view(postings, "name") and view(postings, "token").

        Initials and short forms are those of this index. What is added to the index shows there too.
        """
        keys, tokens = view(self._keys, "name"), view(self._tokens, "token")
        return NameLookUp(keys, tokens, self._initials, self._shorts)

    def add(self, entity: str, surface: str) -> None:
        """Note that an entity bears a surface."""
        _note(self._keys, names.key(surface), entity)
        for token in names.tokens(surface):
            _note(self._tokens, token, entity)
        for letters in names.initials(surface):
            _note(self._initials, letters, entity)
        if len(names.tokens(surface)) > 1:
            _note(self._shorts, _short(surface), entity)


def likeness(surface: str, shown: str) -> Likeness | None:
    """Return how two names may be one by their letters alone; None where each holds what the other lacks."""
    a, b = names.tokens(surface), names.tokens(shown)
    if a == b or sorted(a) == sorted(b):
        return "equal"
    if names.is_acronym(surface) and surface.casefold() in names.initials(shown):
        return "acronym"
    if names.is_acronym(shown) and shown.casefold() in names.initials(surface):
        return "acronym"
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    left = list(many)
    for token in few:
        if token in left:
            left.remove(token)
            continue
        for other in left:
            if _pairs(token, other):
                left.remove(other)
                break
        else:
            return "surname" if _one_surname(a, b) else None
    return "subset" if left else "initials"


def _one_surname(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether two names of two words share the last: "Vicky Kelstaholm", "Victoria Kelstaholm"."""
    if len(a) != 2 or len(b) != 2 or a[1] != b[1]:
        return False
    return min(len(a[0]), len(b[0])) > 1 and not any(c.isdigit() for c in "".join(a + b))


def _pairs(a: str, b: str) -> bool:
    """Whether one of two different tokens is an initial or prefix of the other; digits must agree (R15)."""
    if a[0] != b[0] or not (a.startswith(b) or b.startswith(a)):
        return False
    return not any(c.isdigit() for c in a + b)


def _short(surface: str) -> str:
    tokens = names.tokens(surface)
    return f"{tokens[0][0]} {tokens[-1]}"


def _note(index: dict[str, list[str]], key: str, entity: str) -> None:
    # The same entity comes back with each new alias that shares a token: usually the newest entry.
    posting = index.get(key)
    if posting is None:
        index[key] = [entity]
    elif entity not in posting[-MAX_POSTING:] and entity not in posting[:MAX_POSTING]:
        posting.append(entity)
