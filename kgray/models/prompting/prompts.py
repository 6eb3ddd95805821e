"""Prompts: files of text, extended by the settings, filled with data, and hashed.

A prompt is two texts. The head is the same for every episode of a run, so a server's prefix cache serves it.
The data follows in tagged sections, one JSON document each; no text can close its section:

    <EPISODE>
    {"time":"Thursday 2026-03-05 09:00","speaker":"Leo","text":"I work at Nordwind"}
    </EPISODE>

All text in a prompt is immutable, so that a repeated request has the same hash and the journal finds its
answer (R21). Questions and answers refer to items by small ids.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kgray.domain import times
from kgray.domain.ontology import Ontology
from kgray.domain.records import Episode, ExtractedEntity
from kgray.errors import KgrayError, SettingsError
from kgray.models.prompting.reply_schemas import ENTITY_TYPES
from kgray.ports import ExtractionRequest, Question

TASKS = tuple(
    "combined batched extract_entities reflect extract_facts date_facts resolve_entity compare".split()
)
REPAIR_LINE = "That reply could not be used. Reply again, complete and corrected.\n"
_TYPED = frozenset({"combined", "extract_entities", "reflect"})  # tasks whose replies list entities
_RELATING = frozenset({"combined", "extract_facts", "reflect"})  # tasks whose replies list relations
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


@dataclass(frozen=True, slots=True)
class PromptFiles:
    """The texts of the prompts: the shipped files, each replaced by a file of that name in the user's folder.

    user_folder: `prompts.folder`, None where it is not set. Raises SettingsError for a folder that cannot
    be read, a file whose name is not that of a prompt, or a text that lacks the name of a field of the reply.
    """

    user_folder: Path | None = None

    def __post_init__(self) -> None:
        if self.user_folder is None:
            return
        names = sorted(path.stem for path in folder().glob("*.md"))
        try:
            paths = sorted(self.user_folder.iterdir())
        except OSError as error:
            fault = f"prompts.folder = {str(self.user_folder)!r}: {error.strerror or error}."
            raise SettingsError(fault) from None
        for path in paths:
            if path.suffix != ".md":
                continue
            if path.stem not in names:
                near = difflib.get_close_matches(path.stem, names, n=1, cutoff=0.0)[0]
                fault = f"prompts.folder: {path.name} is no prompt. The nearest one is {near}.md."
                raise SettingsError(fault)
            self.text(path.stem)

    def text(self, task: str) -> str:
        """Return the text of a task's prompt, without its front matter."""
        path = None if self.user_folder is None else self.user_folder / f"{task}.md"
        if path is None or not path.exists():
            return load(task)
        text = _parsed(path, task)[1]
        missing = [name for name in _parsed(folder() / f"{task}.md", task)[0] if not _has_word(text, name)]
        if missing:
            raise SettingsError(
                f"prompts.folder: {path.name} does not name {missing[0]!r}, which a reply needs: add it to "
                "the text, or remove the file, so that the shipped prompt is used."
            )
        return text


class Prompts(dict[str, Prompt]):
    """The prompts of one run, by task: the file's text, then the additions of the settings.

    types: the names that an entity's type may have, the shipped ones first
    """

    def __init__(
        self, ontology: Ontology | None = None, instructions: str = "", files: PromptFiles | None = None
    ) -> None:
        """Add the user's types, relations and instructions to the heads of the extraction tasks."""
        super().__init__()
        files = files or PromptFiles()
        declared = ontology.entities if ontology else {}
        self.types = tuple(dict.fromkeys((*ENTITY_TYPES, *declared)))
        types, relations = _types_block(ontology), _relations_block(ontology)
        added = f"The user of this memory adds:\n{instructions.strip()}" if instructions.strip() else ""
        for task in TASKS:
            parts = [
                files.text(task),
                types if task in _TYPED else "",
                relations if task in _RELATING else "",
                added if task in _TYPED | _RELATING else "",
            ]
            self[task] = Prompt(task, "\n\n".join(filter(None, parts)))


@cache
def load(task: str) -> str:
    """Return the text of the shipped prompt of a task, without its front matter. Raises KgrayError."""
    try:
        return _parsed(folder() / f"{task}.md", task)[1]
    except SettingsError as error:
        raise KgrayError(f"{error} Install kgray again.") from None


def _parsed(path: Path, task: str) -> tuple[list[str], str]:
    """Return the field names that a reply needs, and the text of a prompt's file. Raises SettingsError.

    The front matter is the task's name, a line about it and, in shipped files, a line of these field names.
    """
    try:
        front, _, text = path.read_text(encoding="utf-8-sig").partition("\n---\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The prompt {path} cannot be read: {error}.") from None
    lines = front.split("\n")
    if lines[0].strip() != task or not text.strip():
        raise SettingsError(
            f"The prompt {path} must begin with the line {task!r} and a line about it, then --- and its text."
        )
    return [word for line in lines[2:] for word in line.split(", ")], text.strip()


def _has_word(text: str, field: str) -> bool:
    return re.search(rf"(?<![A-Za-z_]){re.escape(field)}(?![A-Za-z_])", text) is not None


def folder() -> Path:
    """Return the folder of the shipped prompts: in the installed package, or next to it in a checkout."""
    package = Path(__file__).parent.parent.parent
    installed = package / "prompts"
    return installed if installed.is_dir() else package.parent / "prompts"


