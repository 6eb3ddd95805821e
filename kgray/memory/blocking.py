"""`Memory`: the methods of `AsyncMemory`, which block until they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cached_property, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from kgray.errors import InputError
from kgray.memory.admin import AsyncAdmin, Inspection
from kgray.memory.communities import AsyncCommunities
from kgray.memory.face import AsyncMemory
from kgray.ports import Store

P = ParamSpec("P")
R = TypeVar("R")


def run_to_end(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in an event loop of its own; return its result."""
    results: list[R] = []

    async def run() -> None:
        # Not as the task's result: `asyncio.run` makes the task's repr, and with it that of a large result.
        results.append(await work)

    asyncio.run(run())
    return results[0]


class Blocking(Generic[P, R]):
    """A method that runs the coroutine of the same method of `_target` to its end."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Any, owner: type) -> Callable[P, R]: ...  # noqa: ANN401 - any owner's instance

    def __get__(self, instance: Any, owner: type) -> Self | Callable[P, R]:
        """Return the method of an instance; of the class, this object."""
        if instance is None:
            return self
        method = getattr(instance.asynchronous, self._method.__name__)

        @wraps(method)
        def call(*args: P.args, **options: P.kwargs) -> R:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                result: R = run_to_end(method(*args, **options))
                return result
            raise InputError(
                "a memory that blocks cannot be used in a running event loop: use kgray.open_async"
            )

        return call


class Communities:
    """The methods of `Memory.communities`."""

    def __init__(self, asynchronous: AsyncCommunities) -> None:
        self.asynchronous = asynchronous

    list = Blocking(AsyncCommunities.list)
    get = Blocking(AsyncCommunities.get)
    refresh = Blocking(AsyncCommunities.refresh)


class Admin(Inspection):
    """The methods of `Memory.admin`."""

    def __init__(self, memory: AsyncMemory) -> None:
        super().__init__(memory)
        self.asynchronous: AsyncAdmin = memory.admin

    verify = Blocking(AsyncAdmin.verify)
    repair = Blocking(AsyncAdmin.repair)
    relation_suggestions = Blocking(AsyncAdmin.relation_suggestions)
    ontology_faults = Blocking(AsyncAdmin.ontology_faults)


class Memory:
    """A temporal knowledge graph of messages, texts and records; its methods block.

    `kgray.open` and `kgray.connect` return it; close it with `with` or `close`. It cannot be used in a
    running event loop: `kgray.open_async` returns the same methods to await there.
    """

    def __init__(self, asynchronous: AsyncMemory) -> None:
        self.asynchronous = asynchronous

    @classmethod
    def over(cls, memory: Memory | AsyncMemory) -> Memory:
        """Return a memory that blocks, over either shape."""
        return memory if isinstance(memory, Memory) else cls(memory)

    add = Blocking(AsyncMemory.add)
    add_many = Blocking(AsyncMemory.add_many)
    ingest = Blocking(AsyncMemory.ingest)
    retry = Blocking(AsyncMemory.retry)
    search = Blocking(AsyncMemory.search)
    explain = Blocking(AsyncMemory.explain)
    context = Blocking(AsyncMemory.context)
    ask = Blocking(AsyncMemory.ask)
    suggest = Blocking(AsyncMemory.suggest)
    entities = Blocking(AsyncMemory.entities)
    history = Blocking(AsyncMemory.history)
    show = Blocking(AsyncMemory.show)
    episode = Blocking(AsyncMemory.episode)
    operation = Blocking(AsyncMemory.operation)
    log = Blocking(AsyncMemory.log)
    changes = Blocking(AsyncMemory.changes)
    diff = Blocking(AsyncMemory.diff)
    neighbourhood = Blocking(AsyncMemory.neighbourhood)
    overview = Blocking(AsyncMemory.overview)
    complete = Blocking(AsyncMemory.complete)
    provenance = Blocking(AsyncMemory.provenance)
    duplicates = Blocking(AsyncMemory.duplicates)
    merge = Blocking(AsyncMemory.merge)
    split = Blocking(AsyncMemory.split)
    distinct = Blocking(AsyncMemory.distinct)
    undo = Blocking(AsyncMemory.undo)
    retract = Blocking(AsyncMemory.retract)
    remove = Blocking(AsyncMemory.remove)
    request = Blocking(AsyncMemory.request)
    foresee = Blocking(AsyncMemory.foresee)
    status = Blocking(AsyncMemory.status)
    groups = Blocking(AsyncMemory.groups)
    failures = Blocking(AsyncMemory.failures)
    dump = Blocking(AsyncMemory.dump)
    dump_hash = Blocking(AsyncMemory.dump_hash)
    export = Blocking(AsyncMemory.export)
    import_from = Blocking(AsyncMemory.import_from)

    @property
    def store(self) -> Store:
        """The store, for tools that read its rows themselves."""
        return self.asynchronous.store

    @cached_property
    def communities(self) -> Communities:
        """The communities of the groups: list, get, refresh."""
        return Communities(self.asynchronous.communities)

    @cached_property
    def admin(self) -> Admin:
        """Checks, repairs, keys and schedules; not over HTTP."""
        return Admin(self.asynchronous)

    def close(self) -> None:
        """Release the store; a second call does nothing."""
        self.asynchronous.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
