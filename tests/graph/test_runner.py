"""The windowed runner makes the plain loop's graph, in any order of answers (promise 1, R20, R21)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.plain_loop import Loop
from kgray.domain import times
from kgray.domain.records import Draft, Extraction, Operation
from kgray.errors import InvalidAnswer, Refused, Unavailable
from kgray.ingest.decide import decide
from kgray.ingest.runner import Runner
from kgray.ingest.state import (
    BYTES_A_NAME,
    BYTES_A_STATEMENT,
    Answers,
    Decision,
    GroupState,
    KnownState,
    ReadEpisode,
    Rules,
)
from kgray.ports import ExtractionRequest, Extractor, Judge, Judged, Matrix, QuestionRequest
from kgray.ports.ingest import Totals
from kgray.storage.ledger import accept, failures, pending_groups, request, retry_failed
from tests.graph.engine import GROUP, SMALL, Engine, WildJudge, in_group, reading, triples, works
from tests.graph.test_promises import ORGANIZATIONS, PEOPLE, RELATIONS, WORDINGS, fact_of
from tests.waiting import HANGS_S

COUNT = 40  # episodes of the histories that runs are compared on


@pytest.fixture(autouse=True)
def always_decide_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have episodes decided ahead, although the models of these tests answer at once."""
    monkeypatch.setattr("kgray.ingest.flight.AT_ONCE_S", (0.0, 0.0))


class Shuffled:
    """A model whose calls end in random order; some calls find it out of reach, some texts are refused."""

    def __init__(self, extractor: Extractor, judge: Judge, seed: int) -> None:
        self.identity = judge.identity
        self._extractor, self._judge = extractor, judge
        self._rng = random.Random(seed)
        self.question_keys: list[str] = []

    async def _wait(self) -> None:
        await asyncio.sleep(self._rng.random() * 0.01)
        if self._rng.random() < 0.03:
            raise Unavailable("the model is out of reach")

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Read the episode; every eleventh is refused for its content, always the same ones."""
        await self._wait()
        if request.episode.sequence % 11 == 0:
            raise InvalidAnswer("no usable answer")
        return await self._extractor.extract(request)

    def key(self, request: QuestionRequest) -> str:
        """Return the judge's key."""
        return self._judge.key(request)

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer, and note the question's key."""
        await self._wait()
        self.question_keys.append(f"{request.episode.group} {self.key(request)}")
        return await self._judge.judge(request)


def drafts(seed: int, count: int, groups: int = 1) -> list[Draft]:
    """Return random episodes, spread over groups."""
    rng = random.Random(seed)
    copies = []
    for number in range(count):
        at = rng.randrange(13)
        facts: list[dict[str, Any]] = [
            {
                "source": rng.choice(PEOPLE),
                "target": rng.choice(PEOPLE + ORGANIZATIONS),
                "relation": rng.choice(RELATIONS),
                "wording": rng.choice(WORDINGS),
                "kind": rng.choice(["holds", "holds", "holds", "ended", "denied"]),
                "start": rng.choice([None, rng.randrange(13)]),
                "end": rng.choice([None, rng.randrange(13)]),
                "value": rng.choice([None, None, 100, "done"]),
            }
            for _ in range(rng.randrange(1, 4))
        ]
        draft = reading(at, [], [fact_of(f, at) for f in facts], client_id=f"e{number}")
        copies.append(in_group(draft, GROUP if groups == 1 else f"g{number % groups}"))
    return copies


def corrections(engine: Engine) -> None:
    """Put corrections between the episodes that are accepted: the undo has its place, the others go first."""
    for kind, fields in (
        ("retract", {"episodes": ("e3",)}),
        ("undo", {"target": 1}),
        ("remove", {"episodes": ("e7",)}),
    ):
        request(engine.store, Operation(group=GROUP, kind=kind, **fields))  # type: ignore[arg-type]


def fill(engine: Engine, messages: list[Draft]) -> None:
    """Accept episodes with corrections among them."""
    half = len(messages) // 2
    engine.accept(*messages[:half])
    if messages[0].group == GROUP:
        corrections(engine)
    engine.accept(*messages[half:])


