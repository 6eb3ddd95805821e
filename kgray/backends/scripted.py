r"""Models that answer from a file: for tests, demos, and as an extractor that makes no mistakes.

`model.script` names a file of JSON lines, in any order:

    {"episode": client id, "extraction": {"entities": [...], "facts": [...]}}
    {"question": {"kind": ..., "items": [item, [candidate, ...]]}, "answer": {...}}
    {"episode": client id, "error": "refused" | "invalid" | "unavailable", "times": n}

The first n times that this process reads the episode, the error is raised (without "times" always); several
errors of one episode follow one another, and its extraction comes last. A question is matched by its kind and
items, whichever episode asks. What is not in the file is an invalid answer.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Never

from kgray.backends.question_key import questions_key
from kgray.errors import ContentError, InvalidAnswer, KgrayError, Refused, SettingsError, Unavailable
from kgray.ports import Answer, ExtractionRequest, Judged, Question, QuestionRequest
from kgray.prompting.replies import parse_answer, parse_extraction
from kgray.records import Extraction, canonical

# The file's content is no part of it, so that a longer script may be used with the same data folder. What was
# journaled before stays as it was, as with any model (R21).
IDENTITY = "scripted-1"

_ERRORS: dict[str, type[KgrayError]] = {
    "refused": Refused,
    "invalid": InvalidAnswer,
    "unavailable": Unavailable,
}
_FORMS = (
    frozenset({"episode", "extraction"}),
    frozenset({"question", "answer"}),
    frozenset({"episode", "error"}),
    frozenset({"episode", "error", "times"}),
)


@dataclass(slots=True)
class Script:
    """A parsed script; each error is used up as it is raised."""

    path: Path
    extractions: dict[str, Any] = field(default_factory=dict)  # client id -> reply
    answers: dict[str, Any] = field(default_factory=dict)  # canonical brief -> reply
    errors: dict[str, deque[list[Any]]] = field(
        default_factory=dict
    )  # client id -> [kind, times left or None]

    @staticmethod
    def read(path: Path | str) -> Script:
        """Return the script in the file. Raises SettingsError with file and line for what it cannot use."""
        script = Script(Path(path))
        try:
            lines = script.path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"model.script = {str(path)!r} cannot be read: {error}") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                script.add(json.loads(line, parse_constant=_not_json))
            except (ValueError, RecursionError) as error:
                raise SettingsError(f"model.script: {path}, line {number}: {error}") from None
        return script

    def add(self, entry: object) -> None:
        """Take one line. Raises ValueError with the reason."""
        if not isinstance(entry, dict) or frozenset(entry) not in _FORMS:
            raise ValueError(
                'a line has "episode" and "extraction", "question" and "answer", '
                'or "episode" and "error" (and "times"), and nothing else'
            )
        if "question" in entry:
            _keep_once(self.answers, _brief(entry["question"]), _object(entry, "answer"))
            return
        episode = entry["episode"]
        if not isinstance(episode, str) or not episode:
            raise ValueError('"episode" is a client id: a text that is not empty')
        if "extraction" in entry:
            _keep_once(self.extractions, episode, _object(entry, "extraction"))
            return
        kind, left = entry["error"], entry.get("times")
        if not isinstance(kind, str) or kind not in _ERRORS:
            raise ValueError(f'"error" is one of {", ".join(_ERRORS)}')
        if "times" in entry and (isinstance(left, bool) or not isinstance(left, int) or left < 1):
            raise ValueError('"times" is a whole number from 1 up')
        self.errors.setdefault(episode, deque()).append([kind, left])

    def next_error(self, episode: str) -> str | None:
        """Return the error that the next reading of the episode raises, and use it up; None = no error."""
        queue = self.errors.get(episode)
        while queue:
            kind, left = queue[0]
            if left is None:
                return str(kind)
            if left > 0:
                queue[0][1] -= 1
                return str(kind)
            queue.popleft()
        return None


class ScriptedExtractor:
    """Extractions by client id."""

    identity = IDENTITY

    def __init__(self, path: Path | str) -> None:
        """Read the script. Raises SettingsError with file and line."""
        self._script = Script.read(path)

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return the episode's scripted extraction; counts as one call of a model.

        Raises what the script says; InvalidAnswer where it says nothing of the episode.
        """
        client_id = request.episode.client_id
        if client_id is None:
            raise InvalidAnswer("a script knows episodes by the client's id, and this one has none")
        if error := self._script.next_error(client_id):
            _raise(error, client_id)
        if client_id not in self._script.extractions:
            raise InvalidAnswer(f"the script has no extraction of the episode {client_id!r}")
        reply = self._script.extractions[client_id]
        return replace(parse_extraction(reply, request.episode), model=self.identity, calls=1)


class ScriptedJudge:
    """Answers by kind and items."""

    identity = IDENTITY

    def __init__(self, path: Path | str) -> None:
        """Read the script. Raises SettingsError with file and line."""
        self._script = Script.read(path)

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key (R21)."""
        return questions_key(self.identity, request.questions)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Return the scripted answers; counts as one call.

        Raises InvalidAnswer where one is missing or does not fit its question.
        """
        return Judged(answers=tuple(self._answer(question) for question in request.questions), calls=1)

    def _answer(self, question: Question) -> Answer:
        brief = canonical(question.brief())
        if brief not in self._script.answers:
            raise InvalidAnswer(f"the script has no answer to {brief}")
        return parse_answer(question, self._script.answers[brief])


def _raise(error: str, client_id: str) -> Never:
    made = _ERRORS[error]
    reason = f"the script says {error!r} to the episode {client_id!r}"
    raise made(reason, raw=reason) if issubclass(made, ContentError) else made(reason)


def _brief(question: object) -> str:
    if not isinstance(question, dict) or question.keys() != {"kind", "items"}:
        raise ValueError('"question" has "kind" and "items", and nothing else')
    return canonical(question)


def _object(entry: dict[str, Any], key: str) -> dict[str, Any]:
    reply: object = entry[key]
    if not isinstance(reply, dict):
        raise ValueError(f'"{key}" is an object')
    return reply


def _keep_once(kept: dict[str, Any], key: str, reply: dict[str, Any]) -> None:
    if canonical(kept.setdefault(key, reply)) != canonical(reply):
        raise ValueError(f"it says something else of {key} than an earlier line")


def _not_json(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")
