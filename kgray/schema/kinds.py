"""The record table: every kind of row that a store keeps of a group, declared once.

The engine works out which rows change (`RowChanges`); a store puts, patches, drops, scans and looks up rows
by the declarations of this module, and knows no rule of the domain. A kind is declared by the class of its
rows, a read by the class of the rows that it returns: a NamedTuple whose fields are columns. The types are
int (an instant is microseconds since 1970, UTC), bool, str, tuple[str, ...] and bytes. The group is no
column: each call of a store names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_type_hints

ColumnType = Literal["int", "bool", "text", "texts", "bytes"]
SearchScope = Literal["fact", "entity", "episode", "community"]
Row = tuple[Any, ...]
Key = tuple[Any, ...]  # the values of a kind's key columns
R = TypeVar("R", bound=Row)
R_co = TypeVar("R_co", bound=Row, covariant=True)

# `state` of an episode (R24) and of an operation.
# WITHDRAWN: retracted before it was committed or failed; it never was part of the graph.
ACCEPTED, EXTRACTED, COMMITTED, FAILED, WITHDRAWN = range(5)
PENDING, DONE, REFUSED = range(3)
_TYPES: Mapping[object, ColumnType] = {
    int: "int", bool: "bool", str: "text", tuple[str, ...]: "texts", bytes: "bytes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a kind; optional: None is allowed."""

    name: str
    type: ColumnType
    optional: bool = False


def _columns(row: type[Row]) -> tuple[Column, ...]:
    """Return the columns that a row class declares."""
    columns = []
    for name, hint in get_type_hints(row).items():
        parts = get_args(hint)
        optional = NoneType in parts
        (value_type,) = (part for part in parts if part is not NoneType) if optional else (hint,)
        columns.append(Column(name, _TYPES[value_type], optional))
    return tuple(columns)


@dataclass(frozen=True, eq=False)
class Kind(Generic[R]):
    """A declared kind of rows.

    row         the class of its rows
    key         the columns that name a row within its group
    indexes     the columns of further look-ups; the key has an index of its own
    first_wins  True: a put keeps an existing row (R21); False: it replaces the row
    log         a removal of the whole group keeps the rows with a later sequence than its own (R27)
    """

    name: str
    row: type[R]
    key: tuple[str, ...]
    indexes: tuple[tuple[str, ...], ...] = ()
    first_wins: bool = False
    log: bool = False

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns, in their order."""
        return _columns(self.row)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def types(self) -> Mapping[str, ColumnType]:
        """The type of each column."""
        return {column.name: column.type for column in self.columns}

    @cached_property
    def all(self) -> Read[R]:
        """The scan of all columns of all rows of a group."""
        return Read(f"all {self.name}", self, self.row)

    @cached_property
    def _key_places(self) -> tuple[int, ...]:
        return tuple(map(self.names.index, self.key))

    def lowest(self, columns: Sequence[str]) -> Row:
        """Return values below every value of these columns: a scan begins after them."""
        return tuple(-1 if self.types[name] == "int" else "" for name in columns)

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        return tuple([row[place] for place in self._key_places])

    def __reduce__(self) -> str:
        """Pickle as the global below: other processes compare kinds by identity."""
        return self.name.upper()

    def __repr__(self) -> str:
        return f"<kind {self.name}>"


@dataclass(frozen=True, eq=False)
class Read(Generic[R_co]):
    """A declared read of one kind: some columns of all rows, or of the rows with given values of one column.

    row     the class of the returned rows; its fields are columns of the kind
    by      None: a scan of the group in the order of the key. Else a column that begins the key or a declared
            index: the read returns the rows with the given values, in the order of the values, then of the
            key. For a tuple of columns the values are tuples
    since   a scan in the order of this int column, then of the key, by a declared index; rows without a
            value are omitted

    A scan may begin after a place, which has values of the first columns of the order; the others count as
    lowest. A store prepares one statement for each read.
    """

    name: str
    kind: Kind[Any]
    row: type[R_co]
    by: str | tuple[str, ...] | None = None
    since: str = ""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the returned columns."""
        return tuple(get_type_hints(self.row))

    @cached_property
    def make(self) -> Callable[[Iterable[Any]], R_co]:
        """A function that makes a row from the values of the columns."""
        row: Any = self.row
        return row._make  # type: ignore[no-any-return]

    @cached_property
    def place(self) -> tuple[str, ...]:
        """The columns that order a scan."""
        return (self.since, *self.kind.key) if self.since else self.kind.key


