"""Communities: entities that belong together, found by their facts, named and summarised.

graph, propagate, partition     pure functions of an edge list
export, found                   a group at one moment; its communities, with ids from run to run
texts                           what is shown of a community, and the text that needs no model
refresh                         a run, from its export to its publication
reading                         what callers see
"""
