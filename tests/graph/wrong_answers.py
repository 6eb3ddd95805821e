"""One answer of a model replaced by another: histories to try it on, and the region that may change.

`Promise` says which differences between two graphs the eighth promise allows. It reads mentions, evidence,
statements and facts, and no code of the derivation: a rule that spreads an answer further is seen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kgray.domain import ontology
from kgray.domain.ontology import Ontology
from kgray.domain.records import Draft, Mention, Place, canonical
from kgray.graph.dump import episode_row
from kgray.graph.names import key
from kgray.ports import Answer, Judged, Question, QuestionRequest
from kgray.settings import PipelineSettings
from kgray.storage.ledger import dumped_episodes
from tests import make
from tests.graph.engine import GROUP, Engine, day, iso

# Surface -> the thing that it really names; "Bob" is Robert Smith, seldom Bob Lee.
PEOPLE = {
    "Robert Smith": "robert",
    "Bob Smith": "robert",
    "Bob": "robert",
    "Ann Lee": "ann",
    "Annie": "ann",
    "Bob Lee": "bob",
}
ORGANIZATIONS = {"Acme": "acme", "Acme Works": "acme", "Beta": "beta", "chess club": "chess"}
# Listed names: single-valued, inverse, symmetric, excluding. The others are free.
RELATIONS = {
    "WORKS_AT": "works at",
    "EMPLOYS": "employs",
    "MARRIED_TO": "is married to",
    "LIKES": "likes",
    "DISLIKES": "dislikes",
    "HAS": "has",
    "FIXED": "fixed",
    "LEFT": "left",
    "PLAYS_IN": "plays in",
    "HELPS_OUT_AT": "helps out at",
    "EARNS": "earns",
}
EXTRAS = ["", "", "gladly", "loudly", "part-time"]
KINDS = ["holds", "holds", "holds", "holds", "happened", "ended", "denied"]
WORDS = ("same", "contradicts", "ends", "independent")
_OFTEN = ("independent",) * 9 + ("contradicts",) * 4 + ("ends",) * 3 + ("same",) * 4

FACTS = st.tuples(
    st.sampled_from([*PEOPLE, *PEOPLE, *ORGANIZATIONS]),
    st.sampled_from(list(RELATIONS)),
    st.sampled_from([*ORGANIZATIONS, *ORGANIZATIONS, *PEOPLE, 100, "done"]),
    st.sampled_from(EXTRAS),
    st.sampled_from(KINDS),
    st.none() | st.integers(0, 12),
)
EPISODES = st.tuples(st.integers(0, 12), st.sampled_from("ab"), st.lists(FACTS, min_size=1, max_size=2))
HISTORIES = st.lists(EPISODES, min_size=4, max_size=9)


def draft_of(number: int, episode: Any) -> Draft:
    """Return an episode of a history as a text that reads itself; its conversation is its source."""
    at, source, facts = episode
    listed_facts = list({fact["fact"]: fact for fact in (_fact(*each) for each in facts)}.values())
    names = dict.fromkeys(n for f in listed_facts for n in (f["source"], f.get("target")) if n is not None)
    listed = [{"name": n, "type": "Person" if n in PEOPLE else "Organization"} for n in names]
    text = canonical({"entities": listed, "facts": listed_facts, "n": f"e{number}"})
    return make.draft(text, at=day(at), group=GROUP, source=source, client_id=f"e{number}")


def _fact(subject: str, relation: str, target: Any, extra: str, kind: str, start: int | None) -> Any:
    if target == subject:
        target = "Gamma"
    words = " ".join(filter(None, (subject, extra, RELATIONS[relation], str(target))))
    fact = {"source": subject, "relation": relation, "fact": words, "kind": kind}
    fact |= {"target": target} if target in {*PEOPLE, *ORGANIZATIONS, "Gamma"} else {"value": target}
    if start is not None and kind in ("holds", "happened"):
        fact["valid_at"] = iso(start)
    return fact


class Flip(NamedTuple):
    """A replaced answer to a question of the episode with this sequence.

    position    in a comparison: the number of the candidate whose word changes
    """

    sequence: int
    question: Question
    answer: Answer
    position: int = 0


@dataclass
class FixedAnswers:
    """A judge whose answers depend on the episode, the item and each candidate alone, but for one flip.

    A mention mostly goes to the oldest candidate that is the same thing, seldom to any candidate or none. A
    pair of sentences has one word, independent of other pairs in the same question.
    """

    flip: Flip | None = None
    identity: str = "fixed-answers"
    answers: dict[tuple[int, Question], Answer] = field(default_factory=dict)

    def key(self, request: QuestionRequest) -> str:
        """Return a key of its own for each episode."""
        return request.key(f"{self.identity} {request.episode.sequence}")

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer each question, and note it."""
        at = request.episode.sequence
        results = tuple(self._answer(at, question) for question in request.questions)
        self.answers |= {(at, q): answer for q, answer in zip(request.questions, results, strict=True)}
        return Judged(answers=results, calls=1)

    def _answer(self, at: int, question: Question) -> Answer:
        if self.flip is not None and (at, question) == self.flip[:2]:
            return self.flip.answer
        if question.kind == "entity":
            return {"duplicate_of": _choice(at, question)}
        words: list[str] = []
        for position, candidate in enumerate(question.candidates):
            nth = question.candidates[:position].count(candidate)
            word = _OFTEN[_number(at, question.item, candidate, nth) % len(_OFTEN)]
            words.append("independent" if word == "same" and "same" in words else word)
        return {"answers": words}

    def flips(self) -> list[Flip]:
        """Return every way to replace one of the present answers by another allowed answer."""
        return [flip for (at, q), answer in self.answers.items() for flip in _flips(at, q, answer)]


