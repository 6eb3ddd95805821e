"""Evaluation of a memory on questions with known evidence."""

from __future__ import annotations
