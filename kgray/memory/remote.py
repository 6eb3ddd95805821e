"""The methods of a memory as requests to a server: method, path, and the result that its JSON becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from kgray.communities.reading import ShownCommunity
from kgray.domain.graph import Community, Entity, EpisodeRef, FactSpan, Hit
from kgray.errors import Cost
from kgray.memory import results
from kgray.memory.answers import EntityCount, History, Shown
from kgray.memory.ingesting import Report
from kgray.memory.ontology_suggest import RelationSuggestion
from kgray.search import Context
from kgray.search.answering import Answered


class Verb(NamedTuple):
    """A method of a memory as a request. part: the key of its result in the answer; "" = the whole answer."""

    method: str
    path: str
    result: Any  # the type of the result
    part: str = ""


VERBS: Mapping[str, Verb] = {
    "search": Verb("POST", "search", list[Hit], "hits"),
    "context": Verb("POST", "context", Context),
    "entities": Verb("GET", "entities", list[EntityCount], "entities"),
    "history": Verb("GET", "entities/{name_or_id}/history", History),
    "show": Verb("GET", "show/{identifier}", Shown),
    "episode": Verb("GET", "episodes/{identifier}", results.LoggedEpisode),
    "operation": Verb("GET", "operations/{sequence}", results.Operation),
    "communities.list": Verb("GET", "communities", list[Community], "communities"),
    "communities.get": Verb("GET", "communities/{identifier}", ShownCommunity),
    "duplicates": Verb("GET", "duplicates", list[results.LikelyPair], "pairs"),
    "admin.relation_suggestions": Verb("GET", "ontology/suggestions", list[RelationSuggestion], "pairs"),
    "neighbourhood": Verb("GET", "graph", results.Neighbourhood),
    "complete": Verb("GET", "complete", list[results.NameMatch], "entities"),
    "provenance": Verb("GET", "facts/{identifier}", results.Provenance),
    "overview": Verb("GET", "overview", results.Overview),
    "diff": Verb("GET", "diff", results.Diff),
    "changes": Verb("GET", "changes", results.Changes),
    "log": Verb("GET", "episodes", results.LogPage),
    "status": Verb("GET", "status", results.Status),
    "failures": Verb("GET", "failures", list[results.EpisodeFailure], "failures"),
    "dump": Verb("GET", "dump", list[str]),
    "retry": Verb("POST", "retry", Report),
    "retract": Verb("POST", "retract", results.WithdrawalCounts),
    "remove": Verb("POST", "remove", results.WithdrawalCounts),
    "merge": Verb("POST", "merge", results.Correction),
    "distinct": Verb("POST", "distinct", results.Correction),
    "split": Verb("POST", "split", results.Correction),
    "undo": Verb("POST", "undo", results.Correction),
}


@cache
def _reader(kind: Any) -> Callable[[Mapping[str, Any]], Any]:  # noqa: ANN401 - a type
    """Return the function that makes a value from its JSON form; it ignores other keys."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python


def _fact(row: Mapping[str, Any]) -> FactSpan:
    fact: FactSpan = _reader(FactSpan)({"statement": "", "ended_by": None, **row})
    return fact


def _hit(row: Mapping[str, Any], _: str = "") -> Hit:
    """Return a hit; of a community, name and summary are the text."""
    fields = dict(row)
    if row["scope"] == "fact":
        fields |= {"fact": _fact(row), "source": None}  # JSON's source is the subject
    elif row["scope"] == "entity":
        fields["entity"] = {"name": row["text"], **row}
    hit: Hit = _reader(Hit)(fields)
    return hit


def read_answer(document: Mapping[str, Any]) -> Answered:
    """Return a model's answer from its JSON form."""
    return Answered(
        text=document["answer"],
        general=document["general_knowledge"],
        found=document["found"],
        sources=tuple((row["number"], _hit(row)) for row in document["sources"]),
        dropped=tuple(document["dropped"]),
        suggestions=tuple(document["suggestions"]),
        keywords=document.get("keywords"),
        reports=document.get("reports"),
        cost=Cost(*(document[name] for name in Cost._fields)),
    )


def _history(document: Mapping[str, Any], group: str) -> History:
    facts = tuple(map(_fact, document["facts"]))
    clients = {id_: client for fact in facts for id_, client in fact.episodes}
    entity = document["entity"]
    sources = tuple(EpisodeRef(**episode) for episode in entity["profile_sources"])
    return History(
        group=group, entity=_reader(Entity)(entity), facts=facts, clients=clients,
        profile=entity["profile"], profile_sources=sources,
    )  # fmt: skip


def _community(row: Mapping[str, Any], _: str = "") -> Community:
    empty = {"run": 0, "summary": "", "report": {}, "writer": "", "content": "", "members": ()}
    community: Community = _reader(Community)({**empty, "sources": b"", "vector": b"", **row})
    return community


def _shown_community(row: dict[str, Any], _: str) -> ShownCommunity:
    members = tuple((member["id"], member["name"]) for member in row.pop("members"))
    children, as_of = [*map(_community, row["parts"])], datetime.fromisoformat(row["as_of"])
    return ShownCommunity(community=_community(row), members=members, children=children, as_of=as_of)


def _overview(row: Mapping[str, Any], _: str) -> results.Overview:
    links = tuple((first, second, facts) for first, second, facts in row["links"])
    communities = tuple(map(_community, row["communities"]))
    return results.Overview(
        communities=communities, links=links, truncated=row["truncated"], total=row["total"]
    )


def _retried(row: Mapping[str, Any], _: str) -> Report:
    count: int = row["accepted"]
    return Report(accepted=count, stopped=bool(count), reason="still pending" if count else "")


# The readers of types whose JSON form differs from their fields.
_FORMS: Mapping[Any, Callable[[Any, str], Any]] = {
    Hit: _hit,
    Context: lambda row, _: Context(
        text=row["text"], tokens=row["tokens"], hits=tuple(map(_hit, row["hits"]))
    ),
    EntityCount: lambda row, _: _reader(EntityCount)({"entity": row, **row}),
    History: _history,
    Community: _community,
    ShownCommunity: _shown_community,
    results.Overview: _overview,
    RelationSuggestion: lambda row, _: _reader(RelationSuggestion)({**row, "value": row["value"] or ""}),
    Report: _retried,
}


def read_result(kind: Any, value: Any, group: str) -> Any:  # noqa: ANN401 - a type of VERBS, JSON, the result
    """Return the result of a type from its JSON form."""
    if isinstance(value, str):
        return value.splitlines()
    if get_origin(kind) is list:
        return [read_result(get_args(kind)[0], row, group) for row in value]
    return _FORMS[kind](value, group) if kind in _FORMS else _reader(kind)(value)