def _number(*content: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(content).encode()).digest()[:4], "big")


def _choice(at: int, question: Question) -> int | None:
    names = [card.split(" (")[0] for card in question.cards[1:]]
    if _number(at, question.item) % 6:
        identities = PEOPLE | ORGANIZATIONS
        alike = (i for i, name in enumerate(names) if identities.get(name) == identities.get(question.item))
        return next(alike, None)
    scores = [_number(at, question.item, card) for card in question.cards[1:]]
    best = max(range(len(scores)), key=scores.__getitem__)
    return best if scores[best] > _number(at, question.item, "none") else None


def _flips(at: int, question: Question, answer: Answer) -> Iterator[Flip]:
    if question.kind == "entity":
        for candidate in (None, *range(len(question.candidates))):
            if candidate != answer["duplicate_of"]:
                yield Flip(at, question, {"duplicate_of": candidate})
        return
    words = list(answer["answers"])
    for position, word in enumerate(words):
        for replacement in WORDS:
            if replacement != word and not (replacement == "same" and "same" in words):
                changed = [*words[:position], replacement, *words[position + 1 :]]
                yield Flip(at, question, {"answers": changed}, position)


class Claimed(NamedTuple):
    """A piece of evidence: the statement it is about, the names of its ends, and all that it says."""

    statement: Place | None
    ends: tuple[Place, ...]
    value: object
    text: str
    is_general: bool  # an end or a denial of every variant (R6)
    details: tuple[object, ...]


class Stated(NamedTuple):
    """A statement without the number of its variant; its second end is an entity or a value."""

    subject: Place
    relation: str
    target: object

    @property
    def ends(self) -> frozenset[object]:
        """Its two ends."""
        return frozenset((self.subject, self.target))


@dataclass
class Observed:
    """A group's graph after a run, with places in the stead of ids, and the questions that were put.

    variants    the numbers of the statements that share their ends and relation
    facts       by statement, each as (opening evidence, point, start, end, supporting episodes, ended by)
    texts       of these facts, in the same order
    verdicts    of pairs of statements
    questions   by (sequence, kind, item): the lists of candidates
    """

    fixed: list[Any]
    mentions: dict[Place, Mention]
    entity_of: dict[Place, Place]
    entities: dict[Place, tuple[object, ...]]
    evidence: dict[Place, Claimed]
    statements: dict[Place, Stated]
    variants: dict[Place, int]
    facts: dict[Place, list[tuple[object, ...]]]
    texts: dict[Place, list[str]]
    verdicts: dict[frozenset[Place], bool]
    questions: dict[tuple[int, str, str], set[tuple[str, ...]]]

    def ends_of(self, evidence: Place) -> frozenset[object]:
        """Return the entities, or the entity and the value, that a piece of evidence is about."""
        piece = self.evidence[evidence]
        entities = [self.entity_of[mention] for mention in piece.ends]
        return frozenset((*entities, *([piece.value] if piece.value is not None else [])))


