"""Names that are keys in other tools, XML and YAML of any text, packed folders."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from itertools import islice

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgray.domain.graph import Entity
from kgray.errors import InputError
from kgray.io.interchange.exporting import pack, unpack
from kgray.io.interchange.files import Graphml, yaml_value
from kgray.io.interchange.formats import FORMATS, format_called
from kgray.io.interchange.snapshot import possible_names


def test_a_duplicate_name_gets_a_label_an_id_prefix_or_a_number():
    entity = Entity(id="3f20aa", name="ACME", labels=("Place", "Firm"), born=(1, 0))

    assert list(islice(possible_names(entity), 6)) == [
        "ACME", "ACME (Place)", "ACME (3f20)", "ACME (3f20a)", "ACME (3f20aa)", "ACME (2)",
    ]  # fmt: skip


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_xml_keeps_any_text_or_reports_replaced_characters(text):
    file = io.StringIO()
    graph = Graphml(file, nodes={"name": "string"}, edges={}, directed=True)
    graph.add("node", {"id": text}, {"name": text})
    graph.close({})
    (node,) = (item for item in ET.fromstring(file.getvalue()).iter() if item.tag.endswith("node"))  # noqa: S314 - ours

    replaced = graph.xml.replaced
    assert node.get("id").count("\ufffd") - text.count("\ufffd") == replaced / 2
    assert replaced or (node.get("id"), node[0].text or "") == (text, text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_yaml_values_keep_any_text(text):
    assert yaml.safe_load(f"title: {yaml_value(text)}")["title"] == text


def test_a_packed_folder_unpacks_to_the_same_files(tmp_path):
    (tmp_path / "from" / "deep").mkdir(parents=True)
    (tmp_path / "from" / "deep" / "a.md").write_text("one")
    for name in ("one.tar", "two.tar"):
        pack(tmp_path / "from", tmp_path / name, 1_700_000_000_000_000)
    unpack(tmp_path / "one.tar", tmp_path / "to")

    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert (tmp_path / "to" / "deep" / "a.md").read_text() == "one"


def test_an_unknown_format_is_refused_with_a_list_of_the_formats():
    with pytest.raises(InputError, match=r"there is no format 'word': use jsonl, parquet, .*, okf"):
        format_called("word", "writer")
    with pytest.raises(InputError, match=r"there is no format 'okf': use parquet, .*, mem0, graphiti"):
        format_called("okf", "reader")
    assert all(form.module().write for form in FORMATS.values() if form.writer)
    readers = {
        form.name: form.module() for form in FORMATS.values() if form.reader and form.name != "graphiti"
    }
    assert readers.pop("parquet").restore
    assert all(reader.units for reader in readers.values())
