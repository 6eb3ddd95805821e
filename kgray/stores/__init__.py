"""Stores: the embedded one (SQLite), and what every store shares: packing, removals, words."""
