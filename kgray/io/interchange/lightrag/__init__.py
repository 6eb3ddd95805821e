"""The folder of LightRAG 1.5: a document of one chunk for each episode, an undirected edge for each pair.

LightRAG makes the vectors itself, when the folder is rebuilt there. Its edges have neither a direction nor
the name of a relation, and no dates: kgray's own export keeps all three in the attribute `kgray`. The JSON of
`ainsert_custom_kg` is read, too.
"""

from kgray.io.interchange.lightrag.reader import units
from kgray.io.interchange.lightrag.writer import write

__all__ = ["units", "write"]
