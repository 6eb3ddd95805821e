"""Names and summaries of communities: requests to a model, texts without a model, and the reuse of texts.

A model's text stays in use after a change of its community if it is still true and covers most of it. A text
comes from the best members and facts, so a few newcomers change the next request, but not the content. The
journal stores a note on the request with each answer, to decide this.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kgray.communities.found import Cluster, Snapshot
from kgray.communities.partition import hash_of
from kgray.domain.graph import PROFILE, Entity, Fact
from kgray.domain.times import Instant, to_datetime
from kgray.language.words import languages, plain_words
from kgray.models.prompting.prompts import section
from kgray.models.prompting.tokens import count_tokens
from kgray.ports import SummaryRequest, SummaryTask
from kgray.search.context import best, entity_line, fact_line, safe

OFFLINE = "offline 1"  # the writer without a model, and its version
CARDS, FACTS, _CARD, _FACT = 20, 30, 240, 160  # members and facts in a prompt, the best; characters of each
PARTS_TOKENS = 3000  # approximate tokens of the summaries in one prompt
PROMPT_MEMBERS = 200  # members covered by one prompt; a larger community is summarised by parts
_MOST_PARTS = 16  # a power of 2; larger communities have parts of parts
_ROOM: Mapping[SummaryTask, int] = {"community": 300, "community_report": 900, "profile": 200}
_NAMED, _STATED, _TERMS, _LISTED = 3, 3, 4, 8  # without a model: members in a name; facts, words, names


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A community's text; content: the hash of its source text."""

    name: str
    summary: str
    writer: str
    content: str
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name_and_summary(self) -> dict[str, str]:
        """The form for the prompts of upper communities."""
        return {"name": self.name, "summary": self.summary}

    @property
    def text(self) -> str:
        """Its name, if it has one, and its summary."""
        return f"{self.name}: {self.summary}" if self.name else self.summary


def key_of(*content: str) -> str:
    """Return the hash of the source of a text."""
    joined = "\0".join(content).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(joined, digest_size=32).hexdigest()


def offline(snapshot: Snapshot, levels: Sequence[Sequence[Cluster]]) -> dict[str, Text]:
    """Return a text of each community from its central members, best facts and distinctive words."""
    terms = _terms(snapshot, levels[0] if levels else ())
    texts: dict[str, Text] = {}
    for c in (cluster for level in levels for cluster in level):
        name = ", ".join(_names(snapshot, c.members[:_NAMED]))
        parts_names = [texts[child.id].name for child in c.children] or _names(snapshot, c.members)
        in_communities = f" in {len(c.children)} communities" if c.children else ""
        more_names = f" and {len(parts_names) - _LISTED} more" if len(parts_names) > _LISTED else ""
        joined = ("; " if c.children else ", ").join(parts_names[:_LISTED])
        parts = [f"{len(c.members)} members{in_communities}: {joined}{more_names}."]
        parts += [f"{fact_line(fact)}." for fact in best(c.facts, snapshot.recorded_at)[:_STATED]]
        parts += [f"Often: {', '.join(words)}."] if (words := terms.get(c.id)) else []
        years = [to_datetime(at).year for fact in c.facts for at in (fact.valid_at, fact.invalid_at) if at]
        parts += [f"{len(c.facts)} facts, {min(years)} to {max(years)}."] if years else []
        summary = " ".join(parts)
        texts[c.id] = Text(name=name, summary=summary, writer=OFFLINE, content=key_of(name, summary))
    return texts


def _names(snapshot: Snapshot, members: Iterable[str]) -> list[str]:
    return [safe(snapshot.entities[member].name) for member in members]


