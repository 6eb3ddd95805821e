"""The words of a text, for the index and for queries."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.language.words import packed, stem, term, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "Al works at GPT-4, Inc.", "al work at gpt 4 inc", id="digits-stay-apart-and-words-are-stemmed"
        ),
        pytest.param("Zoë CAFÉ straße ﬁne ２０２６", "zoe cafe strass fine 2026", id="folded"),
        pytest.param("東京都 Tokyo2", "東 京 都 東京 京都 tokyo2", id="no-spaces-in-cjk"),
        pytest.param("iPhone用ガラス", "iphon 用 ガ ラ ス 用ガ ガラ ラス", id="scripts-mixed"),
        pytest.param("한국어", "한 국 어 한국 국어", id="hangul-stays-whole"),
        pytest.param("हिन्दी में", "हिन्दी में", id="vowel-signs-stay"),
        pytest.param("שָׁלוֹם مُحَمَّد", "שלום محمد", id="vowel-points-go"),
        pytest.param("a\x00b \ud800 \U0001f44d", "a b", id="what-is-no-word"),
        pytest.param('" OR NEAR(* ^:-', "or near", id="no-query-language"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_a_text_becomes_its_words(text, expected):
    assert words(text) == expected.split()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("She works", "working"),
        ("der Hund", "die Hunde"),
        ("eine Wohnung", "viele Wohnungen"),
        ("une voiture", "les voitures"),
        ("la escuela", "las escuelas"),
    ],
)
def test_forms_of_a_word_have_one_stem(first, second):
    assert words(first)[-1] == words(second)[-1]


@pytest.mark.parametrize(
    ("first", "second"), [("ten", "tea"), ("pen", "pet"), ("GPT-4", "GPT-5"), ("see", "sea"), ("note", "not")]
)
def test_different_words_have_different_stems(first, second):
    assert words(first) != words(second)


@given(st.text())
def test_words_of_any_text_can_be_stored_and_quoted(text):
    for word in words(text):
        assert word.encode()
        assert not set(word) & set("\x00\" '·")
        assert not any(character.isspace() for character in word)


def test_a_packed_text_has_the_terms_of_its_words_in_order():
    """Stored, so it stays as it is: CRC-32 of UTF-8, four bytes each, the lowest first."""
    assert term("tea") == 0x8E86D7B2
    tea, zoe = bytes.fromhex("b2d7868e"), term("zoe").to_bytes(4, "little")
    assert packed("Tea, tea -- Zoë!") == tea + tea + zoe
    assert packed("...") == b""


def test_stemming_is_thread_safe():
    """Requests of a server stem in threads of their own; a stemmer holds the word that it works on."""
    texts = [
        "relational",
        "hopping",
        "conditional",
        "generalizations",
        "feed",
        "skies",
        "bleed",
        "luxuriating",
    ]
    expected = [stem(text) for text in texts]
    uncached = stem.__wrapped__
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: [uncached(text) for text in texts], range(400)))
    finally:
        sys.setswitchinterval(interval)
    assert [answer for answer in answers if answer != expected] == []
