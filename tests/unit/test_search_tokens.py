"""The estimate of tokens: literal values, sums over lines, and counts of real vocabularies."""

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
        pytest.param("extraordinary", 4, id="a-long-word"),
        pytest.param("camelCaseName", 3, id="parts-of-a-name"),
        pytest.param("2026", 3, id="digits"),
        pytest.param("?!", 2, id="signs"),
        pytest.param("\u7231\u4e3d\u4e1d\u5728\u4e1c\u4eac\u5de5\u4f5c", 7, id="han"),
        pytest.param("\u3067\u3059", 2, id="kana"),
        pytest.param("\U00020bb7", 1, id="supplementary-ideograph"),
        pytest.param("Caf\u00e9", 3, id="accented"),
        pytest.param("\u041c\u043e\u0441\u043a\u0432\u0430", 3, id="another-alphabet"),
        pytest.param("\U0001f5a8", 2, id="emoji"),
        pytest.param("a\n\n  b", 3, id="blank-runs"),
    ],
)
def test_the_token_counter_gives_the_expected_counts(text, tokens):
    assert count_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        # Counts by o200k_base, Tekken (2024-09), Qwen and cl100k_base, in this order.
        pytest.param(
            "- [12] [2026-03-01] Alice Webb: I work at Acme now, and I moved to Oslo last week.",
            (30, 35, 35, 30),
            id="a-line-of-a-block",
        ),
        pytest.param(
            "Ayer nos encontramos con In\u00e9s en la cafeter\u00eda cerca de la estaci\u00f3n y hablamos "
            "mucho de su nuevo trabajo.",
            (23, 25, 28, 28),
            id="spanish",
        ),
        pytest.param(
            "Gestern haben wir Anna im Caf\u00e9 am Bahnhof getroffen und lange \u00fcber ihre neue Stelle "
            "gesprochen. Sie zieht n\u00e4chsten Monat nach M\u00fcnchen.",
            (25, 26, 35, 35),
            id="german",
        ),
        pytest.param(
            "\u6628\u5929\u6211\u4eec\u5728\u8f66\u7ad9\u9644\u8fd1\u7684\u5496\u5561\u9986\u89c1\u5230"
            "\u4e86\u5b89\u5a1c\uff0c\u804a\u4e86\u5f88\u4e45\u5979\u7684\u65b0\u5de5\u4f5c\u3002"
            "\u5979\u4e0b\u4e2a\u6708\u8981\u642c\u5230\u4e0a\u6d77\uff0c\u6b63\u5728\u627e\u623f"
            "\u5b50\u3002",
            (37, 45, 27, 59),
            id="chinese",
        ),
    ],
)
def test_the_estimate_is_within_a_tenth_of_the_mean_of_four_vocabularies(text, measured):
    assert count_tokens(text) == pytest.approx(sum(measured) / len(measured), rel=0.1)


@given(st.lists(st.text().map(str.strip).filter(bool), min_size=1, max_size=5))
def test_lines_cost_the_sum_of_their_tokens_and_newlines(lines):
    together = sum(map(count_tokens, lines)) + len(lines) - 1
    assert together - len(lines) < count_tokens("\n".join(lines)) <= together