class EpisodeRow(NamedTuple):
    """An entry of the log.

    ended_at, retired_at    record time of the commit or failure, and of the retraction or retry
    attempts                of this row and of the rows that it was retried from
    """

    sequence: int
    id: str
    source: str
    kind: str
    text: str
    reference_time: int
    content_sha256: str
    speaker: str | None
    client_id: str | None
    metadata: str
    state: int
    bulk: bool
    attempts: int
    ended_at: int | None
    retired_at: int | None
    failure_kind: str | None
    failure_message: str | None
    failure_raw: str | None


EPISODES = Kind(
    "episodes",
    EpisodeRow,
    ("sequence",),
    indexes=(
        ("id",), ("client_id",), ("source", "reference_time", "sequence"),
        ("state", "bulk", "sequence"), ("ended_at", "sequence"),
    ),
    log=True,
)  # fmt: skip


class OperationRow(NamedTuple):
    """A correction. payload: JSON of its arguments; result: JSON for its caller, None while pending."""

    sequence: int
    kind: str
    payload: str
    state: int
    recorded_at: int | None
    result: str | None


OPERATIONS = Kind(
    "operations",
    OperationRow,
    ("sequence",),
    indexes=(("state", "sequence"), ("recorded_at", "sequence")),
    log=True,
)


class ExtractionRow(NamedTuple):
    """A row of the journal of extractions: the reply for an episode and its cost (R21)."""

    sequence: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    body: str


EXTRACTIONS = Kind("extractions", ExtractionRow, ("sequence",), first_wins=True, log=True)


class AnswerRow(NamedTuple):
    """A row of the journal of answers: the answers to a request that an episode used, as JSON (R21).

    request     the key of the request. A key that begins with "spent" has no answers: its row counts calls
                with unusable replies (`outbox.cost_change`)
    calls ...   0 if another episode paid for the same request
    sources     uint32: further episodes whose words are in the request, for requests of communities
    """

    sequence: int
    request: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    body: str
    sources: bytes


ANSWERS = Kind("answers", AnswerRow, ("sequence", "request"), indexes=(("request",),), first_wins=True)


class HoldRow(NamedTuple):
    """The reason of a hold of a group (`kgray.storage.ledger`). A group has one row, which outlasts the hold.

    sequence            the episode at which the group stopped; 0: a correction
    one                 constant 0: the key of the only row
    since, again_at     instants: the start of the hold, the end of the pause
    tries               failed tries; 0: the group is not held
    """

    one: int
    sequence: int
    since: int
    again_at: int
    tries: int
    reason: str


HOLDS = Kind("holds", HoldRow, ("one",))


class RecordRow(NamedTuple):
    """The records of an episode, or records that a removal saved; `kgray.schema.record_rows` packs them.

    timed       the record time of a row with declarations or verdicts, else None
    statements  "ORDINAL STATEMENT" for each piece of evidence
    packed      mentions and evidence
    judged      declarations and verdicts; None: none
    search      words, signs and token weights, for the index of a search
    names       vectors of names, with the entities that bear them
    vectors     vectors of the texts, in the order of `search`
    """

    sequence: int
    timed: int | None
    statements: tuple[str, ...]
    packed: bytes
    judged: bytes | None
    search: bytes
    names: bytes | None
    vectors: bytes | None


RECORDS = Kind("records", RecordRow, ("sequence",), indexes=(("timed", "sequence"),))


class ShownEvidenceRow(NamedTuple):
    """Derived: evidence that is visible under another statement than recorded; None: under none (R16)."""

    sequence: int
    ordinal: int
    statement: str
    shown: str | None


SHOWN_EVIDENCE = Kind("shown_evidence", ShownEvidenceRow, ("sequence", "ordinal"), indexes=(("statement",),))


class EntityRow(NamedTuple):
    """Derived: an entity."""

    id: str
    name: str
    aliases: tuple[str, ...]
    labels: tuple[str, ...]
    born_sequence: int
    born_ordinal: int
    summary: str


ENTITIES = Kind("entities", EntityRow, ("id",))


class ShownEntityRow(NamedTuple):
    """Derived: a recorded entity that shows as another entity, or after a split as several entities."""

    recorded: str
    shown: str


SHOWN_ENTITIES = Kind("shown_entities", ShownEntityRow, ("recorded", "shown"))


