"""How well a memory answers questions whose evidence is known."""

from __future__ import annotations
