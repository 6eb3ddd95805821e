"""How well a memory answers questions whose evidence is known.

measures    pure functions: recall, NDCG and MRR of a ranking, evidence in a context, means with intervals
dataset     conversations, their questions and evidence: LoCoMo, LongMemEval, DMR, JSON lines
retrieval   searches and contexts of a memory, measured
"""

from __future__ import annotations
