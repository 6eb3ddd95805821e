"""Names and summaries: what a model is shown of a community, the text that needs none, and what is kept.

A model's text is kept though its community has changed while it is true, and says most of it: it is made of
the best of what there is, so a few newcomers change what would be shown now, and not what it says. What was
shown is noted with the answer, in the journal.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kgray.communities.found import Found, Snapshot
from kgray.communities.partition import hash_of
from kgray.graph import PROFILE, Entity, Fact
from kgray.ports import SummaryRequest, SummaryTask
from kgray.prompting.prompts import section
from kgray.prompting.tokens import count_tokens
from kgray.search.context import best, safe, told, who
from kgray.search.query import languages
from kgray.times import Instant, to_datetime
from kgray.words import plain_words

OFFLINE = "offline 1"  # the writer that asks no model, and its version
_CARDS, _FACTS, _CARD, _FACT = 20, 30, 240, 160  # the best members and facts are shown; characters of each
_PARTS_TOKENS = 3000  # of the summaries that one prompt shows, about
_WHOLE = 200  # members that one prompt speaks for; of more, parts are summarised before
_MOST_PARTS = 16  # a power of 2; of what needs more the parts have parts
_ROOM: Mapping[SummaryTask, int] = {"community": 300, "community_report": 900, "profile": 200}
_NAMED, _TOLD, _TERMS, _LISTED = 3, 3, 4, 8  # without a model: members in a name; facts, words, names


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A community's text; content: the hash of exactly what it was made from."""

    name: str
    summary: str
    writer: str
    content: str
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> dict[str, str]:
        """What those above it are shown."""
        return {"name": self.name, "summary": self.summary}

    @property
    def text(self) -> str:
        """Its name, where it has one, and its summary."""
        return f"{self.name}: {self.summary}" if self.name else self.summary


def key_of(*content: str) -> str:
    """Return the hash of what a text is made from."""
    joined = "\0".join(content).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(joined, digest_size=32).hexdigest()


def offline(snapshot: Snapshot, found: Sequence[Sequence[Found]]) -> dict[str, Text]:
    """Return a text of each community from its central members, best supported facts and own words."""
    terms = _terms(snapshot, found[0] if found else ())
    texts: dict[str, Text] = {}
    for one in (one for level in found for one in level):
        name = ", ".join(_names(snapshot, one.members[:_NAMED]))
        inside = [texts[child.id].name for child in one.children] or _names(snapshot, one.members)
        many = f" in {len(one.children)} communities" if one.children else ""
        more = f" and {len(inside) - _LISTED} more" if len(inside) > _LISTED else ""
        joined = ("; " if one.children else ", ").join(inside[:_LISTED])
        parts = [f"{len(one.members)} members{many}: {joined}{more}."]
        parts += [f"{told(fact)}." for fact in best(one.facts, snapshot.recorded_at)[:_TOLD]]
        parts += [f"Often: {', '.join(words)}."] if (words := terms.get(one.id)) else []
        years = [to_datetime(at).year for fact in one.facts for at in (fact.valid_at, fact.invalid_at) if at]
        parts += [f"{len(one.facts)} facts, {min(years)} to {max(years)}."] if years else []
        summary = " ".join(parts)
        texts[one.id] = Text(name=name, summary=summary, writer=OFFLINE, content=key_of(name, summary))
    return texts


def _names(snapshot: Snapshot, members: Iterable[str]) -> list[str]:
    return [safe(snapshot.entities[member].name) for member in members]


def _terms(snapshot: Snapshot, lowest: Sequence[Found]) -> dict[str, list[str]]:
    """Return the words that set each community apart from the others: class TF-IDF of its facts' words.

    Without stop words and the names that a fact is about. Source: Grootendorst, arXiv 2203.05794.
    """
    stops = languages()["en"].stops
    named = {id_: set(plain_words(entity.name)) for id_, entity in snapshot.entities.items()}
    own: dict[str, Counter[str]] = {one.id: Counter() for one in lowest}
    every: Counter[str] = Counter()
    for one in lowest:
        for fact in one.facts:
            left_out = stops.union(*(named.get(end, set()) for end in fact.ends))
            words = (w for w in plain_words(fact.text) if len(w) > 2 and w not in left_out)
            own[one.id].update(word for word in words if not word.isdigit())
        every.update(own[one.id])
    mean = every.total() / max(1, len(own))
    found = {}
    for id_, counted in own.items():
        scores = {word: -times * math.log(1 + mean / every[word]) for word, times in counted.items()}
        found[id_] = [word for _, word in sorted(zip(scores.values(), scores, strict=True))[:_TERMS]]
    return found


