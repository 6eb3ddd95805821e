"""The score of a row by each signal, by hand; fusing and ordering: pure, exact, the same on every run."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.domain.graph import Entity, Fact
from kgray.domain.times import DAY, parse
from kgray.language.words import packed
from kgray.ports import Embedding
from kgray.schema.kinds import COMMITTED
from kgray.schema.reads import MessageRow
from kgray.search.index import SESSION_GAP, GroupIndex
from kgray.search.query import read_question as read
from kgray.search.ranking import Candidate, FirstStage, farthest
from kgray.search.recipes import Weights
from kgray.search.rerank import fused_by_rank, mmr
from kgray.search.searcher import one_list
from tests import make

CLOCK = parse("2024-06-12T10:00:00Z")[0]
IDS = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)
WORDS_ALONE = Weights(words=1.0, vectors=0.0, length=0.0, neighbours=(), session=0.0, tail=0.0, floor=0.0)


def index_of(*texts, times=None, speakers=None, vectors=None, sources=None):
    """Return an index of these messages, a minute apart."""
    result = GroupIndex("g", 4, 0)
    count = len(texts)
    times = times or [CLOCK + n * 60_000_000 for n in range(count)]
    columns = zip(sources or ["s"] * count, speakers or [None] * count, times, texts, strict=True)
    rows = [MessageRow(n, s, speaker, at, COMMITTED) for n, (s, speaker, at, _) in enumerate(columns, 1)]
    result.messages.add(rows, list(map(packed, texts)))
    if vectors is not None:
        names = list(range(1, count + 1))
        stored = [np.asarray(v, np.float32).tobytes() for v in vectors]
        places = [(n, 0) for n in names]
        result.messages.vectors.add(names, stored, result.messages.numbers, places, signs=False)
    return result


def scores(index, text, weights=WORDS_ALONE, vector=None):
    question = read(text, speakers=index.messages.known, clock=CLOCK)
    topic = None if vector is None else Embedding(vector)
    return FirstStage(index, question, weights, topic).messages(lambda _: [])


FIVE = ("red apple", "red red apple pie", "green pear", "apple", "a long story of a red house by a lake")


def test_words_score_as_bm25_relative_to_a_match_of_all_words():
    """Robertson and Zaragoza 2009, k1 = 1.2, for five messages; b = 0.75, for the order 0.5."""
    texts = [text.split() for text in FIVE]
    mean = sum(map(len, texts)) / 5
    idf = {word: math.log(1 + (5 - n + 0.5) / (n + 0.5)) for word, n in (("red", 3), ("apple", 3))}

    def bm25(text, b=0.75):
        parts = ((idf[word], text.count(word)) for word in idf)
        return sum(i * f * 2.2 / (f + 1.2 * (1 - b + b * len(text) / mean)) for i, f in parts)

    expectation = [bm25(text) / sum(idf.values()) for text in texts]
    result = scores(index_of(*FIVE), "red apple")
    assert result.signals["words"] == pytest.approx(expectation, rel=1e-5)
    order = [bm25(text, 0.5) for text in texts]
    assert result.score == pytest.approx([min(1, max(expectation)) * w / max(order) for w in order], rel=1e-5)
    assert result.best(9).tolist() == sorted((row for row in range(5) if order[row]), key=lambda r: -order[r])


def part_of(count, length=1.0):
    """Return BM25 of a part of an occurrence, in a text of `length` times the mean."""
    return 2.2 * count / (count + 1.2 * (0.5 + 0.5 * length))


def test_neighbours_get_a_share_of_a_score_within_their_session():
    """One hit in the middle; messages after six hours, or in another source, get nothing."""
    times = [CLOCK, CLOCK + 1, CLOCK + 2, CLOCK + 3 + SESSION_GAP, CLOCK + 2]
    index = index_of("a", "b", "apple", "c", "d", times=times, sources=["s", "s", "s", "s", "t"])
    weights = Weights(words=1.0, vectors=0.0, neighbours=((0.3, 0.4), (0.2, 0.1)), session=0.0, tail=0.0)
    result = scores(index, "apple", weights)
    best = float(result.score[2])
    expected = [part_of(0.1) * best, part_of(0.4) * best, best, 0, 0]
    assert result.score.tolist() == pytest.approx(expected)
    index = index_of("a", "apple", "b", "c", "d")
    expected = [part_of(0.4), 1, part_of(0.3), part_of(0.2), 0]
    assert (scores(index, "apple", weights).score / best).tolist() == pytest.approx(expected)


def test_a_named_speaker_counts_more_in_addition_to_matching_words():
    """The answer to Bob's question about apples is Ann's."""
    texts = ["fine", "and the apples?", "all gone"]
    index = index_of(*texts, speakers=["Ann", "Bob", "Ann"])
    alone = {"words": 1.0, "vectors": 0.0, "length": 0.0, "session": 0.0, "tail": 0.0}
    weights = Weights(**alone, neighbours=((0.4, 0.4),), speaker=1.5)
    result = scores(index, "What did Ann say of the apples?", weights).score
    shares = [1.5 * part_of(0.4, length) / part_of(1, 1.5) for length in (0.5, 1)]
    assert (result / result[1]).tolist() == pytest.approx([shares[0], 1.0, shares[1]])


def test_the_longer_neighbour_gets_a_larger_share():
    """The share grows with its length in words relative to the group's mean, up to four times the mean."""
    texts = ["oh", "which apple", "the green ones from the tree behind our old house", "word " * 100]
    weights = Weights(words=1.0, vectors=0.0, length=1.0, neighbours=((1.0, 1.0),), session=0.0, tail=0.0)
    index = index_of(*texts)
    result, lengths = scores(index, "apple", weights), index.messages.words.lengths
    mean = float(lengths.mean())
    expected = [(1 + min(length / mean, 4)) / 2 for length in lengths.tolist()]
    assert result.signals["length"] == pytest.approx(expected)
    parts = [
        part_of(1, length / mean) * share for length, share in zip(lengths.tolist(), expected, strict=True)
    ]
    assert (result.score[:3] / result.score[1]).tolist() == pytest.approx(
        [part / parts[1] for part in parts[:3]]
    )


