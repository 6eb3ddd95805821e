"""Models behind any server that speaks OpenAI's HTTP interface (vLLM, Ollama, llama.cpp, OpenAI, ...).

client      requests, their cost, one limiter a server; waits while the server is out of reach
connection  the openai library's client of a server, the form of its address, the meaning of its errors
streaming   a reply as it arrives
structured  a reply as JSON: how a server can be made to follow a schema, found out by probing; one repair; an
            object in a model's text, a cut one too
extractor, judge, retrieval, writing   the implementations of the ports

The library is imported when the first request is made, never before.
"""

from __future__ import annotations
