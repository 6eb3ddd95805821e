"""The reranking of hits, against references; a group's list depends on that group alone."""

from __future__ import annotations

import random
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgray.errors import InputError
from kgray.search import Query, Searcher
from tests.graph.search_world import World, a_world, chain, day


@pytest.fixture
def world(tmp_path):
    """Open an empty store."""
    with a_world(tmp_path) as world:
        yield world


class Longest:
    """A cross-encoder by rule: the longer a text, the better it fits."""

    identity = "longest"

    async def score(self, query, texts):
        """Return a score a text."""
        assert query.strip()
        return np.array([min(1.0, len(text) / 100) for text in texts], np.float32)


async def test_a_cross_encoder_reranks_three_times_the_limit(world):
    """Of 3 times the limit the two longest texts come first, with its scores; without one it is refused."""
    for n in range(6):
        text = "Ann has a boat" + " indeed" * n
        await world.tell("demo", text, day(n))
    query = Query(text="Ann's boat", group="demo", recipe="reranked", scopes=("episode",), limit=2)
    hits = await Searcher(world.store, world.embedder, Longest()).search(query)
    assert [hit.text for hit in hits] == ["Ann has a boat" + " indeed" * n for n in (5, 4)]
    assert [hit.score for hit in hits] == pytest.approx([0.49, 0.42])
    with pytest.raises(InputError, match=r"reranker\.backend"):
        await Searcher(world.store, world.embedder).search(query)


async def test_nearby_measures_true_shortest_paths(world):
    """A random graph of 14 people against a plain breadth-first walk: 1 / (1 + steps), 0 beyond three."""
    rng = random.Random(4)
    people = [f"P{n}" for n in range(14)]
    edges = sorted({(a, b) for a, b in (rng.sample(range(14), 2) for _ in range(17))})
    facts = [
        (people[a], "KNOWS", people[b], f"{people[a]} knows {people[b]}", day(0), None) for a, b in edges
    ]
    await world.tell("demo", "They meet.", day(0), facts=facts)
    distance, front = {edges[0][0]: 0}, [edges[0][0]]
    for steps in count(1):
        around = {end for edge in edges for end in edge if set(edge) & set(front)}
        front = [end for end in around if end not in distance]
        distance |= dict.fromkeys(front, steps)
        if not front:
            break
    centre = world.id_of("demo", people[edges[0][0]])
    query = Query(
        text=" ".join([*people, "knows"]),
        group="demo",
        recipe="nearby",
        centre=centre,
        scopes=("fact",),
        limit=100,
    )
    hits = await Searcher(world.store, world.embedder).search(query)
    assert len(hits) == len(edges)
    for hit in hits:
        ends = [people.index(name) for name in (hit.subject, hit.object)]
        near = min((distance[end] for end in ends if distance.get(end, 9) <= 3), default=None)
        assert hit.score == (0 if near is None else 1 / (1 + near)), hit.text


async def test_explain_lists_messages_already_stated_by_a_higher_hit(world):
    await chain(world, "demo")
    ranking = await Searcher(world.store, world.embedder).ranking(
        Query(text="Olaf owns a boat", group="demo")
    )
    assert [hit.text for hit in ranking.hits if hit.scope == "fact"] == ["Olaf owns a boat"]
    assert [(scope, text) for scope, _, text in ranking.said_above] == [("episode", "Far away Olaf rows.")]
    assert 0 < ranking.floor < 1


SOME = "tea coffee boat house red green Ann Ben sells".split()
WORDS = st.lists(st.sampled_from(SOME), min_size=1, max_size=5)
TEXTS = st.lists(WORDS.map(" ".join), min_size=1, max_size=6)
numbers = count()


async def tell_all(world: World, group: str, texts: list[str]) -> None:
    for n, text in enumerate(texts):
        facts = [(f"Who{n}", "SAYS", f"What{n}", f"Who{n} says {text}", day(n), None)]
        await world.tell(group, text, day(n), facts=facts, client_id=f"m{n}")


async def ranked_hits(world: World, group: str, query: str) -> list[tuple[str, str, float]]:
    """Return a group's hits with their scores, ids left out."""
    hits = await Searcher(world.store, world.embedder).search(Query(text=query, group=group, limit=50))
    return [(hit.scope, hit.text, hit.score) for hit in hits]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, texts_elsewhere=TEXTS, query=WORDS.map(" ".join))
async def test_a_list_and_its_scores_do_not_depend_on_other_groups(world, texts, texts_elsewhere, query):
    group = f"g{next(numbers)}"
    await tell_all(world, group, texts)
    alone = await ranked_hits(world, group, query)
    await tell_all(world, f"{group}-other", [*texts_elsewhere, *texts])
    assert await ranked_hits(world, group, query) == alone
