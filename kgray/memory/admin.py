"""`memory.communities`, and `memory.admin`: checks, repairs, access and schedules of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kgray.communities.detection import Clustering
from kgray.communities.reading import ShownCommunity, list_of, one_of
from kgray.communities.refresh import OnGroup, Refresh, RefreshReport
from kgray.communities.schedules import Schedules
from kgray.domain.graph import Community
from kgray.domain.records import check_group
from kgray.errors import InputError, KgrayError, NotFound, SettingsError
from kgray.graph.repair import differences, repaired
from kgray.io.intake.drafts import Refusal
from kgray.memory.access import Access
from kgray.memory.answers import no_group
from kgray.memory.ingesting import Item, Report, foreseen
from kgray.memory.options import When, instant_of
from kgray.memory.results import StoredVectors
from kgray.ports import at_one_moment
from kgray.storage import ledger

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


if TYPE_CHECKING:
    from kgray.ingest.preview import Preview
    from kgray.memory.face import AsyncMemory
    from kgray.memory.ontology_check import OntologyFault
    from kgray.memory.ontology_suggest import RelationSuggestion


class Inspection:
    """The methods of `admin` that neither wait nor have an awaited form."""

    def __init__(self, memory: AsyncMemory) -> None:
        self._memory = memory

    @property
    def access(self) -> Access:
        """The keys of the HTTP server, and its audit log."""
        return Access(self._memory.store)

    @property
    def schedules(self) -> Schedules:
        """The schedules of community refreshes."""
        return Schedules(self._memory.store)

    def vectors(self) -> StoredVectors:
        """Return the embedder of the store's vectors."""
        fault = None
        try:
            self._memory.check_embedder()
        except KgrayError as error:
            fault = str(error)
        store = self._memory.store
        return StoredVectors(name=store.embedder, dimensions=store.dimensions, fault=fault)

    def check(self, items: Iterable[Item], *, replace: bool = False) -> Report:
        """Return the refusals that accepting these items would give; accepts nothing."""
        self._memory.check_embedder()
        outcomes = foreseen(self._memory.store, items, replace=replace)
        return Report(refusals=tuple(outcome for outcome in outcomes if isinstance(outcome, Refusal)))

    def preview(self, *, replace: bool = False, again: bool = False) -> Preview:
        """Return a `Preview`: its `rows(draft)` are the changes that a draft would make."""
        from kgray.ingest.preview import Preview  # a process that only reads does not import it

        return Preview(self._memory.parts, replace=replace, again=again)


class AsyncAdmin(Inspection):
    """The methods of `AsyncMemory.admin`."""

    async def verify(self, group: str) -> list[str]:
        """Compare the stored index with a derivation from the records; one line for each difference."""
        return differences(self._memory.store, check_group(group))

    async def repair(self, group: str) -> list[str]:
        """Derive a group from its records again, and store it; return one line for each change."""
        store = self._memory.store
        if missing := no_group(store, check_group(group)):
            raise NotFound(missing)
        lines = repaired(store, group)
        if group in ledger.held(store):
            ledger.release(store, group)
        return lines

    async def relation_suggestions(self, *, group: str, limit: int = 50) -> list[RelationSuggestion]:
        """Return declarations of relation names, if models' answers agree on them, for a person to accept.

        Most answers come first; pairs that the ontology declares are absent. A single pass over the
        group's evidence and verdicts. Raises InputError for a limit below 1.
        """
        from kgray.memory.ontology_suggest import suggestions  # other reads need no ontology

        if limit < 1:
            raise InputError(f"limit is {limit!r}: use 1 or more", field="limit")
        check_group(group)
        memory = self._memory
        ontology = memory.ontology()
        return at_one_moment(memory.store, lambda: suggestions(memory.store, group, ontology, limit=limit))

    async def ontology_faults(self) -> list[OntologyFault]:
        """Return the contradictions among the relations and types that the settings declare, notes last."""
        from kgray.memory.ontology_check import faults_of

        return faults_of(self._memory.ontology())
