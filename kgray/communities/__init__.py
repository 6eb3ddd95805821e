"""Communities: entities that belong together, found by their facts, named and summarised.

graph, propagate, partition     pure functions of an edge list
matching                        ids from one run to the next; where entities go that came since
export, found                   a group at one moment, and its communities
texts                           what is shown of a community, and the text that needs no model
refresh                         a run, from its export to its publication
reading                         what callers see
"""
