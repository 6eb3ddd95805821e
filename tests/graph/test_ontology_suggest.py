"""Suggestions for the ontology from stored answers of models: `kgray ontology suggest`."""

from __future__ import annotations

import asyncio
import tomllib
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kgray.domain.graph import Entity, Fact
from kgray.domain.ontology import Ontology, shipped
from kgray.domain.records import Draft, Evidence, Mention, Operation, Place, Value, Verdict
from kgray.errors import InputError
from kgray.memory import AsyncMemory
from kgray.memory.ontology_check import faults_of
from kgray.memory.ontology_suggest import settings_of, suggestions
from kgray.ports import Store
from kgray.schema import kinds, rows
from kgray.schema.record_rows import EntryRecords, Judgements
from tests.graph.by_hand import append, ask, changes, draft, ended, episode_row
from tests.graph.stores import EMBEDDED

pytestmark = EMBEDDED


@dataclass
class Group:
    """A group that is filled by hand: one episode a piece of evidence."""

    store: Store
    name: str
    texts: dict[str, str] = field(default_factory=dict)  # statement -> its first sentence
    births: dict[str, Place] = field(default_factory=dict)

    def say(
        self,
        statement: str,
        relation: str,
        subject: str,
        value: str,
        *,
        is_reversed: bool = False,
        **row: Any,
    ) -> None:
        """Commit an episode with one piece of evidence; the first of a statement shows its fact."""
        text = f"{subject} {relation.lower()} {value}"
        sent = draft(text, group=self.name)
        (sequence,) = append(self.store, sent)
        mention = Mention(sequence=sequence, ordinal=0, surface=subject, entity=f"E-{subject}", sentence=text)
        piece = Evidence(
            sequence=sequence, ordinal=0, statement=statement, variant=0, kind="holds", relation=relation,
            text=text, subject=0, value=Value("text", value), valid_from=5, is_reversed=is_reversed,
        )  # fmt: skip
        for id_ in (mention.entity, statement):
            self.births.setdefault(id_, (sequence, 0))
        puts: dict[Any, list[Any]] = {kinds.MENTIONS: [(mention.entity, sequence)]}
        if statement not in self.texts:
            self.texts[statement] = text
            fact = Fact(
                id=f"F-{statement}", statement=statement, source=f"E-{subject}", relation=relation, text=text,
                created_at=sequence, value=Value("text", value), valid_at=5, episodes=(sent.id,),
            )  # fmt: skip
            puts[kinds.FACTS] = [rows.fact_row(fact)]
        puts[kinds.ENTITIES] = [rows.entity_row(Entity(id=f"E-{subject}", name=subject, born=(sequence, 0)))]
        self._commit(sent, sequence, puts, row, mentions=[mention], evidence=[piece])

    def _commit(
        self, sent: Draft, sequence: int, puts: dict[Any, list[Any]], row: dict[str, Any], **records: Any
    ) -> None:
        entry = EntryRecords(
            sequence=sequence, recorded_at=sequence, births=self.births, text=sent.text, **records
        )
        episode = episode_row(sent, sequence, state=kinds.COMMITTED, ended_at=sequence, **row)
        puts |= {kinds.EPISODES: [episode], kinds.RECORDS: [entry.row()]}
        self.store.apply([changes(sequence, sequence, puts, group=self.name)])

    def judge(
        self, a: str, b: str, *, exclusive: bool, judge: str = "some-model", retired: bool = False
    ) -> None:
        """Commit an episode that brings nothing but a verdict, and maybe a retraction that takes it."""
        sent = draft(f"{a} and {b}", group=self.name)
        (sequence,) = append(self.store, sent)
        verdict = Verdict(
            sequence=sequence, ordinal=0, a=min(a, b), b=max(a, b), exclusive=exclusive, judge=judge
        )
        self._commit(sent, sequence, {}, {}, judgements=Judgements([], [(verdict, sequence)]))
        if retired:
            operation = Operation(group=self.name, kind="retract", retired=(("verdict", sequence, 0),))
            operation = replace(operation, sequence=ask(self.store, operation))
            self.store.apply([ended(operation, operation.sequence)])

    def compare(self, first: str, second: str, *answers: bool, judge: str = "some-model") -> None:
        """Commit a pair of statements of two names, of one subject, for each answer (exclusive or not)."""
        for number, exclusive in enumerate(answers):
            ids = [f"{relation}-{number}-{end}" for end, relation in enumerate((first, second))]
            for end, (id_, relation) in enumerate(zip(ids, (first, second), strict=True)):
                self.say(id_, relation, f"Ann{number}", f"thing {end}")
            self.judge(*ids, exclusive=exclusive, judge=judge)

    def suggestion_rows(self, ontology: Ontology | None = None, limit: int = 50) -> list[tuple[Any, ...]]:
        """Return (kind, names, value) of each suggestion."""
        every = suggestions(self.store, self.name, ontology or shipped(), limit=limit)
        return [(item.kind, item.names, item.value) for item in every]


