"""From an accepted episode to a commit. Read decide.py first; docs/architecture.md has the whole path."""
