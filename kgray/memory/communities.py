"""`memory.communities`: the communities of a group's entities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kgray.communities.detection import Clustering
from kgray.communities.reading import ShownCommunity, list_of, one_of
from kgray.communities.refresh import OnGroup, Refresh, RefreshReport
from kgray.domain.graph import Community
from kgray.domain.records import check_group
from kgray.errors import InputError, NotFound, SettingsError
from kgray.memory.answers import no_group
from kgray.memory.options import When, instant_of

if TYPE_CHECKING:
    from kgray.memory.face import AsyncMemory


class AsyncCommunities:
    """The methods of `AsyncMemory.communities`."""

    def __init__(self, memory: AsyncMemory) -> None:
        self._memory = memory

    async def list(
        self, *, group: str, level: int | None = None, known_at: When | None = None
    ) -> Sequence[Community]:
        """Return the communities, by level, the largest first; none where no run was known then."""
        return list_of(self._memory.store, check_group(group), level, instant_of(known_at, "known_at"))

    async def get(self, identifier: str, *, group: str, known_at: When | None = None) -> ShownCommunity:
        """Return a community with its members, by its id or its beginning. Raises NotFound, Ambiguous."""
        instant = instant_of(known_at, "known_at")
        view = None if instant is None else self._memory.view_at(check_group(group), instant)
        return one_of(self._memory.store, check_group(group), identifier, instant, view)

    async def refresh(
        self, groups: Sequence[str] = (), *, cold: bool = False, due: bool = False, profiles: bool = False,
        max_tokens: int | None = None, dry_run: bool = False, on_group: OnGroup = lambda *_: None,
    ) -> RefreshReport:  # fmt: skip
        """Detect, name and summarise the communities of these groups (none: of all).

        cold        detect from nothing, not from the current run
        due         only groups with a tenth of new or changed entities
        profiles    have the model write profiles of entities with 5 facts or more, too
        max_tokens  of all groups together, where a model is configured; further texts are written without it
        dry_run     count the calls of the model; publish nothing
        Groups without news cost nothing. Raises NotFound, Unavailable, SettingsError.
        """
        memory = self._memory
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}: use 1 or more", field="max_tokens")
        for group in groups:
            if missing := no_group(memory.store, check_group(group)):
                raise NotFound(missing)
        embedder, names = memory.embedder, [*dict.fromkeys(groups)] or [*memory.store.heads()]
        summarizer = memory.summarizer()
        if profiles and summarizer is None:
            raise SettingsError(
                'profiles are written by a model: set model.backend = "openai" with model.base_url and '
                "model.name; without one, `kgray history` and `kgray entities` make them of facts."
            )
        clustering: Clustering = memory.clustering
        refresh = Refresh(
            store=memory.store, embedder=embedder, summarizer=summarizer, cold=cold, due=due,
            profiles=profiles, max_tokens=max_tokens, dry_run=dry_run, cluster=clustering,
        )  # fmt: skip
        reports = await refresh.groups(names, at_once=memory.groups_at_once, on_group=on_group)
        return RefreshReport(groups=reports)
