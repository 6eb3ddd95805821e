"""Copies groups between stores, and imports from other programs."""
