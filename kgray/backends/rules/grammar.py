"""English as tables: words, verbs and their tenses, phrases by verb; a text to sentences and tokens."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from kgray.ontology import Ontology, RelationType

Form = Literal["base", "third", "past", "participle", "ing"]
Mode = Literal["state", "start", "end", "event"]  # of a phrase
Time = Literal["present", "progressive", "perfect", "past", "former", "future"]
Polarity = Literal["", "not", "never", "no longer"]


def _split(text: str) -> list[str]:
    """Return the words of a list; one with phrases is separated by commas."""
    return [" ".join(part.split()) for part in text.split("," if "," in text else None)]


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {word: key for key, listed in table.items() for word in listed.split()}


_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
LISTS: dict[str, list[str]] = {name: listed for name, listed in _TABLES.items() if isinstance(listed, list)}
THIRD = _by_word(_TABLES["third"])
CURRENCY_OF = _by_word(_TABLES["money"])
# Each auxiliary and how it stands in the table of tenses.
AUXILIARIES = {word: form or word for word, form in _by_word(_TABLES["auxiliaries"]).items()}
WORDS = {name: frozenset(_split(text)) for name, text in _TABLES.items() if isinstance(text, str)}
WORDS["function_words"] = WORDS["not_nouns"] | WORDS["prepositions"] | WORDS["determiners"]
WORDS["no_role"] |= WORDS["function_words"]
WORDS["no_names_at_the_start"] = WORDS["function_words"].union(
    AUXILIARIES,
    *(WORDS[n] for n in ("starts", "not_names", "titles", "adverbs", "openers", "leads", "hedges")),
)
PATTERNS: dict[str, re.Pattern[str]] = {}
for _name, _text in _TABLES["patterns"].items():
    _whole = re.sub(r"\{([a-z]+)\}", lambda of: _TABLES["patterns"][of[1]], _text)
    PATTERNS[_name] = re.compile(_whole, re.VERBOSE)
_IRREGULAR = {base: others for base, *others in map(str.split, WORDS["irregular"])}
_LIGHT = frozenset({"be", "get", "give", "go"})  # say nothing by themselves


# ------------------------------------------------------------------------------------ verbs


def third_person(verb: str) -> str:
    """Return "works" for "work"."""
    if listed := _TABLES["forms"].get(verb):
        return str(listed["third"].split()[0])
    if _ends_in_y(verb):
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")


def _ends_in_y(verb: str) -> bool:
    return verb.endswith("y") and verb[-2:-1] not in "aeiou"


def _forms(verb: str) -> Iterator[tuple[str, Form]]:
    """Yield (word, form) of a verb; a word may stand for several forms."""
    if listed := _TABLES["forms"].get(verb):
        yield from ((word, form) for form, words in listed.items() for word in words.split())
        return
    stem = verb + verb[-1] if verb in WORDS["doubling"] else verb
    past = verb[:-1] + "ied" if _ends_in_y(verb) else verb + "d" if verb.endswith("e") else stem + "ed"
    past, participle = _IRREGULAR.get(verb, [past, past])
    silent = verb.endswith("e") and not verb.endswith("ee")
    gerund = (verb[:-2] + "y" if verb.endswith("ie") else verb[:-1] if silent else stem) + "ing"
    yield from ((verb, "base"), (third_person(verb), "third"), (past, "past"))
    yield from ((participle, "participle"), (gerund, "ing"))


class Tense(NamedTuple):
    """The time of a verb group and its negation; former: "used to"."""

    time: Time
    polarity: Polarity = ""


_TENSES = {
    group: Tense(*cast("tuple[Time, Polarity]", tense.split(", ")))
    for group, tense in _TABLES["tenses"].items()
}


def read_tense(group: Sequence[str], forms: Collection[Form], mode: Mode, *, plural: bool) -> Tense | None:
    """Return what the auxiliaries and the verb's form mean together; None = nothing sure.

    plural: the subject is I, we, they or several, so that a bare verb form is a present tense.
    """
    normal = " ".join(AUXILIARIES[word] for word in group)
    if normal.startswith("'s"):
        normal = ("have" if "participle" in forms or "been" in normal else "be") + normal[2:]
    ambiguous = {"base", "past"} <= set(forms)  # "I quit Acme" happened, "they cost $5" is so
    present = "third" in forms or ("base" in forms and plural and not (ambiguous and mode != "state"))
    if normal in {"", "not", "no longer"} and present:
        return _TENSES[f"{normal} third".strip()]
    tenses = (
        _TENSES.get(f"{normal} {f}".strip()) for f in ("past", "participle", "ing", "base") if f in forms
    )
    return next(filter(None, tenses), None)


# ---------------------------------------------------------------------------------- phrases


class Phrase(NamedTuple):
    """One row of the table: "start at {org}" begins (mode) WORKS_AT (relation) with an organisation (slot).

    words  each word after the verb, as the set of its alternatives
    slot   see ontology.toml; "owner": of "is Ada's manager", "is the founder of Acme"
    """

    relation: RelationType
    mode: Mode
    verb: str
    words: tuple[frozenset[str], ...]
    slot: str


class PhraseTable:
    """Every phrase of an ontology by its verb, and every noun that names a relation ("manager").

    verbs      a word in the text -> the verbs it may be, each with its forms
    phrases    a verb's base form -> its phrases: the longest first, then in the ontology's order
    events     (verb, words) -> the event that a clause tells of, besides what it begins or ends: "buy" BOUGHT
    opposites  relation -> the one that its negation with "does not" expresses: LIKES -> DISLIKES
    """

    def __init__(self, ontology: Ontology) -> None:
        self.ontology = ontology
        self.verbs: dict[str, dict[str, set[Form]]] = {}
        self.phrases: dict[str, list[Phrase]] = {}
        self.nouns: dict[str, RelationType] = {}
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
        self.events = {(row.verb, row.words): row for row in rows if row.mode == "event"}
        self.verbs_of_ends = {row.verb for row in rows if row.mode == "end"} - _LIGHT
        self.of_owners = [
            Phrase(one, "state", "be", (), "owner") for one in ontology if one.nouns and one.object != "value"
        ]
        for phrases in self.phrases.values():
            # Stable: equals keep the ontology's order. An event comes after what it begins or ends.
            phrases.sort(key=lambda phrase: (-len(phrase.words), phrase.mode == "event"))

    def phrase_of_noun(self, relation: RelationType) -> Phrase:
        """Return the phrase of "my manager is {person}": its slot is that of the relation's first phrase."""
        first = (relation.phrases or relation.starts or relation.events or ("be {person}",))[0]
        return Phrase(relation, "state", "be", (), first.rpartition("{")[2].rstrip("}"))

    def _add(self, relation: RelationType, mode: Mode, phrases: Iterable[str]) -> None:
        for phrase in phrases:
            words, _, slot = phrase.rpartition(" ")
            verbs, *rest = [
                frozenset(word.split("|")) for given in words.split() for word in _tokens_of(given)
            ]
            for verb in sorted(verbs):
                row = Phrase(relation, mode, verb, tuple(rest), slot.strip("{}"))
                self.phrases.setdefault(verb, []).append(row)
                for word, form in _forms(verb):
                    self.verbs.setdefault(word, {}).setdefault(verb, set()).add(form)


