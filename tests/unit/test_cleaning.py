"""Names of relations and numbers in their one form (R18, section 1)."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.domain.records import MAX_RELATION, clean_number, clean_relation


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("WORKS_AT", "WORKS_AT"),
        ("works at", "WORKS_AT"),
        ("worksAt", "WORKS_AT"),
        (" works--at! ", "WORKS_AT"),
        ("HTTPServer", "HTTP_SERVER"),
        ("B2B", "B2B"),
        ("работает в", "РАБОТАЕТ_В"),
        ("straße", "STRASSE"),
    ],
)
def test_relations_are_upper_snake(text, name):
    assert clean_relation(text) == name


@pytest.mark.parametrize("text", ["", " ", "123", "--", "X" * 65])
def test_a_text_without_a_relation_name_is_refused(text):
    with pytest.raises(ValueError, match="relation"):
        clean_relation(text)


@given(st.text(max_size=40))
def test_cleaning_a_clean_name_does_not_change_it(text):
    try:
        name = clean_relation(text)
    except ValueError:
        return
    assert clean_relation(name) == name
    assert 0 < len(name) <= MAX_RELATION


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (100, "100"),
        (100.0, "100"),
        ("1e2", "100"),
        (99.50, "99.5"),
        (-0.0, "0"),
        (-12.30, "-12.3"),
        (0.1, "0.1"),
        ("00.50", "0.5"),
        (1e308, "1E+308"),
        (10**19, "10000000000000000000"),
    ],
)
def test_numbers_become_their_shortest_decimal(number, text):
    assert clean_number(number) == text


@pytest.mark.parametrize("number", [math.nan, math.inf, "1,5", "", "ten"])
def test_a_number_that_is_not_finite_is_refused(number):
    with pytest.raises(ValueError, match="number"):
        clean_number(number)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_cleaning_a_number_keeps_all_digits(number):
    text = clean_number(number)

    assert Decimal(text) == Decimal(repr(number))
    assert clean_number(text) == text
