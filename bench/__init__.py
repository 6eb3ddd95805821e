"""Measurements that anyone can repeat: `python -m bench ...`. Medians and ratios of one run, never a test.

commands/       the command line
world/          generated episodes whose truth is known
model_server/   a model that knows a world, over HTTP

quality.py      a graph against its world's truth; scoring.py: the measures
ingest.py       how full a runtime keeps a model server
store.py        the cost of a growing group; growth.py: its timed steps
equality.py     many ways to ingest, one graph
chaos.py        a backfill under kills; kills.py: the run and its killer, targets.py: the killed processes
soak.py         memory over a long backfill

engine.py       opens the engine and ingests; no other module does
reading.py      reads the engine's results; no other module does
processes.py    starts, ends and observes processes; no other module does
empty_stores.py, simulated.py   new stores; a Ray of several nodes on one machine
timed.py, tables.py             models' CPU time apart; figures in columns
"""
