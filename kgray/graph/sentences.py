"""English verbs, and whether a sentence can be the text of a fact: true at every moment of a span (R18a).

`verb_phrase` gives a relation's name as words of a sentence. The sentence of a fact names both ends (or the
value), has no date, no first person and at most 240 characters. For a state it also has no word of the
future, the past, a change or the present moment; for an event the past is right, and an English present
("visits") is wrong. Word lists and endings cover English, German, Spanish and French. A sentence without a
known word of these languages fails, because its tense is unknown. A rejection costs little: the text is then
composed from the relation and the names.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from kgray.domain.records import Value, clean_number
from kgray.language.dates import find_dates

_WORDS_FILE = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
ENGLISH: dict[str, list[str]] = {name: text.split() for name, text in _WORDS_FILE.items()}  # by list
_THIRD_TO_PAST = dict(pair.split(":") for pair in ENGLISH["third_to_past"])
_PASTS = frozenset(_THIRD_TO_PAST.values())
_PAST_TO_STATE = dict(pair.split(":") for pair in ENGLISH["past_to_state"])
PARTICIPLES, _BASES = frozenset(ENGLISH["participles"]), frozenset(ENGLISH["bases"])
_PREPOSITIONS = frozenset(ENGLISH["prepositions"])
_ADJECTIVES = ("ic", "ible", "able", "ful", "ous", "lar", "ent", "ant")
_NO_VERB = ("ss", "us", "is")  # boss, status, basis: they end in s and are no third person
_IRREGULAR_THIRD = {"be": "is", "have": "has", "do": "does", "go": "goes"}


@lru_cache(maxsize=4_096)
def verb_phrase(relation: str, *, event: bool = False) -> str:
    """Return a relation's name in words: WORKS_AT is "works at", of an event "worked at"."""
    first, *following_words = relation.lower().split("_")
    # A span tells when: USED_TO_WORK_AT and WILL_START read true inside theirs.
    skipped = 2 if [first, *following_words[:1]] == ["used", "to"] else 1 if first == "will" else 0
    if skipped and len(following_words) >= skipped:
        base, *following_words = following_words[skipped - 1 :]
        first = _third_person(base)
    following = following_words[0] if following_words else ""
    verb = _state_verb(first, following if following in _PREPOSITIONS else "")
    if event:
        verb[0] = _past(verb[0])
    return " ".join((*verb, *following_words))


def _state_verb(first: str, preposition: str) -> list[str]:
    is_participle = first in PARTICIPLES or first in _PASTS or first.endswith("ed")
    is_third = first.endswith("s") and not first.endswith(_NO_VERB)
    if first == "born":
        return ["was", first]
    if preposition and (first in PARTICIPLES or (preposition == "by" and is_participle)):
        return ["is", first]
    if first in _PAST_TO_STATE:
        return [_PAST_TO_STATE[first]]
    if first in _BASES:
        return [_third_person(first)]
    if is_third or is_participle or first in _THIRD_TO_PAST:
        return [first]
    is_noun = preposition == "of"
    is_adjective = bool(preposition) and first.endswith(_ADJECTIVES)
    if is_noun or is_adjective or first in _PREPOSITIONS or first.endswith("ing"):
        return ["is", first]
    return [first]


def _third_person(base: str) -> str:
    if base in _IRREGULAR_THIRD:
        return _IRREGULAR_THIRD[base]
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ies"
    return base + ("es" if base.endswith(("s", "x", "ch", "sh")) else "s")


def _past(verb: str) -> str:
    if verb in _THIRD_TO_PAST:
        return _THIRD_TO_PAST[verb]
    if verb in _PASTS or not verb.endswith("s") or verb.endswith(_NO_VERB):
        return verb
    if verb.endswith("ies"):
        return f"{verb[:-3]}ied"
    base = verb[:-2] if verb.endswith(("sses", "xes", "ches", "shes")) else verb[:-1]
    return f"{base}d" if base.endswith("e") else f"{base}ed"


# Third persons of the present ("works"), and "am", "are", "have", "do".
PRESENT_VERBS = frozenset(
    {*_THIRD_TO_PAST, *_PAST_TO_STATE.values(), *map(_third_person, _BASES), "am", "have", "do"}
)
# Pasts that are not also the present ("put", "cost").
PAST_TENSES = frozenset(past for third, past in _THIRD_TO_PAST.items() if third != f"{past}s")
PAST_TENSES |= {_past(_third_person(base)) for base in _BASES} - {
    "put",
    "cost",
    "read",
} | _PAST_TO_STATE.keys()


