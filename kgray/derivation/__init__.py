"""From records to the graph: a pure derivation, which is stored only as an index, never as the truth.

names       what a name is made of; entities from mentions, through merges and splits (R16)
relations   what the rulings make of the relation names (R17)
statements  which statement each piece of evidence is about (R16, R18)
group       the whole graph of one group: built from records, or kept current commit by commit
change      what an episode adds to the records, and what differs in the graph
around      the part of the records from which some statements follow as from all
withdrawn   what is left of corrections, rulings and verdicts when episodes are withdrawn (R16, R25)
repair      a stored group compared with what its records derive, and stored anew
stored      records and derived graph, read from a store
view, dump  reading the graph as known at a moment
"""
