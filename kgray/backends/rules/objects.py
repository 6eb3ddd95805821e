"""What a phrase's slot takes: names, noun phrases, amounts, roles, states."""

from __future__ import annotations

from kgray.backends.rules import words
from kgray.backends.rules.marking import FactEnd, MarkedSentence
from kgray.backends.rules.phrases import Phrase
from kgray.records import Value

_MAX_ROLE, _MAX_STATUS, _MAX_LIST = 5, 3, 8  # words, words, objects
_NOUN_PHRASES = frozenset({"thing", "group", "problem", "belonging"})
_PERSONS = frozenset({"person", "someone"})


def read_objects(sentence: MarkedSentence, at: int, phrase: Phrase) -> tuple[tuple[FactEnd, ...], int] | None:
    """Return what fills the phrase's slot, one object or a list, and the unit after it; None = nothing."""
    if phrase.slot == "before":
        return (FactEnd(""),), at
    found = read_object(sentence, at, phrase)
    if found is None:
        return None
    ends, end = [found[0]], found[1]
    while len(ends) < _MAX_LIST:
        step = end + (sentence.low(end) == ",")
        step += sentence.low(step) == "and"
        more = read_object(sentence, step, phrase) if step > end else None
        if more is None or more[0].value or more[0].is_noun_phrase != ends[0].is_noun_phrase:
            break
        ends.append(more[0])
        end = more[1]
    return tuple(ends), end


def read_object(sentence: MarkedSentence, at: int, phrase: Phrase) -> tuple[FactEnd, int] | None:
    """Return the one object at a unit, and the unit after it."""
    slot = phrase.slot
    if slot == "price":
        price = sentence.unit(at).price
        return (FactEnd(price.shown(), value=price), at + 1) if price else None
    if slot == "role":
        return read_role(sentence, at)
    if slot == "status":
        return _status(sentence, at)
    if slot in _PERSONS and sentence.low(at) in {"me", "us"} and sentence.speaker:
        return sentence.speaker, at + 1
    found = _thing(sentence, at) if slot in _NOUN_PHRASES else _name(sentence, at, slot)
    return found if found and _fits(found[0], phrase) else None


def _name(sentence: MarkedSentence, at: int, slot: str) -> tuple[FactEnd, int] | None:
    at += slot == "language" and sentence.low(at) in words.FLUENT
    the = sentence.low(at) == "the"
    name = sentence.name(at + the)
    # "At the Hilton" is a visit, "at the University of Oslo" is none.
    return (name, at + the + 1) if name and not (the and name.type != "Organization") else None


def _thing(sentence: MarkedSentence, at: int) -> tuple[FactEnd, int] | None:
    found = next(iter(sentence.noun_phrases(at)), None)
    place = sentence.name(found[1] + 1) if found and sentence.low(found[1]) == "in" else None
    if found and place and place.type == "Place" and found[0].name.lower().split()[-1] in words.BELONGINGS:
        name = f"{found[0].name} in {place.name}"  # "the house in Munich" is not the one in Rome
        return found[0]._replace(name=name, type=sentence.type_of(name)), found[1] + 2
    # "My wife", "the manager": another one for everyone who says it, so no entity.
    return None if found and sentence.low(found[1] - 1) in sentence.table.nouns else found


def _fits(end: FactEnd, phrase: Phrase) -> bool:
    """Whether an object may be what the slot and the relation ask for."""
    if end.value and phrase.relation.object is not None:
        return False  # an action is no entity (R18)
    wanted, low = phrase.relation.object_type, end.name.lower()
    last, many = low.split()[-1], " " in low
    if wanted == "Place" and end.type in {"Person", "Organization", "Product"}:
        return False
    if wanted == "Thing" and not is_thing(end):
        return False
    if phrase.slot == "thing" and phrase.relation.object == "entity" and end.type == "Person":
        return False  # nobody owns or uses somebody; LIKES takes anything
    place = end.type == "Place" or low in words.PLACES
    foreign = place or low in words.LANGUAGES
    person = end.type in {"", "Person"} and not (foreign or any(map(str.isdigit, low)))
    checks = {
        "person": person and last not in words.ORGANISATIONS,
        "someone": end.type == "Person" or (person and many and last not in words.ORGANISATIONS),
        "org": end.type in {"", "Organization"} and not (foreign or last in words.GROUPS),
        "employer": end.type == "Organization",
        "place": place,
        "group": many and last in words.GROUPS,
        "problem": not words.PROBLEMS.isdisjoint(low.split()),
        "belonging": end.type == "Product" or last in words.BELONGINGS,
        "language": low in words.LANGUAGES,
    }
    return checks.get(phrase.slot, True)


def is_thing(end: FactEnd) -> bool:
    """Whether an end is surely no person: a noun phrase, a product, "Project Aurora", "Ticket 42"."""
    if end.type:
        return end.type != "Person"
    low = end.name.lower()
    return end.is_noun_phrase or any(map(str.isdigit, low)) or not words.THINGS.isdisjoint(low.split())


def read_role(sentence: MarkedSentence, at: int) -> tuple[FactEnd, int] | None:
    """Return "product manager" of "the new product manager", "head of design", and the unit after it."""
    while sentence.low(at) in {"a", "an", "the", "our", "their", "its", "new"}:
        at += 1
    end = at
    while end - at < _MAX_ROLE and sentence.low(end)[:1].isalpha():
        low = sentence.low(end)
        if low in words.NO_ROLE or low in words.FUNCTION_WORDS:
            break
        end += 1
    if end == at or sentence.low(end - 1) not in words.ROLE_HEADS:
        return None
    field = sentence.low(end + 1)
    if sentence.low(end) == "of" and sentence.low(end - 1) in {"head", "vp", "director", "president", "lead"}:
        end += 2 * (field.isalpha() and field not in words.FUNCTION_WORDS)
    text = sentence.text_of(at, end)
    return FactEnd(text, value=Value("text", text)), end


def _status(sentence: MarkedSentence, at: int) -> tuple[FactEnd, int] | None:
    for count in range(_MAX_STATUS, 0, -1):
        text = " ".join(sentence.low(i) for i in range(at, at + count))
        if text in words.STATUSES:
            return FactEnd(text, value=Value("text", text)), at + count
    return None
