"""English as tables of words, and a text as sentences of units: words, proper names, dates, amounts of money.

The tables have verbs and their tenses, and phrases by verb. Names are runs of capitals, product names with
digits, and titles in quotation marks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kgray.domain.ontology import Ontology, RelationType
from kgray.domain.records import Value, clean_number, clean_text
from kgray.language.dates import DatePhrase, find_dates

Form = Literal["base", "third", "past", "participle", "ing"]
Mode = Literal["state", "start", "end", "event"]  # of a phrase


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: key for key, listed in table.items() for word in listed.split()}


_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
LISTS: dict[str, list[str]] = {name: listed for name, listed in _TABLES.items() if isinstance(listed, list)}
THIRD = _by_word(_TABLES["third"])
CURRENCY_OF = _by_word(_TABLES["money"])
# Each auxiliary and its form in the table of tenses.
AUXILIARIES = {word: form or word for word, form in _by_word(_TABLES["auxiliaries"]).items()}
WORDS = {  # a list with phrases is separated by commas
    name: frozenset(" ".join(part.split()) for part in text.split("," if "," in text else None))
    for name, text in _TABLES.items()
    if isinstance(text, str)
}
WORDS["function_words"] = WORDS["not_nouns"] | WORDS["prepositions"] | WORDS["determiners"]
WORDS["no_role"] |= WORDS["function_words"]
WORDS["no_names_at_the_start"] = WORDS["function_words"].union(
    AUXILIARIES,
    *(WORDS[n] for n in ("starts", "not_names", "titles", "adverbs", "openers", "leads", "hedges")),
)
PATTERNS: dict[str, re.Pattern[str]] = {}
for _name, _text in _TABLES["patterns"].items():
    _pattern = re.sub(r"\{([a-z]+)\}", lambda of: _TABLES["patterns"][of[1]], _text)
    PATTERNS[_name] = re.compile(_pattern, re.VERBOSE)
_IRREGULAR = {base: irregular_forms for base, *irregular_forms in map(str.split, WORDS["irregular"])}
_ENDS_IN_Y = re.compile("[^aeiou]y$")


def third_person(verb: str) -> str:
    """Return "works" for "work"."""
    if listed := _TABLES["forms"].get(verb):
        return str(listed["third"].split()[0])
    if _ENDS_IN_Y.search(verb):
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")


def _forms(verb: str) -> Iterator[tuple[str, Form]]:
    """Yield (word, form) of a verb; a word may have several forms."""
    if listed := _TABLES["forms"].get(verb):
        yield from ((word, form) for form, words in listed.items() for word in words.split())
        return
    stem = verb + verb[-1] if verb in WORDS["doubling"] else verb
    past = verb[:-1] + "ied" if _ENDS_IN_Y.search(verb) else verb + "d" if verb.endswith("e") else stem + "ed"
    past, participle = _IRREGULAR.get(verb, [past, past])
    silent = verb.endswith("e") and not verb.endswith("ee")
    gerund = (verb[:-2] + "y" if verb.endswith("ie") else verb[:-1] if silent else stem) + "ing"
    yield from ((verb, "base"), (third_person(verb), "third"), (past, "past"))
    yield from ((participle, "participle"), (gerund, "ing"))


class Tense(NamedTuple):
    """The time of a verb group and its negation; former: "used to"."""

    time: Literal["present", "progressive", "perfect", "past", "former", "future"]
    polarity: Literal["", "not", "never", "no longer"] = ""


_TENSES = {group: Tense(*tense.split(", ")) for group, tense in _TABLES["tenses"].items()}


def read_tense(group: Sequence[str], forms: Collection[Form], mode: Mode, *, plural: bool) -> Tense | None:
    """Return the tense of the auxiliaries and the verb's form together; None = not certain.

    plural: the subject is I, we, they or several, so that a bare verb form is a present tense
    """
    normal = " ".join(AUXILIARIES[word] for word in group)
    if normal.startswith("'s"):
        normal = ("have" if "participle" in forms or "been" in normal else "be") + normal[2:]
    ambiguous = {"base", "past"} <= set(forms)  # "I quit Acme" happened, "they cost $5" is so
    present = "third" in forms or ("base" in forms and plural and not (ambiguous and mode != "state"))
    if normal in {"", "not", "no longer"} and present:
        return _TENSES[f"{normal} third".strip()]
    groups = (f"{normal} {f}".strip() for f in ("past", "participle", "ing", "base") if f in forms)
    return next((_TENSES[group] for group in groups if group in _TENSES), None)


class Phrase(NamedTuple):
    """A row of the table: "start at {org}" begins (mode) WORKS_AT (relation) with an organisation (slot)."""

    relation: RelationType
    mode: Mode
    verb: str
    words: tuple[frozenset[str], ...]  # each word after the verb, with its alternatives
    slot: str  # see ontology.toml; "owner": of "is Ada's manager", "is the founder of Acme"


class PhraseTable:
    """Every phrase of an ontology by its verb, and every noun that names a relation ("manager")."""

    def __init__(self, ontology: Ontology) -> None:
        self.ontology = ontology
        self.verbs: dict[str, dict[str, set[Form]]] = {}  # a word -> the verbs it may be, each with its forms
        # Phrases by a verb's base form: the longest first, then in the ontology's order.
        self.phrases: dict[str, list[Phrase]] = {}
        self.nouns: dict[str, RelationType] = {}
        # The relation of a negation with "does not": LIKES -> DISLIKES.
        self.opposites: dict[str, RelationType] = {}
        for relation in ontology:
            self._add(relation, "state", relation.phrases)
            self._add(relation, "start", relation.starts)
            self._add(relation, "end", relation.ends)
            self._add(relation, "event", relation.events)
            self.nouns = dict.fromkeys(relation.nouns, relation) | self.nouns
            if len(relation.excludes) == 1:
                self.opposites.setdefault(relation.excludes[0], relation)
        rows = [row for rows in self.phrases.values() for row in rows]
        # The event of a clause, in addition to the state that it begins or ends: "buy" BOUGHT.
        self.events = {(row.verb, row.words): row for row in rows if row.mode == "event"}
        # Next to words without meaning of their own.
        self.verbs_of_ends = {row.verb for row in rows if row.mode == "end"} - {"be", "get", "give", "go"}
        self.of_owners = [
            Phrase(relation_type, "state", "be", (), "owner")
            for relation_type in ontology
            if relation_type.nouns and relation_type.object != "value"
        ]
        for phrases in self.phrases.values():
            # Stable: equals keep the ontology's order. An event comes after the state that it begins or ends.
            phrases.sort(key=lambda phrase: (-len(phrase.words), phrase.mode == "event"))

    def _add(self, relation: RelationType, mode: Mode, phrases: Iterable[str]) -> None:
        for phrase in phrases:
            words, _, slot = phrase.rpartition(" ")
            # "can't" is "can" and "n't", as in a sentence; alternatives stay joined.
            parts = ([w] if "|" in w else [t.low for t in tokenise(w, 0, len(w))] for w in words.split())
            verbs, *words_after = [frozenset(word.split("|")) for part in parts for word in part]
            for verb in sorted(verbs):
                row = Phrase(relation, mode, verb, tuple(words_after), slot.strip("{}"))
                self.phrases.setdefault(verb, []).append(row)
                for word, form in _forms(verb):
                    self.verbs.setdefault(word, {}).setdefault(verb, set()).add(form)


MAX_TEXT = 100_000  # characters; the rest of a longer text is not read
MAX_SENTENCE = 1_000  # a longer stretch without an end is cut at a space

_ABBREVIATIONS = frozenset("mr mrs ms dr prof inc ltd corp co st vs etc e.g i.e no jr sr dept approx".split())


class Token(NamedTuple):
    """A word, number or sign; [start, end) in the whole text. low: lower case, with straight quotes."""

    text: str
    low: str
    start: int
    end: int


class Sentence(NamedTuple):
    """A stretch of the text with at least one token."""

    start: int
    end: int
    tokens: list[Token]
    question: bool  # it asks
    quoted: bool  # it begins inside a quotation that an earlier sentence opened


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of the first MAX_TEXT characters; lines quoted with ">" are left out."""
    visible = PATTERNS["reply"].sub(lambda line: " " * len(line[0]), text[:MAX_TEXT])
    open_quotes = 0
    for start, end in _stretches(visible):
        words = visible[start:end]
        if "\n\n" in words:
            open_quotes = 0  # a quotation that was never closed ends with its paragraph
        asks = "?" in words or "？" in words or PATTERNS["asked"].search(words) is not None
        if tokens := list(tokenise(visible, start, end)):
            yield Sentence(start, end, tokens, asks, open_quotes > 0)
        open_quotes = (open_quotes + words.count('"')) % 2 if '"' in words else open_quotes
        open_quotes = max(0, open_quotes + words.count("“") - words.count("”"))


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of each sentence; a sentence beyond MAX_SENTENCE in pieces."""
    start, ends = 0, []
    for match in PATTERNS["end"].finditer(text):
        at = match.start()
        match_before = PATTERNS["last_word"].search(text, max(0, at - 14), at) if match[0] == "." else None
        word = match_before[1] if match_before else ""
        initial = len(word) == 1 and word.isupper() and word != "I"
        if not (initial or word.lower() in _ABBREVIATIONS):
            ends.append(match.end())
    for end in (*ends, len(text)):
        while end - start > MAX_SENTENCE:
            space = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
            border = space if space > 0 else start + MAX_SENTENCE
            yield start, border
            start = border
        if end > start:
            yield start, end
        start = end


def tokenise(text: str, start: int, end: int) -> Iterator[Token]:
    """Yield the tokens of text[start:end]; "don't" gives "do" and "n't", "cannot" gives "can" and "not"."""
    for match in PATTERNS["token"].finditer(text, start, end):
        word, (first, last) = match[0], match.span()
        low = word.lower().replace("’", "'")
        if parts := PATTERNS["contraction"].match(word) if "'" in low or low == "cannot" else None:
            stem, ending = parts[1] or parts[3], parts[2] or parts[4]
            border = first + len(stem)
            full = {"ca": "can", "wo": "will", "sha": "shall"}.get(stem.lower(), stem.lower())
            yield Token(stem, full, first, border)
            yield Token(ending, ending.lower().replace("’", "'"), border, last)
        else:
            yield Token(word, low, first, last)


_QUOTES = frozenset("\"“”«»'‘`")
_SIGNS_IN_NAMES = "'’&/%$€£#@*+=_"  # these join the words on both sides

_SCALES = {"": 1, "k": 1_000, "m": 1_000_000, "million": 1_000_000, "billion": 1_000_000_000}


class FactEnd(NamedTuple):
    """A subject or object: an entity by name, or a value. span: [start, end) in the text, or None."""

    name: str
    type: str = ""
    span: tuple[int, int] | None = None
    value: Value | None = None
    is_noun_phrase: bool = False

    @property
    def last(self) -> str:
        """The last word of its name, in lower case."""
        return self.name.lower().split()[-1]


@dataclass(slots=True)
class KnownWords:
    """Knowledge about words from the rest of the text, all lower case."""

    persons: set[str] = field(default_factory=set)  # speakers, and each word of their names
    lowers: set[str] = field(default_factory=set)  # written without a capital somewhere


class Unit(NamedTuple):
    """A word, or a name, date or amount as a whole; [start, end) in the text. low: "" unless a word."""

    start: int
    end: int
    low: str = ""
    name: FactEnd | None = None
    date: DatePhrase | None = None
    price: Value | None = None


_NOTHING = Unit(0, 0)


class MarkedSentence:
    """A sentence as units; adverbs without influence ("now", "also") are left out."""

    def __init__(
        self,
        text: str,
        sentence: Sentence,
        vocabulary: KnownWords,
        table: PhraseTable,
        speaker: FactEnd | None,
        type_of: Callable[[str], str],
    ) -> None:
        """speaker: the meaning of "I". type_of: a name's type in the earlier text; "" = unknown."""
        self.text, self.table, self.speaker, self.type_of = text, table, speaker, type_of
        marks = [Unit(d.start, d.end, date=d) for d in find_dates(text, sentence.start, sentence.end)]
        marks += find_prices(text, sentence.start, sentence.end)
        self.names: list[FactEnd] = []
        for outer, name in _Names(text, sentence, vocabulary, table).find([(m.start, m.end) for m in marks]):
            self.names.append(name._replace(type=name.type or type_of(name.name)))
            marks.append(Unit(*outer, name=self.names[-1]))
        units: list[Unit] = []
        waiting = sorted(marks, key=lambda mark: (-mark.start, mark.end))
        for token in sentence.tokens:  # a unit for each token outside marks
            while waiting and waiting[-1].end <= token.start:
                waiting.pop()
            if not waiting or token.start < waiting[-1].start:
                units.append(Unit(token.start, token.end, token.low))
            elif not units or units[-1] != waiting[-1]:
                units.append(waiting[-1])
        # A question, a doubt, or another person's words: "maybe", "if", "Bob said", a quotation.
        words = [unit for unit in units if unit.low]
        lows = {unit.low for unit in words}
        step = 2 if len(units) > 1 and units[1].low == "," else 1
        ironic = len(units) > step and units[0].low in WORDS["ironic"] and units[step].low == "and"
        # "I don't always like coffee" does not say that I don't like it.
        partly = lows & WORDS["negations"] and lows & WORDS["partly"]
        hedges = WORDS["hedges"]  # a name is no hedge, except as the first word: "May I"
        hedged = not hedges.isdisjoint(text[unit.start : unit.end] for unit in words)
        hedged = hedged or (bool(words) and words[0].low in hedges) or bool(lows & _QUOTES)
        self.states_something = not (sentence.question or sentence.quoted or ironic or partly or hedged)
        self.units = [unit for unit in units if unit.low not in WORDS["adverbs"]]

    def unit(self, at: int) -> Unit:
        """Return a unit; an empty one outside the sentence."""
        return self.units[at] if 0 <= at < len(self.units) else _NOTHING

    def low(self, at: int) -> str:
        return self.unit(at).low

    def name(self, at: int) -> FactEnd | None:
        return self.unit(at).name

    def is_border(self, at: int) -> bool:
        """Tell whether a clause may end before a unit: at a sign, an "and", the sentence's end."""
        if at >= len(self.units):
            return True
        low, end = self.low(at), self.units[at].end
        if low in {"-", "–"} and not self.text[end : end + 1].isspace():
            return False  # "$90-100"
        return low in {"and", "but"} or (low != "" and not low[0].isalnum() and low[0] not in _SIGNS_IN_NAMES)

    def noun_phrases(self, at: int) -> list[tuple[FactEnd, int]]:
        """Return the noun phrases that begin at a unit, the longest first: "the office printer"."""
        start = at + (self.low(at) in WORDS["determiners"])
        while self.low(start) in WORDS["plain_adjectives"]:
            start += 1
        end = start
        while end - start < 5 and (self.name(end) or self._is_noun(self.low(end))):
            end += 1
        return [(self._noun_phrase(at, start, stop), stop) for stop in range(end, start, -1)]

    def _noun_phrase(self, at: int, start: int, end: int) -> FactEnd:
        name = self.name(start)
        if name and end == start + 1:
            return name._replace(is_noun_phrase=start > at)
        last = self.name(end - 1)
        if last and not any(map(self.name, range(start, end - 1))):
            return last  # "the ticket KS-20871", "my colleague Ada Lind"
        span = (self.units[start].start, self.units[end - 1].end)
        surface = self.text[slice(*span)]
        if self.low(start).endswith("ing") and start == at:
            return FactEnd(surface, value=Value("text", clean_text(surface)), is_noun_phrase=True)
        return FactEnd(surface, self.type_of(surface), span, is_noun_phrase=True)

    def _is_noun(self, low: str) -> bool:
        adverb = low.endswith("ly") and len(low) > 4  # not "fly"
        if not low[:1].isalpha() or adverb or low in WORDS["function_words"]:
            return False
        forms = {form for verb_forms in self.table.verbs.get(low, {}).values() for form in verb_forms}
        return "base" in forms or forms.isdisjoint({"past", "participle"})

    def text_of(self, first: int, end: int) -> str:
        """Return the words of units [first, end)."""
        return clean_text(self.text[self.units[first].start : self.units[end - 1].end]) if end > first else ""


