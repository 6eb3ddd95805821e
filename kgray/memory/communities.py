"""The verbs of `Memory` about communities; refreshing may ask a model, reading never does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kgray.communities.found import Clustering, clustered
from kgray.communities.reading import ShownCommunity, list_of, one_of
from kgray.communities.refresh import OnGroup, Refresh, Refreshed
from kgray.errors import InputError, NotFound, SettingsError
from kgray.graph import Community
from kgray.memory.naming import no_group
from kgray.memory.reads import GroupReads, When, _instant
from kgray.ports import Summarizer
from kgray.records import check_group


class Communities(GroupReads):
    """Communities of the groups of one store."""

    clustering: Clustering = staticmethod(clustered)  # where communities are found: here, or on Ray
    groups_at_once = 1
    _summarizer: Callable[[], Summarizer | None] | None = None

    async def refresh_communities(
        self,
        groups: Sequence[str] = (),
        *,
        cold: bool = False,
        due: bool = False,
        profiles: bool = False,
        max_tokens: int | None = None,
        dry_run: bool = False,
        on_group: OnGroup = lambda *_: None,
    ) -> dict[str, Refreshed]:
        """Find, name and summarise the communities of these groups (none: of all); return what was done.

        cold        from nothing, and not from the current run
        due         only groups of which a tenth is new since the current run
        profiles    have the model write of entities with 5 facts or more, too
        max_tokens  of all groups together, where a model is configured; the rest is written without it
        dry_run     say which calls it would make; publish nothing
        Groups without news cost nothing. Raises NotFound, Unavailable, SettingsError.
        """
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}: use 1 or more", field="max_tokens")
        for group in groups:
            if missing := no_group(self.store, check_group(group)):
                raise NotFound(missing)
        summarizer = self._summarizer() if self._summarizer is not None else None
        if profiles and summarizer is None:
            raise SettingsError(
                'profiles are written by a model: set model.backend = "openai" with model.base_url and '
                "model.name; without one, `kgray history` and `kgray entities` make them of facts."
            )
        chosen = list(dict.fromkeys(groups)) or list(self.store.heads())
        refresh = Refresh(
            store=self.store,
            embedder=self.embedder,
            summarizer=summarizer,
            cold=cold,
            due=due,
            profiles=profiles,
            max_tokens=max_tokens,
            dry_run=dry_run,
            cluster=self.clustering,
        )
        return await refresh.groups(chosen, at_once=self.groups_at_once, on_group=on_group)

    async def communities(
        self, *, group: str, level: int | None = None, known_at: When | None = None
    ) -> list[Community]:
        """Return the communities, by level, the largest first; none where no run was known then."""
        return list_of(self.store, check_group(group), level, _instant(known_at, "known_at"))

    async def community(self, identifier: str, *, group: str, known_at: When | None = None) -> ShownCommunity:
        """Return a community with its members; identifier: its id, or the beginning of it.

        Raises NotFound, Ambiguous.
        """
        known = _instant(known_at, "known_at")
        view = None if known is None else self._view_at(check_group(group), known)
        return one_of(self.store, check_group(group), identifier, known, view)
