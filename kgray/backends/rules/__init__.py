"""The offline models. `extractor` reads English by phrases and JSON by its structure; `judge` answers.

Nothing is imported here, so that a command that needs only the judge does not import the extractor.
"""
