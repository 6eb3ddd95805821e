"""From records to the graph: a pure derivation, which is stored only as an index, never as the truth.

names       what a name is made of, and when one expands another (R16)
entities    entities from mentions, through merges and splits (R16)
relations   what the rulings make of the relation names (R17)
statements  which statement each piece of evidence is about (R16, R18)
group       the whole graph of one group: built from records, or kept current commit by commit
change      what an episode adds to the records, and what differs in the graph
absorb      that difference, worked out for the touched part of the graph only
stored      records and derived graph, read from a store
view, dump  reading the graph as known at a moment
verify      the stored graph compared with the derived one
"""
