"""Prompts: the files of `prompts/`, extended by the settings, filled with data, and hashed.

A prompt is two texts. The head is the same for every episode of a run: a server's prefix cache serves it. The
data follows as tagged sections, one JSON document each; no text can close its section:

    <EPISODE>
    {"kind":"message","time":"2026-03-05T09:00:00Z","speaker":"Qyl","text":"I work at Zemtrax"}
    </EPISODE>

A prompt holds only text that is fixed when it is made (R21). Answers refer to items by small ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kgray import times
from kgray.errors import KgrayError
from kgray.ontology import Ontology
from kgray.ports import ExtractionRequest, Question
from kgray.records import Episode, ExtractedEntity

TASKS = tuple(
    "combined batched extract_entities reflect extract_facts date_facts resolve_entity resolve_facts "
    "contradiction relate".split()
)
REPAIR_LINE = "That reply could not be used. Reply again, complete and corrected.\n"
_NAMES_ENTITIES = frozenset({"combined", "extract_entities", "reflect"})
_NAMES_RELATIONS = frozenset({"combined", "extract_facts"})
# Characters that could end a line, a section or a chat turn ("<|im_end|>"), and halves of surrogate pairs.
_UNSAFE = re.compile("[<\u0085\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The head of one task, and its hash, which is stored with each extraction."""

    task: str
    head: str

    @property
    def sha256(self) -> str:
        """Hex digest of the head, ontology and custom instructions included."""
        return hashlib.sha256(self.head.encode("utf-8", "surrogatepass")).hexdigest()


class Prompts(dict[str, Prompt]):
    """The prompts of one run, by task: the file's text, then what the settings add."""

    def __init__(self, ontology: Ontology | None = None, instructions: str = "") -> None:
        """Add the ontology's names and the user's instructions to the heads of the extraction tasks."""
        super().__init__()
        types, relations = _types_block(ontology), _relations_block(ontology)
        own = f"The user of this memory adds:\n{instructions.strip()}" if instructions.strip() else ""
        for task in TASKS:
            parts = [
                load(task),
                types if task in _NAMES_ENTITIES else "",
                relations if task in _NAMES_RELATIONS else "",
                own if task in _NAMES_ENTITIES | _NAMES_RELATIONS else "",
            ]
            self[task] = Prompt(task, "\n\n".join(filter(None, parts)))


@cache
def load(task: str) -> str:
    """Return the text of `prompts/TASK.md`, without its front matter. Raises KgrayError."""
    path = folder() / f"{task}.md"
    try:
        front, _, text = path.read_text(encoding="utf-8").partition("\n---\n")
    except OSError as error:
        raise KgrayError(f"The prompt {path.name} cannot be read ({error}): install kgray again.") from None
    if front.split("\n", 1)[0] != task or not text.strip():
        raise KgrayError(f"{path} is not the prompt {task!r}: line one names the task, --- ends the front.")
    return text.strip()


def folder() -> Path:
    """Return the folder of the prompts: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).parent.parent
    inside = here / "prompts"
    return inside if inside.is_dir() else here.parent / "prompts"


def section(tag: str, data: object) -> str:
    """Return one tagged section: JSON on one line, in which no `<` occurs."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    safe = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f"<{tag}>\n{safe}\n</{tag}>\n"


def extraction_data(request: ExtractionRequest, entities: Sequence[ExtractedEntity] | None = None) -> str:
    """Return the data of combined and extract_entities; with `entities`: of reflect and extract_facts."""
    parts = []
    if request.previous:
        parts.append(section("PREVIOUS", [_shown_episode(episode) for episode in request.previous]))
    parts.append(section("EPISODE", _episode(request.episode)))
    if entities is not None:
        typed = [{"name": one.name} | ({"type": one.type} if one.type else {}) for one in entities]
        parts.append(section("ENTITIES", [{"id": place, **one} for place, one in enumerate(typed)]))
    return "".join(parts)


