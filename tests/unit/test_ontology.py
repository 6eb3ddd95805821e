"""The shipped ontology, and its changes by settings (R17; cli.md, Input)."""

from __future__ import annotations

import pytest

from kgray.domain.ontology import RelationType, shipped
from kgray.errors import SettingsError

SINGLE = {
    "WORKS_AT",
    "LIVES_IN",
    "REPORTS_TO",
    "HAS_ROLE",
    "HAS_STATUS",
    "COSTS",
    "MARRIED_TO",
    "HEADQUARTERED_IN",
}
MANY_VALUED = {"LIKES", "KNOWS", "OWNS", "VISITED", "MEMBER_OF", "USES", "SPEAKS"}


def test_the_documented_relations_have_their_cardinality():
    ontology = shipped()
    assert {name: ontology.relations[name].cardinality for name in SINGLE | MANY_VALUED} == {
        **dict.fromkeys(SINGLE, "single"),
        **dict.fromkeys(MANY_VALUED, "many"),
    }


def test_roles_statuses_and_prices_are_values():
    ontology = shipped()
    assert {ontology.relations[name].object for name in ("HAS_STATUS", "HAS_ROLE", "COSTS")} == {"value"}


def test_dislikes_excludes_likes_and_marriage_is_symmetric():
    ontology = shipped()
    assert ontology.relations["DISLIKES"].excludes == ("LIKES",)
    assert ontology.relations["MARRIED_TO"].symmetric


def test_every_relation_referred_to_is_declared():
    ontology = shipped()
    for relation in ontology:
        for partner in (relation.same_as, relation.inverse_of, *relation.excludes):
            assert partner is None or ontology.get(partner) is not None, (relation.name, partner)


@pytest.mark.parametrize("relation", [item for item in shipped() if item.same_as], ids=lambda item: item.name)
def test_a_shipped_synonym_declares_only_its_target(relation):
    assert relation == RelationType(name=relation.name, same_as=relation.same_as)
    main = shipped().main_name(relation.name)
    assert not shipped().relations[main].same_as
    assert not shipped().relations[main].inverse_of


def test_a_shipped_inverse_has_the_flipped_cardinality():
    flipped = {"single": "single_object", "single_object": "single"}
    for relation in shipped():
        if relation.inverse_of and relation.cardinality:
            main = shipped().relations[relation.inverse_of].cardinality
            assert relation.cardinality == flipped.get(main or "", main), relation.name


def test_no_shipped_relation_lists_itself():
    for relation in shipped():
        assert not {shipped().main_name(relation.name)} & {
            shipped().main_name(name) for name in (*relation.excludes, *relation.may_end)
        }, relation.name


@pytest.mark.parametrize(
    "name", ["HAS", "IS", "FIXED", "MADE", "LEFT", "QUIT", "MOVED_TO", "LIVES_AT", "RUNS"]
)
def test_ambiguous_names_are_not_shipped(name):
    assert not shipped().lists(name)


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("IS_EMPLOYED_BY", "WORKS_AT"),
        ("HAS_EMPLOYEE", "WORKS_AT"),
        ("IS_MANAGER_OF", "REPORTS_TO"),
        ("RESIDES_IN", "LIVES_IN"),
        ("MARRIED", "MARRIED_TO"),
        ("HAS_PET", "OWNS"),
        ("SON_OF", "PARENT_OF"),
        ("WAS_NOMINATED_BY", "NOMINATED"),
        ("PAINTED", "PAINTED"),
    ],
)
def test_a_name_folds_to_its_main_name(name, main):
    assert shipped().main_name(name) == main


def test_an_unknown_relation_has_no_entry():
    assert shipped().get("FEEDS") is None


def test_two_listed_names_are_never_compared():
    ontology = shipped().extended({"FEEDS": {}})
    assert ontology.lists("FEEDS")
    assert not ontology.lists("PAINTED")
    assert ontology.are_independent("FEEDS", "LIKES")
    assert not ontology.are_independent("PAINTED", "LIKES")


def test_declared_independence_holds_in_both_directions():
    ontology = shipped().extended({"FEEDS": {"independent": ["PAINTED"]}})
    assert ontology.are_independent("FEEDS", "PAINTED")
    assert ontology.are_independent("PAINTED", "FEEDS")
    assert not ontology.are_independent("FEEDS", "SKETCHED")
    assert not ontology.are_independent("PAINTED", "SKETCHED")


def test_independence_applies_to_main_names():
    ontology = shipped().extended(
        {
            "FEEDS": {"independent": ["SKETCHED"]},
            "NOURISHES": {"same_as": "FEEDS"},
            "FED_BY": {"inverse_of": "NOURISHES"},
        }
    )
    assert ontology.main_name("FED_BY") == "FEEDS"
    assert ontology.are_independent("FED_BY", "SKETCHED")
    assert not ontology.are_independent("FED_BY", "NOURISHES")


def test_a_name_is_not_independent_of_itself():
    assert not shipped().are_independent("LIKES", "LIKES")
    assert not shipped().are_independent("PAINTED", "PAINTED")


def test_a_table_with_only_independent_names_does_not_list_its_name():
    ontology = shipped().extended({"PAINTED": {"independent": ["SKETCHED"]}})
    assert not ontology.lists("PAINTED")
    assert ontology.are_independent("PAINTED", "SKETCHED")
    assert not ontology.are_independent("PAINTED", "LIKES")


