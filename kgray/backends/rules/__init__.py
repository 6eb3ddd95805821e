"""The offline models. `extractor` reads English by phrases and JSON by its structure; `judge` answers.

Nothing is imported here: a command that only asks needs the judge, and must not wait for the extractor.
"""
