from __future__ import annotations


class VLLMClientError(Exception):
    """The request is at fault."""
