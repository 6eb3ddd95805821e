"""A conversation of a seed: two friends over months, or several people in channels.

A session is a run of exchanges. In an exchange a person mentions a topic (at once, or when asked), another
reacts and often asks further; the reply shares few words with later questions about it. Topics return in
later sessions with other details, and several people may mention the same topic.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from bench.talk.topics import Topic, small_talk, topics
from kgray.evals.retrieval import Conversation, Message, Question
from kgray.language.words import languages
from tests.world.dice import Dice

_T = TypeVar("_T")
_QuestionWithEvidence = tuple[str, tuple[str, ...]]  # a question and its evidence
_Write = Callable[["_Person", str], str]  # writes a message; returns its id
_NAMES = (
    "Marta Jonas Priya Owen Leila Tomasz Greta Malik Nadia Felix Ines Darius Hanne Callum Yuki Bruno Saskia "
    "Amir Wren Stellan Paloma Idris Maeve Anton"
).split()
_KIN = "Lotte Milo Vera Otis Juno Pip Elif Ruben Tilda Hugo Noor Emil Runa Arlo Cleo Sami".split()
_PETS = "Biscuit Pixel Moose Waffle Ziggy Pepper".split()
_MOMENTS = (
    "yesterday",
    "last weekend",
    "last Friday",
    "two weeks ago",
    "last month",
    "a few days ago",
    "this morning",
    "on Tuesday",
    "last night",
    "the week before last",
)
_STYLES = ("plain", "plain", "lower", "emoji", "typos")
_EMOJI = ("😂", "❤️", "🙈", "😭", "🎉", "😅", "🙏")
_TURNED = (("I'm", "they are"), ("my", "their"), ("our", "their"), ("me", "them"), ("myself", "themselves"))
_ADDRESSED = (
    ("are you", "is {who}"),
    ("were you", "was {who}"),
    ("do you", "does {who}"),
    ("have you", "has {who}"),
    ("don't you", "doesn't {who}"),
    ("you're", "{who} is"),
    ("your", "{who}'s"),
    ("you", "{who}"),
)
_COMMON = languages()["en"].stops
_TOPICS_A_PERSON, _TOPICS_IN_ALL = 28, 46
_TIMES = (1, 1, 2, 3, 4)  # how often a person comes back to a topic
_MOST_EVIDENCE = 5
_ASIDES = 0.2  # share of the turns of a long conversation with an aside


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a conversation, and its questions.

    people      2, or more in channels
    shares      of each type among the questions
    alike       share of the questions about messages that use their words; None: by chance, and questions
                about the wrong person are separate
    pads        maximum number of extra sentences in a turn
    """

    people: int = 2
    turns: int = 500
    questions: int = 100
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)
    alike: float | None = None
    pads: int = 0


# The share of each type among the questions. "reply": the evidence answers a question of the other.
SHARES: Mapping[str, float] = {
    "single-hop": 0.28,
    "reply": 0.16,
    "multi-hop": 0.22,
    "temporal": 0.14,
    "open-domain": 0.07,
    "adversarial": 0.07,
    "none": 0.06,
}


# Shares for long conversations of two people: half of the questions use words of the messages, and a fifth is
# about the wrong person.
LONG: Mapping[str, float] = {
    "single-hop": 0.36,
    "reply": 0.06,
    "multi-hop": 0.14,
    "temporal": 0.16,
    "open-domain": 0.05,
    "adversarial": 0.2,
    "none": 0.03,
}


@dataclass(slots=True)
class _Person:
    name: str
    style: str
    near: Mapping[str, str]  # kid, son, sis ... -> name
    untold: dict[str, list[tuple[str, str]]]  # topic -> its untold values
    used: list[object] = field(default_factory=list)  # wordings


@dataclass(slots=True)
class _Questions:
    """Questions while the conversation grows: (type, text) -> its evidence."""

    evidence: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    messages_by_topic: dict[str, dict[str, list[str]]] = field(
        default_factory=lambda: defaultdict(dict)
    )  # topic, person
    wrong: list[_QuestionWithEvidence] = field(
        default_factory=list
    )  # about a person who did not mention the topic