@pytest.fixture
def hand(store, group):
    with store.writing():
        yield Group(store, group)


def test_names_that_were_independent_three_times_and_never_exclusive_are_suggested(hand):
    hand.compare("PAINTED", "SKETCHED", False, False, False)
    (item,) = suggestions(hand.store, hand.name, shipped(), limit=50)
    assert (item.kind, item.names) == ("independent", ("PAINTED", "SKETCHED"))
    assert item.counts == {"independent": 3, "exclusive": 0, "same": 0, "reversed": 0}
    assert item.examples == (hand.texts["PAINTED-0-0"], hand.texts["SKETCHED-0-1"])
    assert item.settings == '[ontology.relations.PAINTED]\nindependent = ["SKETCHED"]\n'
    declared = tomllib.loads(item.settings)["ontology"]["relations"]
    assert hand.suggestion_rows(shipped().extended(declared)) == []


@pytest.mark.parametrize(
    "answers",
    [(False, False), (False, False, False, True), (True, True, True)],
    ids=["two", "mixed", "exclusive"],
)
def test_too_few_or_mixed_answers_about_two_names_suggest_nothing(hand, answers):
    hand.compare("PAINTED", "SKETCHED", *answers)
    assert hand.suggestion_rows() == []


@pytest.mark.parametrize("judge", ["record", "upgrade"])
def test_verdicts_that_no_model_gave_do_not_count(hand, judge):
    hand.compare("PAINTED", "SKETCHED", False, False, False, judge=judge)
    assert hand.suggestion_rows() == []


def test_only_the_newest_verdict_on_a_pair_that_is_not_retired_counts(hand):
    hand.compare("PAINTED", "SKETCHED", True, False, False)
    assert hand.suggestion_rows() == []
    hand.judge("PAINTED-0-0", "SKETCHED-0-1", exclusive=False)
    assert hand.suggestion_rows() == [("independent", ("PAINTED", "SKETCHED"), "")]
    hand.judge("PAINTED-0-0", "SKETCHED-0-1", exclusive=True, retired=True)
    assert hand.suggestion_rows() == [("independent", ("PAINTED", "SKETCHED"), "")]


def test_retracted_verdicts_do_not_count(hand):
    for number in range(3):
        hand.say(f"a{number}", "PAINTED", f"Ann{number}", "a barn", retired_at=9 if number == 0 else None)
        hand.say(f"b{number}", "SKETCHED", f"Ann{number}", "a boat")
        hand.judge(f"a{number}", f"b{number}", exclusive=False)
    assert hand.suggestion_rows() == []


def test_a_suggestion_for_a_listed_name_uses_the_table_of_its_main_name(hand):
    hand.compare("LOVES", "ADMIRES", False, False, False)
    (item,) = suggestions(hand.store, hand.name, shipped(), limit=50)
    assert item.settings == '[ontology.relations.LIKES]\nindependent = ["ADMIRES"]\n'


def test_the_table_keeps_declarations_of_the_settings(hand):
    hand.compare("PAINTED", "SKETCHED", False, False, False)
    ontology = shipped().extended({"PAINTED": {"independent": ["CARVED"]}})
    (item,) = suggestions(hand.store, hand.name, ontology, limit=50)
    assert item.settings == '[ontology.relations.PAINTED]\nindependent = ["CARVED", "SKETCHED"]\n'


@pytest.mark.parametrize(("is_reversed", "kind"), [(False, "same_as"), (True, "inverse_of")])
def test_names_used_for_the_same_statements_are_suggested_as_synonyms(hand, is_reversed, kind):
    for number in range(3):
        hand.say(f"s{number}", "SUPERVISED", f"Ann{number}", "Bob")
        hand.say(f"s{number}", "OVERSAW", f"Ann{number}", "Bob", is_reversed=is_reversed)
    hand.say("s3", "OVERSAW", "Zoe", "Bob")  # the name that is used more often is kept
    (item,) = suggestions(hand.store, hand.name, shipped(), limit=50)
    assert (item.kind, item.names) == (kind, ("SUPERVISED", "OVERSAW"))
    assert set(item.examples) == {"Ann0 supervised Bob", "Ann0 oversaw Bob"}
    assert item.settings == (
        f'[ontology.relations.OVERSAW]\n\n[ontology.relations.SUPERVISED]\n{kind} = "OVERSAW"\n'
    )


def test_an_inverse_in_the_ontology_and_an_exchange_of_ends_make_a_synonym(hand):
    """EMPLOYS is the reverse of WORKS_AT: a relation reversed to it behaves like WORKS_AT."""
    for number in range(3):
        hand.say(f"s{number}", "EMPLOYS", f"Acme{number}", "Bob")
        hand.say(f"s{number}", "TOILS_FOR", "Bob", f"Acme{number}", is_reversed=True)
    assert hand.suggestion_rows() == [("same_as", ("TOILS_FOR", "WORKS_AT"), "")]