def find_prices(text: str, start: int, end: int) -> list[Unit]:
    """Return the amounts of money in text[start:end], in order."""
    prices = []
    for match in PATTERNS["price"].finditer(text, start, end):
        raw = match["a"] or match["b"] or match["c"]
        scale = (match["sa"] or match["sb"] or match["sc"] or "").strip().lower()
        word = match["sign"] or match["code"] or match["unit"]
        if unit := word if word.lower() in WORDS["currencies"] else CURRENCY_OF.get(word.lower()):
            amount = Decimal(re.sub("[,']", "", raw)) * _SCALES[scale]
            value = Value("number", clean_number(amount), unit)
            prices.append(Unit(match.start(), match.end(), price=value))
    return prices


class _Names:
    """The names of a sentence."""

    def __init__(self, text: str, sentence: Sentence, vocabulary: KnownWords, table: PhraseTable) -> None:
        self.text, self.sentence, self.vocabulary, self.verbs = text, sentence, vocabulary, table.verbs

    def find(self, reserved: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], FactEnd]]:
        """Return the names in order, each with its span including title and quotation marks.

        reserved: spans of dates and amounts
        """
        text, names = self.text, []
        for match in PATTERNS["title"].finditer(text, self.sentence.start, self.sentence.end):
            names.append((match.span(), FactEnd(match[2], self._type(match[2]), match.span(2))))
        covered = {at for span in (*reserved, *(outer for outer, _ in names)) for at in range(*span)}
        self.tokens = [token for token in self.sentence.tokens if token.start not in covered]
        written = [token.text for token in self.tokens if token.text[0].isalpha() and len(token.text) > 1]
        # If most words are in capitals, a capital does not mark a name.
        self.shouting = len(written) > 2 and sum(map(str.isupper, written)) * 2 > len(written)
        gaps = [text[a.end : b.start] for a, b in pairwise(self.tokens)]
        joints = ["|", *("|" if len(gap) > 1 or gap == "\n" else "-" for gap in gaps)]
        self.letters = "".join(joints[at] + self._letter(at) for at in range(len(self.tokens)))
        at = 0
        while at < len(self.tokens):
            hit = PATTERNS["name"].match(self.letters, 2 * at)
            title, end = (len(hit["title"] or "") // 2, hit.end() // 2) if hit else (0, at)
            previous = self.tokens[at - 1].text if at else ""
            is_inside = previous[:1].isalnum() or previous in {",", "'s", "’s", "&", "(", "/", "-", "–", "—"}
            if hit and (is_inside or title or self._trusted(at, end)):
                start, stop = self.tokens[at + title].start, self.tokens[end - 1].end
                label = "Person" if title else self._type(text[start:stop])
                if stop - start <= 120:  # a longer run of capitals is a heading or noise
                    outer = (self.tokens[at].start, stop)
                    names.append((outer, FactEnd(text[start:stop], label, (start, stop))))
                at = end
            else:
                at += 1
        return sorted(names, key=lambda hit: hit[0])

    def _low(self, at: int) -> str:
        return self.tokens[at].low if at < len(self.tokens) else ""

    def _letter(self, at: int) -> str:
        """Return the letter of a token in the table of the pattern `name`; x = not in a name."""
        token, following = self.tokens[at], self._low(at + 1)
        if token.low in WORDS["titles"] and token.text[0].isupper():
            return "t"
        if token.low == ",":
            return "L" if following in WORDS["legal_forms"] else "x"
        if token.low == ".":
            return "." if at and self.tokens[at - 1].end == token.start else "x"
        if self._is_capitalised(token):
            person = token.low in WORDS["first_names"] or token.low in self.vocabulary.persons
            return "P" if person else "W" if token.low in AUXILIARIES else "C"
        if token.text[0].isdigit() and token.text.replace(".", "").isalnum():
            # "Ticket 42 is", but not "Bob 7 times".
            counted = following.endswith("s") and not (following in AUXILIARIES or following in self.verbs)
            return "x" if counted else "d"
        return ("O" if token.low in {"&", "of", "the"} else "o") if token.low in WORDS["connectors"] else "x"

    def _is_capitalised(self, token: Token) -> bool:
        """Tell whether a name may begin with a token: "Bob", "M28w", "iPhone"."""
        text, low = token.text, token.low
        if any(low in WORDS[never] for never in ("not_names", "role_heads", "negations")):
            return False
        if text.startswith("http") or "@" in text:
            return False
        mixed = len(text) > 2 and text[0].islower() and text[1].isupper()
        plain = text[0].isupper() and len(text) > 1 and not (self.shouting and text.isupper())
        return mixed or plain or PATTERNS["model"].fullmatch(text) is not None

    def _trusted(self, at: int, end: int) -> bool:
        """Tell whether a capital at the start of a sentence begins a name."""
        low, text = self.tokens[at].low, self.tokens[at].text
        if low in self.vocabulary.persons or low in WORDS["first_names"]:
            return True
        if at + 1 < end and self._low(at + 1) in WORDS["first_names"]:
            return False  # "Somehow Bob"
        if low in WORDS["no_names_at_the_start"] or low.endswith(("ing", "ed", "ly")) or low in self.verbs:
            return False
        if self._low(at + 1) == "of":  # "University of Oslo", but not "Instead of Oslo"
            return low in WORDS["organisations"]
        named = low in WORDS["places"] or PATTERNS["model"].fullmatch(text)
        if named or end - at > 1 or any(map(str.isupper, text[1:])):
            return True
        following = self._low(end + (self._low(end) in WORDS["adverbs"]))
        is_subject = following in AUXILIARIES or following in self.verbs
        joined = self._low(end) in {"and", "&"} and self.letters[2 * end + 3 : 2 * end + 4] in {"P", "C", "W"}
        return low not in self.vocabulary.lowers and (is_subject or joined)

    def _type(self, name: str) -> str:
        """Return the type that a name implies, such as Person or Product; "" = not certain."""
        low, parts = name.lower(), name.split()
        first, last = parts[0].lower(), parts[-1].lower().rstrip(".")
        if low in self.vocabulary.persons:
            return "Person"
        if (len(parts) > 1 and last in WORDS["organisations"]) or low.startswith(
            ("university of ", "bank of ")
        ):
            return "Organization"
        if any(map(str.isdigit, name)):
            return "Product" if any(map(PATTERNS["product"].fullmatch, parts)) else ""
        initial = len(parts) > 1 and len(first) == 2 and first[1] == "."
        person = first in WORDS["first_names"] or initial
        if low in WORDS["places"]:
            return "" if person else "Place"
        return "Person" if person and len(parts) <= 4 else ""
