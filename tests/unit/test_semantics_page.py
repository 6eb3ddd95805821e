"""docs/semantics.md is the specification: it has every rule that files quote, and tests run its cases."""

from __future__ import annotations

import ast
import re

import pytest

from tests import worked_cases
from tests.graph import test_worked_cases
from tests.unit import test_timeline_cases
from tests.worked_cases import PAGE, ROOT

PAGE_TEXT = PAGE.read_text(encoding="utf-8")
RULES = re.findall(r"^### (R\d+[a-z]?)\. ", PAGE_TEXT, re.MULTILINE)
FOLDERS = ("kgray", "tests", "bench", "prompts", "docs", "examples", "jobs", "cluster", "k8s")
TEXT_FILES = {".py", ".toml", ".md", ".cypher", ".yaml"}
QUOTED = re.compile(r"\bR\d+[a-z]?\b")


def functions_of(file: str) -> set[str]:
    """Return the names of the functions at the top level of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_page_has_every_rule_once_and_in_order():
    numbers = [str(number) for number in range(1, 28)]
    letters = {"14": ["14a"], "17": ["17a", "17b", "17c"], "18": ["18a"]}

    assert [f"R{rule}" for number in numbers for rule in (number, *letters.get(number, ()))] == RULES


def test_every_rule_has_an_example():
    parts = re.split(r"^### (R\d+[a-z]?)\. ", PAGE_TEXT, flags=re.MULTILINE)[1:]
    texts = dict(zip(parts[::2], parts[1::2], strict=True))

    assert [rule for rule, text in texts.items() if "xample" not in text] == []


def test_every_rule_that_a_file_quotes_is_on_the_page():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_FILES]
    quoted = {
        f"{rule} in {path.relative_to(ROOT)}"
        for path in [*files, *ROOT.glob("*.md")]
        for rule in QUOTED.findall(path.read_text(encoding="utf-8"))
        if rule not in RULES
    }

    assert sorted(quoted) == []


def test_every_row_of_the_worked_cases_is_read_once():
    """The tables are read by their headers, so a changed header must not hide the rows below it."""
    first_cells = re.findall(r"^\| *(.*?) *\|", worked_cases.section(), re.MULTILINE)
    notation = re.compile(r"`.*`|notation|a sentence in quotes|case|-+")
    named = [cell for cell in first_cells if not notation.fullmatch(cell)]
    cases = [h.case for h in worked_cases.histories()] + [s.case for s in worked_cases.stories()]

    assert named == cases
    assert len(set(named)) == len(named)


def test_every_history_is_run_by_a_test():
    histories = worked_cases.histories()
    plays = [play.rpartition("-") for play in test_worked_cases.played()]
    played = {case for case, _, _ in plays}
    reversed_cases = {case for case, _, order in plays if order == "reversed"}
    swept = {case.case for case in test_timeline_cases.CASES}

    assert played == {case.case for case in histories}
    assert reversed_cases == {c.case for c in histories if c.arrival == "any order" and len(c.messages) > 1}
    assert swept == {case.case for case in histories if not case.names_variants}


def test_every_test_that_a_case_names_exists():
    named = {(story.case, file, test) for story in worked_cases.stories() for file, test in story.tests}

    assert sorted(row for row in named if row[2] not in functions_of(row[1])) == []


@pytest.mark.parametrize(
    ("messages", "spans", "arrival", "reason"),
    [
        pytest.param("`Acme@0`", "`Acme [0,-)`", "some order", "the arrival", id="arrival"),
        pytest.param("Acme@0", "`Acme [0,-)`", "any order", "between backticks", id="no-backticks"),
        pytest.param("`Acme on 0`", "`Acme [0,-)`", "any order", "not a message", id="message"),
        pytest.param("`Acme since 5`", "`Acme [0,-)`", "any order", "not a message", id="no-day"),
        pytest.param("`Acme@0`", "`Acme`", "any order", "not a name with spans", id="no-span"),
        pytest.param("`Acme@0`", "`Acme [0,-), 5`", "any order", "not a span", id="span"),
        pytest.param("`Acme@0`", "`Acme [0,60]`", "any order", "not a name with spans", id="closed-span"),
    ],
)
def test_a_row_outside_the_notation_is_refused(messages, spans, arrival, reason):
    with pytest.raises(ValueError, match=f"case a: .*{reason}"):
        worked_cases.read_history(["a", messages, spans, arrival])


@pytest.mark.parametrize("tests", ["", "test_h", "`tests/graph/test_x.py::test_h` and by hand"])
def test_a_case_without_a_test_is_refused(tests):
    with pytest.raises(ValueError, match=r"case h: .*list of tests"):
        worked_cases.read_story(["h", "Beta is removed", "Acme", tests])
