"""The offline models: `extractor` reads English by a table of phrases and JSON by its structure; `judge`.

Nothing is imported here: a command that only asks needs the judge, and must not wait for the extractor's tables.
"""