def _tokens_of(word: str) -> list[str]:
    """Return a phrase's word as a sentence's tokens: "can't" is "can" and "n't"; alternatives stay joined."""
    return [word] if "|" in word else [token.low for token in tokenise(word, 0, len(word))]


# --------------------------------------------------------------------- sentences and tokens

MAX_TEXT = 100_000  # characters; the rest of a longer text is not read
MAX_SENTENCE = 1_000  # a longer stretch without an end is cut at a space

_ABBREVIATIONS = frozenset("mr mrs ms dr prof inc ltd corp co st vs etc e.g i.e no jr sr dept approx".split())
_STEMS = {"ca": "can", "wo": "will", "sha": "shall"}


class Token(NamedTuple):
    """A word, number or sign; [start, end) in the whole text. low: lower case, with straight quotes."""

    text: str
    low: str
    start: int
    end: int


class Sentence(NamedTuple):
    """A stretch of the text with at least one token.

    question  it asks. quoted: it begins inside a quotation that an earlier sentence opened
    """

    start: int
    end: int
    tokens: list[Token]
    question: bool
    quoted: bool


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of the first MAX_TEXT characters; lines quoted with ">" are left out."""
    shown = PATTERNS["reply"].sub(lambda line: " " * len(line[0]), text[:MAX_TEXT])
    open_quotes = 0
    for start, end in _stretches(shown):
        words = shown[start:end]
        if "\n\n" in words:
            open_quotes = 0  # a quotation that was never closed ends with its paragraph
        asks = "?" in words or "？" in words or PATTERNS["asked"].search(words) is not None
        if tokens := list(tokenise(shown, start, end)):
            yield Sentence(start, end, tokens, asks, open_quotes > 0)
        open_quotes = (open_quotes + words.count('"')) % 2 if '"' in words else open_quotes
        open_quotes = max(0, open_quotes + words.count("“") - words.count("”"))


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of each sentence; one beyond MAX_SENTENCE in pieces."""
    start = 0
    ends = (
        m.end() for m in PATTERNS["end"].finditer(text) if m[0] != "." or not _abbreviated(text, m.start())
    )
    for end in (*ends, len(text)):
        while end - start > MAX_SENTENCE:
            space = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
            border = space if space > 0 else start + MAX_SENTENCE
            yield start, border
            start = border
        if end > start:
            yield start, end
        start = end


def _abbreviated(text: str, dot: int) -> bool:
    if not (found := PATTERNS["last_word"].search(text, max(0, dot - 14), dot)):
        return False
    word = found[1]
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")


def tokenise(text: str, start: int, end: int) -> Iterator[Token]:
    """Yield the tokens of text[start:end]; "don't" gives "do" and "n't", "cannot" gives "can" and "not"."""
    for match in PATTERNS["token"].finditer(text, start, end):
        word, (first, last) = match[0], match.span()
        low = word.lower().replace("’", "'")
        if parts := PATTERNS["contraction"].match(word) if "'" in low or low == "cannot" else None:
            stem, rest = parts[1] or parts[3], parts[2] or parts[4]
            border = first + len(stem)
            yield Token(stem, _STEMS.get(stem.lower(), stem.lower()), first, border)
            yield Token(rest, rest.lower().replace("’", "'"), border, last)
        else:
            yield Token(word, low, first, last)
