"""Ray: the same engine over many processes. The only package that imports ray; nothing in it is durable.

spec        what actors are built from: a cluster profile, settings without secrets
outcomes    what an actor answers, errors among it
actors      how a class becomes an actor, and what a call to one can meet
workers     the actors that extract, judge and embed; scheduler: the one that refreshes communities in time
pools       the router over workers, and the model ports over it
writer      the actor that writes a shard, and the port that sends to it
sequencer   the actor that runs the runner as a service, one a shard of groups
session     a Ray that stays up, for a data folder; this process in a Ray
deploy      find, start, compare, stop the actors of a store
ingest      a command's run through them; jobs: a backfill as a submitted job
lifecycle   what `kgray up`, `down` and `status` do
telemetry   metrics that Ray exports; JSON lines with one trace id an episode
"""
