"""The generated world: the same for one seed, with distinguishable texts, at the stated rates."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from itertools import islice, pairwise, permutations

import pytest

from kgray.domain import times
from kgray.domain.ontology import shipped
from kgray.errors import InputError
from kgray.io.intake.drafts import draft_from
from kgray.models.prompting.replies import parse_extraction
from tests.make import accepted
from tests.world import World, WorldEpisode, WorldPlan
from tests.world.files import input_row, write
from tests.world.naming import NAMES
from tests.world.schema import RELATIONS
from tests.world.telling import end_of, start_of
from tests.world.truth import key_of

WORLD = World(seed=3, episodes=600)


@functools.cache
def episodes() -> list[WorldEpisode]:
    """Return the episodes of the world; made in the first test, not while tests are collected."""
    return list(WORLD)


def test_a_world_with_too_few_entities_is_refused():
    with pytest.raises(InputError, match="a world of 3000 episodes needs more entities"):
        list(World(plan=WorldPlan(seed=1, episodes=3000, entities=20)))


def test_a_world_depends_only_on_its_seed():
    second_result = [(e.draft, e.said, e.mentions) for e in World(seed=3, episodes=600)]

    assert second_result == [(e.draft, e.said, e.mentions) for e in episodes()]
    assert next(iter(World(seed=4, episodes=1))).draft != episodes()[0].draft


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (WorldPlan(seed=1), "dc41172181b00af2fa0e51bdf6afcc8a6bdf8a9228b9b4d6651722fc11ec2e76"),
        (
            WorldPlan(seed=7, episodes=400, alias_rate=0.7, change_rate=0.6, homonyms=0.3),
            "eddb495ee30d68a839752e9db4dc0c753d5ce8bd2823c6e73b0ef0d9d3ff2817",
        ),
    ],
    ids=["seed 1", "seed 7, many changes and homonyms"],
)
def test_a_world_is_the_same_bytes_in_every_version_of_the_bench(tmp_path, plan, expected):
    """Dump hashes of two versions can be compared only where both have ingested the same episodes."""
    write(plan, tmp_path / "world.jsonl", None)

    assert hashlib.sha256((tmp_path / "world.jsonl").read_bytes()).hexdigest() == expected


def test_a_longer_world_begins_like_a_shorter_world():
    longer = islice(World(seed=3, episodes=100_000), 600)

    assert [e.draft for e in longer] == [e.draft for e in episodes()]


def test_no_text_is_repeated():
    texts = Counter(e.draft.text for e in episodes())

    assert [text for text, count in texts.items() if count > 1] == []


def test_the_rates_equal_the_rates_of_the_plan():
    names = {t.id: t.name for t in WORLD.entities("world-0")}
    mentions = [(surface, entity) for e in episodes() for surface, entity, _ in e.mentions]
    why = Counter(fact.why for e in episodes() for fact in e.said)
    kinds = Counter(e.draft.kind for e in episodes())

    assert sum(names[entity] != surface for surface, entity in mentions) / len(mentions) == pytest.approx(
        0.30, abs=0.03
    )
    assert (why["change"] + why["return"]) / why.total() == pytest.approx(0.25, abs=0.04)
    assert {"return", "ended", "late", "future", "denied", "interruption", "restated"} <= set(why)
    assert kinds["message"] / 600 == pytest.approx(0.6, abs=0.05)
    assert len(names) == 120


def test_every_form_of_a_name_is_used():
    forms = {t.id: {surface: form for form, surface in t.aliases} for t in WORLD.entities("world-0")}
    used = {forms[entity].get(surface, "full") for e in episodes() for surface, entity, _ in e.mentions}

    assert used == {"full", "initial", "first", "inverted", "case", "nickname", "legal", "acronym", "turned"}


@pytest.mark.parametrize("place", range(0, 600, 7))
def test_a_reply_parses_to_the_facts_of_its_episode(place):
    """The parser of replies and the world's own reading of its dates agree, and nothing is dropped."""
    episode = episodes()[place]
    at = episode.draft.reference_time or 0
    result = parse_extraction(episode.extraction_reply, accepted(episode.draft))

    assert result.dropped == ()
    assert [e.name for e in result.entities] == [surface for surface, _, _ in episode.mentions]
    assert [(f.kind, f.relation, f.text, f.value) for f in result.facts] == [
        (s.kind, s.relation, s.text, s.value) for s in episode.said
    ]
    assert [(f.valid_from, f.inferred) for f in result.facts if f.kind == "holds"] == [
        start_of(s, at) for s in episode.said if s.kind == "holds"
    ]
    assert [f.valid_to for f in result.facts] == [end_of(s, at) for s in episode.said]


FREE = World(plan=WorldPlan(seed=3, episodes=1500, entities=200, ends=0.15, relations="free"))


@functools.cache
def told_freely() -> list[WorldEpisode]:
    """Return the episodes of the world with free names of relations."""
    return list(FREE)


def test_relation_names_vary_and_are_repeatable():
    """With names of the ontology and other names, from either end, and ends by separate names."""
    names = Counter(s.name or s.relation for e in told_freely() for s in e.said)
    ends = [s for e in told_freely() for s in e.said if s.is_named_end]
    unlisted = [name for name in names if shipped().get(name) is None]

    assert set(names) == set(NAMES)
    assert 0.2 < sum(names[name] for name in unlisted) / names.total() < 0.9
    assert {s.reported_as for s in ends} == {"happened", "ended", "holds"}
    assert {s.name for s in ends} >= {"LEFT", "QUIT", "SOLD", "MOVED_FROM", "DIVORCED", "RETIRED_FROM"}
    assert list(World(plan=FREE.plan)) == told_freely()
    assert all(not s.name and not s.reported_as for e in episodes() for s in e.said)