def test_all_messages_of_a_session_share_its_word_score():
    times = [CLOCK, CLOCK + 1, CLOCK + 10 * DAY, CLOCK + 10 * DAY + 1]
    index = index_of("apple pie", "yes", "an apple", "no thanks I said", times=times)
    weights = Weights(words=1.0, vectors=0.0, neighbours=(), session=0.5, tail=0.0)
    result = scores(index, "apple", weights).signals["session"]
    assert result[0] == result[1] == pytest.approx(0.5), "the shorter session is the best"
    assert 0 < result[2] == result[3] < 0.5


def test_an_outlier_does_not_change_the_scale_of_other_vectors():
    """It does not set the scale of the comparison of the others."""
    rng = np.random.default_rng(5)
    near = rng.uniform(0.1, 0.4, 100).astype(np.float32)
    assert farthest(np.append(near, np.float32(-0.9))) == farthest(near) == 0.0
    spread = rng.normal(0.0, 0.1, 1000).astype(np.float32)
    assert farthest(spread) == pytest.approx(max(spread.min(), 1.5 * np.sort(spread)[20]))
    assert farthest(np.append(spread, np.float32(-0.9))) == pytest.approx(farthest(spread), abs=0.03)
    assert farthest(np.empty(0, np.float32)) == 0.0
    assert farthest(np.array([-0.2], np.float32)) == pytest.approx(-0.2)


def test_an_unrelated_message_is_a_hit_only_as_a_neighbour_of_a_match():
    """Nine short messages of one session: the credit of the session alone lifts none above the floor."""
    texts = [
        "hi there",
        "all well?",
        "so so",
        "we bought a house",
        "wow",
        "which street?",
        "ok",
        "hm",
        "bye now",
    ]
    result = scores(index_of(*texts), "house", Weights())
    assert result.best(9).tolist() == [3, 4, 2, 5], "the message itself, and those beside it"
    assert scores(index_of(*texts), "helicopter", Weights()).best(9).tolist() == []


