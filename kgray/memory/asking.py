"""A model's answers to questions about a group: four modes, with history and suggestions.

local     from the context of the question: 1 call
keywords  a call extracts high-level keywords, which search for relations, and low-level ones, which search
          for entities (LightRAG, arXiv 2410.05779); their hits join the question's own context
global    from the reports of all communities of a level: `report_points`
drift     from reports and a first context the model writes further questions; the hits for them join the
          context. This runs for two rounds (after GraphRAG's DRIFT; no partial answer is written, so it takes
          3 calls)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from kgray.domain.graph import Hit
from kgray.domain.times import given, to_datetime
from kgray.errors import InputError, InvalidAnswer, Refused
from kgray.language.words import language_of, languages, plain_words
from kgray.memory.face import AsyncMemory
from kgray.memory.report_points import Reading, fitting_reports, of_level
from kgray.memory.spending import Spending
from kgray.models.prompting.prompts import answer_data
from kgray.models.prompting.reply_schemas import TEXT, listed_of, object_of
from kgray.models.prompting.tokens import Counter, count_tokens
from kgray.search.answering import LEAST_ROOM, Answered, Checked, OnText, without_citations
from kgray.search.context import Context, write

Mode = Literal["local", "keywords", "global", "drift"]
MODES: tuple[Mode, ...] = get_args(Mode)
ROLES = ("user", "assistant")
Turn = Mapping[str, str]  # of a conversation; role: user or assistant; content
_SEARCHED_QUESTIONS = 2  # earlier questions that a search includes
_ROUNDS = 2  # of mode drift
_QUESTIONS = 4  # questions a round
MAX_SUGGESTIONS = 20
_KEYWORDS = 8  # keywords of each class (relations, entities)
_TOKENS = 1500  # of a context, as `Memory.context` has it
_FAINTER = 0.7  # weight of a hit of a further question, for each round
_NUMBERED = re.compile(r"^\W*(?:\d{1,2}[.)])?\s*(\S.*\S)\s*$")
_LEVELS = ("high_level", "low_level")
_SCHEMA = object_of(**{name: listed_of(TEXT) for name in _LEVELS})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How `Memory.ask` answers. Raises InputError for a value that cannot be used."""

    mode: Mode = "local"
    max_calls: int | None = None  # of the model, all calls together
    max_tokens: int | None = None  # of prompts and replies, all calls together
    history: tuple[Turn, ...] = ()  # the conversation so far, oldest first: rows of role and content
    history_tokens: int = 1000  # the newest turns that fit are shown
    general: bool = False  # statements from general knowledge are allowed, and marked
    form: str = ""  # of the answer, in words: "a list of 3 to 7 points", "two paragraphs"
    level: int | None = None  # mode global: of the communities, 0 is the finest; None = the top
    min_rating: int = 0  # mode global: 0 to 10; reports that a model rated lower are not read
    report_tokens: int = 50_000  # mode global: reports that are read, at most
    high: tuple[str, ...] = ()  # mode keywords: given by hand, no call extracts them
    low: tuple[str, ...] = ()  # names of entities; `high` has subjects and relations
    suggest: int = 0  # further questions after the answer, at most 20: one more call

    def __post_init__(self) -> None:
        """Check each value."""
        if self.mode not in MODES:
            raise InputError(f"mode {self.mode!r} is unknown: use {', '.join(MODES)}", field="mode")
        for name in ("history", "high", "low"):
            value = getattr(self, name)
            object.__setattr__(self, name, turns_of(value) if name == "history" else tuple(value))
        ranges = {
            "min_rating": (0, 10), "suggest": (0, MAX_SUGGESTIONS), "history_tokens": (0, 1_000_000),
            "report_tokens": (100, 100_000_000),
        }  # fmt: skip
        for name, (minimum, maximum) in ranges.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not minimum <= value <= maximum:
                raise InputError(f"{name} is {value!r}: use {minimum} to {maximum}", field=name)
        if (self.high or self.low) and self.mode != "keywords":
            raise InputError(f"mode {self.mode} takes no keywords: use mode keywords", field="mode")
        if self.mode != "global" and (self.level is not None or self.min_rating):
            raise InputError(f"mode {self.mode} takes no level or rating: use mode global", field="mode")
        if len(self.form) > 300:
            raise InputError("form is too long: use at most 300 characters", field="form")

    @property
    def later_calls(self) -> int:
        """Calls that are kept for the answer and the suggestions."""
        return 1 + bool(self.suggest)

    @classmethod
    def take_from(cls, arguments: dict[str, Any]) -> AnswerOptions:
        """Return the options among the arguments of `Memory.ask`, and remove them from these."""
        if arguments.pop("template", "kgray") != "kgray":
            raise InputError("an answer cites numbered lines: use template kgray", field="template")
        names = [field.name for field in fields(cls) if field.name in arguments]
        return cls(**{name: arguments.pop(name) for name in names})


