"""What a question says: words, phrases, codes, speakers, topic and dates. It is Wednesday, 2024-06-12."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgray.search.question import Question, read
from kgray.times import parse, show
from kgray.words import words

NOW = parse("2024-06-12T10:00:00Z")[0]
SPEAKERS = ("Caroline", "Anna Weber", "Dr. Bob Smith", "user", "assistant", "李娜", "Anna-Lena Koch", "Will")


def ask(text: str, speakers=SPEAKERS) -> Question:
    return read(text, speakers=speakers, now=NOW)


def shown(question: Question) -> list[str]:
    return [f"{str(show(start))[:10]} {str(show(end))[:10]}" for start, end in question.spans]