def observed(engine: Engine, judge: FixedAnswers) -> Observed:
    """Return the observations of a run on the engine's group."""
    view = engine.view()
    records, graph = view.records, view.graph
    at = records.births
    entity_of = {
        (m.sequence, m.ordinal): at[graph.fold.shown(m.entity, m.surface, m.sequence)[0]]
        for m in records.mentions
    }
    evidence = {}
    for piece in records.evidence:
        place, ends = (piece.sequence, piece.ordinal), [piece.subject, piece.object]
        response = view.places.get(place)
        details = (piece.kind, piece.relation, piece.valid_from, piece.valid_to, piece.is_reversed)
        evidence[place] = Claimed(
            statement=None if response is None else at[response],
            ends=tuple((piece.sequence, end) for end in ends if end is not None),
            value=piece.value,
            text=piece.text,
            is_general=piece.every_variant,
            details=(*details, piece.inferred),
        )
    statements = {}
    for id_, s in graph.statements.items():
        target = at[s.object] if s.object is not None else s.value
        statements[at[id_]] = Stated(at[s.subject], s.relation, target)
    spans = graph.spans_of(graph.statements)
    questions: dict[tuple[int, str, str], set[tuple[str, ...]]] = {}
    for sequence, question in judge.answers:
        candidate_lists = questions.setdefault((sequence, question.kind, question.item), set())
        candidate_lists.add(question.candidates + question.cards)
    episodes = dumped_episodes(engine.store, engine.named(), None)
    rows = [{k: v for k, v in episode_row(e).items() if k != "id"} for e in episodes]
    names = graph.relations.names()
    folded = [graph.relations.folded(name) for name in names]
    traits = [graph.relations.traits(item.name) for item in folded]
    return Observed(
        fixed=[
            rows, names, [item[:2] for item in folded],
            [(t.cardinality, t.symmetric, sorted(t.excludes)) for t in traits],
        ],
        mentions={(m.sequence, m.ordinal): m for m in records.mentions},
        entity_of=entity_of,
        entities={at[e.id]: (e.name, e.aliases, e.labels) for e in view.all_entities()},
        evidence=evidence,
        statements=statements,
        variants={at[id_]: s.variant for id_, s in graph.statements.items()},
        facts={at[s]: [_span(span) for span in of_statement] for s, of_statement in spans.items()},
        texts={at[s]: [graph.fact(span).text for span in of_statement] for s, of_statement in spans.items()},
        verdicts={frozenset((at[v.a], at[v.b])): v.exclusive for v in records.verdicts},
        questions=questions,
    )  # fmt: skip


def _span(span: Any) -> tuple[object, ...]:
    ended = None if span.ended is None else span.ended.said[1:]
    support = sorted({claim.said[1] for claim in span.support})
    return span.opened.said[1:], span.point, span.start, span.end, tuple(support), ended


