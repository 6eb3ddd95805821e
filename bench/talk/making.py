"""A conversation of a seed: two friends over months, or several people in channels.

A session is a run of exchanges. In an exchange somebody tells of a topic (at once, or when asked), another
reacts and often asks on; the reply shares few words with what is asked of it later. Topics return in later
sessions with other details, and several people may talk of the same one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from bench.talk.topics import Topic, small_talk, topics
from bench.world.dice import Dice
from kgray.evals.retrieval import Conversation, Message, Question
from kgray.search.query import languages

_T = TypeVar("_T")
_Known = tuple[str, tuple[str, ...]]  # a question and its evidence
_Write = Callable[["_Person", str], str]  # writes a message; returns its id
_NAMES = (
    "Marta Jonas Priya Owen Leila Tomasz Greta Malik Nadia Felix Ines Darius Hanne Callum Yuki Bruno Saskia "
    "Amir Wren Stellan Paloma Idris Maeve Anton"
).split()
_KIN = "Lotte Milo Vera Otis Juno Pip Elif Ruben Tilda Hugo Noor Emil Runa Arlo Cleo Sami".split()
_PETS = "Biscuit Pixel Moose Waffle Ziggy Pepper".split()
_WHEN = (
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
_ASIDES = 0.2  # turns of a long talk that have one


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a conversation is, and what is asked.

    people      2, or more in channels
    shares      of each type among the questions
    alike       share of the questions about messages that have words of these; None: as it comes, and what is
                asked of the wrong person stands apart
    pads        sentences that a turn has beside what it tells, at most
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


# Of long talks of two, in which half of what is asked has the words of what was said, and one question in
# five is about the wrong person.
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
    left: dict[str, list[tuple[str, str]]]  # topic -> what it has not told of it yet
    used: list[object] = field(default_factory=list)  # wordings


@dataclass(slots=True)
class _Asked:
    """Questions while the conversation grows: (type, text) -> its evidence."""

    evidence: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    told: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(dict))  # topic, person
    wrong: list[_Known] = field(default_factory=list)  # about somebody who said nothing of it


def conversation(seed: int, number: int, shape: Shape | None = None) -> Conversation:
    """Return conversation `number` of a seed; the same arguments give the same conversation."""
    making = _Making(Dice("talk", seed, number), Dice("asked", seed, number), shape or Shape())
    return making.made(f"talk-{seed}-{number}")


class _Making:
    def __init__(self, dice: Dice, asking: Dice, shape: Shape) -> None:
        """asking: chance of its own for the questions, so that other questions leave the messages alone."""
        self._dice, self._asking, self._shape = dice, asking, shape
        self._small = small_talk()
        self._topics = _some(dice, topics(), _TOPICS_IN_ALL)
        names = _some(dice, _NAMES, shape.people)
        self._people = [self._person(name) for name in names]
        self._asked = _Asked()
        self._messages: list[Message] = []
        self._day = datetime(2023, dice.between(1, 6), dice.between(1, 28), tzinfo=UTC)

    def made(self, name: str) -> Conversation:
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
        left = {
            topic.name: _some(dice, topic.values, dice.pick(_TIMES))
            for topic in _some(dice, self._topics, count)
        }
        return _Person(name, dice.pick(_STYLES), near, left)

    # ------------------------------------------------------------------------------ a session

    def _session(self, session: int) -> None:
        dice = self._dice
        self._day += timedelta(days=dice.between(3, 16))
        at = self._day + timedelta(minutes=dice.between(8 * 60, 21 * 60))
        here = _some(dice, self._people, min(self._shape.people, dice.between(2, 4)))
        source = "chat" if self._shape.people == 2 else dice.pick(("general", "lunch", "weekend"))
        turn = 0

        def write(who: _Person, text: str) -> str:
            nonlocal turn, at
            turn += 1
            if self._shape.pads:
                aside = self._aside(who) if dice.flip(_ASIDES) else []
                pads = _some(dice, self._small["pad"], dice.below(self._shape.pads + 1))
                text = " ".join([text, *aside, *pads])
            at += timedelta(seconds=dice.between(20, 140))
            message = f"D{session}:{turn}"
            self._messages.append(
                Message(
                    id=message,
                    text=self._styled(who, text),
                    speaker=who.name,
                    at=at.isoformat(),
                    session=str(session),
                    source=source,
                )
            )
            return message

        write(here[0], self._chat("hello", here[1]))
        write(here[1], self._chat("back", here[0]))
        for _ in range(dice.between(4, 6)):
            owner, other = _some(dice, here, 2)
            self._exchange(owner, other, write)
            if dice.flip(0.4):
                write(other, self._chat("filler", owner))
                write(owner, self._chat("turn", other))
        write(here[0], self._chat("bye", here[1]))
        write(here[1], self._chat("bye", here[0]))

    def _exchange(self, owner: _Person, other: _Person, write: _Write) -> None:
        dice = self._dice
        open_topics = [topic for topic in self._topics if owner.left.get(topic.name)]
        if not open_topics:
            write(owner, self._chat("filler", other))
            return
        topic = dice.pick(open_topics)
        value = owner.left[topic.name].pop()
        asked, told = self._new(owner, [("", text) for text in topic.say] + topic.ask) or ("", topic.say[0])
        when = dice.pick(_WHEN)
        if asked:
            write(other, self._filled(asked, owner, value, when))
        content = told = self._filled(told, owner, value, when)
        if dice.flip(0.4):
            told = f"{self._chat('thanks', other)} {told}"
        for place, rate in (("pad", 0.7), ("turn", 0.3)):
            if dice.flip(rate):
                told = f"{told} {self._chat(place, other)}"
        message = write(owner, told)
        self._note(topic, owner, value, message, dated=when.casefold() in told.casefold())
        self._detail(owner, [content], message)
        reaction = f"{self._chat('react', owner)} {self._chat('pad', owner)}"
        if dice.flip(0.75) and (asked_on := self._new(owner, topic.more)):
            further, reply, later = asked_on
            write(other, f"{reaction} {self._filled(further, owner, value, when)}")
            message = write(owner, self._filled(reply, owner, value, when))
            self._add("reply", later, owner, value, message)
            about = _third_person(further).replace("?", " when it came to {x}?")
            self._add("reply", about, owner, value, message)
            self._detail(
                owner, [self._filled(text, owner, value, when) for text in (further, reply)], message
            )
        else:
            write(other, reaction)
        if dice.flip(0.5):
            write(other, self._chat("close", owner))
            write(owner, self._chat("thanks", other))

    def _new(self, who: _Person, wordings: Sequence[_T]) -> _T | None:
        """Return one of the wordings that this person has not used; None where all are."""
        left = [wording for wording in wordings if wording not in who.used]
        if not left:
            return None
        chosen = self._dice.pick(left)
        who.used.append(chosen)
        return chosen

    def _note(self, topic: Topic, who: _Person, value: tuple[str, str], message: str, *, dated: bool) -> None:
        """Note what can be asked of a message that tells a topic."""
        self._asked.told[topic.name].setdefault(who.name, []).append(message)
        for kind, texts in (("far", topic.q), ("near", topic.near)):
            for text in texts:
                self._add(kind, text, who, value, message)
        for text in topic.infer:
            self._add("open-domain", text, who, value, message)
        for text in topic.when if dated else ():
            short = self._asking.flip(0.5) and _shortened(value[0])
            self._add("temporal", text, who, (short or value[0], value[1]), message)

    def _detail(self, who: _Person, told: Sequence[str], message: str) -> None:
        """Note a question that has words of what was told, and the same of somebody else."""
        if self._shape.alike is None:
            return
        words = [word for word in re.findall(r"[a-z]{4,}", self._asking.pick(told)) if word not in _COMMON]
        chosen = _some(self._asking, list(dict.fromkeys(words)), self._asking.between(2, 3))
        text = f"What did {{who}} say about {' and '.join(chosen) or 'it'}?"
        self._add("near", text, who, ("", ""), message)
        other = self._asking.pick([one for one in self._people if one is not who])
        self._asked.wrong.append((text.format(who=other.name), (message,)))

    def _add(self, kind: str, text: str, who: _Person, value: tuple[str, str], message: str) -> None:
        self._asked.evidence[kind, self._question(text, who.name, who, value)].append(message)

    # ------------------------------------------------------------------------------- texts

    def _aside(self, who: _Person) -> list[str]:
        """Return a sentence that a reader of plain facts takes for one."""
        chosen = {name: self._dice.pick(self._small[name]) for name in ("like", "thing", "place")}
        return [self._dice.pick(self._small["aside"]).format(**chosen, **who.near)]

    def _chat(self, place: str, other: _Person) -> str:
        return self._dice.pick(self._small[place]).format(you=other.name)

    @staticmethod
    def _filled(text: str, who: _Person, value: tuple[str, str], when: str) -> str:
        x, y = value
        named = dict(who.near, when=when)
        filled = text.format(x=x.format(**named), y=y, **named)
        return re.sub(r"(^|[.!?] )([a-z])", lambda found: found[1] + found[2].upper(), filled)

    @staticmethod
    def _question(text: str, name: str, who: _Person, value: tuple[str, str]) -> str:
        x = value[0].format(**who.near)
        for own, turned in _TURNED:
            x = re.sub(rf"\b{own}\b", turned, x)
        return text.format(who=name, x=x, y=value[1], **who.near)

    def _styled(self, who: _Person, text: str) -> str:
        if who.style == "lower":
            return text.lower().rstrip(".")
        if who.style == "emoji" and self._dice.flip(0.5):
            return f"{text} {self._dice.pick(_EMOJI)}"
        if who.style == "typos":
            return " ".join(self._mistyped(word) for word in text.split())
        return text

    def _mistyped(self, word: str) -> str:
        if len(word) < 5 or not word.isalpha() or not self._dice.flip(0.04):
            return word
        at = self._dice.between(1, len(word) - 3)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    # ---------------------------------------------------------------------------- questions

    def _questions(self, name: str) -> Iterator[Question]:
        kinds: dict[str, list[_Known]] = defaultdict(list)
        near: set[str] = set()
        for (kind, text), messages in self._asked.evidence.items():
            if len(messages) <= _MOST_EVIDENCE:
                many = "multi-hop" if len(messages) > 1 else "single-hop"
                kinds[many if kind in ("far", "near") else kind].append((text, tuple(messages)))
                near |= {text} if kind == "near" else set()
        kinds["adversarial"] = [*self._adversarial(), *self._asked.wrong]
        near.update(text for text, _ in self._asked.wrong)
        kinds["none"] = [(text, ()) for text in self._unanswerable()]
        number = 0
        for kind, share in self._shape.shares.items():
            for text, evidence in self._chosen(kinds[kind], near, round(share * self._shape.questions)):
                number += 1
                apart = kind == "none" or (kind == "adversarial" and self._shape.alike is None)
                yield Question(id=f"{name}-q{number}", text=text, type=kind, evidence=evidence, apart=apart)

    def _chosen(self, asked: Sequence[_Known], near: Collection[str], count: int) -> list[_Known]:
        """Return so many of the questions, of those that have the messages' words the share that is asked."""
        alike = [row for row in asked if row[0] in near]
        if self._shape.alike is None or not alike:
            return _some(self._asking, asked, count)
        chosen = _some(self._asking, alike, round(self._shape.alike * count))
        others = [row for row in asked if row[0] not in near]
        return [*chosen, *_some(self._asking, others, count - len(chosen))]

    def _adversarial(self) -> Iterator[_Known]:
        """Yield questions about somebody who never spoke of the topic; evidence: what another said of it."""
        for topic in self._topics:
            told = self._asked.told[topic.name]
            silent = [who for who in self._people if who.name not in told]
            if len(told) == 1 and silent and topic.q:
                who = self._asking.pick(silent)
                (messages,) = told.values()
                if len(messages) <= _MOST_EVIDENCE:
                    yield self._question(self._asking.pick(topic.q), who.name, who, ("", "")), tuple(messages)

    def _unanswerable(self) -> Iterator[str]:
        """Yield questions that no message answers: foreign ones, and of topics that nobody spoke of."""
        used = {topic.name for topic in self._topics}
        foreign = [text for topic in topics() if topic.name not in used for text in topic.q]
        for text in [*self._small["none"], *foreign]:
            who = self._asking.pick(self._people)
            yield self._question(text, who.name, who, ("", ""))


def _shortened(value: str) -> str | None:
    """Return "a sunset over the marina" as "the sunset"; None where it does not begin so."""
    found = re.match(r"(?:an?|the|my) (?:\w+[- ])??(\w{4,})(?= |$)", value)
    return f"the {found[1]}" if found else None


def _third_person(asked: str) -> str:
    """Return a question to somebody as one about {who}."""
    for said, told in _ADDRESSED:
        asked = re.sub(rf"\b{said}\b", told, asked, flags=re.IGNORECASE)
    return asked[0].upper() + asked[1:]


def _some(dice: Dice, items: Sequence[_T], count: int) -> list[_T]:
    """Return `count` of the items (all, where there are fewer), in random order."""
    left = list(items)
    found: list[_T] = []
    while left and len(found) < count:
        found.append(left.pop(dice.below(len(left))))
    return found
