"""From an accepted episode to a commit, one file a step; read decide.py first.

shape      the extraction as the ontology lets it stand
resolve    mentions to entities (R14, R15), over lookup (names) and nearest (vectors)
relate     relation names and their rulings (R17)
connect    facts to statements and variants (R18)
compare    what can hold beside what (R17)
decide     all of these in order: a Change, or the Questions still open; pure
state      what a group's decisions read, in memory
correct    merge, split, undo, retract, remove (R16, R25)
loop       the plain loop: extract, decide, ask, commit
"""
