"""`python -m bench conflicts`: numbered facts; later facts replace earlier facts.

After the task FactConsolidation of MemoryAgentBench: a single-hop question asks for the object of one fact, a
two-hop question for a fact of that object. BM25 and vectors over the messages are compared with kgray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.changed.cases import Case, ChangedWorld, new_memory
from bench.changed.hold_out import SentenceReader
from bench.changed.run import embedder_of
from bench.changed.scores import TOKENS, is_right
from bench.plain_search import PlainBM25, nearest
from kgray.domain import times
from kgray.domain.records import Draft
from kgray.domain.times import SECOND
from kgray.memory import AsyncMemory
from kgray.models.prompting.tokens import count_tokens
from tests.world.dice import Dice

SYSTEMS = ("kgray", "BM25", "vectors")
_START = times.parse("2026-01-01")[0]
_SYLLABLES = "ba do fen gar hul ik jo kel lum mar nor ost pel qua rin sol tam ur ven wix yar zel".split()
# relation: (kinds of subject and object, sentence, single-hop question, the subject as a description)
_RELATIONS: dict[str, tuple[str, str, str, str, str]] = {
    "HAS_CHIEF_EXECUTIVE": (
        "company", "person", "The chief executive of {s} is {o}", "Who is the chief executive of {s}?",
        "the chief executive of {s}",
    ),
    "HAS_PUBLISHER": (
        "book", "company", "The publisher of {s} is {o}", "Who is the publisher of {s}?",
        "the publisher of {s}",
    ),
    "HAS_TUTOR": (
        "person", "person", "The tutor of {s} is {o}", "Who is the tutor of {s}?", "the tutor of {s}",
    ),
    "CITIZEN_OF": (
        "person", "country", "{s} is a citizen of {o}", "Which country is {s} a citizen of?", "",
    ),
    "HAS_NATIVE_LANGUAGE": (
        "person", "language", "The native language of {s} is {o}", "What is the native language of {s}?", "",
    ),
    "LIVES_IN": ("person", "city", "{s} lives in {o}", "Where does {s} live?", ""),
    "HEADQUARTERED_IN": (
        "company", "city", "{s} is headquartered in {o}", "Where is {s} headquartered?", "",
    ),
}  # fmt: skip
_GROUP = "conflicts"
_COUNTS = {"company": 30, "book": 30, "person": 80, "country": 20, "city": 30, "language": 15}
_TYPES = {"company": "Organization", "person": "Person", "city": "Place", "country": "Place"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictPlan:
    """Numbered facts; a share of them replaces earlier facts."""

    seed: int = 1
    facts: int = 500
    conflicts: float = 0.3
    questions: int = 100
    embedder: str = "hashing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A two-hop question: both facts as cases, and the sentences of facts that were replaced."""

    text: str
    first: Case
    second: Case


@dataclass(slots=True)
class Conflicts:
    """The facts in order, and the questions."""

    world: ChangedWorld
    single: list[Case]
    chains: list[Chain]
    outdated: dict[tuple[str, str], list[str]]  # subject, relation -> sentences that a later one replaced
    current: dict[tuple[str, str], str] = field(default_factory=dict)  # -> the sentence that holds


def conflicts(plan: ConflictPlan) -> Conflicts:
    """Return the numbered facts and the questions about replaced facts."""
    reader = SentenceReader(identity=f"conflicts-{plan.seed}")
    names = {kind: [_name(plan.seed, kind, n) for n in range(count)] for kind, count in _COUNTS.items()}
    objects_by_slot: dict[tuple[str, str], list[str]] = {}
    drafts = [_numbered(plan, number, names, objects_by_slot, reader) for number in range(plan.facts)]
    world = ChangedWorld(group=_GROUP, drafts=drafts, reader=reader, judge=reader, cases=())
    world_of_conflicts = Conflicts(world, [], [], {})
    for key, objects in objects_by_slot.items():
        sentences = [_RELATIONS[key[1]][2].format(s=key[0], o=sentence) for sentence in objects]
        world_of_conflicts.current[key] = sentences[-1]
        world_of_conflicts.outdated[key] = [
            sentence for sentence in dict.fromkeys(sentences[:-1]) if sentence != sentences[-1]
        ]
    changed = [key for key, objects in sorted(objects_by_slot.items()) if len(objects) > 1]
    world_of_conflicts.single = [_case(key, objects_by_slot[key]) for key in changed][: plan.questions]
    world_of_conflicts.chains = [*_chains(objects_by_slot)][: plan.questions]
    return world_of_conflicts


