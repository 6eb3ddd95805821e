"""OKF 0.2, which Obsidian opens as a vault: a page of Markdown for each entity, episode and community."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kgray.domain.graph import Entity, Fact
from kgray.domain.times import from_datetime, show
from kgray.io.interchange.files import Rows, day, fact_row, new_file, span_words, yaml_value
from kgray.io.interchange.snapshot import CitedEpisode, ExportedEpisode, Snapshot

_SLUG = 60  # characters of a name in the name of a file
_TITLE = 80  # characters of a text that serves as a title
_BEGINNING = 8  # digits of an id
# Characters that Markdown, Obsidian or HTML would interpret.
_MARK = re.compile(r"[\\`*_\[\]<>#|$%&~^=]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_TAG = re.compile(r"[^\w-]+")
_LIST_MARK = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s|$)")


def write(snapshot: Snapshot, path: Path) -> Rows:
    """Write a folder."""
    vault = _Vault(snapshot, path)
    for name in ("entities", "episodes", "communities"):
        (path / name).mkdir(mode=0o700)
    rows = {"entity": vault.write_entities(), "episode": vault.write_episodes()}
    rows["community"] = vault.write_communities()
    vault.write_index()
    return rows


class _Vault:
    def __init__(self, snapshot: Snapshot, path: Path) -> None:
        self._snapshot, self._path, self._name = snapshot, path, snapshot.name_of
        self._about = snapshot.about()
        snapshot.scratch.execute("CREATE TABLE pages (id TEXT PRIMARY KEY, page TEXT UNIQUE)")
        for entity in snapshot.entities():
            for page in _page_names(entity, self._name(entity.id)):
                if snapshot.scratch.execute("INSERT OR IGNORE INTO pages VALUES (?, ?)", (entity.id, page)):
                    break

    def _page(self, entity: str) -> str | None:
        row = self._snapshot.scratch.first("SELECT page FROM pages WHERE id = ?", (entity,))
        return None if row is None else str(row[0])

    def _linked(self, entity: str) -> str:
        return f"[{_escaped(self._name(entity))}]({self._page(entity)}.md)"

    def _footnote(self, episode: str) -> tuple[str, str] | None:
        """Return the label of an episode's footnote and its title; None: there is no page of the episode."""
        cited = self._snapshot.cited(episode)
        return cited and (f"e{cited.sequence}", _episode_title(cited))

    def write_entities(self) -> int:
        count = 0
        for count, entity in enumerate(self._snapshot.entities(), 1):  # noqa: B007 - the last is the count
            self._write_entity(entity, list(self._snapshot.facts_of(entity.id)))
        listed = (f"* {self._linked(e.id)}" + _short(e.summary) for e in self._snapshot.entities())
        self._write_list("entities", listed)
        return count

    def _write_entity(self, entity: Entity, facts: list[Fact]) -> None:
        name = self._name(entity.id)
        moments = (max(fact.created_at, fact.expired_at or 0) for fact in facts)
        moment = max(moments, default=self._snapshot.recorded_at)
        ids = dict.fromkeys(id_ for fact in facts for id_ in fact.episodes)
        used = {id_: note for id_ in ids if (note := self._footnote(id_)) is not None}
        head = {
            "type": entity.labels[0] if entity.labels else "Thing",
            "title": name,
            "description": _line(entity.summary)[:_TITLE] or None,
            "resource": self._urn("entity", entity.id),
            "aliases": list(entity.aliases) or None,
            "tags": list(dict.fromkeys(map(_tag, entity.labels))) or None,
            "sources": [
                {"id": label, "resource": f"../episodes/{id_}.md", "title": title}
                for id_, (label, title) in used.items()
            ] or None,
            "generated": {"by": f"kgray/{self._about['kgray']}", "at": show(moment)},
            "kgray": {"id": entity.id, "name": entity.name, "labels": list(entity.labels), "facts": [
                fact_row(fact) for fact in facts if fact.source == entity.id
            ]},
        }  # fmt: skip
        at = self._snapshot.as_of
        now = self._snapshot.recorded_at if at is None else at
        current = [fact for fact in facts if fact.invalid_at is None or now < fact.invalid_at]
        former = [fact for fact in facts if fact.invalid_at is not None and fact.invalid_at <= now]
        body = [f"# {_escaped(name)}", ""]
        for exported in self._snapshot.places.get(entity.id, ()):
            page = f"../communities/{exported.community.id}.md"
            body.append(f"Part of [{_escaped(exported.title)}]({page}).")
        body += (
            ["", "## Facts", *(self._bullet(entity.id, fact, used) for fact in current)] if current else []
        )
        body += ["", "# Former", *(self._bullet(entity.id, fact, used) for fact in former)] if former else []
        notes = (
            f"[^{label}]: [{_escaped(title)}](../episodes/{id_}.md)" for id_, (label, title) in used.items()
        )
        self._write_page(f"entities/{self._page(entity.id)}", head, [*body, "", *notes])

    def _bullet(self, entity: str, fact: Fact, used: Mapping[str, tuple[str, str]]) -> str:
        """Return the line of a fact: its text, dates, link to the other entity, and sources."""
        neighbour = fact.target if fact.source == entity else fact.source
        link = ""
        if neighbour is not None and neighbour != entity and self._page(neighbour) is not None:
            link = f" → {self._linked(neighbour)}"
        words = span_words(fact)
        notes = "".join(f"[^{used[id_][0]}]" for id_ in fact.episodes if id_ in used)
        return f"- {_escaped(fact.text)}{f' ({words})' if words else ''}{link}{notes}"

    def write_episodes(self) -> int:
        count = 0
        for count, item in enumerate(self._snapshot.episodes(), 1):  # noqa: B007 - the last is the count
            episode, title = item.episode, _title_of(item)
            fields = {
                name: getattr(episode, name)
                for name in ("id", "client_id", "sequence", "source", "kind", "speaker")
            }
            head = {
                "type": "Episode",
                "title": title,
                "resource": self._urn("episode", episode.id),
                "date": show(episode.reference_time),
                "generated": {"by": f"kgray/{self._about['kgray']}", "at": show(item.recorded_at)},
                "kgray": fields | {"reference_time": show(episode.reference_time)},
            }
            speaker, date = _escaped(episode.speaker or ""), f"({day(episode.reference_time)})"
            lead = " ".join(filter(None, (speaker, date)))
            body = [f"# {_escaped(title)}", "", f"{lead}:", "", *_quoted(episode.text), ""]
            links = (
                f"- [{_escaped(self._name(id_))}](../entities/{self._page(id_)}.md)"
                for id_ in self._snapshot.entities_in(episode.sequence)
            )
            self._write_page(f"episodes/{episode.id}", head, [*body, *links])
        items = self._snapshot.episodes()
        listed = (f"* [{_escaped(_title_of(item))}]({item.episode.id}.md)" for item in items)
        self._write_list("episodes", listed)
        return count

    def write_communities(self) -> int:
        for item in self._snapshot.communities:
            community, moment = item.community, show(from_datetime(item.text_time))
            head = {
                "type": "Community",
                "title": item.title,
                "resource": self._urn("community", community.id),
                "status": "draft" if community.stale else "stable",
                "generated": {"by": f"kgray/{self._about['kgray']}", "at": moment},
                "kgray": {
                    "id": community.id,
                    "level": item.depth,
                    "rating": community.report.get("rating"),
                },
            }
            body = [f"# {_escaped(item.title)}", "", _escaped(community.summary), ""]
            for finding in item.findings:
                body += [f"## {_escaped(finding['summary'])}", "", _escaped(finding["explanation"]), ""]
            links = (f"- [{_escaped(self._name(m))}](../entities/{self._page(m)}.md)" for m in item.members)
            self._write_page(f"communities/{community.id}", head, [*body, "## Members", *links])
        listed = (
            f"* [{_escaped(item.title)}]({item.community.id}.md)" + _short(item.community.summary)
            for item in self._snapshot.communities
        )
        self._write_list("communities", listed)
        return len(self._snapshot.communities)

    def write_index(self) -> None:
        about = " ".join(f"{name}: {value or 'none'};" for name, value in self._about.items())
        parts = (f"* [{name.title()}]({name}/index.md)" for name in ("entities", "episodes", "communities"))
        with new_file(self._path / "index.md") as file:
            title = f"# {_escaped(self._snapshot.group)}"
            file.write(
                "\n".join(['---\nokf_version: "0.2"\n---', title, "", _escaped(about), "", *parts, ""])
            )

    def _urn(self, kind: str, id_: str) -> str:
        return f"urn:kgray:{self._snapshot.group}:{kind}:{id_}"

    def _write_page(self, name: str, head: Mapping[str, Any], body: Iterable[str]) -> None:
        with new_file(self._path / f"{name}.md") as file:
            lines = (f"{key}: {yaml_value(value)}\n" for key, value in head.items() if value is not None)
            file.writelines(["---\n", *lines, "---\n", *(f"{line}\n" for line in body)])

    def _write_list(self, folder: str, listed: Iterable[str]) -> None:
        with new_file(self._path / folder / "index.md") as file:
            file.writelines([f"# {folder.title()}\n\n", *(f"{line}\n" for line in listed)])