def conversation(seed: int, number: int, shape: Shape | None = None) -> Conversation:
    """Return conversation `number` of a seed; the same arguments give the same conversation."""
    making = _Making(Dice("talk", seed, number), Dice("asked", seed, number), shape or Shape())
    return making.conversation(f"talk-{seed}-{number}")


class _Making:
    def __init__(self, dice: Dice, asking: Dice, shape: Shape) -> None:
        """asking: separate dice for the questions, so that their number does not change the messages."""
        self._dice, self._asking, self._shape = dice, asking, shape
        self._small = small_talk()
        self._topics = _some(dice, topics(), _TOPICS_IN_ALL)
        names = _some(dice, _NAMES, shape.people)
        self._people = [self._person(name) for name in names]
        self._questions_so_far = _Questions()
        self._messages: list[Message] = []
        self._day = datetime(2023, dice.between(1, 6), dice.between(1, 28), tzinfo=UTC)

    def conversation(self, name: str) -> Conversation:
        session = 0
        while len(self._messages) < self._shape.turns:
            session += 1
            self._session(session)
        return Conversation(name=name, messages=tuple(self._messages), questions=tuple(self._questions(name)))

    def _person(self, name: str) -> _Person:
        dice = self._dice
        kin = _some(dice, _KIN, 5)
        near = dict(zip(("kid", "son", "sis", "partner", "friend"), kin, strict=True))
        near["pet"] = dice.pick(_PETS)
        count = _TOPICS_A_PERSON if self._shape.people == 2 else _TOPICS_A_PERSON // 2
        values_left = {
            topic.name: _some(dice, topic.values, dice.pick(_TIMES))
            for topic in _some(dice, self._topics, count)
        }
        return _Person(name, dice.pick(_STYLES), near, values_left)

    # ------------------------------------------------------------------------------ a session

    def _session(self, session: int) -> None:
        dice = self._dice
        self._day += timedelta(days=dice.between(3, 16))
        at = self._day + timedelta(minutes=dice.between(8 * 60, 21 * 60))
        present = _some(dice, self._people, min(self._shape.people, dice.between(2, 4)))
        source = "chat" if self._shape.people == 2 else dice.pick(("general", "lunch", "weekend"))
        turn = 0

        def write(speaker: _Person, text: str) -> str:
            nonlocal turn, at
            turn += 1
            if self._shape.pads:
                aside = self._aside(speaker) if dice.flip(_ASIDES) else []
                pads = _some(dice, self._small["pad"], dice.number_below(self._shape.pads + 1))
                text = " ".join([text, *aside, *pads])
            at += timedelta(seconds=dice.between(20, 140))
            message = f"D{session}:{turn}"
            self._messages.append(
                Message(
                    id=message,
                    text=self._styled(speaker, text),
                    speaker=speaker.name,
                    at=at.isoformat(),
                    session=str(session),
                    source=source,
                )
            )
            return message

        write(present[0], self._chat("hello", present[1]))
        write(present[1], self._chat("back", present[0]))
        for _ in range(dice.between(4, 6)):
            owner, listener = _some(dice, present, 2)
            self._exchange(owner, listener, write)
            if dice.flip(0.4):
                write(listener, self._chat("filler", owner))
                write(owner, self._chat("turn", listener))
        write(present[0], self._chat("bye", present[1]))
        write(present[1], self._chat("bye", present[0]))

    def _exchange(self, owner: _Person, listener: _Person, write: _Write) -> None:
        dice = self._dice
        open_topics = [topic for topic in self._topics if owner.untold.get(topic.name)]
        if not open_topics:
            write(owner, self._chat("filler", listener))
            return
        topic = dice.pick(open_topics)
        value = owner.untold[topic.name].pop()
        question, statement = self._new(owner, [("", text) for text in topic.say] + topic.ask) or (
            "",
            topic.say[0],
        )
        moment = dice.pick(_MOMENTS)
        if question:
            write(listener, self._filled(question, owner, value, moment))
        content = statement = self._filled(statement, owner, value, moment)
        if dice.flip(0.4):
            statement = f"{self._chat('thanks', listener)} {statement}"
        for place, rate in (("pad", 0.7), ("turn", 0.3)):
            if dice.flip(rate):
                statement = f"{statement} {self._chat(place, listener)}"
        message = write(owner, statement)
        self._note(topic, owner, value, message, dated=moment.casefold() in statement.casefold())
        self._detail(owner, [content], message)
        reaction = f"{self._chat('react', owner)} {self._chat('pad', owner)}"
        if dice.flip(0.75) and (asked_on := self._new(owner, topic.follow_ups)):
            second_question, reply, later = asked_on
            write(listener, f"{reaction} {self._filled(second_question, owner, value, moment)}")
            message = write(owner, self._filled(reply, owner, value, moment))
            self._add("reply", later, owner, value, message)
            about = _third_person(second_question).replace("?", " when it came to {x}?")
            self._add("reply", about, owner, value, message)
            self._detail(
                owner,
                [self._filled(text, owner, value, moment) for text in (second_question, reply)],
                message,
            )
        else:
            write(listener, reaction)
        if dice.flip(0.5):
            write(listener, self._chat("close", owner))
            write(owner, self._chat("thanks", listener))

    def _new(self, person: _Person, wordings: Sequence[_T]) -> _T | None:
        """Return one of the wordings that this person has not used; None where all are."""
        unused = [wording for wording in wordings if wording not in person.used]
        if not unused:
            return None
        chosen = self._dice.pick(unused)
        person.used.append(chosen)
        return chosen

    def _note(
        self, topic: Topic, person: _Person, value: tuple[str, str], message: str, *, dated: bool
    ) -> None:
        """Record the possible questions about a message with a topic."""
        self._questions_so_far.messages_by_topic[topic.name].setdefault(person.name, []).append(message)
        for kind, texts in (("far", topic.q), ("near", topic.near)):
            for text in texts:
                self._add(kind, text, person, value, message)
        for text in topic.infer:
            self._add("open-domain", text, person, value, message)
        for text in topic.when if dated else ():
            short = self._asking.flip(0.5) and _shortened(value[0])
            self._add("temporal", text, person, (short or value[0], value[1]), message)

    def _detail(self, person: _Person, texts: Sequence[str], message: str) -> None:
        """Note a question with words of the message, and the same question about another person."""
        if self._shape.alike is None:
            return
        words = [word for word in re.findall(r"[a-z]{4,}", self._asking.pick(texts)) if word not in _COMMON]
        chosen = _some(self._asking, list(dict.fromkeys(words)), self._asking.between(2, 3))
        text = f"What did {{who}} say about {' and '.join(chosen) or 'it'}?"
        self._add("near", text, person, ("", ""), message)
        another_person = self._asking.pick(
            [candidate for candidate in self._people if candidate is not person]
        )
        self._questions_so_far.wrong.append((text.format(who=another_person.name), (message,)))

    def _add(self, kind: str, text: str, person: _Person, value: tuple[str, str], message: str) -> None:
        self._questions_so_far.evidence[kind, self._question(text, person.name, person, value)].append(
            message
        )

    # ------------------------------------------------------------------------------- texts

    def _aside(self, person: _Person) -> list[str]:
        """Return a sentence that a reader of plain facts takes for one."""
        chosen = {name: self._dice.pick(self._small[name]) for name in ("like", "thing", "place")}
        return [self._dice.pick(self._small["aside"]).format(**chosen, **person.near)]

    def _chat(self, place: str, listener: _Person) -> str:
        return self._dice.pick(self._small[place]).format(you=listener.name)

    @staticmethod
    def _filled(text: str, person: _Person, value: tuple[str, str], moment: str) -> str:
        x, y = value
        named = dict(person.near, when=moment)
        filled = text.format(x=x.format(**named), y=y, **named)
        return re.sub(r"(^|[.!?] )([a-z])", lambda match: match[1] + match[2].upper(), filled)

    @staticmethod
    def _question(text: str, name: str, person: _Person, value: tuple[str, str]) -> str:
        x = value[0].format(**person.near)
        for pronoun, turned in _TURNED:
            x = re.sub(rf"\b{pronoun}\b", turned, x)
        return text.format(who=name, x=x, y=value[1], **person.near)

    def _styled(self, person: _Person, text: str) -> str:
        if person.style == "lower":
            return text.lower().rstrip(".")
        if person.style == "emoji" and self._dice.flip(0.5):
            return f"{text} {self._dice.pick(_EMOJI)}"
        if person.style == "typos":
            return " ".join(self._mistyped(word) for word in text.split())
        return text

    def _mistyped(self, word: str) -> str:
        if len(word) < 5 or not word.isalpha() or not self._dice.flip(0.04):
            return word
        at = self._dice.between(1, len(word) - 3)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    # ---------------------------------------------------------------------------- questions

    def _questions(self, name: str) -> Iterator[Question]:
        kinds: dict[str, list[_QuestionWithEvidence]] = defaultdict(list)
        near: set[str] = set()
        for (kind, text), messages in self._questions_so_far.evidence.items():
            if len(messages) <= _MOST_EVIDENCE:
                kind_of_evidence = "multi-hop" if len(messages) > 1 else "single-hop"
                kinds[kind_of_evidence if kind in ("far", "near") else kind].append((text, tuple(messages)))
                near |= {text} if kind == "near" else set()
        kinds["adversarial"] = [*self._adversarial(), *self._questions_so_far.wrong]
        near.update(text for text, _ in self._questions_so_far.wrong)
        kinds["none"] = [(text, ()) for text in self._unanswerable()]
        number = 0
        for kind, share in self._shape.shares.items():
            for text, evidence in self._chosen(kinds[kind], near, round(share * self._shape.questions)):
                number += 1
                apart = kind == "none" or (kind == "adversarial" and self._shape.alike is None)
                yield Question(id=f"{name}-q{number}", text=text, type=kind, evidence=evidence, apart=apart)

    def _chosen(
        self, questions: Sequence[_QuestionWithEvidence], near: Collection[str], count: int
    ) -> list[_QuestionWithEvidence]:
        """Return `count` of the questions, with the requested share of questions in the messages' words."""
        alike = [row for row in questions if row[0] in near]
        if self._shape.alike is None or not alike:
            return _some(self._asking, questions, count)
        chosen = _some(self._asking, alike, round(self._shape.alike * count))
        different = [row for row in questions if row[0] not in near]
        return [*chosen, *_some(self._asking, different, count - len(chosen))]

    def _adversarial(self) -> Iterator[_QuestionWithEvidence]:
        """Yield questions about a person who never spoke of the topic; evidence: another's messages."""
        for topic in self._topics:
            messages_by_person = self._questions_so_far.messages_by_topic[topic.name]
            silent = [person for person in self._people if person.name not in messages_by_person]
            if len(messages_by_person) == 1 and silent and topic.q:
                person = self._asking.pick(silent)
                (messages,) = messages_by_person.values()
                if len(messages) <= _MOST_EVIDENCE:
                    yield (
                        self._question(self._asking.pick(topic.q), person.name, person, ("", "")),
                        tuple(messages),
                    )

    def _unanswerable(self) -> Iterator[str]:
        """Yield questions that no message answers: foreign ones, and of topics that nobody spoke of."""
        used = {topic.name for topic in self._topics}
        foreign = [text for topic in topics() if topic.name not in used for text in topic.q]
        for text in [*self._small["none"], *foreign]:
            person = self._asking.pick(self._people)
            yield self._question(text, person.name, person, ("", ""))


def _shortened(value: str) -> str | None:
    """Return "a sunset over the marina" as "the sunset"; None where it does not begin so."""
    match = re.match(r"(?:an?|the|my) (?:\w+[- ])??(\w{4,})(?= |$)", value)
    return f"the {match[1]}" if match else None


def _third_person(question: str) -> str:
    """Return a question to somebody as one about {who}."""
    for first_person, replacement in _ADDRESSED:
        question = re.sub(rf"\b{first_person}\b", replacement, question, flags=re.IGNORECASE)
    return question[0].upper() + question[1:]


def _some(dice: Dice, items: Sequence[_T], count: int) -> list[_T]:
    """Return `count` of the items (all, where there are fewer), in random order."""
    remaining = list(items)
    chosen: list[_T] = []
    while remaining and len(chosen) < count:
        chosen.append(remaining.pop(dice.number_below(len(remaining))))
    return chosen
