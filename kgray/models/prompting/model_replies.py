"""The replies of language models, in the form that `replies.parse_extraction` reads.

A model names both ends of a fact and gives its status and dates as plain fields:

    {"subject": "Leo", "relation": "WORKS_AT", "object": "Nordwind", "fact": "Leo works at Nordwind",
     "status": "ended", "start": null, "end": "2026-03-02"}

ends     match the listed entities and the speaker; case, articles, possessives and outer punctuation do not
         count. An end that is not listed becomes a new mention. As an object, a number, a date, a
         boolean, and a phrase of lower-case words ("on track", "engineer") are values instead
status   current -> holds, event -> happened, denied -> denied, ended -> ended; an ended fact with a start
         that is not the date of its change: holds, until the end date or the reference time
dates    ISO 8601 at any precision, or words ("last May") that are resolved against the reference time (R3).
         A date that cannot be read is left out alone: the fact stays, and `notes` gets a line. The day of the
         message counts as a date only for an event or an end, and only if the text has a word such as
         "today", because models copy that day
types    the shipped names, the declared names, and the words of entity_types.toml

An item that is wrong stays as it is: the parser drops it, and says why.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgray.domain import times
from kgray.domain.records import Episode, clean_text
from kgray.domain.times import DAY
from kgray.language import dates
from kgray.models.prompting.reply_schemas import ENTITY_TYPES

_KINDS = {"current": "holds", "ended": "ended", "event": "happened", "denied": "denied"}
_ABSENT = frozenset({"", "null", "none", "n/a", "-"})
_UNKNOWN = "unknown"
_TABLE = tomllib.loads(Path(__file__).with_name("entity_types.toml").read_text(encoding="utf-8"))
_TYPES = {word: kind for kind, words in _TABLE.items() for word in words.split()}
_FIRST_PERSON = frozenset("i me my myself we us our speaker ich mich mir je moi yo io".split())
_PRONOUNS = frozenset(
    """he him his she her hers it its they them their you your this that these those there here who someone
    somebody everyone everybody something nothing nobody one er sie es ihn ihm il elle lui eux ella
    ellos""".split()
)
_LEADING = re.compile(
    r"(?:the|a|an|my|our|your|his|her|its|their|der|die|das|den|dem|ein|eine|einen|le|la|les|un|une|el|los|las"
    r"|una|lo|gli|mein|meine|mon|ma|mi)\s+|(?:l|d)['’]",
    re.IGNORECASE,
)
_POSSESSIVE = re.compile(r"(?:['’]s|(?<=s)['’])$")
_OUTER = " \t\"'‘’“”„«»,;:.!?()[]{}"
_NUMBER = re.compile(
    r"(?P<sign>[-+−]?)(?P<before>[€£$¥]?)\s?(?P<digits>\d+(?:[.,' \u00a0\u202f]\d+)*)"
    r"(?:\s(?P<scale>thousand|million|billion))?\s?(?P<unit>[€£$¥%]|°?[^\W\d_][^\d,;:]{0,23})?"
)
_SCALES = {"thousand": 3, "million": 6, "billion": 9}
_UNITS = {
    "€": "EUR", "£": "GBP", "$": "USD", "¥": "JPY", "euro": "EUR", "euros": "EUR", "dollar": "USD",
    "dollars": "USD",
}  # fmt: skip
_UNIT_WORDS = 3
_ISO_DATE = re.compile(r"(\d{4})-(\d{1,2})(?:-(\d{1,2}))?")
# Words that say that a state has no known beginning.
_LONG_AGO = re.compile(
    r"\b(?:always|long|ever since|for (?:years|ages)|from the (?:very )?beginning|unknown|originally|immer"
    r"|schon lange|seit jeher|siempre|toujours|depuis longtemps)\b",
    re.IGNORECASE,
)
_START_WORDS = re.compile(r"\b(?:since|from|seit|depuis|desde|dal)\b", re.IGNORECASE)
_TODAY = re.compile(
    r"\b(?:today|tonight|this (?:morning|afternoon|evening)|now|just|heute|hoy|aujourd['’]hui|oggi)\b",
    re.IGNORECASE,
)


@dataclass(slots=True)
class ScriptForm:
    """The entities and facts of replies about one episode, in the form of `model.script`.

    `parse_extraction` reads this form. `add_entities` and `add_facts` add a reply.
    """

    episode: Episode
    types: Sequence[str] = ENTITY_TYPES
    entities: list[object] = field(default_factory=list)
    facts: list[object] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)  # key of a listed name -> the name
    _marks: set[tuple[str, ...]] = field(default_factory=set)  # facts so far: ends, sentence, status

    def __post_init__(self) -> None:
        if self.episode.speaker and self.episode.kind == "message":
            self._names[name_key(self.episode.speaker)] = clean_text(self.episode.speaker)

    def add_entities(self, items: Iterable[object]) -> None:
        """Add the listed entities of a reply; a name that is known adds no second entity."""
        for item in items:
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(item, dict) or not isinstance(name, str) or not name_key(name):
                self.entities.append(item)
                continue
            key = name_key(name)
            if key in _FIRST_PERSON and self.episode.speaker:
                continue
            first = self._names.setdefault(key, clean_text(name))
            self.entities.append({"name": first, "type": self.type_of(item.get("type"))})

    def add_facts(self, items: Iterable[object]) -> None:
        """Add the facts of a reply; the same ends, sentence and status count once."""
        for item in items:
            if isinstance(item, dict):
                names = ("subject", "object", "fact", "status")
                mark = tuple(name_key(str(item.get(name))) for name in names)
                if mark in self._marks:
                    self.notes.append(f"facts: {str(item.get('fact'))[:80]!r} is listed twice")
                    continue
                self._marks.add(mark)
            self.facts.append(self.fact(item))

    def type_of(self, raw: object) -> object:
        """Return the type for a model's word, "" for an unknown word.

        A value that is not a string is returned unchanged: the parser reports it.
        """
        if not isinstance(raw, str):
            return raw
        key = "".join(raw.split()).casefold()
        names = {name.casefold(): name for name in (*ENTITY_TYPES, *self.types)}
        return names.get(key) or _TYPES.get(key) or _TYPES.get(key.removesuffix("s")) or ""

    def fact(self, item: object) -> object:
        """Return one fact in the parser's form."""
        if not isinstance(item, dict):
            return item
        status = str(item.get("status", "current")).strip().casefold()
        fact: dict[str, Any] = {
            "relation": item.get("relation"),
            "fact": item.get("fact"),
            "kind": _KINDS.get(status, status),
            "source": self.name_of_end(item.get("subject")),
        }
        fact |= self.object(item.get("object"))
        fact |= self._dates(fact["kind"], item)
        if fact["fact"] is None:
            del fact["fact"]
        return fact

    def name_of_end(self, raw: object) -> object:
        """Return the name of the entity that is the subject or object; an unlisted name loses its article.

        None for a pronoun, because it names no entity.
        """
        if not isinstance(raw, str):
            return raw
        key = name_key(raw)
        if key in _FIRST_PERSON and self.episode.speaker:
            return clean_text(self.episode.speaker)
        if key in self._names:
            return self._names[key]
        return None if key in _PRONOUNS | _FIRST_PERSON else _LEADING.sub("", clean_text(raw), count=1)

    def object(self, raw: object) -> dict[str, Any]:
        """Return {"target": name} or {"value": ...} for the object of a fact; {} for none."""
        if isinstance(raw, bool | int | float):
            return {"value": raw}
        if not isinstance(raw, str):
            return {"target": raw} if raw is not None else {}
        text, end = clean_text(raw), self.name_of_end(raw)
        if end is None or name_key(text) in self._names:
            return {} if end is None else {"target": end}
        value = value_of(text)
        return {"target": end} if value is None else {"value": value}

    def _dates(self, kind: str, item: Mapping[str, Any]) -> dict[str, str | None]:
        """Return valid_at and invalid_at as the parser takes them."""
        start, end = self._date(item, "start"), self._date(item, "end")
        stated = None if start == _UNKNOWN else start
        if kind == "denied":
            return {}
        if kind == "happened":  # an event has one date; models write it to either field
            moment = stated or end
            return {"valid_at": moment} if moment else {}
        if stated and end and times.parse_iso(end)[0] <= times.parse_iso(stated)[0]:
            stated, end = (None, end) if kind == "ended" else (stated, None)
        if kind == "ended":
            if stated and not end and not _START_WORDS.search(self.episode.text):
                return {"invalid_at": stated}  # the date of the change
            if not stated:
                return {"invalid_at": end} if end else {}
            reference = times.show_as(self.episode.reference_time, "instant")
            return {"kind": "holds", "valid_at": stated, "invalid_at": end or reference}
        dated: dict[str, str | None] = {"invalid_at": end} if end else {}
        if start == _UNKNOWN or stated:
            dated["valid_at"] = stated
        return dated

    def _date(self, item: Mapping[str, Any], key: str) -> str | None:
        """Return a date as ISO 8601, "unknown" for a start that the text calls unknown, None if absent."""
        raw = item.get(key)
        text = str(raw).strip() if isinstance(raw, str | int) else ""
        if text.casefold() in _ABSENT:
            return None
        if text.casefold() == _UNKNOWN:  # small models write it where the text gives no date
            return _UNKNOWN if key == "start" and _LONG_AGO.search(self.episode.text) else None
        said_at = self.episode.reference_time
        moment = read_date(text, said_at, is_future=key == "end" and item.get("status") == "current")
        if moment is None:
            self.notes.append(f"facts: the {key} {text[:40]!r} is no date and was left out")
            return None
        instant, precision = moment
        # Small models copy the day of the message where the text has no date.
        if precision in ("day", "instant") and instant // DAY == said_at // DAY:
            may_be_stated = item.get("status") == "event" or key == "end"
            if not may_be_stated or not _TODAY.search(self.episode.text):
                return None
        return times.show_as(instant, precision)


