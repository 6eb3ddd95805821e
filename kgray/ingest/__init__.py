"""From an accepted episode to a commit, one file a step; read decide.py first.

shape      the extraction as the ontology lets it stand
resolve    mentions to entities (R14, R15), over lookup (names) and nearest (vectors)
relate     relation names and their rulings (R17)
connect    facts to statements and variants (R18)
compare    what can hold beside what (R17)
decide     all of these in order: a EpisodeChange, or the Questions still open; pure
known      what deciding reads of a group: the true `state`, or a view `ahead` of it
changes    what was decided, as row changes
correct    merge, split, undo, retract, remove (R16, R25); erase: what goes with a removed episode
committer  the groups' states and what moves them; outbox: what is on its way to the store
loop       the plain loop: extract, decide, ask, commit
runner     the windowed runner, a `window` a group: the same graph, many episodes in flight
"""