def run_windowed(engine: Engine, window: int, seed: int) -> tuple[Totals, Shuffled]:
    """Ingest with the runner and a model that answers in random order."""
    model = Shuffled(engine.parts.extractor, engine.parts.judge, seed)
    parts = replace(engine.parts, extractor=model, judge=model, patience_s=HANGS_S)
    parts = replace(parts, window=window, streams=max(1, window // 4))
    with engine.store.writing():
        return asyncio.run(Runner(parts).run()), model


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[str]]]:
    """Return the plain loop's dumps: of one group, and of four."""
    dumps = {}
    for groups in (1, 4):
        engine = Engine(tmp_path_factory.mktemp("plain"), judge=WildJudge())
        model = Shuffled(engine.parts.extractor, engine.parts.judge, 0)
        engine.parts = replace(engine.parts, extractor=model, patience_s=HANGS_S)
        engine.loop = type(engine.loop)(engine.parts)
        fill(engine, drafts(5, COUNT, groups))
        engine.run()
        dumps[groups] = {g: engine.dump(group=g) for g in engine.groups()}
    return dumps


@pytest.mark.parametrize(
    ("window", "groups"), [(1, 1), (8, 4), pytest.param(64, 1, marks=pytest.mark.slow), (64, 4)]
)
def test_every_window_gives_the_dump_of_the_plain_loop(
    tmp_path: Path, plain: dict[int, dict[str, list[str]]], window: int, groups: int
) -> None:
    """With wild answers, shuffled completions, outages, failures, corrections; no request is asked twice."""
    engine = Engine(tmp_path, judge=WildJudge())
    fill(engine, drafts(5, COUNT, groups))
    totals, model = run_windowed(engine, window, seed=window)
    assert {g: engine.dump(group=g) for g in engine.groups()} == plain[groups]
    assert len(model.question_keys) == len(set(model.question_keys))
    assert totals.committed + totals.failed == COUNT - (2 if groups == 1 else 0)  # two were withdrawn
    assert totals.failed == len(failures(engine.store))


def test_a_stopped_run_continues_without_repeating_questions(
    tmp_path: Path, plain: dict[int, dict[str, list[str]]]
) -> None:
    """R21, R24: the journal keeps all answers, the store keeps all extractions."""
    engine = Engine(tmp_path, judge=WildJudge())
    fill(engine, drafts(5, COUNT))
    model = Shuffled(engine.parts.extractor, engine.parts.judge, 3)
    parts = replace(engine.parts, extractor=model, judge=model, window=16, streams=8, patience_s=HANGS_S)
    ended: list[int] = []
    rounds = 0
    while engine.store.pending_count():
        rounds += 1
        bound = 10 * rounds
        with engine.store.writing():
            asyncio.run(
                Runner(parts).run(stop=lambda: len(ended) >= bound, on_step=lambda *_: ended.append(1))  # noqa: B023
            )
    assert rounds > 1
    assert {GROUP: engine.dump()} == plain[1]
    assert len(model.question_keys) == len(set(model.question_keys))


def test_an_unreachable_model_ends_the_run_without_losing_episodes(tmp_path: Path) -> None:
    """R24: beyond its patience the run stops; the episodes stay accepted."""

    class UnreachableModel:
        identity = "gone"

        async def extract(self, request: ExtractionRequest) -> Extraction:
            raise Unavailable(f"nobody answers for {request.episode.sequence}")

    engine = Engine(tmp_path)
    engine.accept(*drafts(1, 20))
    parts = replace(engine.parts, extractor=UnreachableModel(), patience_s=0.1)
    with engine.store.writing(), pytest.raises(Unavailable, match="nobody answers"):
        asyncio.run(Runner(parts).run())
    assert engine.store.counts(GROUP)[GROUP].accepted == 20
    engine.run()
    assert engine.store.counts(GROUP)[GROUP].committed == 20


