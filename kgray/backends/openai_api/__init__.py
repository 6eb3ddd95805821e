"""Models behind any server that speaks OpenAI's HTTP interface (vLLM, Ollama, llama.cpp, OpenAI, ...).

client      one connection pool and one limiter a server; waits while the server is out of reach
dialect     how a server can be made to follow a reply schema, found out by probing
structured  a reply as JSON: lenient parsing, salvage of a cut reply, one repair
lenient     extracts a JSON object from a model's text
extractor, judge, embedder, reranker, writing   the implementations of the ports

`aiohttp` is imported when the first request is made, never before.
"""

from __future__ import annotations
