"""Names and summaries: what is shown of a community, and the text that needs no model."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kgray.communities.export import Snapshot
from kgray.communities.found import Found
from kgray.graph import Entity, Fact
from kgray.ports import SummaryRequest, SummaryTask
from kgray.prompting.prompts import load, section
from kgray.prompting.tokens import count_tokens
from kgray.search.context import dates, safe
from kgray.search.question import languages
from kgray.times import to_datetime
from kgray.words import plain_words

OFFLINE = "offline 1"  # the writer that asks no model, and its version
CARDS, FACTS, CHILDREN = 20, 30, 200  # of what is shown, the best
INPUT_TOKENS, A_FACT, A_CARD = 4000, 160, 240  # tokens of one call; characters of a fact, of a card
_ROOM: Mapping[SummaryTask, int] = {"community": 300, "community_part": 200, "community_report": 900}
_NAMED, _TOLD, _TERMS = 3, 3, 4  # of an offline text: members in its name, facts, words
_LISTED = 8  # members or children that an offline summary names


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A community's text. report: rating, reason, findings of an upper one, where a model wrote it."""

    name: str
    summary: str
    writer: str
    content: str
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Terms:
    """How often each word stands in the facts of each community, and in those of all."""

    own: Mapping[str, Counter[str]]
    all: Counter[str]


def key_of(*content: str) -> str:
    """Return the hash of exactly what a text is made from."""
    joined = "\0".join(content).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(joined, digest_size=32).hexdigest()


# ------------------------------------------------------------------------------------ without a model


def offline(snapshot: Snapshot, found: Sequence[Sequence[Found]]) -> dict[str, Text]:
    """Return a text of each community from its central members, best supported facts and own words."""
    terms = _terms(snapshot, found[0] if found else ())
    texts: dict[str, Text] = {}
    taken: Counter[str] = Counter()
    for level in found:
        for one in level:
            name = ", ".join(_names(snapshot, one.members[:_NAMED]))
            taken[name] += 1
            name = name if taken[name] == 1 else f"{name} ({taken[name]})"
            summary = _summary(snapshot, one, terms, texts)
            texts[one.id] = Text(name=name, summary=summary, writer=OFFLINE, content=key_of(name, summary))
    return texts


def _summary(snapshot: Snapshot, one: Found, terms: _Terms, texts: Mapping[str, Text]) -> str:
    if one.children:
        named = [texts[child.id].name for child in one.children[:_LISTED]]
        more = len(one.children) - len(named)
        begin = f"{one.size} members in {len(one.children)} communities: {'; '.join(named)}"
    else:
        named = _names(snapshot, one.members[:_LISTED])
        more = one.size - len(named)
        begin = f"{one.size} members: {', '.join(named)}"
    parts = [f"{begin}{f' and {more} more' if more > 0 else ''}."]
    parts += [f"{_told(fact)}." for fact in best_facts(snapshot, one)[:_TOLD]]
    if words := _distinguishing(terms, one.id):
        parts.append(f"Often: {', '.join(words)}.")
    years = [to_datetime(at).year for fact in one.facts for at in (fact.valid_at, fact.invalid_at) if at]
    if years:
        span = str(min(years)) if min(years) == max(years) else f"{min(years)} to {max(years)}"
        parts.append(f"{len(one.facts)} facts, {span}.")
    return " ".join(parts)


def _names(snapshot: Snapshot, members: Iterable[str]) -> list[str]:
    return [safe(snapshot.entities[member].name) for member in members]


def _told(fact: Fact) -> str:
    text = safe(fact.text).rstrip(".")
    if fact.event:
        return text
    start, end = (None if at is None else to_datetime(at) for at in (fact.valid_at, fact.invalid_at))
    return f"{text} ({dates(start, end)})"


def best_facts(snapshot: Snapshot, one: Found) -> list[Fact]:
    """Return the facts of a community that hold, the best supported first, then the newest."""
    holding = [fact for fact in one.facts if fact.holds_at(snapshot.recorded_at)]
    return sorted(holding, key=lambda f: (-len(f.episodes), -(f.valid_at or 0), f.id))


