"""Questions about states that have changed: worlds whose truth is known, and how well reads answer.

cases.py      a question with its right and its replaced objects
conflicts.py  numbered facts; later facts replace earlier facts
hold_out.py   a second world: other relations, names and words than tests/world
scores.py     the places of the right fact in a search and in a context
"""