@dataclass
class Promise:
    """The differences between two runs, and which of them the promise allows.

    strict      both runs put the same questions: no later answer may differ for another question's sake
    mentions, evidence, statements   named by the replaced answer, or derived from these; they grow
    """

    first: Observed
    second: Observed
    flip: Flip
    mentions: set[Place] = field(default_factory=set)
    evidence: set[Place] = field(default_factory=set)
    statements: set[Place] = field(default_factory=set)

    @property
    def strict(self) -> bool:
        """True if both runs put the same questions."""
        return self.first.questions == self.second.questions

    @property
    def runs(self) -> tuple[Observed, Observed]:
        """Both runs."""
        return self.first, self.second

    def broken(self) -> list[str]:
        """Return the differences that the promise does not allow, one line each; empty = it holds."""
        self._name()
        size = -1
        while size != (size := len(self.mentions) + len(self.evidence) + len(self.statements)):
            self._spread()
        return [*self._unexplained()]

    def differences(self) -> int:
        """Return the number of mentions, evidence, statements and statements' facts that differ."""
        kinds = ("entity_of", "evidence", "statements", "facts")
        return sum(len(list(self._differing(kind))) for kind in kinds)

    def _name(self) -> None:
        """Collect the records that the question named: a mention; or a fact and a statement."""
        sequence, question, _, position = self.flip
        if question.kind == "entity":
            mentions = self.first.mentions.items()
            self.mentions |= {p for p, m in mentions if p[0] == sequence and m.surface == question.item}
            return
        for run in self.runs:
            places = [p for p, e in run.evidence.items() if (p[0], e.text) == (sequence, question.item)]
            self.evidence.add(min(places))  # the others end statements
        evidence = self.first.evidence.items()
        sentence = question.candidates[position]
        named = {e.statement for p, e in evidence if e.text == sentence and p[0] <= sequence and e.statement}
        self.statements |= named

    def _spread(self) -> None:
        """Add the differing records that depend on the records named so far."""
        touched = {run.entity_of[p] for run in self.runs for p in self.mentions}
        for place in self._differing("entity_of"):
            if self._rests(place, touched):
                self.mentions.add(place)
        for place in self._differing("evidence"):
            if self._concerns_named(place):
                self.evidence.add(place)
        for run in self.runs:
            self.evidence |= {p for p, e in run.evidence.items() if self.mentions.intersection(e.ends)}
            for place in self.evidence & run.evidence.keys():
                if (statement := run.evidence[place].statement) is not None:
                    self.statements.add(statement)

    def _rests(self, place: Place, touched: set[Place]) -> bool:
        """Return True if a named mention made the mention's entity, or the entity took its alias (R14a)."""
        entities = {run.entity_of[place] for run in self.runs}
        if entities & self.mentions:
            return True
        surfaces = {key(self.first.mentions[p].surface) for p in self.mentions}
        if key(self.first.mentions[place].surface) in surfaces and entities & touched:
            return True
        if self.strict:
            return False
        ends = {end for run in self.runs for s in self.statements & run.statements.keys()
                for end in (run.statements[s].subject, run.statements[s].target)}  # fmt: skip
        item = (place[0], "entity", self.first.mentions[place].surface)
        return self._questions_differ(item) and bool(entities & (touched | ends))

    def _concerns_named(self, place: Place) -> bool:
        """Return True if evidence has a named mention as an end, or supports a named statement.

        Or it ends all variants between the ends of a named statement: it affects the variants (R6).
        """
        named = self._ends()
        pieces = [run.evidence[place] for run in self.runs if place in run.evidence]
        for piece in pieces:
            if self.mentions.intersection(piece.ends) or piece.statement in self.statements:
                return True
        general = (run for run in self.runs if place in run.evidence and run.evidence[place].is_general)
        if any(run.ends_of(place) in named for run in general):
            return True
        if self.strict:
            return False
        text = pieces[0].text
        changed = self.statements | set(self._differing("facts"))
        sentences = {e.text for run in self.runs for e in run.evidence.values() if e.statement in changed}
        item = (place[0], "compare", text)
        first, second = (set().union(*run.questions.get(item, ())) for run in self.runs)
        return self._questions_differ(item) and bool((first | second) & sentences)

    def _questions_differ(self, item: tuple[int, str, str]) -> bool:
        return self.first.questions.get(item) != self.second.questions.get(item)

    def _unexplained(self) -> Iterator[str]:
        if self.first.fixed != self.second.fixed:
            yield f"episodes or relation names: {self.first.fixed} -> {self.second.fixed}"
        touched = {run.entity_of[p] for run in self.runs for p in self.mentions}
        rivals = self._rivals()
        pairs = {pair for pair in self._differing("verdicts") if self._is_judged_otherwise(pair)}
        for kind, allowed in (
            ("entity_of", self.mentions),
            ("entities", touched),
            ("evidence", self.evidence),
            ("statements", self.statements),
            ("variants", self._numbered()),
            ("facts", self.statements | rivals),
            ("texts", self.statements | rivals | self._worded_with(touched)),
            ("verdicts", pairs),
        ):
            for place in set(self._differing(kind)) - allowed:
                first, second = (getattr(run, kind).get(place) for run in self.runs)
                yield f"{kind} {place}: {first} -> {second}"

    def _ends(self) -> list[frozenset[object]]:
        """Return the ends of the named statements, and of the named evidence that derives no statement."""
        return [
            ends
            for run in self.runs
            for ends in (
                *(run.statements[s].ends for s in self.statements & run.statements.keys()),
                *(run.ends_of(p) for p in self.evidence & run.evidence.keys()),
            )
        ]

    def _numbered(self) -> set[Place]:
        """Return the statements between the ends of a named one: their variants are counted."""
        named = self._ends()
        return {s for run in self.runs for s, stated in run.statements.items() if stated.ends in named}

    def _rivals(self) -> set[Place]:
        """Return the rivals of named statements, and of such rivals whose spans differ, in turn.

        A marriage that a later one overrules ends no earlier marriage of the other spouse (R10).
        """
        differing = set(self._differing("facts"))
        results: set[Place] = set()
        fresh = set(self.statements)
        while fresh:
            rivals = {rival for run in self.runs for rival in rivals_of(run, fresh)}
            fresh = (rivals - results - self.statements) & differing
            results |= rivals
        return results

    def _is_judged_otherwise(self, pair: frozenset[Place]) -> bool:
        """Return True if a verdict may differ: on a named statement, or if questions and spans differ.

        A pair is compared only while its spans meet. Statements between the ends of a named statement
        may have differed when it was compared, even if they do not differ at the end.
        """
        if self.strict:
            return bool(pair & self.statements)
        named = self._ends()
        met = {p for p in pair for run in self.runs if p in run.evidence and run.ends_of(p) in named}
        return bool(met or pair & {*self.statements, *self._differing("facts")})

    def _worded_with(self, entities: set[Place]) -> set[Place]:
        """Return the statements with an entity as an end whose name differs: their texts name it."""
        renamed = {e for e in entities if self._name_of(self.first, e) != self._name_of(self.second, e)}
        return {s for run in self.runs for s, stated in run.statements.items()
                if renamed & {stated.subject, stated.target}}  # fmt: skip

    @staticmethod
    def _name_of(run: Observed, entity: Place) -> object:
        return run.entities.get(entity, (None,))[0]

    def _differing(self, kind: str) -> Iterator[Any]:
        first, second = (getattr(run, kind) for run in self.runs)
        return (p for p in {**first, **second} if first.get(p) != second.get(p))