def name_key(name: str) -> str:
    """Return the key of a name: without case, article, possessive and outer signs."""
    text = unicodedata.normalize("NFKC", name).casefold().strip(_OUTER)
    text = _POSSESSIVE.sub("", _LEADING.sub("", " ".join(text.split()), count=1))
    return text.strip(_OUTER)


def value_of(text: str) -> object:
    """Return the text of an object as a value for `records.as_value`; None if it is the name of an entity."""
    low = text.casefold()
    if low in ("true", "false", "yes", "no"):
        return {"type": "boolean", "value": "true" if low in ("true", "yes") else "false"}
    if _ISO_DATE.fullmatch(text) and (moment := read_date(text, 0, is_future=False)):
        return {"type": "date", "value": times.show_as(*moment)}
    if (number := _number(text)) is not None:
        return number
    has_capital = any(c.isupper() or c.istitle() or c.isdigit() for c in text)
    return text if any(c.islower() for c in text) and not has_capital else None


def _number(text: str) -> dict[str, str | None] | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    words = f"{match['before']} {match['unit'] or ''}".split()
    if len(words) > _UNIT_WORDS:
        return None
    unit = " ".join([_UNITS.get(word.casefold(), word) for word in words[:1]] + words[1:])
    digits = _plain_digits(match["digits"])
    if match["scale"]:
        digits += f"e{_SCALES[match['scale']]}"
    sign = "-" if match["sign"] in ("-", "−") else ""
    return {"type": "number", "value": sign + digits, "unit": unit or None}


def _plain_digits(digits: str) -> str:
    """Return a written number with a decimal point and without separators of thousands."""
    digits = re.sub(r"[' \u00a0\u202f]", "", digits)
    if "," in digits and "." in digits:
        mark = max(",.", key=digits.rfind)
        return digits.replace(",."[mark == ","], "").replace(mark, ".")
    for mark in (",", "."):
        groups = digits.split(mark)
        is_grouped = len(groups) > (2 if mark == "." else 1) and all(len(group) == 3 for group in groups[1:])
        if is_grouped:
            return "".join(groups)
    return digits.replace(",", ".", 1)


def read_date(text: str, said_at: times.Instant, *, is_future: bool) -> dates.DatedMoment | None:
    """Return the instant and precision of a date in ISO 8601 or in words; None where it is none.

    is_future: an open phrase such as "in March" lies after `said_at`, else before
    """
    if match := _ISO_DATE.fullmatch(text):
        text = "-".join(part.zfill(2) for part in match.groups() if part)
    try:
        return times.parse_iso(text)
    except ValueError:
        pass
    phrases = dates.find_dates(text, 0, len(text), bare=True)
    return dates.resolve(phrases[0].first, said_at, future=is_future) if phrases else None
