"""The tables of docs/interchange.md, which list the content of the fields of exports, match real exports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest
import yaml

import kgray
from kgray.domain.times import SECOND, show
from kgray.memory import Memory
from kgray.schema.kinds import EPISODES
from tests.doors.shell import triple, triples_row

PAGE = Path(__file__).parents[2] / "docs" / "interchange.md"
IMPORTED = ("parquet", "graphrag", "lightrag", "cogx")
LOST = "lost"
# The columns of GraphRAG's own tables; other columns are additions of kgray.
GRAPHRAG = {
    "documents": "id human_readable_id title text text_unit_ids creation_date raw_data",
    "text_units": "id human_readable_id text n_tokens document_id entity_ids relationship_ids covariate_ids",
    "entities": "id human_readable_id title type description text_unit_ids frequency degree",
    "relationships": "id human_readable_id source target description weight combined_degree text_unit_ids",
    "communities": "id human_readable_id community level parent children title entity_ids relationship_ids "
    "text_unit_ids period size",
    "community_reports": "id human_readable_id community level parent children title summary full_content "
    "rank rating_explanation findings full_content_json period size",
    "covariates": "id human_readable_id covariate_type type description subject_id object_id status "
    "start_date end_date source_text text_unit_id",
}
# Fields for people and models; a table names them only if the content is in no other field.
PROSE = re.compile(r"\.(text|description|summary|\w*content\w*|fact_text|notes|quotation)$")
Field = tuple[str, str]  # of an export: its name, with + if the format does not define it; its text
# Records of episodes; records that list the episodes of an entity.
OF_EPISODES = re.compile(
    r"(episode|episodes|text_units|doc_status|text_chunks|full_docs|documents(?!\.(content|title)$))\."
)
MENTIONS = re.compile(r"(mention|evidence|verdict|node|entities|entity_chunks|full_\w+)\.(?!\+?kgray|notes)")


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Write the answers of the scripted model; yield the episodes."""

    def fact(relation: str, text: str, **extra: Any) -> dict[str, Any]:
        return {"source": 0, "target": 1, "relation": relation, "fact": text} | extra

    extracted: list[tuple[str, str, dict[str, Any]]] = [
        ("Alice:Pilot", "Acme:Firm", fact("WORKS_AT", "Alice flies for Acme, said one")),
        ("Alice:Singer", "Acme:Firm", fact("WORKS_AT", "Alice flies again, said two")),
        ("Alice Quill:Pilot", "Bob:Pilot", fact("KNOWS", "they know each other")),
        ("Bob:Pilot", "Acme:Firm", fact("ADMIRES", "he admires Acme")),
        ("Bob:Pilot", "Mug:Thing", fact("ADMIRES", "he admires a mug")),
    ]
    questions = [
        (
            "compare",
            "Alice flies again, said two",
            "Alice flies for Acme, said one",
            {"answers": ["same"]},
        ),
        ("compare", "he admires a mug", "he admires Acme", {"answers": ["contradicts"]}),
        ("entity", "Alice Quill", "Alice", {"duplicate_of": None}),
    ]
    script: list[dict[str, Any]] = [
        {"question": {"kind": kind, "items": [new, [old]]}, "answer": answer}
        for kind, new, old, answer in questions
    ]
    for number, (*ends, stated) in enumerate(extracted):
        entities = [dict(zip(("name", "type"), end.split(":"), strict=True)) for end in ends]
        script.append({"episode": f"t{number}", "extraction": {"entities": entities, "facts": [stated]}})
        text = " ".join([*(entity["name"] for entity in entities), stated["fact"]])
        yield {"id": f"t{number}", "kind": "text", "text": text, "at": f"2026-03-1{number}"}
    script.append({"episode": "quiet", "extraction": {"entities": [{"name": "Zoe"}], "facts": []}})
    (folder / "script.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in script))
    place = triple("Mug", "LOCATED_IN", "Acme", valid_at="2024-01-05", invalid_at="2024-02-11")
    yield triples_row("first", "2026-04-01", place)
    yield {"id": "quiet", "kind": "text", "text": "zebra Zoe", "at": "2026-04-02T01:02:03"}
    yield triples_row("last", "2026-04-03", place | {"valid_at": "2025-06-07", "invalid_at": None})
    yield triples_row("cost", "2026-04-04", triple("Mug", "COSTS", {"value": 9.75}))


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    folder = tmp_path_factory.mktemp("losses")
    episodes = list(rows(folder))
    script = {"model_backend": "scripted", "model_script": str(folder / "script.jsonl")}
    with kgray.open(folder / "data", create=True, settings=script) as memory:
        report = memory.add_many([row | {"group": "g"} for row in episodes])
        assert (report.exit_code, report.committed) == (0, len(episodes))
        memory.merge("Alice", "Alice Quill", group="g")
        memory.communities.refresh(["g"])
        yield memory


def lines_of(name: str, path: Path) -> Iterator[Field]:
    """Yield the fields of the lines of a file; of a line of a dump, its type is the name."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield from flat(name or row["type"], row)


def fields_of_tables(path: Path) -> Iterator[Field]:
    for name, columns in GRAPHRAG.items():
        names = columns.split()
        for row in pq.read_table(path / f"{name}.parquet").to_pylist():
            yield from flat(name, {k if k in names else f"+{k}": v for k, v in row.items()})


def fields_of_lightrag(path: Path) -> Iterator[Field]:
    for name, text in graph_fields(path / "graph_chunk_entity_relation.graphml"):
        yield name.replace(".kgray", ".+kgray"), text
    for file in path.glob("kv_store_*.json"):
        for key, row in json.loads(file.read_text(encoding="utf-8")).items():
            yield from flat(file.stem.removeprefix("kv_store_"), row | {"key": key})


def flat(name: str, row: Mapping[str, Any]) -> Iterator[Field]:
    for key, value in row.items():
        yield f"{name}.{key}", value if isinstance(value, str) else json.dumps(value)


def graph_fields(path: Path) -> Iterator[Field]:
    """Yield the attributes of nodes and edges, by the names that their keys have."""
    for element in ET.parse(path).getroot().iter():  # noqa: S314 - ours
        if (kind := element.tag.rpartition("}")[2]) in ("node", "edge"):
            yield from flat(kind, element.attrib)
            for part in element.iter():
                name = part.get("key") or part.get("for") or part.tag.rpartition("}")[2]
                for text in (part.text, part.get("value"), part.get("start"), part.get("end")):
                    yield f"{kind}.{re.sub('^[ne]_', '', name)}", text or ""


def page_fields(file: Path) -> Iterator[Field]:
    """Yield the front matter, the quotation, the footnotes and the other text of a page."""
    if file.name == "index.md":
        return
    _, head, body = file.read_text().split("---\n", 2)
    for key, value in yaml.safe_load(head).items():
        yield from flat(file.parent.name, {"+kgray" if key == "kgray" else key: value})
    for line in body.splitlines():
        part = "quotation" if line.startswith(">") else "notes" if line.startswith("[^") else "text"
        yield f"{file.parent.name}.{part}", line


FIELDS: Mapping[str, Callable[[Path], Iterator[Field]]] = {
    "jsonl": lambda path: lines_of("", path),
    "graphml": graph_fields,
    "gexf": graph_fields,
    "graphrag": fields_of_tables,
    "lightrag": fields_of_lightrag,
    "cogx": lambda path: chain.from_iterable(lines_of(file.stem, file) for file in path.glob("*.jsonl")),
    "okf": lambda path: chain.from_iterable(map(page_fields, path.glob("*/*.md"))),
}


def of_episodes(name: str) -> bool:
    return OF_EPISODES.match(name) is not None


def of_rest(name: str) -> bool:
    return not of_episodes(name)


def of_facts(name: str) -> bool:
    return not of_episodes(name) and not MENTIONS.match(name)


Look = tuple[
    tuple[str, ...], Callable[[str], bool]
]  # texts that identify a content, and the items that are searched for them


def looks(memory: Memory) -> dict[str, Look]:
    """Return the rows of the table of exports: name -> its content."""
    dumped = [json.loads(line) for line in memory.dump(group="g")]
    entities = {row["id"] for row in dumped if row["type"] == "entity"}
    (merged,) = {id_ for row in dumped if row["type"] == "merge" for id_ in row["entities"]} - entities
    (community,) = memory.communities.list(group="g")
    stored = {row.client_id: row for row in memory.store.rows(EPISODES.all, "g")}

    def recorded(name: str) -> tuple[str, ...]:
        at = stored[name].ended_at
        assert at is not None
        return str(show(at)), str(at // SECOND)

    return {
        "text of an episode": (("zebra",), of_episodes),
        "its reference time": (("2026-04-02T01:02:03",), of_episodes),
        "its record time": (recorded("quiet"), of_episodes),
        "second label of an entity": (("Singer",), of_rest),
        "alias of an entity": (('"Alice"',), of_rest),
        "former span of a fact": (("2024-01-05",), of_rest),
        "record time of a fact": (recorded("first"), of_facts),
        "value of a fact": (("9.75",), of_rest),
        "episode of a fact": ((stored["first"].id,), of_facts),
        "name of a community": ((community.name,), of_rest),
        "report of a community": ((community.summary,), of_rest),
        "second wording of a fact": (("said two",), of_rest),
        "merge of entities": ((merged,), of_rest),
        "verdict of a model": (("scripted-1",), of_rest),
    }


def cell(names: set[str]) -> str:
    """Return two fields at most: the format's own, else added fields, else prose."""
    plain = {name for name in names if not PROSE.search(name)}
    native = {name for name in plain if "+" not in name}
    return ", ".join(f"`{name}`" for name in sorted(native or plain or names)[:2]) or LOST


def lost_content(memory: Memory, folder: Path) -> list[str]:
    """Return the table of exports."""
    contents = dict[str, list[Field]]()
    for form in FIELDS:
        memory.export(folder / form, to=form, group="g")
        contents[form] = list(FIELDS[form](folder / form))
    lines = header(list(FIELDS))
    for row, (texts, is_place) in looks(memory).items():
        places = (
            {name for name, text in contents[form] if is_place(name) and any(t in text for t in texts)}
            for form in FIELDS
        )
        lines.append(f"| {row} | {' | '.join(map(cell, places))} |")
    return lines


def header(columns: Sequence[str]) -> list[str]:
    return [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]


def content(memory: Memory, group: str) -> dict[str, set[Any]]:
    """Return the rows of the table of imports: name -> its content in a group, without ids."""
    dumped = [json.loads(line) for line in memory.dump(group=group)]
    names = {row["id"]: row["name"] for row in dumped if row["type"] == "entity"}
    facts = [row for row in dumped if row["type"] == "fact"]
    ends = {f["id"]: (names[f["source"]], f["relation"], names.get(f["target"])) for f in facts}
    edges, values = ([f for f in facts if (f["value"] is None) is is_edge] for is_edge in (True, False))
    episodes = list(memory.store.rows(EPISODES.all, group))
    sources = {row.id: row for row in episodes if any(row.id in f["episodes"] for f in facts)}
    texts = {row.id: text_of(row.text) for row in episodes}
    return {
        "facts between entities": {ends[f["id"]] for f in edges},
        "their dates": {(*ends[f["id"]], f["valid_at"], f["invalid_at"]) for f in edges},
        "facts with a value": {(*ends[f["id"]], f["value"]["value"]) for f in values},
        "type of a value": {(*ends[f["id"]], f["value"]["type"]) for f in values},
        "episodes of a fact": {(*ends[f["id"]], texts[id_]) for f in edges for id_ in f["episodes"]},
        "reference time of an episode": {(texts[id_], row.reference_time) for id_, row in sources.items()},
        "source of an episode": {(texts[id_], row.source) for id_, row in sources.items()},
        "episode without facts": set(texts.values()) - {texts[id_] for id_ in sources},
        "entity without facts": {*names.values()} - set(chain.from_iterable(ends.values())),
        "label": {label for row in dumped if row["type"] == "entity" for label in row["labels"]},
        "alias": {alias for row in dumped if row["type"] == "entity" for alias in row["aliases"]},
        "record time": {row.ended_at for row in episodes},
        "community": {c.name for c in memory.communities.list(group=group)},
    }


def text_of(text: str) -> str:
    """Return the text of an episode that was imported, else the text."""
    rows = json.loads(text) if text.startswith("[{") else [{}]
    return str(rows[0].get("episode_text", text))


def lost_in_a_round_trip(memory: Memory, folder: Path) -> list[str]:
    """Return the table of imports of exports."""
    original, imported = content(memory, "g"), dict[str, dict[str, set[Any]]]()
    assert all(original.values())
    for form in IMPORTED:
        memory.export(folder / form, to=form, group="g")
        with kgray.open(folder / f"{form}-store", create=True, settings={"model_backend": "rules"}) as target:
            target.import_from(folder / form, form=form, group="g")
            imported[form] = content(target, "g")
    words = {
        row: [
            "kept" if imported[f][row] == items else "in part" if imported[f][row] & items else LOST
            for f in IMPORTED
        ]
        for row, items in original.items()
    }
    return [*header(IMPORTED), *(f"| {row} | {' | '.join(cells)} |" for row, cells in words.items())]


@pytest.mark.parametrize(
    ("section", "derive"), [("Lost content", lost_content), ("Lost in a round trip", lost_in_a_round_trip)]
)
def test_the_page_has_the_generated_tables(
    memory: Memory, tmp_path: Path, section: str, derive: Callable[[Memory, Path], list[str]]
) -> None:
    text = PAGE.read_text(encoding="utf-8").partition(f"### {section}\n")[2].partition("\n#")[0]
    written = [line for line in text.splitlines() if line.startswith("|")]

    assert written == derive(memory, tmp_path), f"write the lines on the right into {PAGE}, {section}"