def rivals_of(run: Observed, statements: Iterable[Place], shipped: Ontology | None = None) -> set[Place]:
    """Return the statements that exclude one of the given statements, by the ontology or by a verdict."""
    declared = shipped or ontology.shipped()
    exclusive = (pair for pair, verdict in run.verdicts.items() if verdict)
    results = {place for pair in exclusive if pair & {*statements} for place in pair}
    for statement in statements:
        if (stated := run.statements.get(statement)) is not None:
            results |= {p for p, item in run.statements.items() if _are_rivals(stated, item, declared)}
    return results


def _are_rivals(a: Stated, b: Stated, declared: Ontology) -> bool:
    relation = declared.get(a.relation)
    ends = ({a.subject, a.target}, {b.subject, b.target})
    if a.relation == b.relation and relation is not None:
        if relation.symmetric:
            return relation.cardinality == "single" and bool(ends[0] & ends[1])
        if relation.cardinality == "single":
            return a.subject == b.subject
        return relation.cardinality == "single_object" and a.target == b.target
    other_response = declared.get(b.relation)
    excluded = {
        *(relation.excludes if relation else ()),
        *(other_response.excludes if other_response else ()),
    }
    return ends[0] == ends[1] and bool(excluded & {a.relation, b.relation})


def unconfirmed(run: Observed, episodes: Mapping[int, tuple[str, int, str]]) -> list[Place]:
    """Return the mentions that an alias resolved to an entity against R14a.

    episodes: by sequence, (source, reference time, text)
    """
    limit = PipelineSettings().previous_episodes
    return [
        place
        for place, mention in run.mentions.items()
        if mention.resolved_by == "name"
        and run.entity_of[place] != place
        and not _is_confirmed(run, place)
        and not _in_context(place[0], mention.surface, episodes, limit)
    ]


def _is_confirmed(run: Observed, place: Place) -> bool:
    entity, name = run.entity_of[place], key(run.mentions[place].surface)
    if key(run.mentions[entity].surface) == name:
        return True
    earlier = [(p, m) for p, m in run.mentions.items()
               if p < place and run.entity_of[p] == entity and key(m.surface) == name]  # fmt: skip
    if any(m.resolved_by == "code" for _, m in earlier):
        return True
    return len({p[0] for p, m in earlier if m.resolved_by == "model" and p[0] < place[0]}) >= 2


def _in_context(
    sequence: int, surface: str, episodes: Mapping[int, tuple[str, int, str]], limit: int
) -> bool:
    source, said_at, _ = episodes[sequence]
    same_source = (
        (at, s) for s, (of_source, at, _) in episodes.items() if of_source == source and s < sequence
    )
    earlier = [(at, s) for at, s in same_source if at <= said_at]
    texts = [episodes[s][2] for _, s in sorted(earlier)[-limit:]]
    return any(re.search(rf"\b{re.escape(surface)}\b", text, re.IGNORECASE) for text in texts)
