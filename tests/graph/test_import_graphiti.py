"""The import of a Graphiti database into a group: spans, texts, and skipped items."""

from __future__ import annotations

import json

import pytest

from kgray.errors import InputError
from kgray.memory import opening
from kgray.storage.ledger import dumped_episodes

pytestmark = pytest.mark.neo4j

# The result of `add_episode`: properties as graphiti-core 0.31 saves them, instants as datetimes.
THEIRS = """
CREATE (one:Episodic {uuid: 'e-1', group_id: 'main', name: 'chat 1', source: 'message',
    source_description: 'a chat', content: 'Ann: I joined Acme as an aviator.', entity_edges: ['f-1', 'f-2'],
    created_at: datetime('2026-05-01T12:00:00Z'), valid_at: datetime('2026-01-10T08:00:00+02:00')})
CREATE (two:Episodic {uuid: 'e-2', group_id: 'main', name: 'chat 2', source: 'message',
    source_description: 'a chat', content: 'Ann: now I am at Beta.', entity_edges: ['f-1', 'f-3'],
    created_at: datetime('2026-05-01T12:01:00Z'), valid_at: datetime('2026-02-10T00:00:00Z')})
CREATE (:Episodic {uuid: 'e-0', group_id: 'main', name: 'quiet', source: 'text', source_description: '',
    content: 'Nothing of note.', entity_edges: [],
    created_at: datetime('2026-05-01T12:02:00Z'), valid_at: datetime('2026-01-01T00:00:00Z')})
CREATE (:Episodic {uuid: 'x-1', group_id: 'side', name: 'other', source: 'text', source_description: '',
    content: 'Secret.', entity_edges: [], created_at: datetime(), valid_at: datetime()})
CREATE (ann:Entity:Person {uuid: 'n-1', group_id: 'main', name: 'Ann Lee', summary: 'An aviator.',
    created_at: datetime(), age: 40})
CREATE (acme:Entity {uuid: 'n-2', group_id: 'main', name: 'Acme', summary: '', created_at: datetime()})
CREATE (beta:Entity {uuid: 'n-3', group_id: 'main', name: 'Beta', summary: '', created_at: datetime()})
CREATE (blank:Entity {uuid: 'n-4', group_id: 'main', name: ' ', summary: '', created_at: datetime()})
CREATE (:Entity {uuid: 'n-5', group_id: 'main', name: 'Lonely', summary: '', created_at: datetime()})
CREATE (one)-[:MENTIONS {uuid: 'm-1', group_id: 'main', created_at: datetime()}]->(ann)
CREATE (ann)-[:RELATES_TO {uuid: 'f-1', group_id: 'main', name: 'WORKS_AT', fact: 'Ann Lee flies for Acme',
    episodes: ['e-1', 'e-2'], created_at: datetime('2026-05-01T12:00:01Z'),
    valid_at: datetime('2026-01-10T06:00:00Z'), invalid_at: datetime('2026-02-10T00:00:00Z'),
    expired_at: datetime('2026-05-01T12:01:01Z')}]->(acme)
CREATE (ann)-[:RELATES_TO {uuid: 'f-2', group_id: 'main', name: 'likes', fact: 'Ann Lee likes Beta',
    episodes: ['e-1'], created_at: datetime('2026-05-01T12:00:02Z')}]->(beta)
CREATE (ann)-[:RELATES_TO {uuid: 'f-3', group_id: 'main', name: 'WORKS_AT', fact: 'Ann Lee works at Beta',
    episodes: ['e-2'], created_at: datetime('2026-05-01T12:01:01Z'),
    valid_at: datetime('2026-02-10T00:00:00Z')}]->(beta)
CREATE (acme)-[:RELATES_TO {uuid: 'f-4', group_id: 'main', name: 'OWNS', fact: 'Acme owns Beta',
    episodes: ['e-9'], created_at: datetime('2026-05-01T12:03:00Z'),
    valid_at: datetime('2026-03-01T00:00:00Z'),
    confidence: 0.5}]->(beta)
CREATE (ann)-[:RELATES_TO {uuid: 'g-1', group_id: 'main', name: 'KNOWS', fact: 'no name', episodes: ['e-1'],
    created_at: datetime()}]->(blank)
CREATE (ann)-[:RELATES_TO {uuid: 'g-2', group_id: 'main', name: '???', fact: 'no relation', episodes: ['e-1'],
    created_at: datetime()}]->(beta)
CREATE (ann)-[:RELATES_TO {uuid: 'g-3', group_id: 'main', name: 'OWNS', fact: 'ends at once',
    episodes: ['e-1'], created_at: datetime(), valid_at: datetime('2026-03-01T00:00:00Z'),
    invalid_at: datetime('2026-03-01T00:00:00Z')}]->(beta)
CREATE (ann)-[:RELATES_TO {uuid: 'g-4', group_id: 'main', name: 'KNOWS', fact: 'itself', episodes: ['e-1'],
    created_at: datetime()}]->(ann)
CREATE (ann)-[:RELATES_TO {uuid: 'g-5', group_id: 'main', name: 'OWNS', fact: 'when?', episodes: ['e-1'],
    created_at: datetime(), valid_at: 'soon'}]->(beta)
CREATE (:Community {uuid: 'c-1', group_id: 'main', name: 'People', summary: 'All.'})
"""


@pytest.fixture
def imported(own_neo4j, neo4j_driver):
    """Return a function that imports the group `main` of a Graphiti database with two groups."""
    neo4j_driver.execute_query(THEIRS)
    login = {"user": own_neo4j.user, "password": own_neo4j.password}

    def import_main(memory, from_group="main", **options):
        options |= login | {"from_group": from_group}
        return memory.import_from(own_neo4j.uri, form="graphiti", group="g", **options)

    return import_main


