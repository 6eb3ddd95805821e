"""The measures, as pure functions: of a ranking, of a context, of many questions.

A ranking is a sequence of sets, best first: the messages that each hit stands for. A fact stands for the
messages that support it, an entity for none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import NormalDist, fmean

import numpy as np

DEPTHS = (5, 10, 20, 50)
LEAST_WORDS = 0.6  # of a message, in order: then a line counts as telling it
_WHOLE = 4  # words: so few stand in many lines by chance
_RESAMPLES = 1000
_WORD = re.compile(r"\w+")

Ranking = Sequence[Collection[str]]


def of_ranking(
    ranking: Ranking, evidence: Collection[str], depths: Sequence[int] = DEPTHS
) -> dict[str, float]:
    """Return fraction@k, any@k, all@k and ndcg@k for each depth, and mrr. Raises ValueError without evidence.

    fraction    of the evidence, how much is among the first k hits
    ndcg        a hit gains 1 where it brings evidence that no hit above it brought; the ideal ranking brings
                one message a hit (Järvelin and Kekäläinen 2002, binary gains)
    mrr         1 / the rank of the first hit with evidence; 0 for none
    """
    if not evidence:
        raise ValueError("a ranking is measured against at least one message of evidence")
    ranks = _ranks(ranking, evidence)
    found: dict[str, float] = {}
    for depth in depths:
        within = [rank for rank in ranks.values() if rank <= depth]
        ideal = sum(_gain(rank) for rank in range(1, min(depth, len(set(evidence))) + 1))
        found[f"fraction@{depth}"] = len(within) / len(ranks)
        found[f"any@{depth}"] = float(bool(within))
        found[f"all@{depth}"] = float(len(within) == len(ranks))
        found[f"ndcg@{depth}"] = sum(map(_gain, set(within))) / ideal
    return found | {"mrr": 1 / min(ranks.values())}


def _ranks(ranking: Ranking, evidence: Collection[str]) -> dict[str, float]:
    """Return the rank, from 1, of the first hit that stands for each message; infinite for none."""
    ranks = dict.fromkeys(evidence, math.inf)
    for rank, messages in enumerate(ranking, 1):
        for message in ranks.keys() & set(messages):
            ranks[message] = min(ranks[message], rank)
    return ranks


def _gain(rank: float) -> float:
    return 1 / math.log2(rank + 1)


# --------------------------------------------------------------------------------------------- contexts


def told_in(message: str, lines: Sequence[Sequence[str]]) -> bool:
    """Whether one of the lines (as `words`) tells a message: at least 60 % of its words, in order.

    A message of at most four words counts only as a whole, word beside word.
    """
    asked = words(message)
    least = math.ceil(LEAST_WORDS * len(asked))
    if len(asked) <= _WHOLE:
        return any(_stands_in(asked, line) for line in lines) if asked else False
    return any(len(line) >= least and _common(asked, line) >= least for line in lines)


def words(text: str) -> list[str]:
    """Return the words of a text, casefolded, without punctuation."""
    return _WORD.findall(text.casefold())


def of_context(context: str, supported: Collection[str], evidence: Mapping[str, str]) -> float:
    """Return the share of the evidence (message -> its text) that a context holds.

    supported   messages that the facts in the context rest on
    """
    lines = list(map(words, context.splitlines()))
    return fmean(float(name in supported or told_in(text, lines)) for name, text in evidence.items())


def _stands_in(asked: Sequence[str], line: Sequence[str]) -> bool:
    return any(list(line[at : at + len(asked)]) == asked for at in range(len(line) - len(asked) + 1))


def _common(asked: Sequence[str], line: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, bit-parallel (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for at, word in enumerate(asked):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(asked)) - 1
    state = full
    for word in line:
        matched = state & places.get(word, 0)
        state = (state + matched | state - matched) & full
    return len(asked) - state.bit_count()


# ------------------------------------------------------------------------------------- many questions


def mean(values: Sequence[float]) -> dict[str, float]:
    """Return {"mean", "low", "high", "count"} of one value a question: the mean and its 95 % interval.

    Of shares (every value 0 or 1) it is Wilson's interval (1927), of other values the percentile bootstrap's
    with 1,000 resamples of a fixed seed. Raises ValueError for no value.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    middle = fmean(values)
    if set(values) <= {0.0, 1.0}:
        low, high = _wilson(middle, len(values))
    else:
        given = np.asarray(values, dtype=np.float64)
        drawn = np.random.default_rng(0).integers(len(given), size=(_RESAMPLES, len(given)))
        low, high = map(float, np.quantile(given[drawn].mean(axis=1), (0.025, 0.975)))
    return {"mean": round(middle, 4), "low": round(low, 4), "high": round(high, 4), "count": len(values)}


def means(rows: Iterable[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the mean of each measure over the rows that have it."""
    return {name: mean(values) for name, values in columns(rows).items()}


def columns(rows: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return name -> its values, of the rows that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return found


def _wilson(share: float, count: int) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.975)
    scale = 1 + z * z / count
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    centre = share + z * z / (2 * count)
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