def _numbered(
    plan: ConflictPlan,
    number: int,
    names: Mapping[str, Sequence[str]],
    objects_by_slot: dict[tuple[str, str], list[str]],
    reader: SentenceReader,
) -> Draft:
    """Return the next fact: new, or a replacement of an earlier fact."""
    dice = Dice(plan.seed, "conflict", number)
    slots = ((name_of_entity, name) for name, row in _RELATIONS.items() for name_of_entity in names[row[0]])
    free = [slot for slot in slots if slot not in objects_by_slot]
    replaces = bool(objects_by_slot) and (dice.flip(plan.conflicts) or not free)
    subject, relation = dice.pick(sorted(objects_by_slot) if replaces else free)
    row, objects = _RELATIONS[relation], objects_by_slot.setdefault((subject, relation), [])
    target = dice.pick(
        [
            name_of_entity
            for name_of_entity in names[row[1]]
            if name_of_entity != subject and name_of_entity not in objects[-1:]
        ]
    )
    objects.append(target)
    sentence = row[2].format(s=subject, o=target)
    text = f"{number}. {sentence}."
    reader.keys[sentence] = (subject, relation, target)
    ends = ((subject, row[0]), (target, row[1]))
    entities = [{"name": name, "type": _TYPES.get(kind, "Product")} for name, kind in ends]
    fact = {"source": 0, "target": 1, "relation": relation, "fact": f"{sentence}.", "kind": "holds"}
    reader.replies[text] = {"entities": entities, "facts": [fact]}
    return Draft(
        group=_GROUP, source="list", kind="text", text=text, client_id=f"fact-{number:05d}",
        reference_time=_START + number * 3600 * SECOND,
    )  # fmt: skip