def _terms(snapshot: Snapshot, lowest: Iterable[Found]) -> _Terms:
    """Count the words of the facts, without stop words and without the names that they are about."""
    stops = languages()["en"].stops
    named = {id_: set(plain_words(entity.name)) for id_, entity in snapshot.entities.items()}
    own: dict[str, Counter[str]] = {}
    for one in lowest:
        counted = own[one.id] = Counter[str]()
        for fact in one.facts:
            ends = set[str]().union(*(named.get(end, set()) for end in fact.ends))
            counted.update(
                word
                for word in plain_words(fact.text)
                if len(word) > 2 and word not in stops and word not in ends and not word.isdigit()
            )
    every: Counter[str] = Counter()
    for counted in own.values():
        every.update(counted)
    return _Terms(own, every)


def _distinguishing(terms: _Terms, id_: str) -> list[str]:
    """Return the words that set a community apart: class TF-IDF. Source: Grootendorst, arXiv 2203.05794."""
    counted = terms.own.get(id_, Counter())
    mean = terms.all.total() / max(1, len(terms.own))
    scores = {word: times * math.log(1 + mean / terms.all[word]) for word, times in counted.items()}
    return sorted(scores, key=lambda word: (-scores[word], word))[:_TERMS]


# ------------------------------------------------------------------------------------ what a model is shown


def requests(
    snapshot: Snapshot, one: Found, texts: Mapping[str, Text]
) -> tuple[list[SummaryRequest], SummaryRequest | None]:
    """Return what a model is asked about a community: parts, and the request that takes their summaries.

    No part: all is shown in one request. What is chosen by rank is listed by id, so that another order of
    rank is the same request.
    """
    facts = sorted(best_facts(snapshot, one)[:FACTS], key=lambda fact: fact.id)
    told = [{"id": at, "fact": _told(fact)[:A_FACT]} for at, fact in enumerate(facts)]
    ids = tuple(fact.id for fact in facts)
    if not one.children:
        members = sorted(one.members[:CARDS])
        cards = [_card(snapshot.entities[member]) for member in members]
        return [], _request("community", ids, MEMBERS=cards, FACTS=told)
    children = sorted(one.children, key=lambda child: child.id)[:CHILDREN]
    shown = [{"name": texts[c.id].name, "summary": texts[c.id].summary, "size": c.size} for c in children]
    whole = _request("community_report", ids, COMMUNITIES=shown, FACTS=told)
    if count_tokens(whole.data) <= INPUT_TOKENS:
        return [], whole
    return [_request("community_part", (), COMMUNITIES=part) for part in _parts(shown)], None


def reduced(snapshot: Snapshot, one: Found, parts: Sequence[str]) -> SummaryRequest:
    """Return the request that makes one report of the summaries of its parts."""
    facts = sorted(best_facts(snapshot, one)[:FACTS], key=lambda fact: fact.id)
    told = [{"id": at, "fact": _told(fact)[:A_FACT]} for at, fact in enumerate(facts)]
    shown = [{"summary": part} for part in parts]
    return _request("community_report", tuple(f.id for f in facts), COMMUNITIES=shown, FACTS=told)


def _request(task: SummaryTask, facts: tuple[str, ...], **data: Sequence[object]) -> SummaryRequest:
    text = "".join(section(tag, list(items)) for tag, items in data.items())
    return SummaryRequest(task=task, head=load(task), data=text, room=_ROOM[task], facts=facts)


def _card(entity: Entity) -> str:
    labels = f" ({', '.join(entity.labels)})" if entity.labels else ""
    return f"{safe(entity.name)}{labels}"[:A_CARD]


def _parts(shown: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    parts: list[list[Mapping[str, Any]]] = [[]]
    size = 0
    for item in shown:
        cost = count_tokens(str(item))
        if parts[-1] and size + cost > INPUT_TOKENS:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += cost
    return parts


def written(request: SummaryRequest, reply: Mapping[str, Any], writer: str, content: str) -> Text:
    """Return the text of a checked reply; its findings cite the ids of facts."""
    findings = [
        {**finding, "facts": [request.facts[at] for at in finding["facts"]]}
        for finding in reply.get("findings", ())
    ]
    rated = {name: reply[name] for name in ("rating", "reason") if name in reply}
    return Text(
        name=reply["name"],
        summary=reply["summary"],
        writer=writer,
        content=content,
        report=rated | ({"findings": findings} if findings else {}),
    )


def told_apart(text: Text, names: Counter[str]) -> Text:
    """Return the text with a name that no other community has."""
    names[text.name] += 1
    count = names[text.name]
    return text if count == 1 else replace(text, name=f"{text.name} ({count})")
