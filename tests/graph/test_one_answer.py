"""Promise 8: one wrong answer of a model harms one fact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.graph.engine import Engine
from tests.graph.stores import SqliteStores
from tests.graph.wrong_answers import (
    HISTORIES,
    FixedAnswers,
    Flip,
    Observed,
    Promise,
    draft_of,
    observed,
    unconfirmed,
)

Fresh = Callable[..., Engine]
EXAMPLES = int(os.environ.get("KGRAY_TEST_EXAMPLES", "40"))
MANY = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Yield a function that makes an engine with a group of its own, all in one store."""
    stores = SqliteStores(tmp_path_factory.mktemp("answers"))
    store = stores.open()
    yield lambda **how: Engine(store=store, prefix=stores.fresh(), **how)
    stores.close()


def outcome(fresh: Fresh, history: list[Any], flip: Flip | None = None) -> tuple[Observed, FixedAnswers]:
    """Return what the history makes with fixed answers, of which one may be replaced."""
    judge = FixedAnswers(flip)
    engine = fresh(judge=judge)
    engine.add(*(draft_of(number, episode) for number, episode in enumerate(history)))
    return observed(engine, judge), judge


@MANY
@given(history=HISTORIES, picks=st.lists(st.integers(0, 10_000), min_size=1, max_size=3))
def test_one_wrong_answer_harms_one_fact(fresh: Fresh, history: list[Any], picks: list[int]) -> None:
    """Whatever answer is replaced, nothing differs but what rests on it."""
    before, judge = outcome(fresh, history)
    flips = judge.flips()
    assume(flips)
    for flip in (flips[pick % len(flips)] for pick in picks):
        after, _ = outcome(fresh, history, flip)
        promise = Promise(before, after, flip)
        assert promise.broken() == []


@MANY
@given(history=HISTORIES)
def test_an_alias_counts_within_its_conversation_until_two_answers_confirm_it(
    fresh: Fresh, history: list[Any]
) -> None:
    """R14a: elsewhere an alias that rests on one answer is asked about again."""
    run, _ = outcome(fresh, history)
    drafts = [draft_of(number, episode) for number, episode in enumerate(history)]
    episodes = {n: (d.source, d.reference_time or 0, d.text) for n, d in enumerate(drafts, 1)}

    assert unconfirmed(run, episodes) == []
