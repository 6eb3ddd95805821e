"""Ray: the same engine over many processes. The only package that imports ray; nothing in it is durable.

A command begins in `ingest` or `lifecycle`, finds a Ray (`session`), and finds or starts the actors (in
`deploy`): `sequencer`, `writer`, `scheduler`, and `workers`, which call the models behind a router (`pools`).
"""
