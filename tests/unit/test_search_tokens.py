"""The stated counter: literal values, and sums over lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.search import count_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("the cat", 2, id="short-words"),
        pytest.param("Alice works at Acme.", 7, id="begun-fours-and-a-point"),
        pytest.param("GPT-4", 3, id="digits-and-signs"),
        pytest.param("2026-03-01", 10, id="a-date"),
        pytest.param("爱丽丝在东京工作", 8, id="one-a-CJK-character"),
        pytest.param("東京です。", 5, id="full-width-signs"),
        pytest.param("𠮷", 1, id="supplementary-ideograph"),
        pytest.param("é", 1, id="accented"),
        pytest.param("สวัสดี", 12, id="thai"),
        pytest.param("🖨", 3, id="emoji"),
        pytest.param("a\n\n  b", 6, id="blank-runs"),
    ],
)
def test_the_counter_follows_its_table(text, tokens):
    assert count_tokens(text) == tokens


@given(st.lists(st.text().map(str.strip), max_size=5))
def test_lines_cost_their_sum_and_one_a_newline(lines):
    assert count_tokens("\n".join(lines)) == sum(map(count_tokens, lines)) + max(0, len(lines) - 1)
