"""Acts as sentences. No word here turns a wording into another statement (R18)."""

from __future__ import annotations

from tests.world.dates import Date
from tests.world.dice import Dice
from tests.world.history import Act
from tests.world.naming import RelationName

_OCCASIONS = """
    weekly meeting | morning call | quarterly review | lunch break | training day | board meeting
    | team dinner | summer party | site visit | status call | hand-over | interview | workshop | exhibition"""
_PLACES = """
    the canteen | the small meeting room | the lobby | the workshop | the library | the back office
    | the garden | the warehouse | the reception | the kitchen | the train | the car park | the archive"""
_HINTS = """
    word is that | people say that | somebody mentioned that | I learned that | we noted that
    | I was told that | it was confirmed that | the minutes say that | it turned out that | for the record,"""
_FILLERS = """
    The coffee machine is broken once more | Lunch is at noon | The heating makes a strange noise
    | Please close the windows in the evening | The lift is being repaired | Thanks for the cake
    | Somebody left an umbrella at the door | The printer is out of paper | It has rained the whole week
    | The traffic was terrible this morning"""
OCCASIONS, PLACES, HINTS, FILLERS = (
    tuple(part.strip() for part in words.split("|")) for words in (_OCCASIONS, _PLACES, _HINTS, _FILLERS)
)
STATES = {
    "holds": "current",
    "changed": "new",
    "since": "current",
    "always": "current",
    "event": "happened",
    "future": "planned",
    "ended": "ended",
    "span": "past",
    "denied": "wrong",
}


# {who} is the subject, {verb} its present form, {have} "has" or "have", {what} the object. "!" marks patterns
# for a date relative to the reference time ("3 days ago"), which need another verb.
_PATTERNS = {
    "holds": "{who} {verb} {what}",
    "changed": "{who} now {verb} {what}",
    "since": "{who} {have} {participle} {what} since {since}",
    "since!": "{who} started to {base} {what} {since}",
    "always": "{who} {have} {participle} {what} from the very beginning",
    "event": "{who} {have} just {participle} {what}",
    "event on": "{who} {past} {what} {on}",
    "future": "{who} will {base} {what} from {since}",
    "ended": "{who} no longer {verb} {what}",
    "ended on": "{who} {past} {what} until {until}",
    "ended on!": "{who} ceased to {base} {what} {until}",
    "span": "{who} {past} {what} from {since} until {until}",
    "denied": "it is not true that {who} {verb} {what}",
}


def sentence(
    act: Act, source: str, target: str, *, name: RelationName | None = None, first_person: bool = False
) -> str:
    """Return the sentence of an act, without its full stop.

    source, target: the names of both ends in the text, in the order of `name`'s words; without a `name` the
    words of the act's relation are used
    """
    base, third, past, participle = act.relation.words if name is None else name.words
    date = act.until if act.form == "ended" else act.since
    form: str = "event" if name is not None and name.ends else act.form
    if date is not None and f"{form} on" in _PATTERNS:
        form = f"{form} on"
    counted = date is not None and date.relative and f"{form}!" in _PATTERNS
    return _PATTERNS[f"{form}!" if counted else form].format(
        who="I" if first_person else source,
        verb=_first_person(base) if first_person else third,
        have="have" if first_person else "has",
        base=base,
        past=past,
        participle=participle,
        what=target,
        since=act.since.words if act.since else "",
        until=act.until.words if act.until else "",
        on=_on(date) if date else "",
    )


def _first_person(base: str) -> str:
    return f"am {base[3:]}" if base.startswith("be ") else base


def opened(dice: Dice, words: str) -> str:
    """Return the sentence behind an opening that makes it unlike others."""
    opening = dice.pick(
        (
            f"After the {dice.pick(OCCASIONS)} in {dice.pick(PLACES)} {dice.pick(HINTS)}",
            f"At the {dice.pick(OCCASIONS)} {dice.pick(HINTS)}",
            f"In {dice.pick(PLACES)}, before the {dice.pick(OCCASIONS)}, {dice.pick(HINTS)}",
            f"Before the {dice.pick(OCCASIONS)} {dice.pick(HINTS)}",
        )
    )
    return f"{opening} {words}"


def closed(words: str) -> str:
    """Return the words as a sentence of their own."""
    return f"{words[0].upper()}{words[1:]}." if words.startswith("it is") else f"{words}."


def _on(date: Date) -> str:
    if date.relative:
        return date.words
    return f"in {date.words}" if len(date.iso) == 7 else f"on {date.words}"
