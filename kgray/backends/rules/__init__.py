"""The offline extractor: English texts by rules, JSON by its structure."""

from __future__ import annotations

from kgray.backends.rules.extractor import RulesExtractor

__all__ = ["RulesExtractor"]