def test_a_late_extraction_at_the_head_is_sent_twice(tmp_path: Path) -> None:
    """The first answer of the two is used, and the queue continues."""
    engine = Engine(tmp_path)
    engine.accept(*drafts(1, 20))
    inner = engine.parts.extractor
    calls: list[int] = []

    class Straggling:
        identity = "straggling"

        async def extract(self, request: ExtractionRequest) -> Extraction:
            calls.append(request.episode.sequence)
            if request.episode.sequence == 5 and calls.count(5) == 1:
                await asyncio.Event().wait()
            return await inner.extract(request)

    parts = replace(engine.parts, extractor=Straggling(), late_s=0.05)
    with engine.store.writing():
        totals = asyncio.run(Runner(parts).run())
    assert (totals.committed, calls.count(5), len(calls)) == (20, 2, 21)


def test_a_vector_computed_ahead_adds_no_candidates(tmp_path: Path) -> None:
    """A name that was unknown ahead of time and is known in its turn is decided as in the plain loop."""
    names = [("Kelstaholm", "City"), ("Kelstaholms", "City"), ("Kelstaholms", "Company")]
    messages = [
        reading(day, [{"name": name, "type": kind}], [], client_id=f"e{day}")
        for day, (name, kind) in enumerate(names)
    ]
    sequences_read: list[int] = []

    class Late:
        """Reads the second episode once the third was asked about; its first candidate is the third's."""

        def __init__(self, extractor: Extractor, judge: Judge) -> None:
            self.identity = judge.identity
            self.key = judge.key
            self._extractor = extractor
            self._second_read = asyncio.Event()

        async def extract(self, request: ExtractionRequest) -> Extraction:
            if request.episode.sequence == 2:
                await self._second_read.wait()
            return await self._extractor.extract(request)

        async def judge(self, request: QuestionRequest) -> Judged:
            sequences_read.append(request.episode.sequence)
            chosen = None
            if request.episode.sequence == 3:
                self._second_read.set()
                chosen = 0
            return Judged(answers=tuple({"duplicate_of": chosen} for _ in request.questions), calls=1)

    dumps = []
    for window in (0, 8):
        engine = Engine(tmp_path / str(window))
        engine.accept(*messages)
        late = Late(engine.parts.extractor, engine.parts.judge)
        parts = replace(engine.parts, extractor=late if window else engine.parts.extractor, judge=late)
        with engine.store.writing():
            asyncio.run((Runner(parts) if window else Loop(parts)).run())
        dumps.append(engine.dump())
    assert dumps[0] == dumps[1]
    assert sequences_read[:3] == [2, 3, 3]  # the plain loop in order, then the runner: the third first


@pytest.mark.parametrize("kind", ["loop", "runner"])
def test_a_run_of_some_groups_leaves_other_groups_pending(tmp_path, kind):
    """An outage in one group must not keep a correction in another waiting: its run never meets it."""
    engine = Engine(tmp_path)
    engine.accept(triples(1, works("Acme")), triples(1, works("Beta"), group="h"))
    run = (engine.loop if kind == "loop" else Runner(engine.parts)).run
    with engine.store.writing():
        assert asyncio.run(run(groups={"g", "unknown"})).committed == 1
        assert pending_groups(engine.store) == {"h": True}
        assert asyncio.run(run(groups=())).committed == 0
        assert asyncio.run(run()).committed == 1
    engine.store.close()


def test_a_text_refused_by_the_embedder_fails_only_its_episode(tmp_path: Path) -> None:
    """R24: like the plain loop, in every window; other episodes and groups continue."""

    class Choosy:
        identity, dimensions = SMALL.identity, SMALL.dimensions

        async def embed(self, texts: Sequence[str]) -> Matrix:
            if any("e3" in text for text in texts):
                raise Refused("too long for this embedder")
            return await SMALL.embed(texts)

    for window in (0, 1, 16):
        engine = Engine(tmp_path / str(window))
        engine.accept(*drafts(1, 8), *(in_group(d, "other") for d in drafts(1, 3)))
        parts = replace(engine.parts, embedder=Choosy(), window=max(1, window))
        runner = Loop(parts) if window == 0 else Runner(parts)
        with engine.store.writing():
            totals = asyncio.run(runner.run())
        assert (totals.committed, totals.failed) == (10, 1)
        assert [f.episode.client_id for f in failures(engine.store)] == ["e3"]