def _terms(snapshot: Snapshot, lowest: Sequence[Cluster]) -> dict[str, list[str]]:
    """Return the distinctive words of each community: class TF-IDF of its facts' words.

    Stop words and the names of a fact's ends do not count. Source: Grootendorst, arXiv 2203.05794.
    """
    stops = languages()["en"].stops
    named = {id_: set(plain_words(entity.name)) for id_, entity in snapshot.entities.items()}
    counts: dict[str, Counter[str]] = {cluster.id: Counter() for cluster in lowest}
    every: Counter[str] = Counter()
    for cluster in lowest:
        for fact in cluster.facts:
            left_out = stops.union(*(named.get(end, set()) for end in fact.ends))
            words = (w for w in plain_words(fact.text) if len(w) > 2 and w not in left_out)
            counts[cluster.id].update(word for word in words if not word.isdigit())
        every.update(counts[cluster.id])
    mean = every.total() / max(1, len(counts))
    terms = {}
    for id_, counted in counts.items():
        scores = {word: -times * math.log(1 + mean / every[word]) for word, times in counted.items()}
        terms[id_] = [word for _, word in sorted(zip(scores.values(), scores, strict=True))[:_TERMS]]
    return terms


def parts_of(cluster: Cluster, texts: Mapping[str, Text]) -> list[Cluster]:
    """Cut a community that is too large for one prompt into parts; [] if it fits.

    The id of a member, or child, decides its part, and the number of parts is a power of 2, so that a
    newcomer changes one part only.
    """
    if cluster.level == PROFILE:
        return []
    tokens = sum(count_tokens(texts[child.id].text) for child in cluster.children)
    prompts = max(tokens / PARTS_TOKENS, 0 if cluster.children else len(cluster.members) / PROMPT_MEMBERS)
    if prompts <= 1:
        return []
    count = min(_MOST_PARTS, 1 << math.ceil(math.log2(prompts)))
    ids, level = (f"{cluster.id}/{n}" for n in range(count)), cluster.level
    parts = [Cluster(id=id_, level=level, members=[], is_part=True) for id_ in ids]
    for child in cluster.children:
        parts[hash_of(cluster.id + child.id) % count].children.append(child)
    if not cluster.children:
        number = {member: hash_of(cluster.id + member) % count for member in cluster.members}
        for place, part in enumerate(parts):
            part.members = [member for member in cluster.members if number[member] == place]
        for fact in cluster.facts:
            parts[number[fact.source]].facts.append(fact)
    filled = [part for part in parts if part.members or part.children]
    return filled if len(filled) > 1 else []


def request_of(
    snapshot: Snapshot,
    cluster: Cluster,
    texts: Mapping[str, Text],
    parts: Sequence[Text],
    head: Callable[[str], str],
) -> SummaryRequest:
    """Return the request about a community, a part of it, or an entity. head: task -> its instructions.

    Members and facts are chosen by rank but listed by id, so that a change of rank alone does not change the
    request.
    """
    facts = best_facts(snapshot, cluster)
    data = section("FACTS", [{"id": at, "fact": fact_line(fact)[:_FACT]} for at, fact in enumerate(facts)])
    task: SummaryTask = "community"
    if cluster.level == PROFILE:
        task, data = "profile", section("ENTITY", [entity_line(snapshot.entities[cluster.id])]) + data
    elif cluster.children:
        task = "community" if cluster.is_part else "community_report"
        lower = parts or [texts[child.id] for child in sorted(cluster.children, key=lambda child: child.id)]
        data = section("COMMUNITIES", [text.name_and_summary for text in lower]) + data
    else:
        summed = section("PARTS", [text.name_and_summary for text in parts]) if parts else ""
        cards = [card(snapshot.entities[member]) for member in sorted(cluster.members[:CARDS])]
        data = section("MEMBERS", cards) + summed + data
    ids = tuple(fact.id for fact in facts)
    return SummaryRequest(task=task, head=head(task), data=data, room=_ROOM[task], facts=ids)


def best_facts(snapshot: Snapshot, cluster: Cluster) -> list[Fact]:
    """Return the facts of a community's prompt, by id."""
    return sorted(best(cluster.facts, snapshot.recorded_at)[:FACTS], key=lambda fact: fact.id)


