"""Stores: the embedded one (SQLite)."""
