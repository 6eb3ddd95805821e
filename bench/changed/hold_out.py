"""A second world of changed states: its relations, names and words are in data/changed_states.toml.

No rule of kgray was made for it: it shows whether a figure of tests/world is one of that world alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.changed.cases import Case, ChangedWorld, tables
from kgray.domain import times
from kgray.domain.records import Draft, Extraction
from kgray.domain.times import DAY, Instant
from kgray.models.prompting.replies import parse_extraction
from kgray.ports import Answer, ExtractionRequest, Judged, QuestionRequest
from tests.world.dice import Dice
from tests.world.latency import tokens

Word = Literal["same", "contradicts", "ends", "independent"]
_TYPES = {
    "person": "Person", "project": "Project", "company": "Organization", "city": "Place", "room": "Place",
    "school": "Organization", "club": "Organization", "car": "Product", "thing": "Product",
}  # fmt: skip
_VALUES = frozenset({"role", "sum"})
_OF_KIND = {"person": 24, "project": 12, "company": 8, "city": 10, "school": 6, "club": 6}
_START = times.parse("2025-02-03")[0]


@dataclass(slots=True)
class SentenceReader:
    """A reader and judge that knows each text and each sentence of its world."""

    identity: str = "hold-out-1"
    replies: dict[str, dict[str, Any]] = field(default_factory=dict)  # text -> reply
    keys: dict[str, tuple[str, str, str]] = field(
        default_factory=dict
    )  # sentence -> subject, relation, object
    multiple: frozenset[str] = frozenset()

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return the facts of a text."""
        return parse_extraction(
            self.replies.get(request.episode.text, {"entities": [], "facts": []}), request.episode
        )

    def key(self, request: QuestionRequest) -> str:
        """Return the request's key (R21)."""
        return request.key(self.identity)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer: equal names are one entity; objects of one state contradict each other."""
        answers: list[Answer] = []
        for question in request.questions:
            if question.kind == "entity":
                names = [name.casefold() for name in question.candidates]
                item = question.item.casefold()
                answers.append({"duplicate_of": names.index(item) if item in names else None})
            else:
                answers.append({"answers": self._compared(question.item, question.candidates)})
        return Judged(
            answers=tuple(answers), calls=1, prompt_tokens=tokens(str(request.questions)), completion_tokens=1
        )

    def _compared(self, item: str, candidates: Sequence[str]) -> list[Word]:
        new, words = self.keys.get(item.rstrip(".")), list[Word]()
        for candidate in candidates:
            parsed = self.keys.get(candidate.rstrip("."))
            word: Word = "independent"
            if new is not None and parsed is not None and new[:2] == parsed[:2]:
                if new[2] == parsed[2]:
                    word = "same" if "same" not in words else "independent"
                elif new[1] not in self.multiple:
                    word = "contradicts"
            words.append(word)
        return words


def hold_out(seed: int, messages: int) -> ChangedWorld:
    """Return a world of `messages` messages, with the questions about its changed states."""
    relations: dict[str, dict[str, Any]] = tables()["hold_out"]
    reader = SentenceReader(multiple=frozenset(name for name, row in relations.items() if row.get("many")))
    names, group = _names(seed), f"hold-out-{seed}"
    speakers = names["person"][:6]
    # The states that may change, so few that most do; (relation, subject) -> [(from, object)].
    slots = [
        (relation, Dice(seed, "slot", relation, n).pick(names[row["subject"]]))
        for relation, row in relations.items()
        if not row.get("many")
        for n in range(max(2, messages // 60))
    ]
    spans: dict[tuple[str, str], list[tuple[Instant, str]]] = {}
    drafts: list[Draft] = []
    for number in range(messages):
        dice, at = Dice(seed, "message", number), _START + number * DAY
        if dice.flip(0.55):
            relation, subject = dice.pick(slots)
        else:
            relation = dice.pick(sorted(reader.multiple))
            subject = dice.pick(names[relations[relation]["subject"]])
        row = relations[relation]
        states = spans.setdefault((relation, subject), [])
        is_multiple = relation in reader.multiple
        excluded = {subject} if is_multiple else {subject, *(state[1] for state in states[-1:])}
        target = dice.pick([candidate for candidate in names[row["object"]] if candidate not in excluded])
        text = dice.pick(row["told"]).format(s=subject, o=target)
        if dice.flip(0.4):
            text = f"{dice.pick(_CHATTER)} {text}"
        text = f"{text[0].upper()}{text[1:]}"
        if text in reader.replies:
            continue
        if not is_multiple:
            states.append((at, target))
        sentence = row["text"].format(s=subject, o=target)
        reader.keys[sentence] = (subject, relation, target)
        reader.replies[text] = _reply(relation, row, subject, target, sentence)
        speaker = dice.pick([name for name in speakers if name not in (subject, target)])
        drafts.append(
            Draft(
                group=group, source="talk", kind="message", text=text, speaker=speaker, reference_time=at,
                client_id=f"{group}-{number:05d}",
            )
        )  # fmt: skip
    return ChangedWorld(
        group=group, drafts=drafts, reader=reader, judge=reader, cases=_cases(group, relations, spans)
    )


def _cases(
    group: str, relations: dict[str, dict[str, Any]], spans: dict[tuple[str, str], list[tuple[Instant, str]]]
) -> list[Case]:
    cases: list[Case] = []
    for (relation, subject), states in sorted(spans.items()):
        if len(states) < 2 or "ask" not in relations[relation]:
            continue
        (was_from, was), (changed_at, current) = states[-2:]
        moment = (was_from + changed_at) // 2
        everything = {name for _, name in states}
        for phrase in relations[relation]["ask"]:
            for right, as_of in ((current, None), (was, moment)):
                cases.append(
                    Case(
                        text=phrase.format(s=subject), group=group, relation=relation, as_of=as_of,
                        subject=frozenset({_bare(subject)}), right=frozenset({_bare(right), right}),
                        replaced=frozenset(map(_bare, everything - {right})),
                    )
                )  # fmt: skip
    return cases


_CHATTER = ("Good morning.", "By the way:", "One more thing.", "Just so you know:", "News from the office.")


def _names(seed: int) -> dict[str, list[str]]:
    plain = {kind: text.split() for kind, text in tables()["names"].items()}
    dice = Dice(seed, "names")
    people = list(
        dict.fromkeys(f"{dice.pick(plain['person'])} {dice.pick(plain['surname'])}" for _ in range(40))
    )
    ends = {"project": " project", "company": " Partners", "school": " College", "club": ""}
    names = {kind: [f"{name}{end}" for name in plain[kind]] for kind, end in ends.items()}
    names |= {"person": people[: _OF_KIND["person"]], "city": plain["city"], "role": plain["role"]}
    names |= {kind: [f"the {name}" for name in plain[kind]] for kind in ("thing", "room")}
    names["car"] = [f"a {name}" for name in plain["car"]]
    names["sum"] = [f"{n * 5000} euros" for n in range(1, 30)]
    return names


def _bare(name: str) -> str:
    return re.sub(r"^(the|a) ", "", name)


def _reply(relation: str, row: dict[str, Any], subject: str, target: str, sentence: str) -> dict[str, Any]:
    entities = [{"name": _bare(subject), "type": _TYPES[row["subject"]]}]
    fact: dict[str, Any] = {"source": 0, "relation": relation, "fact": f"{sentence}.", "kind": "holds"}
    if row["object"] in _VALUES:
        fact["value"] = {"type": "text", "value": target}
    else:
        entities.append({"name": _bare(target), "type": _TYPES[row["object"]]})
        fact["target"] = 1
    return {"entities": entities, "facts": [fact]}