class Keywords(NamedTuple):
    """The keywords of a question: subjects and relations; names of entities."""

    high: tuple[str, ...]
    low: tuple[str, ...]


def own_keywords(question: str) -> Keywords:
    """Return the words of a question as keywords, without stop words. A word with a capital is a name."""
    stops = languages()[language_of(plain_words(question))].stops
    words = [word for word in re.findall(r"\w+", question) if word.casefold() not in stops]
    low = tuple(dict.fromkeys(word for word in words if word[0].isupper() or word[0].isnumeric()))
    high = tuple(dict.fromkeys(word for word in words if word not in low and plain_words(word)))
    return Keywords(high[:_KEYWORDS], low[:_KEYWORDS])


def _without_stop_words(words: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON
    """Return the keywords of a reply without those of stop words alone ("her", "there")."""
    texts = [word.strip() for word in words if isinstance(word, str)] if isinstance(words, list) else []
    stops = frozenset[str]().union(*(language.stops for language in languages().values()))
    return tuple(dict.fromkeys(text for text in texts if {*plain_words(text)} - stops))[:_KEYWORDS]


class _Evidence(NamedTuple):
    """The sources of an answer."""

    context: Context
    keywords: Keywords | None = None
    reports: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class MemoryQuestion:
    """A question to a group's memory; search_arguments: those of `Memory.context`."""

    memory: AsyncMemory
    spending: Spending
    question: str
    group: str
    options: AnswerOptions
    search_arguments: dict[str, Any]

    async def answer(self, on_text: OnText) -> Answered:
        """Return the answer with its suggestions. Raises InputError.

        on_text gets the pieces of the answer's text as they arrive.
        """
        options, spending = self.options, self.spending
        needed = options.later_calls + (options.mode == "global")
        if options.max_calls is not None and options.max_calls < needed:
            about = f"mode {options.mode}{' with suggestions' if options.suggest else ''}"
            raise InputError(
                f"max_calls is {options.max_calls}: {about} takes {needed} calls at least", field="max_calls"
            )
        evidence = await self._evidence()
        context, has_lines = evidence.context, bool(evidence.context.hits)
        checked = Checked(context, on_text)
        if has_lines or options.general:
            lines = context.lines if has_lines else []
            data = answer_data(self.question, lines, history=self.history, form=options.form)
            task = "answer_general" if options.general else "answer"
            await spending.ask(task, self.question, data, checked.take, reserved=bool(options.suggest))
        answer, suggestions = checked.end(), list[str]()
        if options.suggest and has_lines:
            suggestions = await self.suggest(context.lines, options.suggest)
        keywords = evidence.keywords and dict(zip(_LEVELS, evidence.keywords, strict=True))
        return replace(
            answer,
            suggestions=tuple(suggestions),
            keywords=keywords,
            reports=evidence.reports,
            cost=spending.cost,
        )

    @property
    def history(self) -> list[Turn]:
        """The newest turns of the conversation that fit into the budget."""
        return newest(self.options.history, self.options.history_tokens)

    async def context(self, query: str = "", **changes: Any) -> Context:  # noqa: ANN401 - of `Memory.context`
        """Return the context of a query, "": of the question. changes: replaces some of the arguments."""
        text = query or query_of(self.question, self.history)
        return await self.memory.context(text, group=self.group, **self.search_arguments | changes)

    async def suggest(self, lines: Sequence[str], count: int = _QUESTIONS, *, reserved: int = 0) -> list[str]:
        """Return questions that go on from this one, at most `count`. reserved: as of `Spending.ask`."""
        if not lines:
            return []
        data = answer_data(self.question, lines, history=self.history, count=count)
        lines_of_reply = (
            await self.spending.text("follow_up", self.question, data, reserved=reserved)
        ).splitlines()
        questions = [match[1] for line in lines_of_reply if (match := _NUMBERED.match(line))]
        if questions and questions[0].strip(" .\"'*").upper() == "NONE":
            return []
        return [text for text in dict.fromkeys(questions) if text != self.question][:count]

    async def _evidence(self) -> _Evidence:
        match self.options.mode:
            case "global":
                return await self._from_reports()
            case "keywords":
                return await self._by_keywords()
        context = await self.context()
        drifts = self.options.mode == "drift" and context.hits
        return _Evidence(await self._with_follow_ups(context) if drifts else context)

    @property
    def _budget(self) -> tuple[int, Counter]:
        return self.search_arguments.get("tokens", _TOKENS), self.search_arguments.get("count", count_tokens)

    @property
    def _narrows(self) -> bool:
        filters = self.search_arguments.get("filters")
        limits = any(self.search_arguments.get(name) for name in ("scopes", "said_after", "said_before"))
        return limits or (filters is not None and filters.narrows)

    async def _from_reports(self) -> _Evidence:
        """Return the best points of the reports; no hits where no report helps."""
        if self.search_arguments.get("as_of") is not None:
            raise InputError(
                "mode global takes no as_of: a report describes the time of its run", field="mode"
            )
        if self._narrows:
            raise InputError(
                "mode global takes no scope and no filter: a report describes the whole group", field="mode"
            )
        options, group, (tokens, count) = self.options, self.group, self._budget
        communities = await self.memory.communities.list(
            group=group, known_at=self.search_arguments.get("known_at")
        )
        if not communities:
            raise InputError(
                f"group {group} has no communities: run `kgray communities refresh --group {group}` first",
                field="mode",
            )
        level = of_level(communities, options.level)
        reports, left_out = fitting_reports(level, options.min_rating, options.report_tokens)
        reading = Reading(self.spending, self.question, group, tokens, count, self.history)
        context, counts = await reading.points(reports, options.later_calls)
        return _Evidence(context, reports=counts | {"left_out": counts["left_out"] + left_out})

    async def _by_keywords(self) -> _Evidence:
        """Return the hits of the question and its keywords: `high` search for relations, `low` for names."""
        keywords = await self._keywords()
        contexts = [await self.context()]
        for recipe, words in zip(("lightrag_global", "lightrag_local"), keywords, strict=True):
            if words:
                contexts.append(await self.context(", ".join(words), recipe=recipe))
        hits: dict[tuple[str, str], Hit] = {}
        for hit in (hit for context in contexts for hit in context.hits):
            former = hits.get((hit.scope, hit.id))
            hits[hit.scope, hit.id] = hit if former is None or former.score < hit.score else former
        return _Evidence(self._context_of([*hits.values()]), keywords)

    async def _keywords(self) -> Keywords:
        """Return the keywords that were given, else a model's, else the question's own."""
        options, own_words = self.options, own_keywords(self.question)
        if options.high or options.low:
            return Keywords(options.high, options.low)
        data = answer_data(self.question, None, history=self.history)
        later = self.spending.worst("answer", answer_data(self.question, ()), LEAST_ROOM) + self._budget[0]
        calls, tokens = options.later_calls + 1, self.spending.worst("keywords", data) + later
        if not self.spending.allows(calls, tokens):
            return own_words
        reserved = options.later_calls
        try:
            reply = await self.spending.json("keywords", self.question, data, _SCHEMA, reserved=reserved)
        except (Refused, InvalidAnswer) as error:
            self.spending.add(error.spent)
            return own_words
        keywords = Keywords(*(_without_stop_words(reply[name]) for name in _LEVELS))
        return keywords if any(keywords) else own_words

    def _context_of(self, hits: Sequence[Hit]) -> Context:
        """Return hits of several searches as one context."""
        moments: Mapping[str, str] = {"as of": "as_of", "as known on": "known_at"}
        given_moments = {
            word: to_datetime(given(self.search_arguments[name], name)[0])
            for word, name in moments.items()
            if self.search_arguments.get(name) is not None
        }
        tokens, count = self._budget
        return write(hits, tokens, query=self.question, count=count, moments=given_moments)

    async def _with_follow_ups(self, context: Context) -> Context:
        """Return a context with the hits of further questions."""
        known_questions, hits = {self.question}, {(hit.scope, hit.id): hit for hit in context.hits}
        lines, later = context.lines, self.options.later_calls
        if self.search_arguments.get("as_of") is None and not self._narrows:
            # A report describes the whole group at the time of its run.
            community_search = {"known_at": self.search_arguments.get("known_at"), "scopes": ["community"]}
            lines = [*(await replace(self, search_arguments=community_search).context()).lines, *lines]
        for depth in range(1, _ROUNDS + 1):
            answer = self.spending.worst("answer", answer_data(self.question, ()), LEAST_ROOM)
            data = answer_data(self.question, lines, history=self.history, count=_QUESTIONS)
            tokens = self.spending.worst("follow_up", data) + answer + self._budget[0]
            if not self.spending.allows(later + 1, tokens):
                break
            replied = await self.suggest(lines, reserved=later)
            questions = [text for text in replied if text not in known_questions]
            if not questions:
                break
            known_questions.update(questions)
            for text in questions:
                for hit in (await self.context(text)).hits:
                    score = hit.score * _FAINTER**depth
                    former = hits.get((hit.scope, hit.id))
                    hits[hit.scope, hit.id] = replace(hit, score=max(score, former.score if former else 0.0))
            context = self._context_of([*hits.values()])
            lines = context.lines
        return context


def turns_of(rows: Iterable[Any], place: str = "history") -> tuple[Turn, ...]:
    """Return the turns of a conversation, oldest first. Raises InputError that names the wrong row."""
    turns = []
    for number, row in enumerate(rows, 1):
        fields = row if isinstance(row, Mapping) else {}
        role, content = fields.get("role"), fields.get("content")
        if role not in ROLES or not isinstance(content, str):
            raise InputError(
                f'{place}, turn {number}: use {{"role": "user" or "assistant", "content": text}}',
                field="history",
            )
        turns.append({"role": role, "content": without_citations(content)})
    return tuple(turns)


def newest(turns: Sequence[Turn], tokens: int) -> list[Turn]:
    """Return the newest turns that fit into the tokens together, oldest first."""
    chosen: list[Turn] = []
    remaining = tokens
    for turn in reversed(turns):
        remaining -= count_tokens(turn["content"]) + count_tokens(turn["role"])
        if remaining < 0:
            break
        chosen.insert(0, turn)
    return chosen


def query_of(question: str, turns: Sequence[Turn]) -> str:
    """Return the text to search: the question and the two before it, which name its subject."""
    earlier = [turn["content"] for turn in turns if turn["role"] == "user"]
    return "\n".join([question, *reversed(earlier[-_SEARCHED_QUESTIONS:])])


def read_turns(path: Path) -> tuple[Turn, ...]:
    """Return the turns of a file of JSON lines; none where there is no such file. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return turns_of([json.loads(line) for line in lines if line.strip()], str(path))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", field="history") from None
    except ValueError:
        raise InputError(f"{path} is no file of JSON lines in UTF-8", field="history") from None


def add_turns(path: Path, question: str, answer: str) -> None:
    """Add a question and its answer to the file of a conversation. Raises InputError."""
    rows = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", field="history") from None