def _page_names(entity: Entity, name: str) -> Iterator[str]:
    """Yield possible names of an entity's file, without its end: ASCII letters, digits and hyphens."""
    ascii_ = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_).strip("-")[:_SLUG].strip("-") or "entity"
    digits = entity.id.replace("-", "")
    return (f"{slug}-{digits[:length]}" for length in range(_BEGINNING, len(digits) + 1))


def _title_of(item: ExportedEpisode) -> str:
    episode = item.episode
    cited = CitedEpisode(episode.sequence, episode.client_id, episode.source, episode.reference_time)
    return _episode_title(cited)


def _episode_title(cited: CitedEpisode) -> str:
    return _line(f"{cited.client_id or cited.source}, {day(cited.reference_time)}")[:_TITLE]


def _line(text: str) -> str:
    return _CONTROL.sub("\ufffd", " ".join(text.split()))


def _escaped(text: str) -> str:
    """Return a text on one line without markup: no link, tag, footnote or HTML."""
    marked = _MARK.sub(r"\\\g<0>", _line(text))
    return _LIST_MARK.sub(lambda m: f"{m[1]}{m[2][:-1]}\\{m[2][-1]}", marked)


def _short(text: str) -> str:
    return f" - {_escaped(text[:_TITLE])}" if text else ""


def _quoted(text: str) -> Iterator[str]:
    """Yield the lines of a text as a quotation."""
    for line in text.splitlines() or [""]:
        yield f"> {_escaped(line)}" if line.strip() else ">"


def _tag(label: str) -> str:
    """Return a label as a tag: without spaces, not all digits."""
    tag = _NO_TAG.sub("-", label).strip("-")
    return f"type-{tag}" if not tag or tag.isdigit() else tag
