"""A synthetic world with known truth: its identities, statements with times, and derived facts.

plan.py      its numbers
things.py    who there is, and under which names
schema.py    what can be said of them
history.py   what happens, act by act
telling.py   episodes: text, true names, the correct extraction
growing.py   one small world after another, for a group of any size
truth.py     what follows from all that was told (stated truth)
errors.py    how a reader may be wrong
oracle.py    what a reader who knows the truth answers, recognising texts alone
models.py    such a reader and judge in this process
"""

from __future__ import annotations

from tests.world.errors import Errors
from tests.world.latency import Latency
from tests.world.models import WorldModel
from tests.world.oracle import Oracle
from tests.world.plan import WorldPlan
from tests.world.telling import ToldFact, WorldEpisode
from tests.world.truth import TrueFact, Truth
from tests.world.world import World

__all__ = [
    "Errors",
    "Latency",
    "Oracle",
    "ToldFact",
    "TrueFact",
    "Truth",
    "World",
    "WorldEpisode",
    "WorldModel",
    "WorldPlan",
]