@pytest.mark.parametrize(
    ("text", "signal", "is_match"),
    [
        pytest.param("What did Bob say of apples?", "speaker", [False, True, False], id="speaker"),
        pytest.param("Which apples on 2024-06-10?", "dates", [True, False, False], id="dates"),
        pytest.param('Who said "green apple"?', "phrase", [False, False, True], id="phrase"),
    ],
)
def test_speakers_dates_and_phrases_are_factors_of_existing_matches(text, signal, is_match):
    times = [CLOCK - 2 * DAY, CLOCK, CLOCK]
    index = index_of("apple", "apple green", "green apple", times=times, speakers=["Ann", "Bob", "Ann"])
    plain = Weights(words=1.0, vectors=0.0, neighbours=(), session=0.0, speaker=1, dates=1, phrase=1)
    plain_scores = scores(index, text, plain)
    result = scores(index, text, Weights(words=1.0, vectors=0.0, neighbours=(), session=0.0, **{signal: 2.0}))
    factors = np.where(is_match, 2.0, 1.0)
    assert result.signals[signal].tolist() == factors.tolist()
    other_factors = np.prod(
        [result.signals.get(s, np.ones(3)) for s in {"speaker", "dates", "soon_after", "phrase"} - {signal}],
        0,
    )
    assert result.score == pytest.approx(plain_scores.score * factors * other_factors)


def test_few_messages_are_found_by_meaning_and_nonsense_has_no_hits():
    """Too few to know how near unrelated texts lie: the spread of random directions is used."""
    wide = np.zeros((3, 1024), np.float32)
    wide[[0, 1, 2], [0, 1, 2]] = 1.0
    index = GroupIndex("g", 1024, 0)
    rows = [MessageRow(n, "s", None, CLOCK + n, COMMITTED) for n in (1, 2, 3)]
    index.messages.add(rows, [packed("tea")] * 3)
    numbers = index.messages.numbers
    places = [(n, 0) for n in (1, 2, 3)]
    index.messages.vectors.add([1, 2, 3], [row.tobytes() for row in wide], numbers, places, signs=False)
    weights = Weights(neighbours=(), session=0.0)
    near, far = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
    near[[1, 9]], far[9] = 0.7071, 1.0
    assert scores(index, "coffee?", weights, near).best(9).tolist() == [1]
    assert scores(index, "coffee?", weights, far).best(9).tolist() == []
    assert scores(index, "xyzzy plugh", Weights(), None).best(9).tolist() == []


def test_a_named_speakers_messages_are_found_without_matching_words():
    index = index_of("tea", "cake", speakers=["Ann", "Bob"], vectors=np.eye(4)[:2])
    vector = np.array([0.1, 0.1, 0.0, 0.99], np.float32)
    assert scores(index, "Which helicopter?", Weights(), vector).best(9).tolist() == []
    assert scores(index, "Which helicopter does Bob fly?", Weights(), vector).best(9).tolist() == [1, 0]


def test_a_negative_tail_returns_every_message_if_one_matches():
    """For a context: the rest of the budget takes messages far from the question."""
    times = [CLOCK, CLOCK + 10 * DAY, CLOCK + 20 * DAY, CLOCK + 30 * DAY]
    vectors = [[1, 0, 0, 0], [0, 1, 0, 0], [-0.6, 0.8, 0, 0], [-1, 0, 0, 0]]
    index = index_of("tea", "cake", "milk", "bread", times=times, vectors=vectors)
    vector = np.array([1.0, 0.0, 0.0, 0.0], np.float32)
    assert scores(index, "tea", Weights(tail=-1.0), vector).best(9).tolist()[:3] == [0, 1, 2]
    assert scores(index, "tea", Weights(), vector).best(9).tolist() == [0]


