"""The offline extractor: English by rules. Demo quality, honest and fast; a wrong guess is worse than none.

It reads who works, lives, likes, owns, costs ... by the phrases of the ontology, with their ends, denials and
dates. It reads no irony, no long sentence's fine structure, no relation that the ontology has no phrase for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal

from kgray.backends.rules import lexicon as lex
from kgray.backends.rules import names, structure
from kgray.backends.rules.ledger import Ledger
from kgray.backends.rules.phrases import PhraseBook
from kgray.backends.rules.reading import Reader, mentions
from kgray.backends.rules.scope import Ref, Scope, mark
from kgray.backends.rules.sentences import MAX_TEXT, sentences
from kgray.errors import InvalidAnswer
from kgray.ontology import Ontology
from kgray.ports import ExtractionRequest
from kgray.records import Episode, Extraction, canonical, clean_text

_CONTEXT = 2  # previous episodes in which a pronoun's person is looked for
_CONTEXT_TEXT = 2_000  # characters of each, from its end


class RulesExtractor:
    """Reads messages, texts and JSON without a model; the same request always gives the same answer."""

    def __init__(self, ontology: Ontology) -> None:
        """Compile the ontology's phrases."""
        self._ontology = ontology
        self._book = PhraseBook(ontology)
        digest = hashlib.sha256(canonical([asdict(relation) for relation in ontology]).encode())
        self.identity = f"rules-1/{digest.hexdigest()[:12]}"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Return what the episode says. Raises InvalidAnswer for a `json` episode whose text is no JSON."""
        episode = request.episode
        ledger = Ledger()
        if episode.kind == "json":
            try:
                content = json.loads(episode.text, parse_float=Decimal, parse_int=Decimal, parse_constant=str)
            except (ValueError, RecursionError) as error:
                raise InvalidAnswer(
                    f"the episode's text is not JSON: {error}", raw=episode.text[:2000]
                ) from None
            structure.read(content, ledger, self._ontology, episode.reference_time)
        else:
            _Text(self._ontology, self._book, ledger, episode, request.previous).read()
        return ledger.extraction(self.identity)


class _Text:
    """One message or text, sentence by sentence."""

    def __init__(
        self,
        ontology: Ontology,
        book: PhraseBook,
        ledger: Ledger,
        episode: Episode,
        previous: Sequence[Episode],
    ) -> None:
        self.book, self.ledger, self.episode, self.previous = book, ledger, episode, previous
        self.reader = Reader(ontology, ledger, episode.reference_time)
        self.speaker = clean_text(episode.speaker) if episode.speaker and episode.kind == "message" else None
        self.known = names.Known()
        self.seen: list[list[Ref]] = []  # the names of each sentence so far
        self.scope: Scope | None = None
        self._before: list[list[Ref]] | None = None

    def read(self) -> None:
        text = self.episode.text
        for speaker in (self.speaker, *(one.speaker for one in self.previous)):
            if speaker and speaker.lower() not in lex.ROLE_SPEAKERS:
                self.known.add_person(clean_text(speaker))
        if self.speaker:
            self.ledger.entity(self.speaker, "" if self.speaker.lower() in lex.ROLE_SPEAKERS else "Person")
        parts = list(sentences(text))
        for sentence in parts:
            self.known.learn(sentence)
        for sentence in parts:
            scope = Scope(text, sentence, self.book, self.speaker, self._type, self._antecedent)
            mark(scope, self.known)
            self.scope = scope
            self.reader.sentence(scope)
            found = list(mentions(scope))
            self.ledger.mention(found)
            self.seen.append(found)
        if len(text) > MAX_TEXT:
            self.ledger.dropped.append(f"the text after character {MAX_TEXT} was not read")

    def _type(self, name: str) -> str:
        """Return the type of a name as far as it is known by now."""
        known = self.ledger.find(name)
        return known.type if known else ""

    def _antecedent(self, kind: str, token: int) -> Ref | None:
        """Return the one person or thing that a pronoun can mean; None where several or none can.

        It is sought among the names before it in the sentence, then in each sentence before, then in the
        previous episodes: the nearest place that has any decides.
        """
        assert self.scope is not None  # noqa: S101 - set before any sentence is read
        here = [self.scope.ref(chunk) for chunk in self.scope.chunks if chunk.end <= token]
        places = [here, *reversed(self.seen)]
        for refs in places:
            fitting = {ref.name: ref for ref in refs if self._can_be(ref, kind)}
            if fitting:
                return next(iter(fitting.values())) if len(fitting) == 1 else None
        for refs in self._context():
            fitting = {ref.name: ref for ref in refs if self._can_be(ref, kind)}
            if fitting:
                return next(iter(fitting.values()))._replace(span=None) if len(fitting) == 1 else None
        return None

    def _can_be(self, ref: Ref, kind: str) -> bool:
        if ref.name == self.speaker:
            return False
        label = ref.type or self._type(ref.name)
        if kind == "person":
            return label == "Person"
        return label in {"", "Product", "Organization"} and ref.name.lower() not in lex.FIRST_NAMES

    def _context(self) -> list[list[Ref]]:
        """Return the names of the previous episodes, the nearest first; read once, when first needed."""
        if self._before is None:
            self._before = []
            for episode in reversed(self.previous[-_CONTEXT:]):
                if episode.kind in {"message", "text"}:
                    self._before.append(self._names(episode.text[-_CONTEXT_TEXT:]))
        return self._before

    def _names(self, text: str) -> list[Ref]:
        found: list[Ref] = []
        for sentence in sentences(text):
            scope = Scope(text, sentence, self.book, None, self._type, self._antecedent)
            mark(scope, self.known)
            found += [ref._replace(span=None) for ref in mentions(scope)]
        return found