def test_a_slow_model_gets_each_request_once(tmp_path: Path) -> None:
    """A head is late relative to the recent duration of extractions, not by the clock alone."""
    engine = Engine(tmp_path)
    engine.accept(*drafts(1, 12))
    inner = engine.parts.extractor
    calls: list[int] = []

    class Slow:
        identity = "slow"

        async def extract(self, request: ExtractionRequest) -> Extraction:
            calls.append(request.episode.sequence)
            await asyncio.sleep(0.08)
            return await inner.extract(request)

    with engine.store.writing():
        asyncio.run(Runner(replace(engine.parts, extractor=Slow(), window=1, late_s=0.05)).run())
    # With a fixed limit all twelve would be late; here the first may be, and any unusually long extraction.
    assert len(calls) < 20


def test_a_live_message_does_not_wait_behind_another_groups_backlog(tmp_path: Path) -> None:
    """Two lanes: interactive messages overtake bulk messages."""
    engine = Engine(tmp_path)
    backlog = [in_group(d, "backlog") for d in drafts(1, 110)]
    accept(engine.store, backlog, now=times.now(), bulk=True)
    inner = engine.parts.extractor
    ended: list[str] = []

    class Taking:
        identity = "taking"

        async def extract(self, request: ExtractionRequest) -> Extraction:
            await asyncio.sleep(0.02)
            return await inner.extract(request)

    def step(group: str, _sequence: int, _outcome: str) -> None:
        ended.append(group)
        if len(ended) == 20:
            engine.accept(*(in_group(d, "live") for d in drafts(2, 3)))

    parts = replace(engine.parts, extractor=Taking(), window=32, streams=4)
    with engine.store.writing():
        totals = asyncio.run(Runner(parts).run(on_step=step))
    assert totals.committed == 113
    # Decided episodes, and episodes that hold a place at the model, go first: not the backlog.
    assert ended.index("live") - 20 <= 80
    assert ended.count("live") == 3


async def test_raising_the_limit_during_a_run_allows_more_decisions_ahead(tmp_path: Path) -> None:
    """While the first episode is being read, the next episodes are decided, up to the number of calls."""
    engine, first = Engine(tmp_path), asyncio.Event()
    engine.accept(*drafts(1, 20))
    inner = engine.parts.extractor

    class WaitingReader:
        identity = "held"

        async def extract(self, request: ExtractionRequest) -> Extraction:
            if request.episode.sequence == 1:
                await first.wait()
            return await inner.extract(request)

    runner = Runner(replace(engine.parts, extractor=WaitingReader(), window=32, streams=2))

    async def decided(count: int) -> None:
        def tried() -> int:
            windows = runner.current._windows.values() if runner.current else ()
            return sum(item.tried for window in windows for item in window.items.values())

        async with asyncio.timeout(HANGS_S):
            while tried() != count:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)

    with engine.store.writing():
        running = asyncio.create_task(runner.run())
        await decided(2)
        runner.widen(6)
        await decided(6)
        first.set()
        assert (await running).committed == 20


def test_bulk_and_live_episodes_of_a_group_keep_their_order(tmp_path: Path) -> None:
    """R20: a lane affects waiting, not the order inside a group; the graph does not depend on it."""
    plain_engine = Engine(tmp_path / "plain", judge=WildJudge())
    plain_engine.accept(*drafts(7, 40))
    plain_engine.run()
    engine = Engine(tmp_path / "mixed", judge=WildJudge())
    for number, draft in enumerate(drafts(7, 40)):
        accept(engine.store, [draft], now=times.now(), bulk=number % 3 != 0)
    ended: list[int] = []
    with engine.store.writing():
        asyncio.run(
            Runner(replace(engine.parts, window=16, streams=4)).run(on_step=lambda _, s, __: ended.append(s))
        )
    assert ended == sorted(ended)
    assert engine.dump() == plain_engine.dump()