MAX_SENTENCE = 240  # characters

_TABLES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8")
)
_UNITS = {unit: words.split() for unit, words in _TABLES["units"].items()}
_LANGUAGES = ("en", "de", "es", "fr")

# Flags of a word. For the language number n: KNOWN << n, NEVER << n (wrong for states and events),
# CHANGE << n (wrong for states); FIRST is one flag for all languages; PAIRED: it may begin a listed pair.
_KNOWN_WORD, _NEVER, _CHANGE, _FIRST, _PAIRED = 1, 1 << 4, 1 << 8, 1 << 12, 1 << 13
_ALL = (1 << len(_LANGUAGES)) - 1
_COUNT_BITS = 8  # of the number of known words per language; a sentence has at most 120


def _listed() -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Return the flags of single words, and the flags of pairs of adjacent words."""
    words: dict[str, int] = {}
    pairs: dict[tuple[str, str], int] = {}
    for number, language in enumerate(_LANGUAGES):
        table = _TABLES[language]
        for name, flag in (
            ("known", _KNOWN_WORD),
            ("future", _NEVER),
            ("moment", _NEVER),
            ("change", _CHANGE),
        ):
            for word in table[name].split():
                words[word] = words.get(word, 0) | flag << number
            for pair in table.get(f"{name}_pairs", "").split():
                first, second = pair.split("+")
                pairs[first, second] = flag << number
                words[first] = words.get(first, 0) | _PAIRED
        for word in table["first"].split():
            words[word] = words.get(word, 0) | _FIRST
    for verb in PRESENT_VERBS | PAST_TENSES:
        words[verb] = words.get(verb, 0) | _KNOWN_WORD
    return words, pairs


def _count(flags: int) -> int:
    """Return one for each language that knows a word, packed; sums of these count the known words."""
    return sum((flags >> number & 1) << _COUNT_BITS * number for number in range(len(_LANGUAGES)))


_FLAGS, _PAIRS = _listed()
_WORDS = {word: (flags, _count(flags)) for word, flags in _FLAGS.items()}
_DATES = frozenset(word for language in _LANGUAGES for word in _TABLES[language]["dates"].split())
_TIME_UNITS = frozenset(
    "day days week weeks month months year years hour hours minute minutes last next this".split()
)
_CALENDAR = re.compile(r"(?<!\w)(?:(?:19|20)\d\d(?:-\d\d){0,2}|\d{1,2}[./]\d{1,2}[./](?:\d{4}|\d\d)?)(?!\w)")
_DIGIT = re.compile(r"\d")
# Words that begin a time in German or French: "vor drei Jahren", "letzte Woche", "il y a deux ans".
_LEADING = frozenset(
    "vor letzte letzten letztes nächste nächsten nächstes vorige vorigen kommende kommenden il".split()
)
_PHRASE = re.compile(
    r"\bvor \w+ (?:Tag|Woche|Monat|Jahr)|\bil y a\b"
    r"|\b(?:letzt|nächst|vorig|kommend)\w* (?:Tag|Woche|Monat|Jahr|Sommer|Winter|Herbst|Frühling)"
)
_MARK = "\0"  # replaces an end in a sentence
_TOKEN = re.compile(r"\0|[^\W\d_]+")
# The end of a sentence before a second sentence, but not the full stop of "Dr." or "J.".
_BREAK = re.compile(r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])(?<!\b[A-Z][a-z]{2})[.!;]\s")
_NUMBER = re.compile(r"\d(?:[\d.,'\u00a0\u202f]*\d)?")


def is_plain_word(word: str) -> bool:
    """Return whether a word in lower case is in a word list or an adverb, and so cannot be a name."""
    return word in _FLAGS or word.endswith("ly")


@lru_cache(maxsize=16_384)
def reads_true(sentence: str, subject: str, target: str | Value, event: bool) -> bool:
    """Return whether a sentence can be the text of a fact; all arguments are positional, as a cache's key.

    subject, target     the surfaces of the mentions that its evidence names, or the value
    """
    if len(sentence) > MAX_SENTENCE:
        return False
    remainder = without_ends(sentence, subject, target)
    if remainder is None or "?" in remainder or "\n" in remainder:
        return False
    if (". " in remainder or "; " in remainder or "! " in remainder) and _BREAK.search(remainder):
        return False
    tokens = _TOKEN.findall(remainder)
    words, flags, counts = _read(tokens)
    if flags & _FIRST or not flags & _ALL or _has_date(remainder, tokens):
        return False
    languages = flags & _ALL
    if languages & languages - 1:  # several: take the languages with the most known words
        english, german, spanish, french = counts.to_bytes(len(_LANGUAGES), "little")
        highest = max(english, german, spanish, french)
        languages = (
            (english == highest)
            | (german == highest) << 1
            | (spanish == highest) << 2
            | (french == highest) << 3
        )
    wrong = flags >> 4 if event else flags >> 4 | flags >> 8
    if wrong & languages:
        return False
    for number, is_wrong in enumerate(_TENSES):
        if languages >> number & 1 and is_wrong(words, event):
            return False
    return True


def _read(tokens: Sequence[str]) -> tuple[list[str], int, int]:
    """Return the words in lower case, the flags of all, and how many each language knows (packed)."""
    words: list[str] = []
    flags = counts = 0
    for token in tokens:
        word = token.lower()
        # A capitalised word within the sentence is a part of a name: "New York". "I" is none.
        if word != token and words and token != "I":  # noqa: S105
            words.append(token)
            continue
        words.append(word)
        if listed := _WORDS.get(word):
            flags |= listed[0]
            counts += listed[1]
    if flags & _PAIRED:
        for pair in pairwise(words):
            flags |= _PAIRS.get(pair, 0)
    return words, flags, counts


def without_ends(sentence: str, subject: str, target: str | Value) -> str | None:
    """Return the sentence with a mark for each end; None if it does not name both."""
    if isinstance(target, Value):
        remainder = _without_value(sentence, target)
        return None if remainder is None else _without_name(remainder, subject)
    # The longer name first: "Anna works at Anna Weber GmbH".
    longer, shorter = (target, subject) if len(target) > len(subject) else (subject, target)
    between = _without_name(sentence, longer)
    return None if between is None else _without_name(between, shorter)


def without_each(sentence: str, names: Sequence[str]) -> str:
    """Return the sentence with a mark in place of each of these names."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        sentence = _without_name(sentence, name) or sentence
    return sentence


