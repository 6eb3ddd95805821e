"""A run of communities: written once, published atomically, and deleted with the removal of its sources."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

import kgray
from kgray.communities.detection import Cluster, Snapshot, detect_levels
from kgray.communities.refresh import Refresh
from kgray.errors import Cost, InvalidAnswer, NotFound, Unavailable
from kgray.models.prompting.prompts import load
from kgray.schema import kinds

CONTEXT = import_module("kgray.search.context")  # the package has a function of that name
TEAM = Path(__file__).resolve().parents[2] / "examples" / "team.jsonl"
LATER = "2026-08-01T09:00:00Z"


class CountingSummarizer:
    """A summarizer that names the entities of the request; `says` may make it fail."""

    identity = "counting 1"
    head = staticmethod(load)

    def __init__(self, says=None):
        self.requests, self.says, self.cost = [], says, Cost(1, 100, 10)

    async def write(self, request):
        self.requests.append(request)
        if self.says is not None:
            raise self.says
        reply = {"name": f"about {request.data[10:60]}", "summary": request.data}
        if request.task == "profile":
            del reply["name"]
        return reply, self.cost


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    folder = tmp_path_factory.mktemp("team")
    with kgray.open(folder, create=True) as opened:
        opened.add_many(json.loads(line) for line in TEAM.read_text(encoding="utf-8").splitlines())
    return folder


@pytest.fixture
def memory(tmp_path, team):
    shutil.copytree(team, tmp_path / "data")
    with kgray.open(tmp_path / "data", create=True) as opened:
        yield opened


def refreshed(memory, summarizer=None, group="team", **options):
    refresh = Refresh(
        store=memory.store, embedder=memory.asynchronous.embedder, summarizer=summarizer, **options
    )
    return asyncio.run(refresh.group(group))


def stored_rows(memory, group="team"):
    return {kind.name: list(memory.store.rows(kind.all, group)) for kind in kinds.KINDS}


def test_a_run_without_a_model_names_communities_by_members_and_keeps_the_graph(memory):
    digest_before = memory.dump_hash(group="team")
    report = refreshed(memory)
    communities = memory.communities.list(group="team")

    assert (report.run, report.cold, report.communities, report.offline) == (
        1,
        True,
        len(communities),
        len(communities),
    )
    companies = [
        {*item.name.split(", ")} & {"Lumen Systems", "Brightwater", "Harbor Analytics"}
        for item in communities
    ]
    assert sorted(map(len, companies)) == [1, 1, 1], (
        "each company of the chat is what one of them is named by"
    )
    assert len({item.name for item in communities}) == len(communities)
    assert memory.dump_hash(group="team") == digest_before


def test_a_refresh_without_changes_is_skipped_and_a_cold_run_gives_equal_rows(memory):
    refreshed(memory)
    first = stored_rows(memory)
    second_run = refreshed(memory)

    assert (second_run.news, second_run.run, stored_rows(memory)) == (False, 1, first)
    cold = refreshed(memory, cold=True)
    assert (cold.run, cold.kept, cold.offline) == (2, cold.communities, 0)
    rows = stored_rows(memory)["communities"]
    assert [r[1:] for r in rows if r[0] == 1] == [r[1:] for r in rows if r[0] == 2]


def test_a_due_refresh_waits_until_a_tenth_of_the_entities_changed(memory):
    assert refreshed(memory, due=True).run == 1
    communities_before, entities = stored_rows(memory)["communities"], len(stored_rows(memory)["entities"])
    assert refreshed(memory, due=True).news is False
    memory.add("I live in Quito.", group="team", speaker="Zelda Brand", at=LATER)
    assert refreshed(memory, due=True).news is False
    assert stored_rows(memory)["communities"] == communities_before

    for number in range(entities // 10):
        memory.add(f"I live in Lima {number}.", group="team", speaker=f"Pia {number}son", at=LATER)
    report = refreshed(memory, due=True)
    assert (report.run, report.news, report.cold) == (2, True, False)
    memory.retract(group="team", episodes=["t039"])
    assert refreshed(memory, due=True).run == 3, "a correction voids texts: it does not wait"


def test_other_groups_are_refreshed_when_one_group_fails(memory):
    def cluster(problem):
        if problem.graph.nodes > 2:
            raise Unavailable("lost")
        return detect_levels(problem)

    memory.add("I work at Acme.", group="zebra", speaker="Bo", at=LATER)
    refresh = Refresh(store=memory.store, embedder=memory.asynchronous.embedder, cluster=cluster)
    with pytest.raises(Unavailable, match="lost"):
        asyncio.run(refresh.groups(["team", "zebra"]))
    assert len(memory.communities.list(group="zebra")) == 1


def test_a_model_is_asked_only_once_about_unchanged_communities(memory):
    model = CountingSummarizer()
    first = refreshed(memory, model)
    assert (
        (first.written, first.calls) == (first.communities, first.communities) == (len(model.requests),) * 2
    )
    assert refreshed(memory, model).calls == 0

    memory.add("I live in Quito.", group="team", speaker="Zelda Brand", at=LATER)
    memory.add("I like Quito.", group="team", speaker="Zelda Brand", at=LATER)
    second = refreshed(memory, model)
    assert (second.kept, second.written) == (first.communities, 1)
    assert len(model.requests) == first.communities + 1
    assert refreshed(memory, model, cold=True).calls == 0


@pytest.mark.parametrize("fault", [InvalidAnswer("no"), Unavailable("gone", waited=True)])
def test_a_summary_is_composed_without_the_model_when_the_model_fails(memory, fault):
    model = CountingSummarizer(fault)
    report = refreshed(memory, model)

    assert (report.written, report.offline) == (0, report.communities)
    assert len(model.requests) == (report.communities if isinstance(fault, InvalidAnswer) else 1)
    model.says = None
    assert refreshed(memory, model).written == report.communities


def test_a_dry_run_estimates_calls_and_a_budget_limits_them(memory):
    model = CountingSummarizer()
    foreseen = refreshed(memory, model, dry_run=True)
    assert (foreseen.calls, model.requests) == (foreseen.communities, [])
    assert memory.communities.list(group="team") == []

    assert refreshed(memory, model, max_tokens=1).offline == foreseen.communities
    model.cost = Cost(1, 100_000, 10)
    report = refreshed(memory, model, max_tokens=foreseen.prompt_tokens + foreseen.completion_tokens)
    assert (report.written, report.calls, report.offline) == (1, 1, foreseen.communities - 1)


def test_a_removal_deletes_the_words_of_an_episode_from_all_runs(memory):
    memory.add("Ann Rice works at Zyqqvorp.", group="team", speaker="Ann Rice", at=LATER, id="z1")
    model = CountingSummarizer()
    refreshed(memory, model)
    memory.add("Ann Rice lives in Lima.", group="team", speaker="Ann Rice", at=LATER)
    refreshed(memory, model)
    assert "zyqqvorp" in repr(stored_rows(memory)["communities"]).lower()

    memory.remove(group="team", episodes=["z1"])
    assert "zyqqvorp" not in repr(stored_rows(memory)).lower()
    remaining = memory.communities.list(group="team")
    assert 0 < len(remaining) < 4
    assert refreshed(memory, model).written >= 1
    assert len(memory.communities.list(group="team")) > len(remaining)


def test_retractions_and_the_removal_of_a_group_delete_community_texts(memory):
    refreshed(memory)
    count = len(stored_rows(memory)["communities"])
    memory.retract(group="team", episodes=["t039"])
    assert len(stored_rows(memory)["communities"]) < count

    memory.remove(group="team", everything=True)
    remaining = stored_rows(memory)
    assert [remaining[name] for name in ("community_runs", "communities", "answers")] == [[]] * 3


def test_a_removal_between_reading_and_publishing_restarts_the_run(memory):
    memory.add("Alice Nguyen works at Zyqqvorp.", group="team", speaker="Greta Lind", at=LATER, id="z1")
    turns = []

    def cluster(problem):
        if not turns:
            memory.remove(group="team", episodes=["z1"])
        turns.append(1)
        return detect_levels(problem)

    report = refreshed(memory, CountingSummarizer(), cluster=cluster)
    assert (report.run, len(turns)) == (1, 2)
    assert "zyqqvorp" not in repr(stored_rows(memory)).lower()


class Dying:
    """A transaction whose process ends before its n-th write."""

    def __init__(self, at, writes_left):
        self.at, self.writes_left = at, writes_left

    def __getattr__(self, verb):
        if verb in {"put", "drop"}:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise KeyboardInterrupt
        return getattr(self.at, verb)


def test_a_kill_at_any_write_of_a_publication_leaves_the_previous_run(memory, monkeypatch):
    for place in ("Lima", "Cusco"):
        refreshed(memory)
        memory.add(f"I live in {place}.", group="team", speaker="Zelda Brand", at=LATER)
    rows_before, append, writes = stored_rows(memory), memory.store.append, 0
    while True:
        monkeypatch.setattr(
            memory.store, "append", lambda names, work, n=writes: append(names, lambda at: work(Dying(at, n)))
        )
        try:
            report = refreshed(memory)
            break
        except KeyboardInterrupt:
            assert stored_rows(memory) == rows_before
            writes += 1
    assert report.run == 3
    assert writes > 2 * report.communities, "it put a run, and dropped one"


def test_readers_never_mix_two_runs(memory):
    folder, observations, stop = memory.store.folder, set(), threading.Event()
    refreshed(memory)

    def read():
        with kgray.open(folder, create=True) as reader:
            while not stop.is_set():
                listed = reader.communities.list(group="team")
                (run,) = {item.run for item in listed}
                observations.add((run, len(listed)))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for _ in range(8):
            refreshed(memory, cold=True)
        stop.set()
        reading.result()
    assert len({count for _, count in observations}) == 1
    assert len(observations) > 1


def test_a_concurrent_refresh_does_not_change_the_graph(tmp_path):
    def rows(batch):
        for number in range(10 * batch, 10 * batch + 10):
            triple = {"source": f"P{number % 17}", "relation": "KNOWS", "target": f"Q{number % 13}"}
            yield {"group": "g", "id": str(number), "at": "2026-01-01", "triples": [triple]}

    hashes, stop = [], threading.Event()

    def refresh():
        runs = set()
        with kgray.open(tmp_path / "busy", create=True) as second_memory:
            while not stop.is_set():
                runs |= {report.run for report in second_memory.communities.refresh().groups.values()}
        return runs

    for name in ("calm", "busy"):
        stop.clear()
        with kgray.open(tmp_path / name, create=True) as memory, ThreadPoolExecutor(1) as pool:
            pending_refresh = pool.submit(refresh) if name == "busy" else None
            for batch in range(6):
                assert memory.add_many(rows(batch)).committed == 10
            stop.set()
            hashes.append(memory.dump_hash(group="g"))
            if pending_refresh is not None:
                assert len(pending_refresh.result()) >= 1
    assert hashes[0] == hashes[1]


def test_known_at_selects_the_newest_run_of_that_time_and_two_runs_are_stored(memory):
    assert memory.communities.list(group="team", known_at=LATER) == []
    refreshed(memory)
    first = memory.communities.list(group="team")
    for place in ("Quito", "Lima", "Cusco"):
        memory.add(f"I live in {place}.", group="team", speaker=f"Zelda {place}son", at=LATER)
        refreshed(memory)
    rows = stored_rows(memory)

    assert [row[0] for row in rows["community_runs"]] == [3, 4]
    assert {row[0] for row in rows["communities"]} == {row[0] for row in rows["communities"]} == {3, 4}
    earlier_communities = memory.communities.list(
        group="team", known_at=rows["community_runs"][0][2] / 1e6 + 1e-5
    )
    assert len(first) < len(earlier_communities) < len(memory.communities.list(group="team"))
    assert memory.communities.list(group="team", known_at="2020-01-01") == []


def test_a_new_entity_joins_a_community_at_once_and_marks_it_stale(memory):
    refreshed(memory)
    (home,) = [item for item in memory.communities.list(group="team") if "Lumen Systems" in item.name]
    memory.add("I work at Lumen Systems.", group="team", speaker="Zelda Brand", at=LATER)
    response = memory.communities.get(home.id[:8], group="team")

    assert "Zelda Brand" in {name for _, name in response.members}
    assert (response.community.stale, response.community.size) == (True, home.size + 1)
    assert "Zelda Brand" not in response.community.summary
    with pytest.raises(NotFound, match="no community 'ffff'"):
        memory.communities.get("ffff", group="team")


def test_a_refresh_of_one_group_does_not_refresh_others(memory):
    memory.add("I work at Acme.", group="other", speaker="Bo", at=LATER)
    refreshed(memory)
    state_before = stored_rows(memory)
    refreshed(memory, group="other")

    assert stored_rows(memory) == state_before
    assert [set(item.name.split(", ")) for item in memory.communities.list(group="other")] == [{"Acme", "Bo"}]
    assert memory.search("Lumen Systems", group="other", scopes=["community"]) == []


def test_communities_are_a_scope_of_searches_and_contexts(memory):
    assert memory.search("Lumen Systems", group="team", scopes=["community"]) == []
    refreshed(memory)
    hits = memory.search("Lumen Systems", group="team", scopes=["community"])
    assert hits[0].scope == "community"
    assert "Lumen Systems" in hits[0].text
    assert {"name", "summary", "level", "size", "members", "rating"} <= hits[0].as_dict().keys()

    mixed = memory.search("Who works with Greta at Lumen Systems?", group="team", limit=30)
    assert 1 <= [hit.scope for hit in mixed].count("community") <= 2
    past = memory.search("Lumen Systems", group="team", as_of="2025-10-01", limit=30)
    assert "community" not in {hit.scope for hit in past}
    text = memory.context("Lumen Systems", group="team", scopes=["community"], tokens=400).text
    assert "<COMMUNITIES>" in text
    assert "(as of " in text

    memory.retract(group="team", episodes=[f"t{number:03}" for number in range(1, 69)])
    assert memory.search("Lumen Systems", group="team", scopes=["community"]) == []


def test_without_a_model_an_entity_has_a_summary_and_no_profile(memory):
    history = memory.history("Alice Nguyen", group="team")
    assert (history.profile, history.profile_sources) == ("", ())
    assert "Alice Nguyen works at Brightwater." in history.entity.summary
    assert "Lumen" not in history.entity.summary, "this fact has ended"
    earlier_history = memory.history("Alice Nguyen", group="team", as_of="2025-10-01")
    assert "works at Lumen Systems." in earlier_history.entity.summary
    (listed,) = memory.entities("Alice Nguyen", group="team")
    assert (listed.profile, listed.entity.summary) == ("", history.entity.summary)
    description = memory.show("Alice Nguyen", group="team")
    assert (description.profile, description.summary) == ("", history.entity.summary)
    assert memory.show("t039", group="team").summary == ""

    text = memory.context("Alice Nguyen", group="team", scopes=["entity"]).text
    line = next(line for line in text.splitlines() if line.startswith("- Alice Nguyen (Person): "))
    assert "Alice Nguyen works at Brightwater (2026-05-01 - present)." in line
    assert line.count(").") == 2
    both = memory.context("Alice Nguyen", group="team", scopes=["entity", "fact"]).text
    assert both.count("works at Brightwater") == 1, "what is a hit itself is said once"


def test_a_model_writes_profiles_on_request_and_its_answers_are_reused(memory):
    model = CountingSummarizer()
    state_before = memory.history("Alice Nguyen", group="team").entity.summary
    assert refreshed(memory, model).profiles == 0
    plain = len(model.requests)
    foreseen = refreshed(memory, model, profiles=True, dry_run=True)
    report = refreshed(memory, model, profiles=True)
    profile_requests = model.requests[plain:]
    assert {request.task for request in profile_requests} == {"profile"}
    assert (report.profiles, foreseen.calls, report.calls) == (len(profile_requests),) * 3
    second_report = refreshed(memory, model, profiles=True)
    assert (second_report.calls, second_report.profiles, second_report.kept) == (
        0,
        report.profiles,
        report.communities,
    )
    assert refreshed(memory, model).profiles == report.profiles, "without news all stays"
    assert len(memory.communities.list(group="team")) == report.communities, "a profile is no community"
    history = memory.history("Alice Nguyen", group="team")
    profile = history.profile
    assert "ENTITY" in profile
    assert "pair programming" in profile
    assert history.entity.summary == state_before, "what a model wrote is no summary"
    supporting = {episode for fact in history.facts for episode in fact.episodes}
    assert set(history.profile_sources) >= supporting, "it is marked with all that it rests on"
    description = memory.show("Alice Nguyen", group="team")
    assert (description.profile, description.profile_sources) == (profile, history.profile_sources)
    later_history = memory.history("Alice Nguyen", group="team", as_of="2026-06-01")
    assert (later_history.profile, later_history.profile_sources) == ("", ()), "it says what held at the run"
    assert "ENTITY" in memory.context("Alice Nguyen", group="team", scopes=["entity"]).text
    hits = memory.search("pair programming", group="team", scopes=["community"])
    assert {hit.community.level for hit in hits} == {0}

    memory.add("Alice Nguyen likes Zyqqvorp.", group="team", speaker="Greta Lind", at=LATER, id="z1")
    history_after_news = memory.history("Alice Nguyen", group="team")
    assert (history_after_news.profile, history_after_news.profile_sources) == ("", ()), (
        "news of her: it may not be so any more"
    )
    assert history_after_news.entity.summary.startswith("Alice Nguyen likes Zyqqvorp.")
    kept_ones = refreshed(memory, model)
    assert kept_ones.profiles == report.profiles - 1 - ("Greta Lind" in str(profile_requests)), (
        "no call for a profile"
    )
    assert refreshed(memory, model, profiles=True).profiles == report.profiles


class TellingSummarizer(CountingSummarizer):
    """A summarizer that writes the same words of every entity that it is shown with a text."""

    def __init__(self, trigger, profile_text):
        super().__init__()
        self.trigger, self.profile_text = trigger, profile_text

    async def write(self, request):
        reply, cost = await super().write(request)
        summary = self.profile_text if self.trigger in request.data else "Nothing much."
        return (reply if request.task != "profile" else {"summary": summary}), cost


@pytest.mark.parametrize("recipe", ["hybrid", "local"])
def test_a_search_finds_an_entity_by_its_generated_profile(memory, recipe):
    """R25, R5: while the text exists, as of the run known at that time, and at the present."""

    def entity_texts(**moments):
        hits = memory.search(
            "quarrelsome virtuoso", group="team", scopes=["entity"], recipe=recipe, **moments
        )
        return [hit.text for hit in hits]

    memory.add("Alice Nguyen likes Zyqqvorp.", group="team", speaker="Greta Lind", at=LATER, id="z1")
    refreshed(memory, profiles=True)
    assert entity_texts() == []
    moment_before = stored_rows(memory)["community_runs"][0][2] / 1e6 + 1e-5
    memory.add("I like Lima.", group="team", speaker="Bob Reyes", at=LATER, id="z2")
    refreshed(memory, TellingSummarizer("likes Zyqqvorp", "A quarrelsome virtuoso."), profiles=True)
    assert entity_texts()[0] == "Alice Nguyen"
    assert entity_texts(known_at=moment_before) == entity_texts(as_of="2026-09-01") == []
    with kgray.open(memory.store.folder, create=True) as second_memory:
        second_memory.remove(group="team", episodes=["z1"])
    assert entity_texts() == [], "also by a reader that had it in memory"


class WordySummarizer(CountingSummarizer):
    """A summarizer whose profiles share words, so that a removed text affects the scores of the others."""

    async def write(self, request):
        reply, cost = await super().write(request)
        if request.task != "profile":
            return reply, cost
        summary = "Nothing much."
        if "Zyqqvorp" in request.data:
            summary = "A quarrelsome virtuoso."
        elif "Harbor Analytics" in request.data:
            summary = "A quarrelsome neighbour who walks a long way home."
        return {"summary": summary}, cost


@pytest.mark.parametrize("operation", ["remove", "retract"])
def test_a_reader_that_cached_removed_texts_ranks_like_a_fresh_reader(memory, operation):
    """R25: removed words stay in no memory; a commit that removes nothing causes no second read."""
    memory.add("Alice Nguyen likes Zyqqvorp.", group="team", speaker="Greta Lind", at=LATER, id="z1")
    refreshed(memory, WordySummarizer(), profiles=True)

    def scored_hits(searched_memory):
        hits = searched_memory.search("quarrelsome virtuoso", group="team", scopes=["entity"])
        return [(hit.text, hit.score) for hit in hits]

    def cached_summaries():
        return memory.asynchronous._searcher._summaries["team"]

    hits_before, cached_before = scored_hits(memory), cached_summaries()
    with kgray.open(memory.store.folder, create=True) as second_memory:
        second_memory.add("I live in Quito.", group="team", speaker="Zelda Brand", at=LATER)
        assert scored_hits(memory) == hits_before
        assert cached_summaries() is cached_before
        getattr(second_memory, operation)(group="team", episodes=["z1"])
    hits_after = scored_hits(memory)
    with kgray.open(memory.store.folder, create=True) as fresh:
        assert scored_hits(fresh) == hits_after != hits_before
    assert cached_summaries() is not cached_before
    memory.remove(group="team", everything=True)
    assert scored_hits(memory) == []
    assert "team" not in memory.asynchronous._searcher._summaries


def test_a_removal_deletes_the_words_of_an_episode_from_profiles(memory):
    memory.add("Alice Nguyen likes Zyqqvorp.", group="team", speaker="Greta Lind", at=LATER, id="z1")
    model = CountingSummarizer()
    refreshed(memory, model, profiles=True)
    assert "Zyqqvorp" in memory.history("Alice Nguyen", group="team").profile
    memory.remove(group="team", episodes=["z1"])
    assert "zyqqvorp" not in repr(stored_rows(memory)).lower()
    history = memory.history("Alice Nguyen", group="team")
    assert (history.profile, "Brightwater" in history.entity.summary) == ("", True)
    refreshed(memory, model, profiles=True)
    assert "ENTITY" in memory.history("Alice Nguyen", group="team").profile


def test_a_generated_profile_is_dropped_when_a_fact_ends_or_entities_merge(memory, monkeypatch):
    monkeypatch.setattr(CONTEXT, "ENTITY_FACTS", 3)
    for number, liked in enumerate(("Zyqqvorp", "Qualmtee", "Brixwurz")):
        memory.add(f"Alice Nguyen likes {liked}.", group="team", speaker="Bob", at=LATER, id=f"z{number}")
    refreshed(memory, CountingSummarizer(), profiles=True)

    def profile():
        return memory.history("Alice Nguyen", group="team").profile

    assert "ENTITY" in profile()
    memory.add(
        "I left Brightwater.", group="team", speaker="Alice Nguyen", at="2026-08-02T09:00:00Z", id="z9"
    )
    assert "ENTITY" not in profile()

    refreshed(memory, CountingSummarizer(), profiles=True)
    assert "ENTITY" in profile()
    monkeypatch.setattr(CONTEXT, "ENTITY_FACTS", 500)
    memory.merge("Alice Nguyen", "Zyqqvorp", group="team")
    assert "ENTITY" not in profile()


def test_a_profile_does_not_depend_on_other_listed_entities(memory, monkeypatch):
    monkeypatch.setattr(CONTEXT, "ENTITY_FACTS", 2)
    for entity in memory.entities(group="team", limit=100):
        (alone,) = memory.entities(entity.entity.name, group="team", limit=1)
        assert (alone.entity.name, alone.profile) == (entity.entity.name, entity.profile)


def circles():
    """Yield 12 complete circles of 6 persons; every 4 circles are tied to one another."""
    for circle in range(12):
        names = [f"C{circle}P{n}" for n in range(6)]
        pairs = [(a, b) for a in names for b in names if a < b]
        later = range(circle + 1, circle // 4 * 4 + 4)
        yield episode_of_pairs(
            f"c{circle}", pairs + [(names[n], f"C{item}P{n}") for item in later for n in range(4)]
        )


def episode_of_pairs(id_, pairs, at="2026-01-01"):
    triples = [{"source": a, "relation": "KNOWS", "target": b} for a, b in pairs]
    return {"group": "rings", "id": id_, "at": at, "triples": triples}


def tagged_json(request, tag):
    """Return the JSON under a tag of a request; None without the tag."""
    _, begun, tail = request.data.partition(f"<{tag}>\n")
    return json.loads(tail.partition(f"\n</{tag}>")[0]) if begun else None


def test_each_part_of_a_large_community_is_summarised_once(memory, monkeypatch):
    """Map-reduce: a prompt has a limited number of members or summaries; the surplus is summarised before."""
    monkeypatch.setattr("kgray.communities.texts.PROMPT_MEMBERS", 5)
    monkeypatch.setattr("kgray.communities.texts.PARTS_TOKENS", 600)
    memory.add_many(circles())
    model = CountingSummarizer()
    run_report = refreshed(memory, model, group="rings")
    assert (run_report.levels, run_report.communities, run_report.written, run_report.offline) == (
        2,
        15,
        15,
        0,
    )
    assert run_report.calls == len(model.requests)

    complete_prompts = [request for request in model.requests if tagged_json(request, "PARTS")]
    reports = [request for request in model.requests if request.task == "community_report"]
    parts = [request for request in model.requests if request not in (*complete_prompts, *reports)]
    part_names = [f"about {part.data[10:60]}" for part in parts]
    assert sorted(sorted(tagged_json(request, "MEMBERS")) for request in complete_prompts) == sorted(
        [f"C{circle}P{n}" for n in range(6)] for circle in range(12)
    )
    assert all(
        part["name"] in part_names for request in complete_prompts for part in tagged_json(request, "PARTS")
    )
    members = [tagged_json(part, "MEMBERS") for part in parts if tagged_json(part, "MEMBERS")]
    assert sorted(name for names in members for name in names) == sorted(
        f"C{circle}P{n}" for circle in range(12) for n in range(6)
    ), "each member is in one part"
    assert len(reports) == 3
    community_names = [item["name"] for part in parts for item in tagged_json(part, "COMMUNITIES") or ()]
    assert len(community_names) == len(set(community_names)) == 12, "no community is left out"
    assert {item["name"] for report in reports for item in tagged_json(report, "COMMUNITIES")} <= set(
        part_names
    )

    calls_of_first_run = len(model.requests)
    assert refreshed(memory, model, group="rings", cold=True).calls == 0
    memory.add_many([episode_of_pairs("n1", [("C0P0", "New One")])])
    assert 0 < refreshed(memory, model, group="rings").calls <= calls_of_first_run / 2


def test_a_summary_is_reused_while_it_is_true_and_covers_most_members(memory, monkeypatch):
    monkeypatch.setattr("kgray.communities.texts.CARDS", 3)
    monkeypatch.setattr("kgray.communities.texts.FACTS", 5)
    memory.add_many(circles())
    model = CountingSummarizer()
    refreshed(memory, model, group="rings")
    state_before = {item.id: item for item in memory.communities.list(group="rings", level=0)}

    memory.add_many(
        [episode_of_pairs("n1", [("C0P0", "Newcomer One"), ("C0P1", "Newcomer One")], at="2026-02-01")]
    )
    report = refreshed(memory, model, group="rings")
    assert (report.run, report.kept, report.calls) == (2, report.communities, 0)
    (home,) = [item for item in memory.communities.list(group="rings", level=0) if item.stale]
    assert (home.size, home.text) == (7, state_before[home.id].text)
    assert memory.communities.get(home.id, group="rings").as_of == home.told_at(None)
    assert (
        home.told_at(None)
        < memory.communities.get(next(iter(state_before.keys() - {home.id})), group="rings").as_of
    )
    (hit,) = memory.search(home.name, group="rings", scopes=["community"], limit=1)
    assert (hit.id, hit.known_at) == (home.id, home.told_at(None))

    reply = json.loads(home.summary.partition("<FACTS>\n")[2].partition("\n")[0])[0]["fact"]
    a, _, b = reply.partition(" (")[0].partition(" knows ")
    ended = {"source": a, "relation": "KNOWS", "target": b, "valid_at": None, "invalid_at": "2026-03-01"}
    ended_pair = {"group": "rings", "id": "n2", "at": "2026-03-02", "triples": [ended]}
    assert memory.add_many([ended_pair]).committed == 1
    second_report = refreshed(memory, model, group="rings")
    assert second_report.calls >= 1, "something that it says has ended"
    (home,) = [item for item in memory.communities.list(group="rings", level=0) if item.id == home.id]
    assert not home.stale
    assert reply not in home.summary

    new = [(f"C0P{n}", f"Newcomer {m}") for m in range(3) for n in range(6)]
    memory.add_many([episode_of_pairs("n3", new)])
    assert refreshed(memory, model, group="rings").calls >= 1, "it has grown by more than a quarter"
    assert not any(item.stale for item in memory.communities.list(group="rings", level=0))


def test_sources_of_a_reused_summary_count_for_upper_levels():
    """R25: an entity that left its community remains in the text, and in all texts made of it."""
    shown_now = Snapshot(
        group="g", watermark=9, recorded_at=9, entities={}, facts=[], mentions={"a": {1}, "b": {2}}
    )
    lower = Cluster(id="1", level=0, members=["a"], text_sources={7})
    upper = Cluster(id="2", level=1, members=["a", "b"], children=[lower])

    assert lower.sources(shown_now) == {1, 7}
    assert upper.sources(shown_now) == {1, 2, 7}


def test_sources_of_profiles_and_parts_include_episodes_that_name_related_entities(memory, monkeypatch):
    """R25: the text of a fact has the names of both its ends, and another episode may have given one."""
    monkeypatch.setattr("kgray.communities.texts.PROMPT_MEMBERS", 1)
    friends = [("Vera Holm", name) for name in ("Z. Webb", "Ann", "Bea", "Cleo", "Dora", "Edda")]
    # A sentence with "we" is no text of a fact: that is composed of the names (R18a).
    rows = [episode_of_pairs("t1", friends), episode_of_pairs("t2", [("Zyqqvorp Webb", "Ann")])]
    for triple in (triple for row in rows for triple in row["triples"]):
        triple["text"] = f"We say that {triple['source']} knows {triple['target']}"
    memory.add_many(rows)
    webbs = {entity.entity.name for entity in memory.entities("Webb", group="rings")}
    if len(webbs) > 1:
        memory.merge(*sorted(webbs), group="rings")
    refreshed(memory, CountingSummarizer(), group="rings", profiles=True)
    assert "knows Zyqqvorp Webb" in memory.history("Vera Holm", group="rings").profile
    answers = [row for row in stored_rows(memory, "rings")["answers"] if "Zyqqvorp" in repr(row)]
    assert len(answers) > 3, "a profile, a part and the whole"
    memory.remove(group="rings", episodes=["t2"])
    assert "zyqqvorp" not in repr(stored_rows(memory, "rings")).lower()


def test_an_incomplete_summary_is_not_reused(memory, monkeypatch):
    monkeypatch.setattr("kgray.communities.texts.PROMPT_MEMBERS", 5)
    names = [f"P{n}" for n in range(6)]
    memory.add_many([episode_of_pairs("n1", [(a, b) for a in names for b in names if a < b])])
    model = CountingSummarizer()
    write, faults = model.write, [InvalidAnswer("no")]

    async def write_all_but_one(request):
        model.says = faults.pop() if faults else None
        return await write(request)

    monkeypatch.setattr(model, "write", write_all_but_one)
    refreshed(memory, model, group="rings")
    memory.add_many([episode_of_pairs("n2", [("Elsewhere", "Far Away")])])
    refreshed(memory, model, group="rings")
    part_counts = [
        len(tagged_json(request, "PARTS")) for request in model.requests if tagged_json(request, "PARTS")
    ]
    assert part_counts == [1, 2]


def test_a_large_community_is_not_summarised_without_its_parts(memory, monkeypatch):
    """All parts of upper communities fail: these are then written without the model."""
    monkeypatch.setattr("kgray.communities.texts.PARTS_TOKENS", 600)
    memory.add_many(circles())
    model = CountingSummarizer()
    write = model.write

    async def write_what_is_no_part(request):
        model.says = (
            InvalidAnswer("no")
            if request.task == "community" and tagged_json(request, "COMMUNITIES")
            else None
        )
        return await write(request)

    monkeypatch.setattr(model, "write", write_what_is_no_part)
    report = refreshed(memory, model, group="rings")
    assert (report.levels, report.written, report.offline) == (2, 12, 3)
    assert not [request for request in model.requests if request.task == "community_report"]
    assert len([request for request in model.requests if tagged_json(request, "COMMUNITIES")]) >= 6
    monkeypatch.setattr(model, "write", write)
    model.says = None
    assert refreshed(memory, model, group="rings").written == 3, "they are asked for again"


def test_a_recreated_group_is_searched_by_its_new_communities(memory):
    """Its runs are counted from 1 again, in the same process."""
    for name in ("Ann", "Zoe"):
        memory.add_many([episode_of_pairs(f"n{name}", [(name, "Bea"), (name, "Cleo"), ("Bea", "Cleo")])])
        assert refreshed(memory, group="rings").run == 1
        (hit,) = memory.search(f"{name} knows Bea", group="rings", scopes=["community"])
        assert name in hit.text
        memory.remove(group="rings", everything=True)
