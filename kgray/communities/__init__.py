"""Communities: entities that belong together, found by their facts, named and summarised.

partition   pure functions of an edge list
found       a group at one moment; its communities, with ids from run to run
texts       what is shown of a community, the text that needs no model, when a text is kept
refresh     a run, from its snapshot to its publication
reading     what callers see
"""
