"""From an accepted episode to a commit. Read decide.py first, then one file a step.

extract     what an episode says: from its triples or the model, shaped to the ontology; grounding: without
            what does not stand in the text
resolve     mentions to entities (R14, R15), with candidates by name and by vector (candidates.py), and other
            names that the text gives (aliases.py)
relate      relation names and their rulings (R17)
statements  facts to statements and variants (R18); which statements can hold together (R17)
decide      these steps in order: a `Decision`, with the change and the open questions; pure
case        what deciding reads: the episode, the answers so far, the group's state
state       a group's state in memory; ahead: a view of it that includes uncommitted episodes
calls       calls to the model: in which order, asked once, answers kept in the journal; `settle`
changes     what was decided, as changes of rows
correct     merge, split, undo (R16); withdraw: retract and remove, and which rows go (R25)
committer   the groups' states and all changes to them; the outbox of writes on their way to the store
runner      the windowed runner, with a `window` a group: the same graph, many episodes in flight
"""
