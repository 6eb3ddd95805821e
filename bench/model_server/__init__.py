"""A model server that knows a world: OpenAI's HTTP interface over the answers of `bench.world.oracle`.

tasks.py     a chat request to the reply that the truth gives: recognises the episode's text and the schema
faults.py    errors of transport, keyed by request and attempt
vectors.py   embeddings: hashed, with an adjustable affinity between the names of one entity
record.py    what was answered, in a file that outlives the server
service.py   the answers to requests, with the time they take
http.py      HTTP/1.1 on the loopback address
"""

from __future__ import annotations

from bench.model_server.faults import Faults
from bench.model_server.http import ModelServer
from bench.model_server.record import Record
from bench.model_server.service import Service

__all__ = ["Faults", "ModelServer", "Record", "Service"]
