"""GEXF 1.3, with time: an edge for each statement, and a spell for each of its facts.

Its dates are whole days, both ends inside; the exact instants are in the attribute `facts`.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from kgray.domain.graph import Fact
from kgray.domain.records import canonical
from kgray.domain.times import DAY
from kgray.io.interchange.files import Rows, XmlFile, day, fact_row, new_file
from kgray.io.interchange.graphml import NODE, community_names, node_row
from kgray.io.interchange.snapshot import Snapshot

_GEXF = {"xmlns": "http://gexf.net/1.3", "version": "1.3"}
_EDGE = ("relation", "statement", "facts")


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write one file."""
    rows = {"entity": 0, "fact": 0, "statement": 0, "value": 0}
    with new_file(path) as file:
        xml = XmlFile(file)
        xml.open("gexf", _GEXF)
        about = snapshot.about()
        xml.open("meta", {"lastmodifieddate": str(about["recorded_at"])[:10]})
        xml.write(xml.tag("creator", {}, text=f"kgray {about['kgray']}"))
        xml.write(xml.tag("description", {}, text=canonical(about)) + "</meta>")
        kind = {"mode": "dynamic", "timeformat": "date", "timerepresentation": "interval"}
        xml.open("graph", {"defaultedgetype": "directed", **kind})
        nodes = [name for name in (*NODE, *community_names(snapshot)) if name != "label"]
        for element, names in (("node", nodes), ("edge", _EDGE)):
            xml.open("attributes", {"class": element})
            for name in names:
                xml.write(
                    xml.tag("attribute", {"id": f"{element[0]}_{name}", "title": name, "type": "string"})
                )
            xml.write("</attributes>")
        xml.write("<nodes>")
        for entity in snapshot.entities():
            attributes, values = node_row(snapshot, entity)
            xml.open("node", {"id": entity.id, "label": attributes.pop("label")})
            _write_values(xml, "n", attributes)
            xml.write("</node>")
            rows["entity"] += 1
            rows["value"] += values
        xml.write("</nodes>\n<edges>")
        facts = (fact for fact in snapshot.facts("statement") if fact.target is not None)
        for _, spans in groupby(facts, key=lambda fact: fact.statement):
            rows["fact"] += _write_edge(xml, list(spans))
            rows["statement"] += 1
        xml.write("</edges>\n</graph>\n</gexf>")
    return rows


def _write_edge(xml: XmlFile, spans: list[Fact]) -> int:
    first = spans[0]
    place = {"id": first.statement, "source": first.source, "target": first.target}
    xml.open("edge", place | {"kind": first.relation, "label": first.relation})
    facts = [fact_row(fact) for fact in spans]
    _write_values(xml, "e", {"relation": first.relation, "statement": first.statement, "facts": facts})
    xml.write("<spells>" + "".join(map(xml.tag, ["spell"] * len(spans), map(_spell, spans))) + "</spells>")
    xml.write("</edge>")
    return len(spans)


def _spell(fact: Fact) -> dict[str, str | None]:
    """Return the first and the last day; a fact that ends on its first day has that day."""
    last = fact.valid_at if fact.event else fact.invalid_at and fact.invalid_at - DAY
    if last is not None and fact.valid_at is not None:
        last = max(last, fact.valid_at)
    return {"start": day(fact.valid_at) or None, "end": day(last) or None}


def _write_values(xml: XmlFile, prefix: str, attributes: dict[str, object]) -> None:
    values = (
        xml.tag(
            "attvalue",
            {"for": f"{prefix}_{name}", "value": value if isinstance(value, str) else canonical(value)},
        )
        for name, value in attributes.items()
        if value is not None
    )
    xml.write(f"<attvalues>{''.join(values)}</attvalues>")