class MentionRow(NamedTuple):
    """Derived: a committed episode that was not retracted mentions a visible entity."""

    entity: str
    sequence: int


MENTIONS = Kind("mentions", MentionRow, ("entity", "sequence"))


class FactRow(NamedTuple):
    """Derived: a fact."""

    id: str
    statement: str
    source: str
    relation: str
    text: str
    created_at: int
    target: str | None
    value_type: str | None
    value: str | None
    unit: str | None
    valid_at: int | None
    invalid_at: int | None
    expired_at: int | None
    episodes: tuple[str, ...]
    event: bool
    ended_episode: str | None
    ended_ordinal: int | None


FACTS = Kind(
    "facts",
    FactRow,
    ("id",),
    indexes=(
        ("statement",), ("source", "created_at", "id"), ("target", "created_at", "id"),
        ("created_at", "id"), ("expired_at", "id"),
    ),
)  # fmt: skip


class CommunityRunRow(NamedTuple):
    """A refresh of communities, numbered 1, 2, 3 ...; the store keeps the newest two, the newest is current.

    watermark, recorded_at      the last sequence and record time that the refresh read
    entities, cold_entities     the number of entities at this refresh, and at the last cold refresh
    """

    run: int
    watermark: int
    recorded_at: int
    made_at: int
    cold: bool
    entities: int
    cold_entities: int
    writer: str


COMMUNITY_RUNS = Kind("community_runs", CommunityRunRow, ("run",))


class CommunityRow(NamedTuple):
    """A community of a run.

    members     visible entities, the most central first; above level 0 only the 10 most central
    content     the hash of the facts in the writer's prompt
    sources     uint32: the sequences of the episodes whose words are in the texts
    vector      float32

    A retraction or removal drops every row with one of its episodes among the sources.
    """

    run: int
    id: str
    level: int
    parent: str | None
    size: int
    name: str
    summary: str
    report: str
    writer: str
    content: str
    members: tuple[str, ...]
    sources: bytes
    vector: bytes


COMMUNITIES = Kind("communities", CommunityRow, ("run", "id"))

# The group of kgray's own rows: `check_group` refuses the name, and `Store.heads` omits it.
OWN = "kgray/own"


class AccessKeyRow(NamedTuple):
    """A key of the HTTP server. digest: SHA-256 of the secret in hex; rate: requests/s, None: no limit."""

    id: str
    sequence: int
    digest: str
    groups: tuple[str, ...]
    scopes: tuple[str, ...]
    rate: int | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None


ACCESS_KEYS = Kind("access_keys", AccessKeyRow, ("id",), log=True)


class AuditRow(NamedTuple):
    """A requested correction. access_key: "" without a key; asked: the arguments as JSON."""

    sequence: int
    at: int
    access_key: str
    action: str
    of_group: str
    asked: str


AUDIT = Kind("audit", AuditRow, ("sequence",), log=True)


class WebhookRow(NamedTuple):
    """A URL to which the commits of a group are posted.

    sent        the number of the last commit that the receiver accepted
    tries       failed tries since then
    again_at    the time of the next try; None if no try failed, or if kgray gave up
    fault       the last error
    """

    id: str
    sequence: int
    of_group: str
    url: str
    made_at: int
    sent: int
    tries: int
    again_at: int | None
    fault: str


WEBHOOKS = Kind("webhooks", WebhookRow, ("id",), log=True)


class ScheduleRow(NamedTuple):
    """A schedule of refreshes, with the outcome of the latest run.

    begun, tries    the tick (a time that `cron` gives) of the latest run, and the number of its jobs
    ended_at, said  the end of that run, None while it is open; `said`: its outcome in one line
    full, groups    whether the refresh ignores the present communities; its groups, empty: all
    seen_at         when a scheduler last saw the run open: another scheduler leaves the run alone for a while
    """

    name: str
    cron: str
    zone: str
    made_at: int
    begun: int | None
    tries: int
    ended_at: int | None
    said: str
    full: bool = False
    groups: tuple[str, ...] = ()
    seen_at: int | None = None


SCHEDULES = Kind("schedules", ScheduleRow, ("name",))

# In the order of a copy: a row comes after the rows that it refers to.
KINDS: tuple[Kind[Any], ...] = tuple(kind for kind in vars().values() if isinstance(kind, Kind))
BY_NAME: Mapping[str, Kind[Any]] = {kind.name: kind for kind in KINDS}