def _chains(objects_by_slot: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[Chain]:
    """Yield the two-hop questions with at least one fact that has replaced another."""
    for subject, relation in sorted(objects_by_slot):
        described, target = _RELATIONS[relation][4], objects_by_slot[subject, relation][-1]
        for name, row in _RELATIONS.items():
            second_slot = (target, name)
            if (
                not described
                or second_slot not in objects_by_slot
                or objects_by_slot[second_slot][-1] == subject
            ):
                continue
            if max(len(objects_by_slot[subject, relation]), len(objects_by_slot[second_slot])) < 2:
                continue
            first, second = (
                _case((subject, relation), objects_by_slot[subject, relation]),
                _case(second_slot, objects_by_slot[second_slot]),
            )
            yield Chain(text=row[3].format(s=described.format(s=subject)), first=first, second=second)


def _name(seed: int, kind: str, number: int) -> str:
    dice = Dice(seed, "conflict name", kind, number)
    word = "".join(dice.pick(_SYLLABLES) for _ in range(3)).capitalize()
    if kind == "person":
        return f"{word} {dice.pick(_SYLLABLES).capitalize()}{dice.pick(_SYLLABLES)}{number}"
    return f"{word}{number} {kind.capitalize()}" if kind in ("company", "book") else f"{word}{number}"


def _case(key: tuple[str, str], objects: Sequence[str]) -> Case:
    subject, relation = key
    return Case(
        text=_RELATIONS[relation][3].format(s=subject), group=_GROUP, relation=relation,
        subject=frozenset({subject}), right=frozenset({objects[-1]}),
        replaced=frozenset(objects) - {objects[-1]},
    )  # fmt: skip


def run(plan: ConflictPlan, *, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Ingest the facts, ask, and return the figures of each system."""
    world, embedder = conflicts(plan), embedder_of(plan.embedder)
    progress(f"{plan.facts} facts, {len(world.single)} single-hop and {len(world.chains)} two-hop questions")
    with new_memory(world.world, embedder) as memory:
        return asyncio.run(_measured(memory, world))


async def _measured(memory: AsyncMemory, conflicts: Conflicts) -> dict[str, Any]:
    texts = [draft.text for draft in conflicts.world.drafts]
    bm25, vectors = PlainBM25(texts), np.asarray(await memory.embedder.embed(texts))
    marks: dict[str, dict[str, list[bool]]] = {
        system: {"single-hop, first": [], "two-hop, in context": []} for system in SYSTEMS
    }
    missed: list[dict[str, Any]] = []
    for case in conflicts.single:
        hits = await memory.search(case.text, group=case.group)
        marks["kgray"]["single-hop, first"].append(bool(hits) and is_right(case, hits[0]))
        if not marks["kgray"]["single-hop, first"][-1]:
            missed.append(
                {"question": case.text, "right": sorted(case.right), "first": [h.text for h in hits[:2]]}
            )
        (subject,) = case.subject
        right = conflicts.current[subject, case.relation]
        for system, ranked in (await _plain(memory, case.text, bm25, vectors)).items():
            marks[system]["single-hop, first"].append(bool(ranked) and right in texts[ranked[0]])
    for chain in conflicts.chains:
        built = await memory.context(chain.text, group=_GROUP, tokens=TOKENS)
        marks["kgray"]["two-hop, in context"].append(_holds_both(built.lines, chain, conflicts))
        if not marks["kgray"]["two-hop, in context"][-1]:
            missed.append({"question": chain.text, "context": built.lines[:8]})
        for system, ranked in (await _plain(memory, chain.text, bm25, vectors)).items():
            lines, tokens_left = list[str](), TOKENS
            for place in ranked:
                tokens_left -= count_tokens(f"{texts[place]}\n")
                if tokens_left >= 0:
                    lines.append(texts[place])
            marks[system]["two-hop, in context"].append(_holds_both(lines, chain, conflicts))
    figures = {
        system: {name: sum(values) / max(1, len(values)) for name, values in values_by_system.items()}
        for system, values_by_system in marks.items()
    }
    questions = {"single-hop": len(conflicts.single), "two-hop": len(conflicts.chains)}
    return {"systems": figures, "questions": questions, "missed": missed}


async def _plain(memory: AsyncMemory, text: str, bm25: PlainBM25, vectors: Any) -> dict[str, list[int]]:  # noqa: ANN401
    (vector,) = np.asarray(await memory.embedder.embed([text]))
    return {"BM25": bm25.best(text, 60), "vectors": [*nearest(vector, vectors, 60)]}


def _holds_both(lines: Sequence[str], chain: Chain, conflicts: Conflicts) -> bool:
    """Tell whether both current facts are present, and no replaced fact is above the later of the two."""
    places = []
    for case in (chain.first, chain.second):
        (subject,) = case.subject
        right = conflicts.current[subject, case.relation]
        places.append(next((n for n, line in enumerate(lines) if right in line), None))
    if None in places:
        return False
    last = max(place for place in places if place is not None)
    old = [
        sentence
        for case in (chain.first, chain.second)
        for subject in case.subject
        for sentence in conflicts.outdated[subject, case.relation]
    ]
    return not any(sentence in line for line in lines[:last] for sentence in old)


def table(document: dict[str, Any]) -> str:
    """Return the figures for people."""
    questions = document["questions"]
    lines = [f"{questions['single-hop']} single-hop and {questions['two-hop']} two-hop questions"]
    lines.append(f"{'':<10}{'single-hop, first':>22}{'two-hop, in context':>22}")
    for system, figures in document["systems"].items():
        lines.append(f"{system:<10}" + "".join(f"{value:>22.3f}" for value in figures.values()))
    return "\n".join(lines)
