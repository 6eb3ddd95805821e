"""Made-up conversations whose questions have known evidence.

topics      the topics of conversations, read from topics.txt and smalltalk.txt
making      a conversation of a seed: sessions, messages, questions
"""

from __future__ import annotations

from bench.talk.making import LONG, Shape, conversation

__all__ = ["LONG", "Shape", "conversation"]
