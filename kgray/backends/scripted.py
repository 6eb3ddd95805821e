r"""Models that answer from a file: for tests, demos, and as an extractor that makes no mistakes.

`model.script` names a file of JSON lines, in any order:

    {"episode": client id, "extraction": {"entities": [...], "facts": [...]}}
    {"question": {"kind": "entity", "items": [name, [candidate, ...]]}, "answer": {"duplicate_of": i}}
    {"question": {"kind": "compare", "items": [sentence, [candidate, ...]]}, "answer": {"answers": [...]}}
    {"question": {"kind": "answer", "items": [a user's question]}, "answer": {"text": "... [1]"}}
    {"episode": client id, "error": "refused" | "invalid" | "unavailable", "times": n}

The first n times that this process reads the episode, the error is raised (without "times" always); several
errors of an episode follow one another, and its extraction comes last. A question is matched by its kind and
items, from any episode; `parse_answer` describes the forms of an answer. A missing entry is an invalid
answer, except for a name of one entity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Never

from kgray.errors import ContentError, Cost, InvalidAnswer, KgrayError, Refused, SettingsError, Unavailable
from kgray.ports import Answer, AnswerRequest, ExtractionRequest, Judged, QuestionRequest
from kgray.prompting.prompts import load
from kgray.prompting.replies import parse_answer, parse_extraction
from kgray.records import Extraction, canonical

_ERRORS = {"refused": Refused, "invalid": InvalidAnswer, "unavailable": Unavailable}
_FORMS = [set(keys.split()) for keys in ("episode extraction", "question answer", "episode error")]
_FORMS.append({"episode", "error", "times"})


class _Scripted:
    """A parsed script; each error is used up as it is raised."""

    # The identity does not depend on the file's content: a longer script works with the same data folder.
    identity = "scripted-1"

    def __init__(self, path: Path | str) -> None:
        """Read the script. Raises SettingsError with file and line for an unusable entry."""
        self._replies: dict[tuple[str, str], Any] = {}  # (kind, client id or canonical question)
        self._errors: dict[str, Iterator[str]] = {}  # client id -> kinds, one for each reading
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"model.script = {str(path)!r} cannot be read: {error}") from None
        for number, line in enumerate(lines, start=1):
            try:
                if line.strip():
                    self._add(json.loads(line, parse_constant=_not_json))
            except (ValueError, RecursionError) as error:
                raise SettingsError(f"model.script: {path}, line {number}: {error}") from None

    def _add(self, entry: object) -> None:
        if not isinstance(entry, dict) or set(entry) not in _FORMS:
            raise ValueError(
                'a line has "episode" and "extraction", "question" and "answer", '
                'or "episode" and "error" (and "times"), and nothing else'
            )
        episode, question = entry.get("episode"), entry.get("question")
        if "question" in entry and (not isinstance(question, dict) or question.keys() != {"kind", "items"}):
            raise ValueError('"question" has "kind" and "items", and nothing else')
        if "question" not in entry and (not isinstance(episode, str) or not episode):
            raise ValueError('"episode" is a client id: a text that is not empty')
        if "error" not in entry:
            name, key = ("extraction", episode) if "extraction" in entry else ("answer", canonical(question))
            reply = entry[name]
            if not isinstance(reply, dict):
                raise ValueError(f'"{name}" is an object')
            if canonical(self._replies.setdefault((name, str(key)), reply)) != canonical(reply):
                raise ValueError(f"it says something else of {key} than an earlier line")
            return
        kind, times = entry["error"], entry.get("times")
        if not isinstance(kind, str) or kind not in _ERRORS:
            raise ValueError(f'"error" is one of {", ".join(_ERRORS)}')
        if "times" in entry and (type(times) is not int or times < 1):
            raise ValueError('"times" is a whole number from 1 up')
        errors = repeat(kind, times) if times else repeat(kind)
        self._errors[str(episode)] = chain(self._errors.get(str(episode), ()), errors)


class ScriptedExtractor(_Scripted):
    """Extractions by client id; each counts as one call."""

    async def extract(self, request: ExtractionRequest) -> Extraction:
        client_id = request.episode.client_id
        if client_id is None:
            raise InvalidAnswer("a script knows episodes by the client's id, and this one has none")
        with _one_call():
            if kind := next(self._errors.get(client_id, iter(())), ""):
                reason = f"the script says {kind!r} to the episode {client_id!r}"
                error_class: type[KgrayError] = _ERRORS[kind]
                raise (
                    error_class(reason, raw=reason)
                    if issubclass(error_class, ContentError)
                    else error_class(reason)
                )
            reply = self._replies.get(("extraction", client_id))
            if reply is None:
                raise InvalidAnswer(f"the script has no extraction of the episode {client_id!r}")
            return replace(parse_extraction(reply, request.episode), model=self.identity, calls=1)


class ScriptedJudge(_Scripted):
    """Answers by kind and items; a name with a single candidate of the same name needs no entry."""

    def key(self, request: QuestionRequest) -> str:
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        answers: list[Answer] = []
        for question in request.questions:
            matches = [i for i, name in enumerate(question.candidates) if name == question.item]
            brief = canonical(question.brief())
            with _one_call():
                if (reply := self._replies.get(("answer", brief))) is not None:
                    answers.append(parse_answer(question, reply))
                elif question.kind == "entity" and len(matches) == 1:
                    answers.append({"duplicate_of": matches[0]})
                else:
                    raise InvalidAnswer(f"the script has no answer to {brief}")
        return Judged(answers=tuple(answers), calls=1)


class ScriptedAnswerer(_Scripted):
    """Replies to a question of the task's kind, with it as its item: {"text": ...}, word by word.

    The reply to a task with a schema is the answer itself, as JSON.
    """

    head = staticmethod(load)

    async def answer(self, request: AnswerRequest, on_text: Callable[[str], None]) -> Cost:
        brief = canonical({"kind": request.task, "items": [request.question]})
        with _one_call():
            reply = self._replies.get(("answer", brief), {})
            text = reply.get("text") if request.schema is None else canonical(reply)
            fits = isinstance(text, str) and text.strip() and (request.schema is None or reply)
            if not fits:
                raise InvalidAnswer(f"the script has no text that answers {brief}")
        for word in re.split(r"(?<=\s)", str(text)) if request.schema is None else [str(text)]:
            on_text(word)
        return Cost(calls=1)


@contextmanager
def _one_call() -> Iterator[None]:
    """Count a call for an unusable reply, like the reply of a model."""
    try:
        yield
    except ContentError as error:
        error.spent = Cost(calls=1)
        raise


def _not_json(constant: str) -> Never:
    raise ValueError(f"{constant} is not JSON")