def test_an_end_has_its_own_name_only_after_its_state_was_stated():
    stated: set[tuple] = set()
    for episode in told_freely():
        for fact in episode.said:
            if fact.is_named_end:
                assert key_of(fact) in stated
            (stated.discard if fact.kind in ("ended", "denied") else stated.add)(key_of(fact))


@pytest.mark.parametrize("place", range(0, 1500, 25))
def test_a_free_reply_parses_to_the_facts_of_its_episode(place):
    episode = told_freely()[place]
    at = episode.draft.reference_time or 0
    result = parse_extraction(episode.extraction_reply, accepted(episode.draft))
    surfaces = {entity: surface for surface, entity, _ in episode.mentions}

    assert result.dropped == ()
    for fact, true_fact in zip(result.facts, episode.said, strict=True):
        name = NAMES[fact.relation]
        ends = [result.entities[fact.source].name]
        ends += [] if fact.target is None else [result.entities[fact.target].name]
        expected = [surfaces[e] for e in (true_fact.subject, true_fact.object) if e]
        assert name.relation == true_fact.relation
        assert ends == (expected[::-1] if name.reversed else expected) or (
            RELATIONS[true_fact.relation].symmetric and ends == expected[::-1]
        )
        assert fact.kind == (true_fact.reported_as or true_fact.kind)
        if true_fact.is_named_end:
            instant = fact.valid_to if fact.kind == "ended" else fact.valid_from
            assert (instant, fact.inferred) == (end_of(true_fact, at), not true_fact.until)


def test_no_person_is_married_to_two_persons_at_once():
    facts = [f for f in FREE.truth().facts() if f.key[1] == "MARRIED_TO"]
    for item, rival in permutations(facts, 2):
        shared = {item.key[0], item.key[2]} & {rival.key[0], rival.key[2]}
        if shared and item.valid_at is not None:
            assert item.key == rival.key or not rival.holds_at(item.valid_at)


def test_names_occur_in_the_text_or_are_the_speaker():
    for episode in episodes():
        for surface, _, _ in episode.mentions:
            assert surface == episode.draft.speaker or surface in episode.draft.text


def test_a_first_name_refers_to_one_person_of_its_conversation():
    people = {t.id: t.name.split()[0] for t in WORLD.entities("world-0") if t.kind == "Person"}
    for episode in episodes():
        firsts = [
            (surface, entity) for surface, entity, _ in episode.mentions if surface == people.get(entity)
        ]
        for surface, entity in firsts:
            namesakes = [e for _, e, _ in episode.mentions if people.get(e) == surface]
            assert namesakes == [entity]


def test_no_two_persons_share_a_name_by_default():
    def shared(**parameters: float) -> int:
        names = [t.name for t in World(seed=5, **parameters).entities("world-0") if t.kind == "Person"]
        return len(names) - len(set(names))

    assert shared() == 0
    assert 1 <= shared(homonyms=0.3) <= 30


def test_groups_share_no_entities():
    world = World(seed=1, episodes=200, groups=3)
    ids = {group: {t.id for t in world.entities(group)} for group in world.groups}
    episodes = list(world)

    assert Counter(e.draft.group for e in episodes) == {"world-0": 67, "world-1": 67, "world-2": 66}
    assert not ids["world-0"] & ids["world-1"] | ids["world-1"] & ids["world-2"]
    for episode in episodes:
        assert {entity for _, entity, _ in episode.mentions} <= ids[episode.draft.group]


def test_some_episodes_arrive_out_of_order():
    moments = [e.draft.reference_time or 0 for e in episodes()]
    late = sum(later < earlier for earlier, later in pairwise(moments))

    assert 5 <= late <= 40


def test_a_world_written_to_files_equals_the_world(tmp_path):
    out, truth = tmp_path / "world.jsonl", tmp_path / "truth.jsonl"

    counts = write(WorldPlan(seed=3, episodes=50), out, truth)

    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    gold = [json.loads(line) for line in truth.read_text(encoding="utf-8").splitlines()]
    assert [draft_from(row) for row in rows] == [e.draft for e in episodes()[:50]]
    assert rows == [input_row(e.draft) for e in episodes()[:50]]
    kinds = Counter(row["type"] for row in gold)
    assert (kinds["entity"], kinds["episode"], kinds["fact"]) == (120, 50, counts["facts"])
    assert {row["kind"] for row in gold if row["type"] == "question"} == {"now", "as-of", "as-known"}
    assert counts["episodes"] == 50


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"entities": 5}, "too few"),
        ({"alias_rate": 1.5}, "between 0 and 1"),
        ({"groups": 0}, "groups >= 1"),
        ({"step_s": 1}, "step_s >= 60"),
        ({"ends": 2.0}, "between 0 and 1"),
        ({"relations": "any"}, "listed or free"),
    ],
)
def test_an_impossible_plan_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        WorldPlan(**wrong)


def test_times_of_a_world_are_whole_seconds():
    assert all((e.draft.reference_time or 0) % times.SECOND == 0 for e in episodes())