def parts_of(one: Found, texts: Mapping[str, Text]) -> list[Found]:
    """Cut what is too much for one prompt into parts; none where it fits.

    A member, or a community in it, is in the part that its id says, and their number is a power of 2: so one
    that comes later changes one part.
    """
    if one.level == PROFILE:
        return []
    shown = sum(count_tokens(texts[child.id].text) for child in one.children)
    much = max(shown / _PARTS_TOKENS, 0 if one.children else len(one.members) / _WHOLE)
    if much <= 1:
        return []
    count = min(_MOST_PARTS, 1 << math.ceil(math.log2(much)))
    parts = [Found(id=f"{one.id}/{n}", level=one.level, members=[], is_part=True) for n in range(count)]
    for child in one.children:
        parts[hash_of(one.id + child.id) % count].children.append(child)
    if not one.children:
        number = {member: hash_of(one.id + member) % count for member in one.members}
        for part, of in enumerate(parts):
            of.members = [member for member in one.members if number[member] == part]
        for fact in one.facts:
            parts[number[fact.source]].facts.append(fact)
    filled = [part for part in parts if part.members or part.children]
    return filled if len(filled) > 1 else []


def request_of(
    snapshot: Snapshot,
    one: Found,
    texts: Mapping[str, Text],
    parts: Sequence[Text],
    head: Callable[[str], str],
) -> SummaryRequest:
    """Return the request about a community, a part of one, or one entity. head: a task's instructions.

    What is chosen by rank is listed by id, so that another order of rank is the same request.
    """
    facts = best_facts(snapshot, one)
    shown = section("FACTS", [{"id": at, "fact": told(fact)[:_FACT]} for at, fact in enumerate(facts)])
    task: SummaryTask = "community"
    if one.level == PROFILE:
        task, shown = "profile", section("ENTITY", [who(snapshot.entities[one.id])]) + shown
    elif one.children:
        task = "community" if one.is_part else "community_report"
        below = parts or [texts[child.id] for child in sorted(one.children, key=lambda child: child.id)]
        shown = section("COMMUNITIES", [text.told for text in below]) + shown
    else:
        summed = section("PARTS", [text.told for text in parts]) if parts else ""
        cards = [card(snapshot.entities[member]) for member in sorted(one.members[:_CARDS])]
        shown = section("MEMBERS", cards) + summed + shown
    ids = tuple(fact.id for fact in facts)
    return SummaryRequest(task=task, head=head(task), data=shown, room=_ROOM[task], facts=ids)


def best_facts(snapshot: Snapshot, one: Found) -> list[Fact]:
    """Return the facts that are shown of a community, by id."""
    return sorted(best(one.facts, snapshot.recorded_at)[:_FACTS], key=lambda fact: fact.id)


def card(entity: Entity) -> str:
    """Return what is shown of a member."""
    return ": ".join([safe(entity.name), *entity.labels])[:_CARD]


def written(request: SummaryRequest, reply: Mapping[str, Any], writer: str, content: str) -> Text:
    """Return the text of a checked reply; its findings cite the ids of facts."""
    report = {name: reply[name] for name in ("rating", "reason") if name in reply}
    if findings := reply.get("findings"):
        report["findings"] = [{**f, "facts": [request.facts[at] for at in f["facts"]]} for f in findings]
    names = {"name": reply.get("name", ""), "summary": reply["summary"]}
    return Text(**names, writer=writer, content=content, report=report)


_LEFT = 0.2  # of what was shown at most so much has moved to another community
_GROWN = 0.25  # of its members and facts at most so many have come or gone


class Kept:
    """What holds in a snapshot of a group, to compare texts of earlier ones with."""

    def __init__(self, snapshot: Snapshot, head: Callable[[str], str]) -> None:
        """head: returns a task's instructions."""
        self._snapshot, self._head = snapshot, head

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
        yield from () if one.children else sorted(one.members[:_CARDS])
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

        return key_of(self._head("community_report" if one.children else "community"), *map(say, ids))


def _inside(one: Found) -> set[str]:
    """Return the ids of all that a text on a community can be made of."""
    own = [child.id for child in one.children] or one.members
    return {*own, *(fact.id for fact in one.facts)}
