"""Formats: rows of input, and the exports and imports of other programs."""
