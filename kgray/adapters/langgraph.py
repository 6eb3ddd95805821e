"""LangGraph's store: items are stored as episodes, and a search finds them by the graph."""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote

from langgraph.store import base as lg
from langgraph.store.memory import InMemoryStore

from kgray.errors import InputError, NotFound
from kgray.memory import AsyncMemory, Memory
from kgray.memory.results import LoggedEpisode
from kgray.search import Filters

_SOURCE = "langgraph items"  # every episode of this source has an id
_LIMIT = 1000  # hits a search, rows a page
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq, "$ne": operator.ne, "$gt": operator.gt,
    "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le,
}  # fmt: skip


class KgrayStore(lg.BaseStore):
    """A store on a memory: `builder.compile(store=KgrayStore(memory, parts=2))`. It raises KgrayErrors.

    parts   number of leading namespace parts that name the group: with 2, namespaces under
            ("memories", "alice") are in group memories.alice. A search or a list of namespaces covers one
            group, and groups are isolated

    A value with "text", and perhaps "speaker", is stored as a message, any other value as a record. `put`
    waits until it is in the graph. A new value retracts the old value, `delete` erases it.
    """

    def __init__(self, memory: Memory | AsyncMemory, *, parts: int) -> None:
        self._memory, self._parts = Memory.over(memory), parts
        self._threads = ThreadPoolExecutor(thread_name_prefix="kgray-store")

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        """Run operations; reads see the state before the puts, as in LangGraph's own stores."""
        return self._threads.submit(self._run, list(ops)).result()

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        """Run operations in a thread."""
        return await asyncio.wrap_future(self._threads.submit(self._run, list(ops)))

    def _run(self, ops: Sequence[Any]) -> list[Any]:
        answers: list[Any] = []
        puts: dict[str, dict[str, lg.PutOp]] = {}
        for op in ops:
            lg.validate_op_namespace(op)
            if isinstance(op, lg.PutOp):
                group, path = self._place(op.namespace)
                puts.setdefault(group, {})[f"{path}:{quote(op.key, safe='')}"] = op
                answers.append(None)
            elif isinstance(op, lg.GetOp):
                answers.append(self._get(*self._place(op.namespace), op.key))
            elif isinstance(op, lg.SearchOp):
                items = (item for item in self._search(op) if _fits(item.value, op.filter or {}))
                answers.append([*islice(items, op.offset, op.offset + op.limit)])
            else:
                answers.append(self._namespaces(op))
        for group, by_id in puts.items():
            rows = [_row(op.value) | {"id": id_} for id_, op in by_id.items() if op.value is not None]
            for refusal in self._memory.add_many(rows, group=group, replace=True, again=True).refusals:
                raise InputError(refusal.reason, field=refusal.field)
            if deleted := [id_ for id_, op in by_id.items() if op.value is None]:
                self._memory.remove(group=group, episodes=deleted)
        return answers

    def _place(self, namespace: tuple[str, ...]) -> tuple[str, str]:
        """Return the group, and the path in it: the first part of its episodes' ids, before ":"."""
        named = namespace[: self._parts]
        if not 0 < self._parts == len(named) or "*" in named:
            raise lg.InvalidNamespaceError(f"{namespace}: the first {self._parts} parts name the group")
        remaining = map(partial(quote, safe=""), namespace[self._parts :])
        return ".".join(named), ".".join(remaining)

    def _get(self, group: str, path: str, key: str) -> lg.SearchItem | None:
        try:
            episode = self._memory.episode(f"{path}:{quote(key, safe='')}", group=group)
        except NotFound:
            return None
        return None if episode.state == "withdrawn" else _item(group, episode)

    def _search(self, op: lg.SearchOp) -> Iterator[lg.SearchItem]:
        """Yield the items under the prefix: by rank, or without a query in the order of the puts."""
        group, path = self._place(op.namespace_prefix)
        prefixes = (f"{path}:", f"{path}.") if path else ("",)
        if not op.query:
            episodes = (item for item in self._episodes(group) if (item.client_id or "").startswith(prefixes))
            yield from (_item(group, episode) for episode in episodes)
            return
        limit = _LIMIT if op.filter or path else min(op.offset + op.limit, _LIMIT)
        own = Filters(sources=(_SOURCE,))
        for hit in self._memory.search(op.query, group=group, scopes=["episode"], filters=own, limit=limit):
            if hit.client_id and hit.client_id.startswith(prefixes):
                yield _item(group, self._memory.episode(hit.id, group=group), hit.score)

    def _namespaces(self, op: lg.ListNamespacesOp) -> list[tuple[str, ...]]:
        """Return the namespaces with items in the group that the prefix names."""
        conditions = op.match_conditions or ()
        named = next((tuple(item.path) for item in conditions if item.match_type == "prefix"), ())
        group, _ = self._place(named)
        items = (_item(group, episode) for episode in self._episodes(group))
        local = InMemoryStore()  # LangGraph's own store matches the namespaces
        local.batch([lg.PutOp(item.namespace, item.key, item.value) for item in items])
        return list(local.batch([op])[0])

    def _episodes(self, group: str) -> Iterator[LoggedEpisode]:
        """Yield the episodes of the items of a group, in the order of the log."""
        position: int | None = 0
        while position is not None:
            page = self._memory.log(group=group, after=position, limit=_LIMIT)
            yield from (item for item in page.episodes if item.source == _SOURCE and item.client_id)
            position = page.next


def _row(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a value: a message if it can represent the value exactly, else a record."""
    texts = all(isinstance(item, str) and item.strip() == item != "" for item in value.values())
    if texts and "text" in value and value.keys() <= {"text", "speaker"}:
        return {**value, "source": _SOURCE}
    return {"kind": "json", "text": dict(value), "source": _SOURCE}


def _item(group: str, episode: LoggedEpisode, score: float | None = None) -> lg.SearchItem:
    path, _, key = (episode.client_id or "").partition(":")
    value = json.loads(episode.text) if episode.kind == "json" else {"text": episode.text}
    value |= {"speaker": episode.speaker} if episode.speaker else {}
    parts = [*group.split("."), *map(unquote, filter(None, path.split(".")))]
    time = episode.reference_time
    return lg.SearchItem(tuple(parts), unquote(key), value, time, episode.recorded_at or time, score)


def _fits(value: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    for name, condition in conditions.items():
        is_mapping = isinstance(condition, Mapping) and condition.keys() <= _OPERATORS.keys()
        pairs = (condition if is_mapping else {"$eq": condition}).items()
        if not all(name in value and _OPERATORS[sign](value[name], operand) for sign, operand in pairs):
            return False
    return True
