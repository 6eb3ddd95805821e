"""English as tables: words, verbs and their tenses, phrases by verb; a text to sentences and tokens."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kgray.ontology import Ontology, RelationType

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