# ---------------------------------------------------------------------------------- fusing, ordering


def fact(id_, *episodes):
    return Fact(
        id=id_, statement=id_, source="x", relation="R", text=id_, created_at=0, episodes=episodes or (id_,)
    )


def episode(id_):
    return make.episode(id_, id=id_)


def entity(id_):
    return Entity(id=id_, name=id_, born=(1, 0))


def scored(make, *pairs):
    return [Candidate(row=make(id_), score=score) for id_, score in pairs]


def ids(chosen):
    return [candidate.row.id for _, candidate in chosen]


def fused(rankings):
    result = {
        signal: [Candidate(row=fact(id_), score=1.0) for id_ in ids] for signal, ids in rankings.items()
    }
    return [(candidate.row.id, candidate.score) for candidate in fused_by_rank(result)]


def test_rrf_adds_one_over_sixty_plus_rank():
    """Cormack et al. 2009: b is second twice, a and d first once, c third once."""
    assert fused({"bm25": ["a", "b"], "cosine": ["d", "b", "c"]}) == [
        ("b", 1 / 62 + 1 / 62),
        ("a", 1 / 61),
        ("d", 1 / 61),
        ("c", 1 / 63),
    ]


@given(st.tuples(IDS, IDS, IDS))
def test_rrf_does_not_depend_on_the_order_of_methods(rankings):
    """Not even in the last bit, which would break a tie by accident; and it is the plain sum."""
    answers = [fused(dict(zip("xyz", order, strict=True))) for order in itertools.permutations(rankings)]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0] == sorted(answers[0], key=lambda pair: (-pair[1], pair[0]))
    for result, score in answers[0]:
        assert score == pytest.approx(sum(1 / (61 + r.index(result)) for r in rankings if result in r))


def test_candidates_of_all_methods_are_fused_with_their_signals():
    words = [Candidate(row=fact(x), score=s, signals={"words": s}) for x, s in (("a", 0.9), ("b", 0.5))]
    steps = [Candidate(row=fact("b"), score=0.3, signals={"steps": 1.0})]
    first, second = fused_by_rank({"words": words, "steps": steps})
    assert (first.row.id, first.score, first.signals) == ("b", 1 / 61 + 1 / 62, {"words": 0.5, "steps": 1.0})
    assert (second.row.id, second.signals) == ("a", {"words": 0.9})


def test_mmr_prefers_a_dissimilar_item_over_a_near_duplicate():
    """Carbonell and Goldstein 1998 at one half: a twin of the first pick is worth nothing."""
    query = np.array([1, 0, 0], dtype=np.float32)
    items = np.array([[0.8, 0.6, 0], [0.8, 0.6, 0], [0.6, 0, 0.8]], dtype=np.float32)
    picked = mmr(query, items, keep=3)
    assert [index for index, _ in picked] == [0, 2, 1]
    assert [value for _, value in picked] == pytest.approx([0.4, 0.06, -0.1])


def test_mmr_picks_the_same_as_a_naive_loop():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(13, 5))
    query, *items = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    candidates, picked = list(range(12)), []

    def value(index):
        like = max(
            (max(0.0, float(items[index] @ items[picked_index])) for picked_index in picked), default=0.0
        )
        return 0.5 * max(0.0, float(items[index] @ query)) - 0.5 * like

    while candidates:
        best = max(candidates, key=lambda index: (round(value(index), 6), -index))
        candidates.remove(best)
        picked.append(best)
    assert [index for index, _ in mmr(query, np.array(items), keep=12)] == picked


def test_mmr_keeps_ties_in_order():
    query = np.array([1, 0], dtype=np.float32)
    items = np.array([[0, 1], [1, 0], [1, 0]], dtype=np.float32)
    assert [index for index, _ in mmr(query, items, keep=9)] == [1, 0, 2]


def test_mmr_of_an_empty_list_is_empty():
    assert mmr(np.ones(2, dtype=np.float32), np.zeros((0, 2), dtype=np.float32), keep=3) == []


