"""Replies to extractions and questions, validated (R18, R24).

This module parses model replies into extractions and answers. `rules` makes its extractions without this
parser; its answers pass through it. The form is that of the file of `model.script`; `model_replies` converts
the extractions of a language model into it. A reply of the wrong shape raises InvalidAnswer. Otherwise each
item is checked separately: a wrong item is dropped, with a line that gives the reason. Empty lists are valid.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, StrictInt, ValidationError, ValidationInfo, create_model
from pydantic_core import PydanticCustomError

from kgray.domain import times
from kgray.domain.records import (
    Episode,
    EvidenceKind,
    ExtractedEntity,
    ExtractedFact,
    Extraction,
    as_value,
    canonical,
    clean_relation,
    clean_text,
    find_name,
    speaker_first,
)
from kgray.domain.times import Instant, Precision
from kgray.errors import InvalidAnswer
from kgray.ports import Answer, Question

MAX_NAME = 256  # characters; longer names are sentences that a model took for names

_Date = tuple[Instant, Precision]


def parse_extraction(reply: object, episode: Episode) -> Extraction:
    """Parse a reply about `episode` into an extraction; the speaker comes first.

    source, target  an index into the reply's entities, or a name; a name that was not listed
                    becomes an entity (R18). An item has either a target or a value.
    fact            a sentence; default: the words of source, relation and target
    valid_at        kind "holds": the start; default: the reference time, inferred; null: unknown.
                    An item with an end, but with an unknown start, or with no valid_at and an end that
                    is not after the reference time, gets the kind "ended" (R8).
                    Kind "happened": the date of the event; default and null: the reference time, inferred.
    invalid_at      kind "holds": the end, if stated; kind "ended": its instant (default and null: the
                    reference time, inferred); an error in kind "happened"

    An item of kind "denied" with a date, or of kind "ended" with a start, is dropped. Raises InvalidAnswer
    if the reply is not an object with both lists.
    """
    if not isinstance(reply, dict):
        raise InvalidAnswer(f"the reply is {_type_name(reply)}, not an object", raw=_raw(reply))
    for key in ("entities", "facts"):
        if not isinstance(reply.get(key), list):
            fault = f"{key!r} of the reply is {_type_name(reply.get(key))}, not a list"
            raise InvalidAnswer(fault, raw=_raw(reply))
    reply_entities = _ReplyEntities(episode.text)
    for place, item in enumerate(reply["entities"]):
        reply_entities.list_entity(place, item)
    facts: list[ExtractedFact] = []
    for place, item in enumerate(reply["facts"]):
        try:
            facts.append(_fact(item, reply_entities, episode.reference_time))
        except ValueError as reason:
            reply_entities.dropped.append(f"facts[{place}]: {reason}")
    extraction = Extraction(
        entities=tuple(reply_entities.entities), facts=tuple(facts), dropped=tuple(reply_entities.dropped)
    )
    return speaker_first(extraction, episode)


@dataclass(slots=True)
class _ReplyEntities:
    """The entities of one reply, collected while it is parsed."""

    text: str
    entities: list[ExtractedEntity] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)  # index in the reply -> index here
    _by_name: dict[str, int] = field(default_factory=dict)
    _by_folded: dict[str, int] = field(default_factory=dict)

    def list_entity(self, place: int, item: object) -> None:
        try:
            fields = _object(item)
            name, kind = _name(fields.get("name")), fields.get("type")
            label = "" if kind is None else clean_text(_str(kind, "its type"))[:MAX_NAME]
        except ValueError as reason:
            self.dropped.append(f"entities[{place}]: {reason}")
            return
        words = "".join(c if c.isalnum() else " " for c in label).split()
        label = "".join(word[0].upper() + word[1:] for word in words)
        self.places[place] = self.index_of(name, label)

    def name_of(self, endpoint: object) -> str:
        """Return the name of an endpoint, which is an index or a name, without creating an entity."""
        if isinstance(endpoint, bool) or not isinstance(endpoint, int | str):
            raise ValueError(f"an endpoint is {_type_name(endpoint)}, not an index or a name")
        if isinstance(endpoint, str):
            name = _name(endpoint)
            at = self._by_name.get(name, self._by_folded.get(name.casefold()))
            return name if at is None else self.entities[at].name
        if endpoint not in self.places:
            raise ValueError(f"no entity of the reply has the index {endpoint}")
        return self.entities[self.places[endpoint]].name

    def index_of(self, name: str, label: str = "") -> int:
        """Return the index of this name's entity; an unlisted name becomes an entity (R18)."""
        at = self._by_name.setdefault(name, len(self.entities))
        if at == len(self.entities):
            self.entities.append(ExtractedEntity(name=name, type=label, span=find_name(name, self.text)))
            self._by_folded.setdefault(name.casefold(), at)
        elif label and not self.entities[at].type:
            self.entities[at] = replace(self.entities[at], type=label)
        return at


