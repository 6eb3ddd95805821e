"""The templates of a context block: its sections, their heads, and the lines that have numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kgray.domain.graph import Scope
from kgray.search.recipes import Template


class Form(NamedTuple):
    """A template: the first line, the sections with tag and head, and the scopes whose lines have numbers."""

    intro: str
    heads: Mapping[Scope, tuple[str, str]]
    cited: frozenset[Scope]


_HEADS: Mapping[Scope, tuple[str, str]] = {
    "fact": ("FACTS", "What memory holds, and when it held or happened: [n] FACT (Date range: from - to)"),
    "entity": ("ENTITIES", "Who and what it is about: NAME (kind; also known as ...): what else is known"),
    "community": ("COMMUNITIES", "What belongs together: NAMES: SUMMARY (as of DATE)"),
    "episode": ("EPISODES", "What was said, by day: n SPEAKER: TEXT (indented: right after)"),
}
CITED: frozenset[Scope] = frozenset({"fact", "episode"})
_PAPER_FACTS = (
    "# These are the most relevant facts and their valid date ranges. If the fact is about an event, the "
    "event takes place during this time.\n# format: FACT (Date range: from - to)"
)
FORMS: Mapping[Template, Form] = {
    "kgray": Form("", _HEADS, CITED),
    # The constructor of Zep's paper, arXiv 2501.13956, section 3.
    "paper": Form(
        "FACTS and ENTITIES represent relevant context to the current conversation.",
        {
            "fact": (
                "FACTS",
                _PAPER_FACTS,
            ),
            "entity": ("ENTITIES", "# These are the most relevant entities\n# ENTITY_NAME: entity summary"),
        },
        frozenset(),
    ),
}
