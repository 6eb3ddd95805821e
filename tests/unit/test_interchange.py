"""Names that are keys in other tools, XML and YAML of any text, packed folders."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgray.errors import InputError
from kgray.graph import Entity
from kgray.interchange.exporting import pack, unpack
from kgray.interchange.files import Graphml, yaml_value
from kgray.interchange.formats import FORMATS, format_called
from kgray.interchange.snapshot import unique_names


def test_all_but_the_oldest_of_one_name_get_a_suffix():
    four = [
        Entity(id=f"3f2{n}aaaa-0000", name=name, labels=labels, born=(n, 0))
        for n, (name, labels) in enumerate(
            [("Acme", ()), ("ACME", ("Place",)), ("acme", ("Place",)), ("Acme", ())]
        )
    ]

    assert list(unique_names(reversed(four)).values()) == [
        "Acme",
        "ACME (Place)",
        "acme (3f22)",
        "Acme (3f23)",
    ]


def test_a_suffix_that_is_taken_is_passed_over():
    taken = [Entity(id=f"aa{n}", name=name, born=(n, 0)) for n, name in enumerate(["A", "A (bb)"])]

    names = unique_names([*taken, Entity(id="bb", name="A", born=(9, 0))])

    assert names["bb"] == "A (2)"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_xml_carries_any_text_or_says_that_it_does_not(text):
    file = io.StringIO()
    graph = Graphml(file, nodes={"name": "string"}, edges={}, directed=True)
    graph.add("node", {"id": text}, {"name": text})
    graph.close({})
    (node,) = (item for item in ET.fromstring(file.getvalue()).iter() if item.tag.endswith("node"))  # noqa: S314 - ours

    replaced = graph.xml.replaced
    assert node.get("id").count("\ufffd") - text.count("\ufffd") == replaced / 2
    assert replaced or (node.get("id"), node[0].text or "") == (text, text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_yaml_reads_any_text_back(text):
    assert yaml.safe_load(f"title: {yaml_value(text)}")["title"] == text


def test_a_packed_folder_unpacks_to_the_same_files(tmp_path):
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "deep" / "a.md").write_text("one")
    for name in ("one.tar", "two.tar"):
        pack(tmp_path / "from", tmp_path / name, 1_700_000_000_000_000)
    unpack(tmp_path / "one.tar", tmp_path / "to")

    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert (tmp_path / "to" / "deep" / "a.md").read_text() == "one"


def test_an_unknown_format_is_refused_with_those_that_there_are():
    with pytest.raises(InputError, match=r"there is no format 'word': use jsonl, parquet, .*, okf"):
        format_called("word", "writer")
    with pytest.raises(InputError, match=r"there is no format 'okf': use graphrag, .*, mem0"):
        format_called("okf", "reader")
    assert all(form.code("writer").write for form in FORMATS.values() if form.writer)
    assert all(form.code("reader").units for form in FORMATS.values() if form.reader)