def test_the_list_is_sorted_by_score_then_fact_entity_episode():
    scoped = {
        "episode": scored(episode, ("p", 0.02)),
        "entity": scored(entity, ("e", 0.02)),
        "fact": scored(fact, ("g", 0.03), ("f", 0.02)),
    }
    chosen, omitted = one_list(scoped, 10, {}, once=True)
    assert ([scope for scope, _ in chosen], ids(chosen), omitted) == (
        ["fact", "fact", "entity", "episode"],
        ["g", "f", "e", "p"],
        [],
    )
    assert ids(one_list(scoped, 2, {}, once=True)[0]) == ["g", "f"]
    assert ids(one_list(scoped, 10, {"fact": 1}, once=True)[0]) == ["g", "e", "p"]


def told_once(facts, messages, limit=9, places=None, **options):
    result = {"fact": [Candidate(row=fact(x, *span), score=s) for x, s, span in facts]}
    return one_list(
        {**result, "episode": scored(episode, *messages)}, limit, places or {}, once=True, **options
    )


def test_a_message_is_omitted_after_its_fact_and_a_fact_after_all_its_messages():
    chosen, omitted = told_once([("f", 0.9, ("p",)), ("g", 0.8, ("p",)), ("h", 0.2, ("q", "r"))],
                             [("p", 0.7), ("q", 0.6), ("r", 0.1)])  # fmt: skip
    assert (ids(chosen), ids(omitted)) == (["f", "g", "q", "h"], ["p", "r"]), "two facts of p say two things"
    chosen, omitted = told_once([("f", 0.3, ("p",)), ("g", 0.2, ("p", "q"))], [("p", 0.9), ("q", 0.5)])
    assert (ids(chosen), ids(omitted)) == (["p", "q"], ["f", "g"])


def test_a_fact_replaces_its_supporting_messages_of_the_same_moment():
    facts, messages = [("f", 0.3, ("p", "q")), ("g", 0.2, ("p",))], [("p", 0.9), ("r", 0.6), ("q", 0.5)]
    chosen, omitted = told_once(facts, messages, facts_replace_messages=True)
    assert (ids(chosen), ids(omitted)) == (["f", "r", "g"], ["p", "q"])
    assert [each.score for _, each in chosen] == [0.9, 0.6, 0.2], "the list stays in the order of its scores"
    chosen, omitted = told_once(facts, messages, 3, facts_replace_messages=True)
    assert ids(chosen) == ["p", "r", "q"], "the fact is not among the hits"
    chosen, omitted = told_once(facts, messages, places={"fact": 0}, facts_replace_messages=True)
    assert (ids(chosen), ids(omitted)) == (["p", "r", "q"], ["f", "g"])


def test_a_word_matches_other_forms_of_its_irregular_verb():
    result = scores(index_of("she bought a boat", "she has a boat", "fine"), "What did she buy?")
    assert result.signals["words"].tolist()[1:] == [0, 0]
    assert result.signals["words"][0] > 0


def test_a_question_about_a_time_prefers_messages_with_words_of_time():
    index = index_of("Ann sailed the boat", "Ann sailed the boat yesterday", "fine")
    assert scores(index, "When did Ann sail the boat?").signals["times"].tolist() == pytest.approx(
        [1, 1.3, 1]
    )
    assert "times" not in scores(index, "Where did Ann sail the boat?").signals


def test_a_day_in_a_question_also_counts_for_messages_of_the_next_days():
    times = [CLOCK, CLOCK + 3 * DAY, CLOCK + 9 * DAY, CLOCK - DAY]
    index = index_of("a boat", "a boat", "a boat", "a boat", times=times)
    signals = scores(index, "Which boat on 2024-06-12?").signals
    assert signals["dates"].tolist() == [2, 1, 1, 1]
    assert signals["soon_after"].tolist() == pytest.approx([1, 1.6, 1, 1])
