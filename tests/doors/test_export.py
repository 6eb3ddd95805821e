"""`kgray export`: each format, read back by its usual library, and refused exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import networkx as nx
import pyarrow.parquet as pq
import pytest
import yaml

import kgray
from kgray.io.interchange import formats
from kgray.schema.kinds import BY_NAME
from tests.doors.shell import triple, triples_row

FORMATS = {name: form for name, form in formats.FORMATS.items() if form.writer}
HOSTILE = "A\x01\x0b\ufffe<b>&\"'[[x]](y.md) #tag 😀 \u202eעברית\r\n---\n\u2028^ %%"

ODD = '\u202eעברית <b>&"[x](y.md)#😀'


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    with pytest.MonkeyPatch.context() as alone:
        alone.setenv("KGRAY_MODEL_BACKEND", "rules")
        with kgray.open(tmp_path_factory.mktemp("exported"), create=True) as memory:
            report = memory.add_many([
                triples_row("t1", "2026-01-01", triple("Alice Nguyen", "WORKS_AT", "Acme"), source="crm"),
                triples_row("t2", "2026-03-01", triple("Alice Nguyen", "WORKS_AT", "Beta"), source="crm"),
                triples_row("t3", "2026-05-01", triple("Alice Nguyen", "WORKS_AT", "Acme"), source="crm"),
                triples_row("t4", "2026-03-05", triple("Mug", "COSTS", {"value": 9.5, "unit": "eur"})),
                triples_row("t5", "2026-03-06", triple(ODD + "\ufffe", "KNOWS", "Alice Nguyen"), source=ODD),
                triples_row("t6", "2026-03-06", triple("42", "KNOWS", "😀"), source="../../etc"),
                {"text": HOSTILE + "x" * 1_000_000, "speaker": ODD, "group": "team", "id": "long"},
            ])  # fmt: skip
            assert not report.refusals
            memory.communities.refresh(["team"])
            yield memory


@pytest.fixture
def export(memory, tmp_path):
    def written(to, **options):
        path = tmp_path / f"out-{len([*tmp_path.iterdir()])}{FORMATS[to].suffix}"
        report = memory.export(path, to=to, group="team", **options)
        files = [file for file in path.rglob("*") if file.is_file()] or [path]
        assert report.files == len(files)
        return path, report.as_dict()["rows"]

    return written


def bytes_of(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    } or {"": path.read_bytes()}


@pytest.mark.parametrize("to", FORMATS)
def test_two_exports_have_equal_bytes_and_only_the_owner_can_read_them(export, to):
    first, second = export(to)[0], export(to)[0]

    assert bytes_of(first) == bytes_of(second)
    assert all(file.stat().st_mode & 0o077 == 0 for file in (first, *first.rglob("*")))


def names_of(memory):
    return {hit.entity.id: hit.entity.name for hit in memory.entities("", group="team", limit=99)}


def test_jsonl_is_the_dump(export, memory):
    path, rows = export("jsonl")

    assert path.read_text("utf-8").split("\n")[:-1] == memory.dump(group="team")
    assert rows["episode"] == 7


def test_an_export_as_of_a_moment_has_only_the_facts_of_that_moment(export):
    path, _ = export("jsonl", as_of="2026-04-01")

    facts = [row for line in path.open(encoding="utf-8") if (row := json.loads(line))["type"] == "fact"]
    assert [f["valid_at"][:7] for f in facts if f["relation"] == "WORKS_AT"] == ["2026-03"]
    graph = nx.read_graphml(export("graphml", as_of="2026-04-01")[0], force_multigraph=True)
    assert sum(attributes["relation"] == "WORKS_AT" for *_, attributes in graph.edges(data=True)) == 1


def test_an_export_as_known_before_the_first_message_is_empty(export):
    for to in FORMATS.keys() - {"parquet"}:
        _, rows = export(to, known_at="2001-01-01")
        assert not any(count for name, count in rows.items() if name != "relation"), to


def test_graphml_is_a_multigraph_of_facts(export, memory):
    path, _ = export("graphml")
    graph = nx.read_graphml(path, force_multigraph=True)

    assert {node: attributes["name"] for node, attributes in graph.nodes(data=True)} == {
        id_: name.replace("\ufffe", "\ufffd") for id_, name in names_of(memory).items()
    }
    facts = [
        fact for fact in memory.history("Alice Nguyen", group="team").facts if fact.relation == "WORKS_AT"
    ]
    assert len(facts) == 3
    for fact in facts:
        attributes = graph.edges[fact.subject_id, fact.object_id, fact.id]
        assert (attributes["relation"], attributes["event"], attributes["text"]) == (
            "WORKS_AT",
            False,
            fact.text,
        )
        assert attributes.get("invalid_at", "")[:10] == (
            str(fact.invalid_at.date()) if fact.invalid_at else ""
        )
    (mug,) = (attributes for _, attributes in graph.nodes(data=True) if attributes["name"] == "Mug")
    assert json.loads(mug["values"])[0]["value"] == {"type": "number", "value": "9.5", "unit": "EUR"}
    about = json.loads(graph.graph["about"])
    assert (about["group"], about["replaced_characters"] > 0) == ("team", True)
    assert any("community_0" in attributes for _, attributes in graph.nodes(data=True))


def test_gexf_has_an_edge_for_a_statement_and_a_spell_for_each_span(export):
    path, rows = export("gexf")
    graph = nx.read_gexf(path)
    edges = {attributes["statement"]: attributes for *_, attributes in graph.edges(data=True)}
    (twice,) = (attributes for attributes in edges.values() if len(attributes["spells"]) == 2)

    assert len(edges) == rows["statement"]
    assert twice["spells"] == [
        ("2026-01-01", "2026-02-28"),
        ("2026-05-01", "None"),
    ]  # as networkx reads an open end
    assert [fact["valid_at"][:10] for fact in json.loads(twice["facts"])] == ["2026-01-01", "2026-05-01"]


def test_parquet_has_every_row_of_the_store(export, memory):
    path, rows = export("parquet")
    about = json.loads((path / "kgray.json").read_text("utf-8"))

    assert about["tables"].keys() == rows.keys()
    for name, count in rows.items():
        kind = BY_NAME[name]
        table = pq.read_table(path / f"{name}.parquet")
        stored = [dict(zip(kind.names, row, strict=True)) for row in memory.store.rows(kind.all, "team")]
        exported = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
            for row in table.to_pylist()
        ]
        assert (exported, len(exported)) == (stored, count)


def test_graphrag_tables_refer_to_each_other_by_titles_and_ids(export):
    path, rows = export("graphrag")
    tables = {name: pq.read_table(path / f"{name}.parquet").to_pylist() for name in rows}
    titles = [row["title"] for row in tables["entities"]]
    units = {row["id"] for row in tables["text_units"]}
    claims = [row for row in tables["covariates"] if row["type"] == "WORKS_AT"]

    assert len(set(titles)) == len(titles)
    assert all({row["source"], row["target"]} <= set(titles) for row in tables["relationships"])
    assert all(units.issuperset(row["text_unit_ids"]) for row in tables["relationships"] + tables["entities"])
    assert sorted((row["start_date"][:10], row["end_date"][:10]) for row in claims) == [
        ("2026-01-01", "2026-03-01"), ("2026-03-01", "2026-05-01"), ("2026-05-01", ""),
    ]  # fmt: skip
    assert {row["community"] for row in tables["community_reports"]} == {
        row["community"] for row in tables["communities"]
    }
    assert min(row["level"] for row in tables["communities"]) == 0
    nulls = {
        (name, key) for name, table in tables.items() for row in table for key in row if row[key] is None
    }
    assert nulls == set()


def test_the_files_of_a_lightrag_folder_are_consistent(export):
    path, rows = export("lightrag")
    stores = {file.stem[9:]: json.loads(file.read_text("utf-8")) for file in path.glob("kv_store_*.json")}
    graph = nx.read_graphml(path / "graph_chunk_entity_relation.graphml")
    chunks = stores["text_chunks"]

    assert not graph.is_directed()
    assert graph.nodes.keys() == stores["entity_chunks"].keys()
    assert (
        stores["full_docs"].keys()
        == stores["doc_status"].keys()
        == {c["full_doc_id"] for c in chunks.values()}
    )
    for *_, attributes in [*graph.nodes(data=True), *graph.edges(data=True)]:
        assert chunks.keys() >= {*attributes["source_id"].split("<SEP>")} - {""}
    work = graph.edges["Alice Nguyen", "Acme"]
    assert (work["weight"], work["keywords"], work["description"].count("\n")) == (2.0, "works at", 1)
    assert len(graph.edges) == rows["relation"] == len(stores["relation_chunks"])


def test_cogx_has_the_fact_that_holds_first(export):
    path, rows = export("cogx")
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    facts = [json.loads(line) for line in (path / "facts.jsonl").open(encoding="utf-8")]
    entities = {json.loads(line)["external_id"] for line in (path / "entities.jsonl").open(encoding="utf-8")}
    twice = [
        f for f in facts if [g["metadata"]["statement"] for g in facts].count(f["metadata"]["statement"]) == 2
    ]

    assert (manifest["cogx_version"], manifest["counts"]) == ("0.1", rows)
    assert [fact["invalid_at"] is None for fact in twice] == [True, False]
    assert {f["subject_ref"] for f in facts} <= entities
    assert [f["object_ref"] for f in facts if f["predicate"] == "COSTS"] == ["9.5 EUR"]


def test_an_export_known_at_a_moment_equals_an_export_of_that_moment(tmp_path):
    with kgray.open(tmp_path / "data", create=True) as memory:
        for row in ("2026-01-01", "Acme"), ("2026-03-01", "Beta"), ("2026-05-01", "Acme"):
            memory.add_many([triples_row(row[0], row[0], triple("Alice", "WORKS_AT", row[1]))], group="team")
        memory.export(tmp_path / "then.graphml", to="graphml", group="team")
        moment = datetime.now(UTC)
        memory.add_many(
            [triples_row("late", "2026-02-01", triple("Alice", "WORKS_AT", "Gamma"))], group="team"
        )
        memory.export(tmp_path / "past.graphml", to="graphml", group="team", known_at=moment)
        memory.export(tmp_path / "now.graphml", to="graphml", group="team")
    earlier, past, latest = (
        nx.read_graphml(tmp_path / f"{name}.graphml", force_multigraph=True)
        for name in ("then", "past", "now")
    )

    assert (dict(past.nodes(data=True)), list(past.edges(keys=True, data=True))) == (
        dict(earlier.nodes(data=True)), list(earlier.edges(keys=True, data=True))
    )  # fmt: skip
    assert len(earlier.edges) == 3
    assert len(latest.edges) > 3


def links_in(body: str) -> Iterator[str]:
    """Yield the targets of the links that CommonMark sees."""
    markdown = pytest.importorskip("markdown_it", reason="needs markdown-it-py, which other tools bring")
    for block in markdown.MarkdownIt().parse(body):
        for token in block.children or ():
            if token.type == "link_open":
                yield token.attrs["href"]


def linked_pages(path: Path) -> set[Path]:
    """Return the linked pages of a vault; each link must lead to a page."""
    linked = set[Path]()
    for page in path.rglob("*.md"):
        text = page.read_text("utf-8")
        body = text.split("---\n", 2)[2] if text.startswith("---\n") else text
        targets = list(links_in(body))
        assert len(targets) >= len(re.findall(r"(?<!\\)\]\(", body)), (page.name, "a link is no link")
        for target in targets:
            linked.add(aim := page.parent.joinpath(unquote(target)).resolve())
            assert aim.is_file(), (page.name, target)
            assert aim.name in {file.name for file in aim.parent.iterdir()}, "also in its case"
        notes = set(re.findall(r"^\[\^(\w+)\]:", body, re.MULTILINE))
        assert set(re.findall(r"(?<!\\)\[\^(\w+)\]", body)) == notes
        assert not re.search(r"(?<!\\)\[\[", body), page.name
    return linked


def test_every_link_of_the_vault_leads_to_a_page(export):
    path, rows = export("okf")
    pages = {file.relative_to(path).as_posix(): file.read_text("utf-8") for file in path.rglob("*.md")}

    heads = [text.split("---\n", 2)[1] for name, text in pages.items() if "index" not in name]
    assert all(yaml.safe_load(head)["type"] for head in heads)
    assert linked_pages(path) == {path / name for name in pages} - {path / "index.md"}
    assert len(pages) == sum(rows.values()) + 4
    alice = next(text for name, text in pages.items() if name.startswith("entities/alice-nguyen-"))
    assert "\n# Former\n" in alice
    assert alice.count("(2026-01-01 to 2026-03-01)") == 1


# Names that an operating system, Obsidian, Markdown or a URL would take for something else.
NAMES = (
    "[", "]", "a]b", "[a](b.md)", "[[a|b]]", "![a](b)", "a|b", "#a", "a#b", "a^b", "^a", "a/b", "/a",
    "../a", "a:b", "C:\\a", "..a", ".", "..", "a.", "a..", "a.md", "index", "index.md", "con", "NUL",
    "a%20b", "a%", "a?b=c&d", "`a`", "<a href=b>", "a\\", "\\", "a)b", "(a", "~a~", "==a==", "%%a%%",
    "$a$", "- a", "1. a", "> a", "---", "Straße", "STRASSE", "acme x", "ACME X", "Acme-X",
    "e\u0301t\u00e9", "\u00e9te\u0301", "ﬁ x", "fi x", "İ", "日本", "日 本", "👩\u200d🚀", "a\u200bb",
    "\u202ea", "n" * 300, "n" * 299 + "m", "[" * 150,
)  # fmt: skip


def test_every_link_of_a_vault_with_odd_names_leads_to_a_page(tmp_path):
    with kgray.open(tmp_path / "data", create=True) as memory:
        rows = [
            triples_row(
                f"{n} {name}"[:256], "2026-01-01", triple(name, "KNOWS", "Alice Nguyen"), source=name[:200]
            )
            for n, name in enumerate(NAMES)
        ]
        report = memory.add_many(rows, group="team")
        assert not report.refusals
        exported = memory.export(tmp_path / "out", to="okf", group="team")
    path = tmp_path / "out"
    pages = {file for file in path.rglob("*.md") if file.name != "index.md"}

    assert linked_pages(path) >= pages
    assert len(pages) == sum(exported.rows.values())
    assert len({page.relative_to(path).as_posix().casefold() for page in pages}) == len(pages)
    assert exported.rows["entity"] > len(NAMES) * 0.8


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("full", "--to", "okf"), "full is not empty: okf needs a new folder"),
        (("full/a.txt", "--to", "graphml"), "full/a.txt is there already: name a new file"),
        (("full/a.txt", "--to", "okf"), "full/a.txt is there already: name a new folder"),
        (("full/a.txt/b", "--to", "jsonl"), "full/a.txt/b cannot be written: File exists"),
        (("new", "--to", "parquet", "--as-of", "2026-01-01"), "parquet holds a group with its whole history"),
        (("new", "--to", "word"), "'word' is not one of"),
        (("new", "--to", "okf", "--as-of", "spring"), "'spring' is not a time"),
    ],
)  # fmt: skip
def test_a_refused_export_is_a_one_line_error_and_writes_no_file(team, args, line):
    (team.folder / "full").mkdir()
    (team.folder / "full" / "a.txt").write_text("mine")

    answer = team("export", "--group", "team", *args)

    assert answer.code in (1, 2)
    assert line in answer.err.splitlines()[-1]
    assert sorted(path.name for path in team.folder.glob("*")) == [
        "a.jsonl",
        "full",
        "kgray-data",
        "script.jsonl",
    ]
    assert [path.name for path in (team.folder / "full").iterdir()] == ["a.txt"]


def test_the_command_reports_the_written_files_and_rows(team):
    answer = team("export", "vault", "--group", "team", "--to", "okf", "--json")

    assert answer.json == {
        "format": "okf",
        "files": 12,
        "rows": {"community": 0, "entity": 4, "episode": 3},
    } | {"files": len([*(team.folder / "vault").rglob("*.md")])}
    assert "there is no group nobody" in team("export", "x", "--group", "nobody", "--to", "okf").err