def dating_data(episode: Episode, facts: Iterable[Mapping[str, Any]]) -> str:
    """Return the data of `date_facts`; facts have id, source, target or value, relation, fact and kind."""
    return section("EPISODE", _episode(episode)) + section("FACTS", [dict(fact) for fact in facts])


def questions_data(episode: Episode | None, questions: Sequence[Question]) -> str:
    """Return the data of the judging tasks; an id is an index in the list of questions or of candidates."""
    asked = section("QUESTIONS", [_question(place, one) for place, one in enumerate(questions)])
    return asked if episode is None else section("EPISODE", _episode(episode)) + asked


def answer_data(question: str, lines: Sequence[str]) -> str:
    """Return the data of `answer`: the lines of a context, and the question."""
    return section("MEMORY", list(lines)) + section("QUESTION", question)


def repair_data(error: str, reply: str) -> str:
    """Return what is appended to a prompt's data to have a reply repaired: the reply, and its error."""
    return section("REJECTED", {"errors": [error], "reply": reply}) + REPAIR_LINE


def tokens(text: str) -> int:
    """Return an estimate of a text's tokens, for plans over gigabytes: `count_tokens` reads 2 MB/s."""
    return -(-len(text) // 4)


def _episode(episode: Episode) -> dict[str, Any]:
    return {"kind": episode.kind, **_shown_episode(episode)}


def _shown_episode(episode: Episode) -> dict[str, Any]:
    speaker = {"speaker": episode.speaker} if episode.speaker else {}
    time = str(times.show(episode.reference_time)).replace(".000000Z", "Z")
    return {"time": time, **speaker, "text": episode.text}


def _question(place: int, question: Question) -> dict[str, Any]:
    """Return a question as its prompt shows it; a card that is missing becomes an empty text."""
    shown: dict[str, Any] = {"id": place, "kind": question.kind}
    cards = question.cards
    match question.kind:
        case "entity":
            shown |= {"name": question.item, "card": cards[0] if cards else question.item}
            known = cards[1:] or question.candidates
            return shown | {"candidates": [{"id": i, "card": card} for i, card in enumerate(known)]}
        case "relation":
            return shown | {
                "name": question.item,
                "example": cards[0] if cards else "",
                "other": question.candidates[0],
                "other_example": cards[1] if len(cards) > 1 else "",
            }
        case "cardinality":
            return shown | {"name": question.item, "examples": list(cards)}
        case "variant" | "verdict":
            candidates = [{"id": i, "fact": text} for i, text in enumerate(question.candidates)]
            return shown | {"fact": question.item, "candidates": candidates}


def _types_block(ontology: Ontology | None) -> str:
    """Return the lines that name the declared entity types; "" where none is declared."""
    lines = []
    for kind in ontology.entities.values() if ontology else ():
        about = f": {kind.description}" if kind.description else ""
        told = f"; facts about its {', '.join(kind.attributes)} are values" if kind.attributes else ""
        lines.append(f"- {kind.name}{about}{told}")
    return "\n".join(["Use these types where they fit:", *lines] if lines else [])


def _relations_block(ontology: Ontology | None) -> str:
    """Return the relations to prefer: the shipped ones by name, those of the settings with a line each.

    A relation that is the same as another one or its inverse is left out: one name for one meaning.
    """
    if ontology is None:
        return ""
    shown = [r for r in ontology if not r.same_as and not r.inverse_of]
    plain = [r for r in shown if r.name not in ontology.own]
    entity = [r.name for r in plain if r.object != "value"]
    value = [r.name for r in plain if r.object == "value"]
    lines = [f"Relations between entities: {', '.join(entity)}."] if entity else []
    lines += [f"Relations with a value: {', '.join(value)}."] if value else []
    for own in shown:
        if own.name in ontology.own:
            ends = own.subject_type or own.object_type
            pair = f" ({own.subject_type or 'any'} to {own.object_type or 'any'})" if ends else ""
            about = f": {own.description}" if own.description else ""
            last = "; its object is a value" if own.object == "value" else ""
            lines.append(f"- {own.name}{pair}{about}{last}")
    return "\n".join(lines)