def test_commits_of_another_process_during_a_run_are_read(tmp_path: Path, plain: Any) -> None:
    """R4: a retry from elsewhere takes a record time; the run reads the state again and loses nothing."""
    engine = Engine(tmp_path, judge=WildJudge())
    fill(engine, drafts(5, COUNT))
    model = Shuffled(engine.parts.extractor, engine.parts.judge, 4)
    parts = replace(engine.parts, extractor=model, judge=model, window=16, streams=8, patience_s=HANGS_S)
    elsewhere = Engine(tmp_path)
    retried = []

    def step(_group: str, _sequence: int, outcome: str) -> None:
        if outcome == "failed" and not retried:
            # A day ahead: as far as clocks of two machines may be apart, and more.
            retried.append(retry_failed(elsewhere.store, GROUP, (), now=times.now() + times.DAY))

    with engine.store.writing():
        asyncio.run(Runner(parts).run(on_step=step))
    assert retried == [1]
    assert engine.store.pending_count() == 0
    counts = engine.store.counts(GROUP)[GROUP]
    assert counts.committed + counts.failed == COUNT - 2  # one was removed, one retracted
    engine.loop.committer.forget_all()
    engine.check()


def test_many_groups_take_turns_and_each_poll_reads_few_groups(tmp_path: Path) -> None:
    """No group waits for the end of another group's backlog; a poll does not read all groups."""
    engine = Engine(tmp_path)
    messages = [reading(n, [], [works(f"F{n}")]) for n in range(12)]
    group_names = [f"g{n:02}" for n in range(20)]
    accept(
        engine.store,
        [in_group(draft, group) for group in group_names for draft in messages],
        now=1,
        bulk=True,
    )
    groups_read: list[str] = []
    ended: list[str] = []

    class Counted:
        """The store; it notes the groups whose pending rows are read."""

        def __getattr__(self, name: str) -> Any:
            return getattr(engine.store, name)

        def pending_sequences(self, group: str, start: int, limit: int) -> Any:
            groups_read.append(group)
            return engine.store.pending_sequences(group, start, limit)

    with engine.store.writing():
        asyncio.run(
            Runner(replace(engine.parts, store=Counted(), window=16)).run(
                on_step=lambda g, *_: ended.append(g)
            )
        )

    assert len(ended) == 240
    # A turn is a quarter of the window: each group waits for one turn of every other, not for its end.
    assert {ended.index(group) < 4 * len(group_names) + 16 for group in group_names} == {True}
    assert len(groups_read) < 240


