"""LangGraph's store: items are kept as episodes, which a search finds by the graph that is made of them."""

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
from kgray.memory.face import Blocking, BothWays
from kgray.search import Filters

_SOURCE = "langgraph items"  # all of them have an id
_MOST = 1000  # hits of one search, rows of one page
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq, "$ne": operator.ne, "$gt": operator.gt,
    "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le,
}  # fmt: skip


class KgrayStore(lg.BaseStore):
    """A store on a memory: `builder.compile(store=KgrayStore(memory, parts=2))`. It raises KgrayErrors.

    parts   how many parts of a namespace name the group, which others never see: with 2, what lies below
            ("memories", "alice") is of group memories.alice. A search, as a list of namespaces, sees one

    A value of "text", and "speaker" where there is one, is kept as a message, any other as a record. `put`
    waits until it is in the graph. A new value retracts the old one, `delete` erases it.
    """

    def __init__(self, memory: BothWays | Blocking, *, parts: int) -> None:
        self._verbs, self._parts = Blocking(memory), parts
        self._threads = ThreadPoolExecutor(thread_name_prefix="kgray-store")

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        """Carry out operations; reads see what was there before the puts, as in LangGraph's own stores."""
        return self._threads.submit(self._run, list(ops)).result()

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        """Carry out operations, in a thread."""
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
                answers.append(self._got(*self._place(op.namespace), op.key))
            elif isinstance(op, lg.SearchOp):
                kept = (item for item in self._found(op) if _fits(item.value, op.filter or {}))
                answers.append([*islice(kept, op.offset, op.offset + op.limit)])
            else:
                answers.append(self._namespaces(op))
        for group, by_id in puts.items():
            rows = [_row(op.value) | {"id": id_} for id_, op in by_id.items() if op.value is not None]
            for refusal in self._verbs.add_many(rows, group=group, replace=True, again=True).refusals:
                raise InputError(refusal.reason, field=refusal.field)
            if gone := [id_ for id_, op in by_id.items() if op.value is None]:
                self._verbs.remove(group=group, episodes=gone)
        return answers

    def _place(self, namespace: tuple[str, ...]) -> tuple[str, str]:
        """Return the group, and the path in it: the first part of its episodes' ids, before ":"."""
        named = namespace[: self._parts]
        if not 0 < self._parts == len(named) or "*" in named:
            raise lg.InvalidNamespaceError(f"{namespace}: the first {self._parts} parts name the group")
        rest = map(partial(quote, safe=""), namespace[self._parts :])
        return ".".join(named), ".".join(rest)

    def _got(self, group: str, path: str, key: str) -> lg.SearchItem | None:
        try:
            row = self._verbs.episode(f"{path}:{quote(key, safe='')}", group=group)
        except NotFound:
            return None
        return None if row["state"] == "withdrawn" else _item(group, row)

    def _found(self, op: lg.SearchOp) -> Iterator[lg.SearchItem]:
        """Yield what lies below the prefix: by rank, or without a query as it was put."""
        group, path = self._place(op.namespace_prefix)
        below = (f"{path}:", f"{path}.") if path else ("",)
        if not op.query:
            yield from (_item(group, row) for row in self._kept(group) if row["client_id"].startswith(below))
            return
        limit = _MOST if op.filter or path else min(op.offset + op.limit, _MOST)
        how = {"scopes": ["episode"], "filters": Filters(sources=(_SOURCE,)), "limit": limit}
        for hit in self._verbs.search(op.query, group=group, **how):
            if hit.client_id and hit.client_id.startswith(below):
                yield _item(group, self._verbs.episode(hit.id, group=group), hit.score)

    def _namespaces(self, op: lg.ListNamespacesOp) -> list[tuple[str, ...]]:
        """Return the namespaces that have items, of the one group that a prefix names."""
        conditions = op.match_conditions or ()
        named = next((tuple(one.path) for one in conditions if one.match_type == "prefix"), ())
        group, _ = self._place(named)
        kept = (_item(group, row) for row in self._kept(group))
        own = InMemoryStore()  # LangGraph's own knows how namespaces compare
        own.batch([lg.PutOp(one.namespace, one.key, one.value) for one in kept])
        return list(own.batch([op])[0])

    def _kept(self, group: str) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of the items of a group, in the order of the log."""
        after: int | None = 0
        while after is not None:
            page = self._verbs.log(group=group, after=after, limit=_MOST)
            yield from (row for row in page["episodes"] if row["source"] == _SOURCE and row["client_id"])
            after = page["next"]


def _row(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a value; what a message would not give back as it is, is a record."""
    texts = all(isinstance(one, str) and one.strip() == one != "" for one in value.values())
    if texts and "text" in value and value.keys() <= {"text", "speaker"}:
        return {**value, "source": _SOURCE}
    return {"kind": "json", "text": dict(value), "source": _SOURCE}


def _item(group: str, row: Mapping[str, Any], score: float | None = None) -> lg.SearchItem:
    path, _, key = row["client_id"].partition(":")
    value = json.loads(row["text"]) if row["kind"] == "json" else {"text": row["text"]}
    value |= {"speaker": row["speaker"]} if row["speaker"] else {}
    parts = [*group.split("."), *map(unquote, filter(None, path.split(".")))]
    said = row["reference_time"]
    return lg.SearchItem(tuple(parts), unquote(key), value, said, row["recorded_at"] or said, score)


def _fits(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    for name, how in wanted.items():
        asked = how if isinstance(how, Mapping) and how.keys() <= _COMPARED.keys() else {"$eq": how}
        if not all(name in value and _COMPARED[sign](value[name], one) for sign, one in asked.items()):
            return False
    return True