def test_folding_reports_whether_the_ends_are_exchanged():
    ontology = shipped().extended({"FED_BY": {"inverse_of": "FEEDS"}, "FEEDER_OF": {"inverse_of": "FED_BY"}})
    assert [ontology.folded(name) for name in ("FEEDS", "FED_BY", "FEEDER_OF")] == [
        ("FEEDS", False),
        ("FEEDS", True),
        ("FEEDS", False),
    ]


def test_a_listed_event_that_may_end_a_state_is_compared_with_it():
    ontology = shipped().extended({"EMPTIED": {"may_end": ["OWNS"]}, "HAS_OWNER": {"same_as": "OWNED_BY"}})
    assert not shipped().are_independent("SOLD", "OWNS")
    assert not ontology.are_independent("OWNS", "EMPTIED")
    assert not ontology.are_independent("EMPTIED", "HAS_OWNER")
    assert ontology.are_independent("EMPTIED", "LIKES")


def test_a_synonym_inherits_the_object_kind_and_an_inverse_does_not():
    ontology = shipped().extended({"TONNAGE": {"same_as": "COSTS"}, "FED": {"inverse_of": "LIVES_IN"}})
    assert [ontology.object_kind(name) for name in ("COSTS", "TONNAGE", "FED", "PAINTED")] == [
        "value",
        "value",
        None,
        None,
    ]


def test_settings_add_a_relation_and_override_one_key():
    extended = shipped().extended(
        {
            "FEEDS": {"cardinality": "many", "phrases": ["feed {thing}"]},
            "OWNS": {"cardinality": "single_object"},
        }
    )
    assert extended.relations["FEEDS"].phrases == ("feed {thing}",)
    assert extended.relations["OWNS"].cardinality == "single_object"
    assert extended.relations["OWNS"].phrases == shipped().relations["OWNS"].phrases
    assert shipped().get("FEEDS") is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        pytest.param(
            {"OWNS": {"cardnality": "many"}},
            "nearest one is ontology.relations.OWNS.cardinality.",
            id="a-misspelt-key",
        ),
        pytest.param(
            {"OWNS": {"cardinality": "one"}},
            'use one of "single" (one object at a time, like WORKS_AT), "single_object" (one subject at a '
            'time: a ship has one captain), "many" (any number, like LIKES), '
            '"depends" (a question for each pair of objects).',
            id="a-wrong-cardinality",
        ),
        pytest.param({"OWNS": {"object": "thing"}}, 'use one of "entity", "value".', id="a-wrong-object"),
        pytest.param({"OWNS": {"symmetric": "yes"}}, "use true or false", id="a-wrong-boolean"),
        pytest.param({"OWNS": {"excludes": "LIKES"}}, "a list of texts is needed", id="a-text-for-a-list"),
        pytest.param(
            {"OWNS": {"excludes": ["likes"]}}, "a relation name is needed", id="a-wrong-name-in-a-list"
        ),
        pytest.param({"OWNS": {"excludes": ["OWNS"]}}, "names itself", id="it-excludes-itself"),
        pytest.param(
            {"OWNS": {"independent": ["OWNS"]}}, "independent names itself", id="it-is-independent-of-itself"
        ),
        pytest.param({"OWNS": {"description": 3}}, "a text in quotes is needed", id="a-number-for-a-text"),
        pytest.param(
            {"OWNS": {"subject_type": "a person"}}, "a label such as Person is needed", id="a-wrong-label"
        ),
        pytest.param({"owns": {}}, "a relation name is needed", id="lower-case"),
        pytest.param({"A" * 65: {}}, "a relation name is needed", id="too-long"),
        pytest.param({"OWNS": 3}, "is not a table", id="no-table"),
        pytest.param({"OWNS": {"same_as": "OWNS"}}, "back to OWNS", id="the-same-as-itself"),
        pytest.param({"A": {"same_as": "B"}, "B": {"inverse_of": "A"}}, "lead from", id="a-circle"),
        pytest.param({"A": {"same_as": "OWNS", "inverse_of": "LIKES"}}, "keep one", id="both-ways"),
        pytest.param({"A": {"phrases": ["feed"]}}, "a phrase is needed", id="a-phrase-without-a-slot"),
        pytest.param({"A": {"starts": ["feed {cat}"]}}, "a phrase is needed", id="an-unknown-slot"),
    ],
)
def test_an_invalid_override_gets_a_clear_error(overrides, message):
    with pytest.raises(SettingsError) as caught:
        shipped().extended(overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_allowed_pair_must_name_a_declared_type():
    """A mistyped type would drop facts in silence."""
    with pytest.raises(SettingsError, match=r"WORKS_AT\.subject_type = 'Persn' .* 'Person'"):
        shipped().extended({"WORKS_AT": {"subject_type": "Persn"}}, {"Person": {}, "Company": {}})


def test_the_key_that_names_a_relation_cannot_be_set():
    with pytest.raises(SettingsError, match=r"^ontology\.relations\.OWNS\.name in the settings is not a key"):
        shipped().extended({"OWNS": {"name": "HAS"}})
