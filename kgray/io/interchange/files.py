"""New files for their owner alone; texts of facts in Markdown, XML and YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from xml.sax.saxutils import quoteattr

from kgray.domain.graph import Fact
from kgray.domain.records import canonical
from kgray.domain.times import Instant, show
from kgray.system import locks

Rows = dict[str, int]  # how many of each kind were written
DAY = 10  # characters of a date
_TIMES = ("valid_at", "invalid_at", "created_at", "expired_at")
# XML 1.0 has no such characters, not even as references.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"[\w .,:;()/+-]*", re.ASCII)  # needs no quotation
_XML_MARKS = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}
_XML_MARK = re.compile("[&<>\r]")
# YAML demands that these are escaped; JSON does not.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


@contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """Write a new UTF-8 file that only its owner can read."""
    with open(path, "w", encoding="utf-8", newline="\n", opener=locks.for_owner) as file:
        yield file


def write_lines(path: Path, items: Iterable[object]) -> int:
    """Write one canonical JSON a line; return how many."""
    count = 0
    with new_file(path) as file:
        for count, row in enumerate(items, 1):  # noqa: B007 - the last number is the count
            file.write(f"{canonical(row)}\n")
    return count


def write_json(path: Path, pairs: Iterable[tuple[str, Any]]) -> int:
    """Write one JSON object with these keys, a line each; return how many."""
    count = 0
    with new_file(path) as file:
        for key, value in pairs:
            file.write(f"{',' if count else '{'}\n{json.dumps(key)}: {canonical(value)}")
            count += 1
        file.write("\n}\n" if count else "{}\n")
    return count


def fact_row(fact: Fact) -> dict[str, Any]:
    """Return the fields of a fact as JSON, with both clocks."""
    names = ("id", "statement", "source", "target", "relation", "text", "event")
    row: dict[str, Any] = {name: getattr(fact, name) for name in names}
    row |= {name: show(getattr(fact, name)) for name in _TIMES}
    value = fact.value.as_dict() if fact.value else None
    ended_by = list(fact.ended_by) if fact.ended_by else None
    return row | {"value": value, "episodes": list(fact.episodes), "ended_by": ended_by}


def day(moment: Instant | None) -> str:
    """Return a date; "" for None."""
    return (show(moment) or "")[:DAY]


def span_words(fact: Fact) -> str:
    """Return the span of a fact for people and models: "2026-01-01 to 2026-03-01"; "" = nothing is known."""
    start, end = day(fact.valid_at), day(fact.invalid_at)
    if fact.event:
        return start
    if start and end:
        return f"{start} to {end}"
    return f"since {start}" if start else f"until {end}" if end else ""


def sentence(fact: Fact) -> str:
    """Return the text of a fact with its span, on one line."""
    words = span_words(fact)
    return " ".join(fact.text.split()) + (f" ({words})" if words else "")


def yaml_value(value: object) -> str:
    """Return a value as YAML on one line: JSON is such, but for some characters."""
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def xml_text(text: str) -> tuple[str, int]:
    """Return a text that XML can carry, and the number of characters replaced by U+FFFD."""
    return (text, 0) if text.isascii() and text.isprintable() else _NOT_XML.subn("\ufffd", text)


class XmlFile:
    """Writes XML piece by piece. replaced: the number of characters replaced by U+FFFD."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self.replaced = file, 0
        file.write('<?xml version="1.0" encoding="UTF-8"?>\n')

    def clean(self, text: str) -> str:
        """Return a text that XML can carry."""
        cleaned, count = xml_text(text)
        self.replaced += count
        return cleaned

    def text(self, text: str) -> str:
        """Return a text as content of an element."""
        return _XML_MARK.sub(lambda match: _XML_MARKS[match[0]], self.clean(text))

    def tag(self, name: str, attributes: Mapping[str, object], *, text: str | None = None) -> str:
        """Return an element with its text; None = it is empty."""
        head = f"{name}{''.join(self.pairs(attributes))}"
        return f"<{head}/>" if text is None else f"<{head}>{self.text(text)}</{name}>"

    def open(self, name: str, attributes: Mapping[str, object]) -> None:
        """Write the beginning of an element."""
        self.write(f"<{name}{''.join(self.pairs(attributes))}>")

    def pairs(self, attributes: Mapping[str, object]) -> Iterator[str]:
        """Yield the attributes that are not None."""
        for name, value in attributes.items():
            if value is not None and _PLAIN.fullmatch(text := str(value)):
                yield f' {name}="{text}"'
            elif value is not None:
                quoted = quoteattr(self.clean(str(value)), {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})
                yield f" {name}={quoted}"

    def write(self, line: str) -> None:
        """Write a line of XML."""
        self._file.write(f"{line}\n")


_GRAPHML = {
    "xmlns": "http://graphml.graphdrawing.org/xmlns",
    "xmlns:xsi": "http://www.w3.org/2001/XMLSchema-instance",
    "xsi:schemaLocation": "http://graphml.graphdrawing.org/xmlns "
    "http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd",
}
Attributes = Mapping[str, str]  # name -> its type in GraphML: string, int, long, double, boolean


class Graphml:
    """Writes GraphML. A key is called n_NAME, e_NAME, g_NAME: Gephi takes d3 and d7 for labels."""

    def __init__(self, file: IO[str], *, nodes: Attributes, edges: Attributes, directed: bool) -> None:
        self.xml = xml = XmlFile(file)
        xml.open("graphml", _GRAPHML)
        for element, names in (("node", nodes), ("edge", edges), ("graph", {"about": "string"})):
            for name, type_ in names.items():
                key = {"id": f"{element[0]}_{name}", "for": element, "attr.name": name, "attr.type": type_}
                xml.write(xml.tag("key", key))
        xml.open("graph", {"edgedefault": "directed" if directed else "undirected"})

    def add(self, element: str, place: Mapping[str, object], attributes: Mapping[str, object]) -> None:
        """Write a node or an edge; attributes without a value are left out."""
        data = (
            f'<data key="{element[0]}_{name}">{self.xml.text(_xml_value(value))}</data>'
            for name, value in attributes.items()
            if value is not None
        )
        self.xml.write(f"<{element}{''.join(self.xml.pairs(place))}>{''.join(data)}</{element}>")

    def close(self, about: Mapping[str, object]) -> None:
        """Write the description of the export, and the end of the file."""
        text = canonical({**about, "replaced_characters": self.xml.replaced})
        self.xml.write(self.xml.tag("data", {"key": "g_about"}, text=text))
        self.xml.write("</graph>\n</graphml>")


def _xml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else canonical(value)
