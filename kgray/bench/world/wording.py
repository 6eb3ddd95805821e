"""Acts to sentences. No word here is one that makes a wording another statement (R18)."""

from __future__ import annotations

from kgray.bench.world.dates import Date
from kgray.bench.world.dice import Dice
from kgray.bench.world.history import Act

_OCCASIONS = """weekly meeting | morning call | quarterly review | lunch break | training day | board meeting | team dinner
| summer party | site visit | status call | hand-over | interview | workshop | phone conference""".split("|")
_PLACES = """the canteen | the small meeting room | the lobby | the workshop | the library | the back office | the garden
| the roof terrace | the reception | the warehouse | the train | the car park | the archive | the kitchen""".split("|")
_HINTS = """word is that | people say that | somebody mentioned that | I learned that | we noted that | it was confirmed that
| the minutes say that | it turned out that | I was told that | for the record,""".split("|")
OCCASIONS, PLACES, HINTS = (tuple(w.strip() for w in words) for words in (_OCCASIONS, _PLACES, _HINTS))
_FILLERS = """The coffee machine is broken once more | Lunch is at noon | The heating makes a strange noise
| Please close the windows in the evening | The lift is being repaired | It has rained the whole week
| Somebody left an umbrella at the door | The printer is out of paper | Thanks for the cake
| The traffic was terrible this morning""".split("|")
FILLERS = tuple(filler.strip() for filler in _FILLERS)
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


def sentence(act: Act, source: str, target: str, *, first_person: bool = False) -> str:
    """Return what is said, without its full stop; source, target: the names as the text has them."""
    base, third, past, participle = act.relation.words
    who, verb, have = ("I", base, "have") if first_person else (source, third, "has")
    since, until = act.since, act.until
    match act.form:
        case "holds":
            return f"{who} {verb} {target}"
        case "changed":
            return f"{who} now {verb} {target}"
        case "since" if since and since.relative:
            return f"{who} started to {base} {target} {since.words}"
        case "since" if since:
            return f"{who} {have} {participle} {target} since {since.words}"
        case "always":
            return f"{who} {have} {participle} {target} from the very beginning"
        case "event" if since:
            return f"{who} {past} {target} {_on(since)}"
        case "event":
            return f"{who} {have} just {participle} {target}"
        case "future" if since:
            return f"{who} will {base} {target} from {since.words}"
        case "ended" if until and until.relative:
            return f"{who} ceased to {base} {target} {until.words}"
        case "ended" if until:
            return f"{who} {past} {target} until {until.words}"
        case "ended":
            return f"{who} no longer {verb} {target}"
        case "span" if since and until:
            return f"{who} {past} {target} from {since.words} until {until.words}"
        case "denied":
            return f"it is not true that {who} {verb} {target}"
    raise ValueError(f"an act of form {act.form!r} lacks a date")


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