def _without_name(text: str, name: str) -> str | None:
    """Return the text with a mark for each occurrence of a name as whole words, in any case."""
    if not name:
        return None
    folded, needle = text, name
    at = text.find(name)
    if at < 0:
        folded, needle = text.lower(), name.lower()
        at = folded.find(needle) if len(folded) == len(text) else -1
    length = len(needle)
    parts: list[str] = []
    copied = 0
    while at >= 0:
        end = at + length
        # A genitive may follow: "Annas Hund", "Anna's dog".
        following = folded[end + 1 : end + 2] if folded[end : end + 1] == "s" else folded[end : end + 1]
        if not following.isalnum() and not (at and folded[at - 1].isalnum()):
            parts += (text[copied:at], _MARK)
            copied = end
        at = folded.find(needle, end)
    if not parts:
        return None
    parts.append(text[copied:])
    return "".join(parts)


def _without_value(text: str, value: Value) -> str | None:
    if value.type == "number":
        for number in _NUMBER.finditer(text):
            if value.value in _readings(number[0]):
                around = f"{text[: number.start()]}{_MARK}{text[number.end() :]}"
                return around if _has_unit(around, value.unit) else None
        return None
    remainder = _without_name(text, value.value)
    return remainder if remainder is not None and _has_unit(remainder, value.unit) else None


def _readings(number: str) -> Iterator[str]:
    """Yield the numbers that digits with separators may mean: "1,500" is 1500 or 1.5."""
    plain = re.sub(r"['\u00a0\u202f]", "", number)
    for form in (plain, plain.replace(",", ""), plain.replace(".", "").replace(",", ".")):
        try:
            yield clean_number(form)
        except ValueError:
            continue


def _has_unit(text: str, unit: str | None) -> bool:
    folded = text.lower()
    return unit is None or any(word in folded for word in (unit.lower(), *_UNITS.get(unit, ())))


def _has_date(remainder: str, tokens: Sequence[str]) -> bool:
    if not _DATES.isdisjoint(tokens) or (_DIGIT.search(remainder) and _CALENDAR.search(remainder)):
        return True
    if not _LEADING.isdisjoint(tokens) and _PHRASE.search(remainder):
        return True
    return not _TIME_UNITS.isdisjoint(tokens) and bool(find_dates(remainder, 0, len(remainder), bare=True))


