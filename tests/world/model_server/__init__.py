"""A model server that knows a world: OpenAI's HTTP interface over the answers of `tests.world.oracle`.

app.py       HTTP on the loopback address
service.py   the answer to a request, with the time it takes and the faults in between
tasks.py     a chat request to the reply that the truth gives: by the episode's text and the schema
faults.py    errors of transport, keyed by request and attempt
vectors.py   embeddings: hashed spelling, drawn towards the full name as far as `affinity` says
record.py    what was answered, in a file that outlives the server
"""

from __future__ import annotations

from tests.world.model_server.app import ModelServer
from tests.world.model_server.faults import Faults
from tests.world.model_server.record import ServerRecord
from tests.world.model_server.service import Service

__all__ = ["Faults", "ModelServer", "ServerRecord", "Service"]
