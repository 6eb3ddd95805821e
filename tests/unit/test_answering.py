"""A reply in pieces: the output is the answer, for any division into pieces; its citations exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgray.domain.graph import Hit
from kgray.search.answering import Checked
from kgray.search.context import Context

THREE = Context(
    text="",
    tokens=0,
    hits=tuple(
        Hit(scope="episode", id=name, text=name, score=1.0, group="g", client_id=f"their-{name}")
        for name in "abc"
    ),
)


def checked(*pieces):
    """Return the answer to a reply that arrives in pieces, and its output."""
    output: list[str] = []
    reply = Checked(THREE, output.append)
    for piece in pieces:
        reply.take(piece)
    return reply.end(), "".join(output)


@pytest.mark.parametrize(
    ("reply", "text", "cited", "dropped"),
    [
        pytest.param("Acme [1].", "Acme [1].", [1], (), id="one"),
        pytest.param("Acme [1][3], Beta [2, 3].", "Acme [1][3], Beta [2, 3].", [1, 2, 3], (), id="several"),
        pytest.param("Acme [4].", "Acme.", [], (4,), id="no-such-line"),
        pytest.param("Acme [0, 2, 9]!", "Acme [2]!", [2], (0, 9), id="some-of-them"),
        pytest.param("Not in memory is what he said [1].", "Not in memory.", [], (), id="says-it-first"),
        pytest.param("It is not in memory [1].", "It is not in memory [1].", [1], (), id="quoted"),
        pytest.param("A [list], 7 [", "A [list], 7 [", [], (), id="other-brackets"),
        pytest.param("\n Acme [1] \n", "Acme [1]", [1], (), id="blanks"),
    ],
)
def test_citations_refer_to_lines(reply, text, cited, dropped):
    result, output = checked(reply)
    assert (result.text, output.strip(), result.dropped) == (text, text, dropped)
    assert result.citations == tuple((n, "abc"[n - 1], f"their-{'abc'[n - 1]}") for n in cited)


REPLIES = st.lists(
    st.sampled_from(["Acme", " ", "\n", "[", "]", "1", "3", "9", ",", "NOT IN", " MEMORY", "[2]", " [7]"]),
    max_size=14,
)


@given(REPLIES)
def test_the_result_does_not_depend_on_the_pieces_of_a_reply(pieces):
    """Every output is a prefix of the later output, so no output is retracted."""
    result, output = checked(*pieces)
    assert (result, output.strip()) == (checked("".join(pieces))[0], result.text)
