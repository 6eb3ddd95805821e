"""Models behind any server that speaks OpenAI's HTTP interface (vLLM, Ollama, llama.cpp, OpenAI, ...).

client      one connection pool and one limiter a server; waits out outages, sorts what cannot be waited out
structured  a reply as JSON: which form the server obeys, lenient reading, salvage, one repair
schemas     what replies may look like, and the step from a reply to what `kgray.replies` reads
extractor, judge, embedder   the three ports

`openai` is imported when the first request is made, never before.
"""

from __future__ import annotations