def test_names_with_conflicting_answers_are_not_suggested(hand):
    for number in range(3):
        hand.say(f"s{number}", "PAINTED", f"Zoe{number}", "Bob")
        hand.say(f"s{number}", "SKETCHED", f"Zoe{number}", "Bob")
    hand.compare("PAINTED", "SKETCHED", False, False, False)
    assert hand.suggestion_rows() == []


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        ((True, True, True), "single"),
        ((True,) * 9 + (False,), "single"),
        ((False, False, False), "many"),
        ((True, True, False), None),
        ((False,) * 9 + (True,), None),
        ((False, False), None),
    ],
)
def test_a_cardinality_is_suggested_where_the_objects_of_a_subject_agree(hand, answers, value):
    hand.compare("STEERS", "STEERS", *answers)
    expected_suggestions = [] if value is None else [("cardinality", ("STEERS",), value)]
    assert hand.suggestion_rows() == expected_suggestions
    declared = shipped().extended({"STEERS": {"cardinality": "many"}})
    assert hand.suggestion_rows(declared) == []


def test_statements_of_different_subjects_suggest_no_cardinality(hand):
    for number in range(3):
        hand.say(f"a{number}", "STEERS", f"Ann{number}", "ship 1")
        hand.say(f"b{number}", "STEERS", f"Bob{number}", "ship 2")
        hand.judge(f"a{number}", f"b{number}", exclusive=False)
    assert hand.suggestion_rows() == []


def test_relations_known_to_the_ontology_are_not_suggested(hand):
    hand.compare("WORKS_AT", "LIVES_IN", False, False, False)
    hand.compare("SOLD", "OWNS", False, False, False)
    hand.compare("WORKS_FOR", "WORKS_FOR", True, True, True)
    assert hand.suggestion_rows() == []


def test_suggestions_are_ordered_by_number_of_answers_up_to_the_limit(hand):
    hand.compare("PAINTED", "SKETCHED", False, False, False)
    hand.compare("STEERS", "STEERS", True, True, True, True)
    assert hand.suggestion_rows() == [
        ("cardinality", ("STEERS",), "single"),
        ("independent", ("PAINTED", "SKETCHED"), ""),
    ]
    assert hand.suggestion_rows(limit=1) == [("cardinality", ("STEERS",), "single")]


def test_a_name_is_suggested_as_a_synonym_of_only_one_relation(hand):
    for number in range(4):
        hand.say(f"s{number}", "OVERSAW", f"Ann{number}", "Bob")
        hand.say(f"s{number}", "STEERED", f"Ann{number}", "Bob")
    for number in range(3):
        hand.say(f"t{number}", "GUIDED", f"Zoe{number}", "Cid")
        hand.say(f"t{number}", "STEERED", f"Zoe{number}", "Cid", is_reversed=True)
        hand.say(f"u{number}", "OVERSAW", "Eve", f"Dan{number}")
    for number in range(5):
        hand.say(f"v{number}", "GUIDED", "Eve", f"Dan{number}")
    hand.compare("PAINTED", "ЛЮБИТ", False, False, False)
    hand.compare("PAINTED", "CARVED", False, False, False)
    result = suggestions(hand.store, hand.name, shipped(), limit=50)
    assert [(item.kind, item.names) for item in result] == [
        ("same_as", ("STEERED", "OVERSAW")),
        ("independent", ("CARVED", "PAINTED")),
        ("independent", ("PAINTED", "ЛЮБИТ")),
    ]
    declared = tomllib.loads(settings_of(result))["ontology"]["relations"]
    ontology = shipped().extended(declared)
    assert faults_of(ontology) == []
    assert hand.suggestion_rows(ontology) == [("inverse_of", ("GUIDED", "OVERSAW"), "")], "the next step"


def test_another_group_and_a_missing_group_have_no_suggestions(hand, other_group):
    hand.compare("PAINTED", "SKETCHED", False, False, False)
    assert replace(hand, name=other_group).suggestion_rows() == []


def test_a_memory_uses_its_own_ontology_for_suggestions_and_checks(hand):
    hand.compare("PAINTED", "SKETCHED", False, False, False)
    ontology = shipped().extended({"PAINTED": {"independent": ["SKETCHED"]}, "WORK_AT": {}})
    for mine, count in ((shipped(), 1), (ontology, 0)):
        unneeded = lambda: pytest.fail("no model is needed")  # noqa: E731
        memory = AsyncMemory(hand.store, unneeded, unneeded, ontology=lambda o=mine: o)
        assert len(asyncio.run(memory.admin.relation_suggestions(group=hand.name))) == count
        assert len(asyncio.run(memory.admin.ontology_faults())) == 1 - count
        with pytest.raises(InputError, match="limit"):
            asyncio.run(memory.admin.relation_suggestions(group=hand.name, limit=0))
