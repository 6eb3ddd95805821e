"""Prompts for language models, and parsing of their replies.

prompts    the files of `prompts/`: loaded, extended by the settings, filled with data, hashed
schemas    JSON schemas of replies, for constrained decoding
replies    replies to records, each item checked by itself
estimate   the calls and tokens that a file would cost, before anything is sent
"""
