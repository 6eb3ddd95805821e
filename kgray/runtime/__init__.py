"""Ray: the same engine over many processes. The one place that knows Ray; nothing in it is durable.

profile     how big the machine room is; terms: what actors are built from, without secrets
outcomes    values and errors as they cross a process border
workers     who extracts, judges and embeds, inside an actor
pools       the router over workers; models: the ports over a pool
writer      the one writer of a shard, and the port that sends to it
sequencer   the runner as a service, one a shard of groups
actors      the plain classes as actors, and actors as what the plain classes ask for
session     a Ray to work in; head: one that stays up
deploy      find, start, compare, stop the named actors; ingest: a run through them
service     what `kgray up`, `down` and `status` do; jobs: a backfill as a submitted job
simulated   a cluster of several nodes on one machine
metrics     what Ray exports; logs: JSON lines with one trace id an episode
"""