def card(entity: Entity) -> str:
    """Return a member's line in a prompt."""
    return ": ".join([safe(entity.name), *entity.labels])[:_CARD]


def written(request: SummaryRequest, reply: Mapping[str, Any], writer: str, content: str) -> Text:
    """Return the text of a checked reply; its findings cite the ids of facts."""
    report = {name: reply[name] for name in ("rating", "reason") if name in reply}
    if findings := reply.get("findings"):
        report["findings"] = [{**f, "facts": [request.facts[at] for at in f["facts"]]} for f in findings]
    names = {"name": reply.get("name", ""), "summary": reply["summary"]}
    return Text(**names, writer=writer, content=content, report=report)


MAX_MOVED = 0.2  # largest share of a prompt's members and facts that may have left the community
MAX_CHANGED = 0.25  # largest share of the community's members and facts that may have come or gone


class Validity:
    """Decides whether texts of earlier runs are still valid in a snapshot of a group."""

    def __init__(self, snapshot: Snapshot, head: Callable[[str], str]) -> None:
        """head: task -> its instructions."""
        self._snapshot, self._head = snapshot, head

    @cached_property
    def _holding(self) -> Mapping[str, Fact]:
        return {fact.id: fact for fact in self._snapshot.facts if fact.holds_at(self._snapshot.recorded_at)}

    def note(self, cluster: Cluster, texts: Mapping[str, Text]) -> dict[str, Any]:
        """Return the note on a request: its ids, a hash of their texts, count and hash of all ids, time."""
        prompt_ids = sorted(set(self._prompt_ids(cluster, texts)))
        ids = sorted(_ids_of(cluster))
        counted = {"of": len(ids), "inside": key_of(*ids), "at": self._snapshot.recorded_at}
        return {"shown": prompt_ids, "said": self._content_hash(cluster, prompt_ids, texts), **counted}

    def valid_at(
        self, note: Mapping[str, Any], cluster: Cluster, texts: Mapping[str, Text]
    ) -> Instant | None:
        """Return when a text with this note was last accurate; None if the text must be rewritten."""
        ids, prompt_ids = _ids_of(cluster), note["shown"]
        if self._content_hash(cluster, prompt_ids, texts) != note["said"]:
            return None  # a member or fact of the prompt has changed
        if key_of(*sorted(ids)) == note["inside"]:
            return self._snapshot.recorded_at
        all_of_it = len(prompt_ids) == note["of"]
        is_similar = abs(len(ids) - note["of"]) <= MAX_CHANGED * note["of"]
        are_present = len(ids.intersection(prompt_ids)) >= (1 - MAX_MOVED) * len(prompt_ids)
        noted_at: Instant = note["at"]
        return noted_at if is_similar and are_present and not all_of_it else None

    def _prompt_ids(self, cluster: Cluster, texts: Mapping[str, Text]) -> Iterable[str]:
        yield from (child.id for child in cluster.children)
        yield from () if cluster.children else sorted(cluster.members[:CARDS])
        yield from (fact.id for fact in best_facts(self._snapshot, cluster))
        for part in parts_of(cluster, texts):
            yield from self._prompt_ids(part, texts)

    def _content_hash(self, cluster: Cluster, ids: Iterable[str], texts: Mapping[str, Text]) -> str:
        """Return the hash of the prompt's head and the current texts of these ids ("" for a missing id)."""
        entities = self._snapshot.entities

        def text_of(id_: str) -> str:
            if id_ in self._holding:
                return fact_line(self._holding[id_])
            return card(entities[id_]) if id_ in entities else texts[id_].text if id_ in texts else ""

        return key_of(self._head("community_report" if cluster.children else "community"), *map(text_of, ids))


def _ids_of(cluster: Cluster) -> set[str]:
    """Return the ids of the members (or children) and facts that a community's text can come from."""
    parts = [child.id for child in cluster.children] or cluster.members
    return {*parts, *(fact.id for fact in cluster.facts)}
