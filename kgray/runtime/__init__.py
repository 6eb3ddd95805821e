"""Ray: the same engine over many processes. The only package that imports ray; nothing in it is durable.

profile     a cluster profile: number and size of the actors; spec: what actors are built from, no secrets
outcomes    what an actor answers, errors among it
actors      how a class becomes an actor, and what a call to one can meet
workers     the actors that extract, judge and embed; scheduler: the one that refreshes communities in time
pools       the router over workers, and the model ports over it
writer      the actor that writes a shard, and the port that sends to it
sequencer   the actor that runs the runner as a service, one a shard of groups
head        a Ray that stays up, for a data folder; session: this process in a Ray
deploy      find, start, compare, stop the actors of a store
ingest      a command's run through them; jobs: a backfill as a submitted job
lifecycle   what `kgray up`, `down` and `status` do
metrics     what Ray exports; logs: JSON lines with one trace id an episode
"""
