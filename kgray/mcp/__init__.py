"""The memory for agents, by the Model Context Protocol: seven tools on one group.

server      the tools; what each may do follows from the seat of the connection
stdio       served on standard input and output
"""

from __future__ import annotations
