"""Models behind any server that speaks OpenAI's HTTP interface (vLLM, Ollama, llama.cpp, OpenAI, ...).

client      requests, their cost, one limiter a server; waits while the server is out of reach
connection  the openai library's client of a server, the form of its address, the meaning of its errors
streaming   a reply as it arrives
asker       requests for JSON replies, in the form that the server obeys, found by probing
dialects    the forms of these requests
structured  the steps of such a request, with one repair; the object in a model's text, even if it was cut
extractor, judge, retrieval, writing   the implementations of the ports

The library is imported when the first request is made, never before.
"""

from __future__ import annotations