_CLAUSES = frozenset("and but or who which that while because where whose".split())
_BEFORE_PARTICIPLE = frozenset("never not always also".split())


def _is_past(word: str) -> bool:
    return word in PAST_TENSES or (
        word.endswith("ed") and len(word) > 4 and word.islower() and word[-3] != "e"
    )


def _english(words: Sequence[str], event: bool) -> bool:
    """Return whether the tense is wrong: of a state past, perfect or a second clause; of an event present."""
    has_verb = False
    for place, word in enumerate(words):
        if word in PRESENT_VERBS:
            following = [w for w in words[place + 1 : place + 3] if w not in _BEFORE_PARTICIPLE]
            is_perfect = word in ("has", "have") and following and _is_participle(following[0])
            if event or is_perfect:
                return not (event and is_perfect)
            has_verb = True
        elif _is_past(word) and (event or not has_verb):
            return not event
        elif has_verb and word in _CLAUSES and not PRESENT_VERBS.isdisjoint(words[place:]):
            return True
    return False


def _is_participle(word: str) -> bool:
    return _is_past(word) or word in PARTICIPLES or word in _COMMON_PARTICIPLES


_COMMON_PARTICIPLES = frozenset(
    "been gone done seen taken given begun chosen driven eaten fallen flown shown spoken worn".split()
)


def _verbs(words: Sequence[str]) -> Sequence[str]:
    """Return the two words behind the first end, where the verb of a main clause stands."""
    place = words.index(_MARK) + 1 if _MARK in words else 0
    return words[place : place + 2]


_GERMAN_PREFIXES = ("ge", "ver", "be", "er", "ent", "zer", "über", "unter")
_GERMAN_AUXILIARIES = frozenset("hat haben".split())


def _german(words: Sequence[str], event: bool) -> bool:
    """Return whether a state is in the preterite ("arbeitete") or the perfect ("hat ... gekauft")."""
    if event:
        return False
    verb = next(iter(_verbs(words)), "")
    if verb.endswith(("te", "ten")) and verb not in ("möchte", "möchten"):
        return True
    last = words[-1]
    is_participle = (last.startswith(_GERMAN_PREFIXES) or "ge" in last) and last.endswith(("t", "en"))
    if not is_participle and last.endswith("iert"):
        is_participle = True
    if is_participle and len(last) > 4 and not _GERMAN_AUXILIARIES.isdisjoint(words):
        return True
    return "ge" in last and last.endswith("en") and not {"ist", "sind"}.isdisjoint(words)


def _spanish(words: Sequence[str], event: bool) -> bool:
    """Return whether the tense is a future ("trabajará"), or of a state a past ("trabajó", "vivía")."""
    if any(word.endswith(("rá", "rán")) for word in words):
        return True
    if event:
        return False
    past = any(word.endswith(("ó", "aron", "ieron", "aba", "aban")) for word in words)
    return past or any(word.endswith(("ía", "ían")) for word in _verbs(words))


_FRENCH_PRESENT = frozenset("fait sait connait parait plait lait trait".split())
_FRENCH_MOVES = tuple("allé parti venu devenu arrivé entré mort resté né sorti revenu".split())
_FRENCH_BETWEEN = frozenset("pas bien beaucoup longtemps".split())
_NO_PARTICIPLE = frozenset("lui ici huit trois dix six oui qui".split())


def _french(words: Sequence[str], event: bool) -> bool:
    """Return whether the tense is a future ("travaillera"), or of a state a past ("a travaillé")."""
    if any(word.endswith(("ra", "ront")) for word in _verbs(words)):
        return True
    verbs = [word for word in words if word not in _FRENCH_BETWEEN]
    for word, following in pairwise(verbs):
        if word in ("va", "vont") and following.endswith(("er", "ir", "re")):
            return True
        if event:
            continue
        if word in ("a", "ont") and following not in _NO_PARTICIPLE:
            if following.endswith(("é", "ée", "és", "ées", "u", "ue", "i", "it", "is", "ert")):
                return True
        elif word in ("est", "sont") and following.startswith(_FRENCH_MOVES):
            return True
    imperfect = (word for word in words if word.endswith(("ait", "aient")) and word not in _FRENCH_PRESENT)
    return not event and any(imperfect)


_TENSES: tuple[Callable[[Sequence[str], bool], bool], ...] = (_english, _german, _spanish, _french)