def _object(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError(f"the item is {_type_name(item)}, not an object")
    return item


def _fact(raw: object, reply_entities: _ReplyEntities, said_at: Instant) -> ExtractedFact:
    """Return the fact of one item. Raises ValueError with the reason; then `reply_entities` is unchanged."""
    item = _object(raw)
    relation = clean_relation(_str(item.get("relation"), "its relation"))
    source = reply_entities.name_of(item.get("source"))
    raw_target, raw_value = item.get("target"), item.get("value")
    if (raw_target is None) == (raw_value is None):
        raise ValueError("it has both a target and a value, or neither")
    value = None if raw_value is None else as_value(raw_value)
    target = value.shown() if value else reply_entities.name_of(raw_target)
    if not value and target == source:
        raise ValueError(f"it connects {source!r} with itself")
    sentence = item.get("fact")
    text = f"{source} {relation.lower().replace('_', ' ')} {target}"
    if sentence is not None:
        text = clean_text(sentence) if isinstance(sentence, str) else ""
    if not text or "\0" in text:
        raise ValueError("its sentence is not a text, or empty")
    kind, start, end, inferred = _dates_of(item, said_at)
    (valid_from, from_precision), (valid_to, to_precision) = start or (None, None), end or (None, None)
    return ExtractedFact(
        source=reply_entities.index_of(source), relation=relation, text=text, kind=kind,
        target=None if value else reply_entities.index_of(target), value=value, valid_from=valid_from,
        from_precision=from_precision, valid_to=valid_to, to_precision=to_precision, inferred=inferred,
    )  # fmt: skip


def _dates_of(
    item: dict[str, Any], said_at: Instant
) -> tuple[EvidenceKind, _Date | None, _Date | None, bool]:
    """Return kind, start, end, and whether the start or the end is inferred.

    A stated start that equals the reference time counts as inferred (R3).
    """
    kind = item.get("kind") or "holds"
    start, end = _date(item, "valid_at"), _date(item, "invalid_at")
    reference: _Date = said_at, "instant"
    match kind:
        case "denied":
            if start or end:
                raise ValueError("a denial has no dates: it denies a statement as a whole")
            return "denied", None, None, False
        case "ended":
            if start:
                raise ValueError('"ended" has no valid_at: say "holds" with both dates')
            return "ended", None, end or reference, end is None
        case "happened":
            if end:
                raise ValueError("an event has one date: its valid_at")
            return "happened", start or reference, None, start is None
        case "holds" if not start and end and ("valid_at" in item or end[0] <= said_at):
            return "ended", None, end, False
        case "holds":
            start = start or (None if "valid_at" in item else reference)
            if start and end and end[0] <= start[0]:
                raise ValueError("its end is not after its start")
            return "holds", start, end, start is not None and start[0] == said_at
    raise ValueError(f"{str(kind)[:80]!r} is no kind: holds, ended, denied, happened")


def _date(item: dict[str, Any], key: str) -> _Date | None:
    raw = item.get(key)
    if raw is None:
        return None
    if not isinstance(raw, str):
        raise ValueError(f"{key} is {_type_name(raw)}, not an ISO 8601 text")
    try:
        return times.parse_iso(raw)
    except ValueError as reason:
        raise ValueError(f"{key}: {reason}") from None


def _str(raw: object, name: str) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"{name} is {_type_name(raw)}, not a text")
    return raw


