"""Measurements that anyone can repeat: `python -m bench ...`. Medians and ratios of one run, never a test.

commands/       the command line
world/          generated episodes whose truth is known
model_server/   a model that knows a world, over HTTP

quality.py      a graph against its world's truth; scoring.py: the measures
ingest.py       how full a runtime keeps a model server
store.py        what a group costs as it grows; growth.py: the steps, with clocks
equality.py     many ways to ingest, one graph
chaos.py        a backfill under kills; kills.py: what runs and who kills, targets.py: what is killed
soak.py         memory over a long backfill

engine.py       the one place that opens the engine and has it ingest
reading.py      the one place that reads what the engine made
processes.py    the one place that starts processes, ends them, and looks at them
empty_stores.py, simulated.py   new stores; a Ray of several nodes on one machine
timed.py, tables.py             models' CPU time apart; figures in columns
"""