@pytest.mark.slow  # test_state_loads counts them for a few groups
def test_a_loaded_state_is_used_for_several_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the states fits in memory, and 20 episodes wait in each group."""
    engine = Engine(tmp_path)
    group_names = [f"g{n:02}" for n in range(50)]
    drafts = [in_group(reading(n, [], [works(f"F{n}")]), group) for n in range(20) for group in group_names]
    accept(engine.store, drafts, now=1, bulk=True)
    loads: list[str] = []
    load = GroupState.load

    def counted(store: Any, group: str, dimensions: int) -> GroupState:
        loads.append(group)
        return load(store, group, dimensions)

    monkeypatch.setattr(GroupState, "load", counted)
    size = 20 * (BYTES_A_STATEMENT + BYTES_A_NAME) + BYTES_A_NAME
    parts = replace(engine.parts, window=80, state_bytes=5 * size)
    runner = Runner(parts)
    with engine.store.writing():
        asyncio.run(runner.run())

    assert runner.totals.committed == len(drafts)
    assert len(loads) <= 0.1 * len(drafts)


class Away:
    """A writer that goes away after its first batches, until it is back."""

    def __init__(self, engine: Engine) -> None:
        self._store, self.runs_left = engine.store, 4
        self.away, self.back = asyncio.Event(), asyncio.Event()

    async def write(self, writes: Sequence[Any]) -> None:
        """Write, or wait."""
        if not self.runs_left:
            self.away.set()
            await self.back.wait()
        self.runs_left = max(0, self.runs_left - 1)
        self._store.apply(writes)


async def test_decisions_are_limited_to_a_window_while_the_writer_is_away(tmp_path: Path) -> None:
    """Waiting episodes are in memory: a backlog must not gather there."""
    engine = Engine(tmp_path)
    engine.accept(*(reading(n % 9, [], [works(f"F{n}")]) for n in range(100)))
    read: list[int] = []

    class Noted(type(engine.parts.extractor)):  # type: ignore[misc]
        """Notes its reads."""

        async def extract(self, request: ExtractionRequest) -> Extraction:
            read.append(request.episode.sequence)
            return await super().extract(request)

    writer = Away(engine)
    with engine.store.writing():
        runner = Runner(replace(engine.parts, writer=writer, extractor=Noted(), window=8))
        running = asyncio.create_task(runner.run())
        away = asyncio.create_task(writer.away.wait())
        await asyncio.wait((running, away), return_when=asyncio.FIRST_COMPLETED)
        assert not running.done()
        committed = engine.store.counts()[GROUP].committed
        for _ in range(2_000):  # a run that continues would read all of them in this time
            await asyncio.sleep(0)
        read_count = len(read)
        writer.back.set()
        await running

    assert len(read) == engine.store.counts()[GROUP].committed == 100
    assert read_count <= committed + 3 * 8


def test_a_fast_model_is_asked_at_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first episodes are decided ahead for it; the graph equals the plain loop's."""
    monkeypatch.setattr("kgray.ingest.flight.AT_ONCE_S", (60.0, 60.0))
    engine, plain = (
        Engine(tmp_path / "windowed", judge=WildJudge()),
        Engine(tmp_path / "plain", judge=WildJudge()),
    )
    for each in (engine, plain):
        each.accept(*drafts(5, COUNT))
    with engine.store.writing():
        totals = asyncio.run(Runner(replace(engine.parts, window=64, streams=4)).run())
    plain.run()
    assert totals.stalls == totals.requests > 0
    assert engine.dump() == plain.dump()


def test_slow_questions_are_asked_ahead_even_if_extractions_are_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache may have extractions and no answers: one question at a time would take minutes."""
    monkeypatch.setattr("kgray.ingest.flight.AT_ONCE_S", (60.0, 0.05))
    calls_in_flight = max_in_flight = 0

    class Slow(WildJudge):
        async def judge(self, request: QuestionRequest) -> Judged:
            nonlocal calls_in_flight, max_in_flight
            calls_in_flight += 1
            max_in_flight = max(max_in_flight, calls_in_flight)
            await asyncio.sleep(0.06)
            calls_in_flight -= 1
            return await super().judge(request)

    engine = Engine(tmp_path, judge=Slow())
    engine.accept(*drafts(5, COUNT))
    with engine.store.writing():
        totals = asyncio.run(Runner(replace(engine.parts, window=64, streams=8)).run())

    assert max_in_flight > 1
    assert totals.stalls < totals.requests / 2


def test_decisions_ahead_are_limited_by_the_models_concurrency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An episode further ahead would be tried again at every change before it."""
    tries: list[int] = []  # how far ahead of its commit each entry was tried
    heads = [0]

    def noted(read: ReadEpisode, state: KnownState, answers: Answers, rules: Rules) -> Decision:
        result = decide(read, state, answers, rules)
        if isinstance(state, GroupState):
            heads.append(read.episode.sequence)
        elif result.change is not None:
            tries.append(read.episode.sequence - heads[-1])
        return result

    monkeypatch.setattr("kgray.ingest.window.decide", noted)
    engine = Engine(tmp_path, judge=WildJudge())
    engine.accept(*drafts(5, COUNT))
    with engine.store.writing():
        totals = asyncio.run(Runner(replace(engine.parts, window=64, streams=4)).run())
    assert totals.committed == COUNT
    assert 1 <= max(tries) <= 5  # the first of the window may not have been decided yet