def _name(raw: object) -> str:
    name = clean_text(_str(raw, "a name"))
    if not name:
        raise ValueError("a name is empty")
    if len(name) > MAX_NAME:
        raise ValueError(f"a name of {len(name)} characters, above {MAX_NAME}: {name[:40]!r} ...")
    if any(unicodedata.category(c) in {"Cc", "Cs"} for c in name):
        raise ValueError(f"the name {name[:80]!r} holds control characters")
    return name


def _index(index: int, info: ValidationInfo) -> int:
    count = int(info.context or 0)
    if not 0 <= index < count:
        raise PydanticCustomError("index", f"{index} is no index of {count} candidates")
    return index


def _as_list(raw: object) -> object:
    return raw if isinstance(raw, list) else [] if raw is None else [raw]


COMPARISONS = ("same", "contradicts", "ends", "independent")  # the words that answer a comparison
_Word = Literal["same", "contradicts", "ends", "independent"]
_Index = Annotated[StrictInt, AfterValidator(_index)]
_Indexes = Annotated[list[_Index], BeforeValidator(_as_list)]
_Duplicate = create_model("Reply", duplicate_of=(_Index | None, ...))  # the candidate that is the same
_Words = create_model("Reply", answers=(list[_Word], ...))
_Lists = create_model("Reply", **dict.fromkeys(COMPARISONS, (_Indexes, [])))  # type: ignore[call-overload]


def parse_answer(question: Question, reply: object) -> Answer:
    """Return the answer in the canonical form of `ports.Question`; other keys are left out.

    A comparison may also be answered by lists of indexes, with any of these keys; a candidate in none of the
    lists is independent:

        {"same": i or [i], "contradicts": [i, ...], "ends": [i, ...], "independent": [i, ...]}

    If several candidates are the same as the item, the oldest counts, and the others are independent.
    Raises InvalidAnswer if the reply does not answer the question.
    """
    count = len(question.candidates)
    try:
        if question.kind == "entity":
            return _Duplicate.model_validate(reply, context=count).model_dump()
        if isinstance(reply, dict) and "answers" not in reply and not reply.keys().isdisjoint(COMPARISONS):
            words = _listed_words(_Lists.model_validate(reply, context=count).model_dump(), count)
        else:
            words = list(_Words.model_validate(reply).model_dump()["answers"])
        if len(words) != count:
            raise ValueError(f"answers: {len(words)} of them for {count} candidates")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(map(str, first["loc"])) or "the reply"
        fault = f"{location}: {first['msg']}"
    except ValueError as error:
        fault = str(error)
    else:
        oldest = words.index("same") if "same" in words else count
        return {
            "answers": [
                "independent" if word == "same" and place > oldest else word
                for place, word in enumerate(words)
            ]
        }
    raise InvalidAnswer(
        f"the answer to a question of kind {question.kind!r} is wrong: {fault}", raw=_raw(reply)
    )


def _listed_words(lists: Mapping[str, Sequence[int]], count: int) -> list[str]:
    """Return a word for each candidate. Raises ValueError for a candidate in two lists."""
    words = [""] * count
    for word, indexes in lists.items():
        for index in indexes:
            if words[index] not in ("", word):
                raise ValueError(f"{word}: the candidate {index} is in {words[index]!r} too")
            words[index] = word
    return [word or "independent" for word in words]


def _type_name(value: object) -> str:
    if value is None:
        return "missing or null"
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _raw(reply: object) -> str:
    try:
        return canonical(reply)
    except (TypeError, ValueError):
        return repr(reply)
