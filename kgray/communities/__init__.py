"""Communities: entities that belong together, found by their facts, named and summarised.

`graph`, `propagate` and `partition` are pure functions of an edge list; `matching` carries ids from one run to
the next; `texts` writes names and summaries; `refresh` reads a group, and publishes a run of it; `reading` is
what callers see.
"""