def facts(memory):
    """Return the facts of the dump: sentence -> (start, end, client ids of its episodes)."""
    rows = [json.loads(line) for line in memory.dump(group="g")]
    clients = {row["id"]: row["client_id"] for row in rows if row["type"] == "episode"}
    return {
        row["text"]: (row["valid_at"], row["invalid_at"], sorted(clients[e] for e in row["episodes"]))
        for row in rows
        if row["type"] == "fact"
    }


def test_imported_facts_keep_their_spans_sentences_and_episodes(imported, tmp_path):
    with opening.open(tmp_path, create=True) as memory:
        with pytest.raises(InputError, match=r"has the group_ids 'main', 'side': name one"):
            imported(memory, from_group=None)
        trial = imported(memory, dry_run=True)
        assert memory.groups() == []
        report = imported(memory)
        added = report.ingestion

        assert trial.as_dict() == {name: report.as_dict()[name] for name in trial.as_dict()}
        assert (added.accepted, added.committed, added.refused) == (3, 3, 0)
        assert facts(memory) == {
            "Ann Lee flies for Acme": (
                "2026-01-10T06:00:00.000000Z", "2026-02-10T00:00:00.000000Z", ["e-1", "e-2"]
            ),
            "Ann Lee likes Beta": (None, None, ["e-1"]),
            "Ann Lee works at Beta": ("2026-02-10T00:00:00.000000Z", None, ["e-2"]),
            "Acme owns Beta": ("2026-03-01T00:00:00.000000Z", None, ["f-4"]),
        }  # fmt: skip
        assert (report.further["episodes"], report.further["facts"], report.lost) == (3, 9, 5)
        assert (trial.exit_code, report.exit_code) == (1, 1)
        assert (
            report.further["unmapped"]
            == report.reasons
            == {
                "episodes without facts": 1,
                "facts whose object has no usable name": 1,
                "facts whose relation is no name": 1,
                "facts whose end is not after their start": 1,
                "facts from a thing to itself": 1,
                "facts with a time that cannot be read": 1,
                "entities in no fact": 1,
                "entity summaries": 1,
                "entity types": 1,
                "entities with attributes": 1,
                "facts with attributes": 1,
                "communities": 1,
            }
        )
        assert "Secret" not in str(memory.dump(group="g"))
        assert (report.taken, report.changed, report.omitted) == (3 - 1 + 9 - 5, 0, 12)


def test_an_imported_episode_keeps_its_text_and_graphitis_record_times(imported, tmp_path):
    """Record times are ours; theirs are metadata. The text is found by a search of episodes."""
    with opening.open(tmp_path, create=True) as memory:
        imported(memory)

        (hit, *_) = memory.search("who is an aviator", group="g", scopes=["episode"])
        assert hit.client_id == "e-1"
        first, second, _ = list(dumped_episodes(memory.asynchronous.store, "g"))
        assert [first.client_id, second.client_id] == ["e-1", "e-2"]
        assert json.loads(first.metadata) == {
            "graphiti": {
                "uuid": "e-1",
                "name": "chat 1",
                "source": "message",
                "source_description": "a chat",
                "text": "Ann: I joined Acme as an aviator.",
                "created_at": "2026-05-01T12:00:00.000000Z",
                "facts": [
                    {
                        "uuid": "f-1",
                        "created_at": "2026-05-01T12:00:01.000000Z",
                        "expired_at": "2026-05-01T12:01:01.000000Z",
                    },
                    {"uuid": "f-2", "created_at": "2026-05-01T12:00:02.000000Z", "expired_at": None},
                ],
            }
        }


def test_a_second_import_adds_new_items_and_replaces_only_on_request(imported, neo4j_driver, tmp_path):
    with opening.open(tmp_path, create=True) as memory:
        imported(memory)
        hash_before = memory.dump_hash(group="g")

        repeated = imported(memory).ingestion

        assert (repeated.accepted, repeated.duplicate, repeated.committed) == (0, 3, 0)
        assert memory.dump_hash(group="g") == hash_before
        neo4j_driver.execute_query(
            "MATCH ()-[f:RELATES_TO {uuid: 'f-3'}]->() SET f.invalid_at = datetime('2026-04-01T00:00:00Z')"
        )
        changed = imported(memory).ingestion
        assert (changed.duplicate, [r.field for r in changed.refusals]) == (2, ["id"])
        assert memory.dump_hash(group="g") == hash_before
        replaced = imported(memory, replace=True).ingestion
        assert (replaced.duplicate, replaced.accepted, replaced.refused) == (2, 1, 0)
        assert facts(memory)["Ann Lee works at Beta"][1] == "2026-04-01T00:00:00.000000Z"


@pytest.mark.seldom_on_neo4j
def test_an_import_ignores_kgrays_own_nodes_in_the_same_database(imported, own_neo4j, monkeypatch, tmp_path):
    """The labels are the same; the facts are not read twice."""
    monkeypatch.setenv("KGRAY_STORE_PASSWORD", own_neo4j.password)
    server = {"store_backend": "neo4j", "store_uri": own_neo4j.uri, "store_user": own_neo4j.user}
    with opening.open(tmp_path, create=True, settings={"embedder_dimensions": 64, **server}) as memory:
        imported(memory)
        counts = imported(memory).further

        with pytest.raises(InputError, match="has the group_ids 'main', 'side': name one"):
            imported(memory, from_group=None)
        assert (counts["episodes"], counts["facts"]) == (3, 9)
        assert counts["unmapped"]["entity types"] == 1
        assert len(facts(memory)) == 4
