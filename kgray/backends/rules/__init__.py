"""The offline models: `extractor` reads English by a table of phrases, JSON by its structure; `judge` answers.

Nothing is imported here: a command that only asks needs the judge, and must not wait for the extractor.
"""
