"""Models behind any server that speaks OpenAI's HTTP interface (vLLM, Ollama, llama.cpp, OpenAI, ...).

client      one connection pool and one limiter a server; waits while the server is out of reach
dialect     the form in which a server holds a reply to a schema, found out by probing
structured  a reply as JSON: lenient reading, salvage of a cut reply, one repair
lenient     a model's text to a JSON object
extractor, judge, embedder   the three ports

`openai` is imported when the first request is made, never before.
"""

from __future__ import annotations