def section(tag: str, data: object) -> str:
    """Return one tagged section: JSON on one line, without any `<`."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    safe = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return f"<{tag}>\n{safe}\n</{tag}>\n"


def extraction_data(
    request: ExtractionRequest,
    entities: Sequence[ExtractedEntity] | None = None,
    facts: Sequence[str] | None = None,
) -> str:
    """Return the data of an extraction task.

    entities  the known entities: for extract_facts and reflect
    facts     the known sentences: for reflect
    """
    parts = []
    if request.previous:
        parts.append(section("PREVIOUS", [_message(episode) for episode in request.previous]))
    parts.append(section("EPISODE", _message(request.episode)))
    if entities is not None:
        rows = [{"name": e.name} | ({"type": e.type} if e.type else {}) for e in entities]
        parts.append(section("ENTITIES", rows))
    if facts is not None:
        parts.append(section("FACTS", list(facts)))
    return "".join(parts)


def dating_data(episode: Episode, facts: Iterable[Mapping[str, Any]]) -> str:
    """Return the data of `date_facts`; facts have id, fact and status."""
    return section("EPISODE", _message(episode)) + section("FACTS", [dict(fact) for fact in facts])


def questions_data(episode: Episode | None, questions: Sequence[Question]) -> str:
    """Return the data of the tasks that answer questions.

    An id is an index in the list of questions or of candidates. Only questions about entities show the
    episode: a comparison is about two sentences.
    """
    rows = section("QUESTIONS", [_question(place, question) for place, question in enumerate(questions)])
    if episode is None or all(question.kind == "compare" for question in questions):
        return rows
    return section("EPISODE", _message(episode)) + rows


def answer_data(
    question: str,
    lines: Sequence[str] | None,
    *,
    history: Sequence[Mapping[str, str]] = (),
    form: str = "",
    count: int | None = None,
) -> str:
    """Return the data of a question: the lines of a context, if it has one, and the question.

    history: rows of role and content; form: of the answer; count: the number of requested questions. Empty
    values have no section.
    """
    parts = [section("HISTORY", [dict(turn) for turn in history])] if history else []
    parts += [section("MEMORY", list(lines))] if lines is not None else []
    parts += [section("QUESTION", question)]
    parts += [section("FORM", form)] if form else []
    parts += [section("COUNT", count)] if count is not None else []
    return "".join(parts)


def repair_data(error: str, reply: str) -> str:
    """Return the end of the data of a repeated request: the rejected reply, and its error."""
    return section("REJECTED", {"errors": [error], "reply": reply}) + REPAIR_LINE


def tokens(text: str) -> int:
    """Return an estimate of a text's tokens: a token for each 4 characters.

    For estimates over gigabytes, because `count_tokens` reads only 2 MB/s.
    """
    return -(-len(text) // 4)


def _message(episode: Episode) -> dict[str, Any]:
    """Return an episode as prompts show it; the weekday helps with dates such as "on Monday"."""
    moment = times.to_datetime(episode.reference_time)
    message: dict[str, Any] = {"time": f"{moment:%A} {moment.year:04}-{moment:%m-%d %H:%M}"}
    if episode.speaker:
        message["speaker"] = episode.speaker
    if episode.kind == "json":
        try:
            return message | {"record": json.loads(episode.text)}
        except (ValueError, RecursionError):  # a text unit of a long record
            pass
    return message | {"text": episode.text}


def _question(place: int, question: Question) -> dict[str, Any]:
    """Return a question as its prompt shows it; if the question has no cards, the names take their place."""
    rows: dict[str, Any] = {"id": place, "kind": question.kind}
    if question.kind == "compare":
        candidates = [{"id": i, "fact": text} for i, text in enumerate(question.candidates)]
        return rows | {"fact": question.item, "candidates": candidates}
    cards = question.cards
    rows |= {"name": question.item, "card": cards[0] if cards else question.item}
    return rows | {
        "candidates": [{"id": i, "card": card} for i, card in enumerate(cards[1:] or question.candidates)]
    }


def _types_block(ontology: Ontology | None) -> str:
    """Return the lines about the entity types that the settings declare; "" where they declare none."""
    lines = []
    for kind in ontology.entities.values() if ontology else ():
        about = f": {kind.description}" if kind.description else ""
        names = ", ".join(kind.attributes)
        valued = f"; facts about its {names} have a value as object" if names else ""
        lines.append(f"- {kind.name}{about}{valued}")
    return "\n".join(["These types may be used too:", *lines] if lines else [])


def _relations_block(ontology: Ontology | None) -> str:
    """Return the lines about the relations that the settings declare; "" where they declare none.

    A relation that is a synonym or the inverse of another relation is left out: one name for one meaning.
    """
    lines = []
    for relation in ontology or ():
        if relation.name not in (ontology.own if ontology else ()) or relation.same_as or relation.inverse_of:
            continue
        ends = relation.subject_type or relation.object_type
        pair = f" ({relation.subject_type or 'any'} to {relation.object_type or 'any'})" if ends else ""
        about = f": {relation.description}" if relation.description else ""
        last = "; its object is a value" if relation.object == "value" else ""
        lines.append(f"- {relation.name}{pair}{about}{last}")
    return "\n".join(["Use these relation names where they fit:", *lines] if lines else [])
