"""From records to the graph, one way: nothing here is stored as truth (semantics sections 1 and 3).

names       what a name is made of, and when one expands another (R16)
wording     what matters in a wording (R18)
fold        merges and splits over mentions (R16)
relations   what the rulings make of the relation names (R17)
statements  which statement each piece of evidence speaks of (R16, R18)
facts       spans to facts, with both clocks (R2)
group       all of it for one group: built from records, or kept current commit by commit
change      what an episode adds, and what that makes different
absorb      that difference, worked out where it touches
stored      records and derived graph out of a store
view, dump  reading it, as known at a moment
verify      the stored graph against the derived one
"""
