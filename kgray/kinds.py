"""The record table: every kind of row that a store keeps of a group, declared once.

The engine works out which rows change (`RowChanges`); a store puts, patches, drops, scans and looks
up rows by what is declared here, and knows no rule of the domain. A row is a tuple in the order of its
kind's columns: int (an instant is microseconds since 1970, UTC), bool, text (str), texts (tuple of str),
vector (bytes: float32, little-endian, unit length). The group is no column: each call of a store names it.

Beside these a row has computed columns, which only a declared read that names them returns: words, of a kind
with a text (bytes, as `words.packed` gives them), and signs, of one with a vector (as `rows.sign_bits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from kgray.times import Instant

ColumnType = Literal["int", "bool", "text", "texts", "vector", "bytes"]
SearchScope = Literal["fact", "entity", "episode", "community"]
Row = tuple[Any, ...]
Key = tuple[Any, ...]  # the values of a kind's key columns

# `state` of an episode (R24) and of an operation.
# WITHDRAWN: retracted before it was committed or failed; it never was part of the graph.
ACCEPTED, EXTRACTED, COMMITTED, FAILED, WITHDRAWN = range(5)
PENDING, DONE, REFUSED = range(3)


@dataclass(frozen=True, slots=True)
class Column:
    """One column; optional: None is a value."""

    name: str
    type: ColumnType
    optional: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One kind of rows."""

    name: str
    key: tuple[str, ...]  # the columns that name a row within its group
    columns: tuple[Column, ...]
    indexes: tuple[tuple[str, ...], ...] = ()  # columns by which rows are looked up; the key needs none
    order: tuple[str, ...] = ()  # the columns by which a scan is ordered; the key unless declared
    first_wins: bool = False  # a put does not replace a row that exists (R21); else it does
    # The rows belong to an accepted entry: those of entries accepted after the removal of the whole group
    # survive it (R27). All other rows go with the group.
    log: bool = False
    # The text by whose words rows are found, None of a row that is not; None: no row is.
    text: Callable[[Row], str | None] | None = None

    @cached_property
    def computed(self) -> tuple[Column, ...]:
        """The columns that a store computes from a row (`rows.computed`)."""
        vector = any(column.type == "vector" for column in self.columns)
        return (*[Column("words", "bytes")] * (self.text is not None), *[Column("signs", "bytes")] * vector)

    @cached_property
    def place(self) -> tuple[str, ...]:
        """The columns that order a scan: no two rows of a group agree in all of them."""
        return tuple(dict.fromkeys((*self.order, *self.key)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def types(self) -> Mapping[str, ColumnType]:
        """The type of each column, of the computed ones too."""
        return {column.name: column.type for column in (*self.columns, *self.computed)}

    def lowest(self, columns: Sequence[str]) -> Row:
        """Return values below all that these columns have: a scan begins behind them."""
        return tuple(-1 if self.types[name] == "int" else "" for name in columns)

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        names = self.names
        return tuple(row[names.index(name)] for name in self.key)

    def __reduce__(self) -> str:
        """Pickle as the global below: changes go from process to process; a kind is compared by identity."""
        return self.name.upper()

    def __repr__(self) -> str:
        return f"<kind {self.name}>"


def _kind(name: str, columns: str, **how: Any) -> Kind:  # noqa: ANN401 - the other fields of a kind
    """Read "*name type, name type?, ...": a star marks the key, a question mark an optional column."""
    pairs = [part.split() for part in columns.split(",")]
    key = tuple(column[1:] for column, _ in pairs if column.startswith("*"))
    made = (Column(column.lstrip("*"), kind.rstrip("?"), kind.endswith("?")) for column, kind in pairs)  # type: ignore[arg-type]
    return Kind(name=name, key=key, columns=tuple(made), **how)


# ended_at: record time of the commit or of the failure; retired_at: of the retraction or the retry.
# attempts: of this row and of those it was retried from.
EPISODES = _kind(
    "episodes",
    "*sequence int, id text, source text, kind text, text text, reference_time int, content_sha256 text, "
    "speaker text?, client_id text?, metadata text, state int, bulk bool, attempts int, ended_at int?, "
    "retired_at int?, failure_kind text?, failure_message text?, failure_raw text?",
    indexes=(
        ("id",), ("client_id",), ("source", "reference_time", "sequence"),
        ("state", "bulk", "sequence"), ("ended_at", "sequence"),
    ),
    log=True,
    # Its speaker and text, once it is committed.
    text=lambda row: " ".join(filter(None, (row[7], row[4]))) if row[10] == COMMITTED else None,
)  # fmt: skip
# payload: JSON of what the operation names; result: JSON, what its caller reads; None while pending.
OPERATIONS = _kind(
    "operations",
    "*sequence int, kind text, payload text, state int, recorded_at int?, result text?",
    indexes=(("state", "sequence"), ("recorded_at", "sequence")),
    log=True,
)
_COST = "calls int, prompt_tokens int, completion_tokens int"
EXTRACTIONS = _kind("extractions", f"*sequence int, {_COST}, body text", first_wins=True, log=True)
# The journal of answers: request is the request's key, body its answers as JSON (R21). A request that begins
# with "spent" has none: it counts calls whose replies could not be used (`changes.spent`).
ANSWERS = _kind("answers", f"*request text, {_COST}, body text", first_wins=True)
ANSWER_USES = _kind("answer_uses", "*sequence int, *request text", indexes=(("request",),), first_wins=True)

# Why a group is held (`kgray.ledger`): one row, which stays. sequence: the episode at which it stopped, 0: a
# correction; since, again_at: instants; tries: 0 = it is held no longer.
HOLDS = _kind("holds", "*one int, sequence int, since int, again_at int, tries int, reason text")

# id: a recorded entity or statement; the place is that of its first recording. Scanned by id: a split records
# the birth of an entity late, at an earlier place (R16), so insertion is not in the order of places.
BIRTHS = _kind("births", "*id text, sequence int, ordinal int", first_wins=True)
MENTIONS = _kind(
    "mentions",
    "*sequence int, *ordinal int, surface text, entity text, type text, sentence text, key bool, "
    "resolved_by text, span_from int?, span_to int?",
    indexes=(("entity",),),
)
# shown: the derived statement that it is about now, None for a loop (R16).
EVIDENCE = _kind(
    "evidence",
    "*sequence int, *ordinal int, statement text, variant int, kind text, relation text, text text, "
    "subject int, object int?, value_type text?, value text?, unit text?, valid_from int?, "
    "valid_to int?, from_precision text?, to_precision text?, inferred bool, fact_group int?, "
    "every_variant bool, is_reversed bool, is_field bool, shown text?",
    indexes=(("statement",),),
    # The relation's words too: "where does she live" meets "moved to Lyon" in LIVES_IN.
    text=lambda row: f"{row[6]} {row[5].replace('_', ' ')}",
)
# What the ontology declared of relation names, by the episode whose commit recorded it (R17).
DECLARATIONS = _kind(
    "declarations",
    "*sequence int, *ordinal int, name text, aspect text, value text, other text, recorded_at int, "
    "retired_at int?",
)
VERDICTS = _kind(
    "verdicts",
    "*sequence int, *ordinal int, a text, b text, exclusive bool, judge text, reason text, "
    "recorded_at int, retired_at int?",
)
# Each surface of each recorded entity once, with the place of its first mention; folded: case and spacing
# aside. Those that only retracted mentions have stay: a read with an earlier `known_at` finds them.
NAMES = _kind(
    "names",
    "*entity text, *surface text, folded text, sequence int, ordinal int",
    indexes=(("folded",),),
    order=("sequence", "ordinal"),
    first_wins=True,
    text=lambda row: str(row[1]),
)
# A group's state in memory has these in the order of their insertion, which is that of their places.
NAME_VECTORS = _kind(
    "name_vectors",
    "*entity text, *surface text, sequence int, ordinal int, vector vector",
    order=("sequence", "ordinal"),
    first_wins=True,
)
# Of the first wording of each recorded statement; of a later one where all evidence before is retracted.
# weights: of the text's tokens (`rows.weight_bytes`), from an embedder that weighs them; else None.
STATEMENT_VECTORS = _kind("statement_vectors", "*id text, weights bytes?, vector vector")
EPISODE_VECTORS = _kind("episode_vectors", "*sequence int, weights bytes?, vector vector")

# An index over the records, never truth.
ENTITIES = _kind(
    "entities",
    "*id text, name text, aliases texts, labels texts, born_sequence int, born_ordinal int, summary text",
)
# What a recorded entity shows as now: several rows after a split.
SHOWN_ENTITIES = _kind("shown_entities", "*recorded text, *shown text", indexes=(("recorded",),))
FACTS = _kind(
    "facts",
    "*id text, statement text, source text, relation text, text text, created_at int, target text?, "
    "value_type text?, value text?, unit text?, valid_at int?, invalid_at int?, expired_at int?, "
    "episodes texts, event bool, ended_episode text?, ended_ordinal int?",
    indexes=(
        ("statement",), ("source", "created_at", "id"), ("target", "created_at", "id"),
        ("created_at", "id"), ("expired_at", "id"),
    ),
)  # fmt: skip

# Runs of a group: 1, 2, 3 ...; the greatest is current, the one before is kept. watermark, recorded_at: the
# last sequence and record time that it has seen; entities: of the group then, cold_entities: at its last
# cold run.
COMMUNITY_RUNS = _kind(
    "community_runs",
    "*run int, watermark int, recorded_at int, made_at int, cold bool, entities int, cold_entities int, "
    "writer text",
)
# members: shown entities, the most central first; above level 0 only the first. content: the hash of what was
# shown to the writer; sources: the sequences whose words it rests on, uint32; vector: float32.
# A retraction or removal drops the rows that rest on what it takes.
COMMUNITIES = _kind(
    "communities",
    "*run int, *id text, level int, parent text?, size int, name text, summary text, report text, "
    "writer text, content text, members texts, sources bytes, vector bytes",
)

# The rows of OWN, no group of users: `check_group` refuses its name, and `Store.heads` leaves it out.
OWN = "kgray/own"
# A key of the HTTP server. digest: SHA-256 of the secret, in hex; rate: requests a second, None = unbounded.
ACCESS_KEYS = _kind(
    "access_keys",
    "*id text, sequence int, digest text, groups texts, scopes texts, rate int?, created_at int, "
    "expires_at int?, revoked_at int?",
    log=True,
)
# Who asked for a correction or removal: the key's id, "" = without one. asked: JSON of the arguments.
AUDIT = _kind(
    "audit", "*sequence int, at int, access_key text, action text, of_group text, asked text", log=True
)
# Where the commits of a group are posted to. sent: the number of the last commit that was taken; tries: that
# failed since; again_at: when the next is due, None = nothing failed, or all did; fault: the last one's.
WEBHOOKS = _kind(
    "webhooks",
    "*id text, sequence int, of_group text, url text, made_at int, sent int, tries int, again_at int?, "
    "fault text",
    log=True,
)
# When communities are refreshed. begun: the time of the cron expression that was begun last; tries: how often
# it was; ended_at: None while it goes on, or was interrupted; said: what came of it.
SCHEDULES = _kind(
    "schedules",
    "*name text, cron text, zone text, made_at int, begun int?, tries int, ended_at int?, said text",
)

# In the order in which a copy puts them: what a row refers to comes before it.
KINDS: tuple[Kind, ...] = tuple(one for one in vars().values() if isinstance(one, Kind))
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """New values for some columns of existing rows; a row that does not exist is skipped."""

    kind: Kind
    columns: tuple[str, ...]
    rows: tuple[Row, ...]  # each the key of a row, then the values of `columns`


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """What one entry of a group's log changes, row by row: applied whole or not at all (R23).

    sequence     the entry: an episode or an operation; ledger: its kind
    states       of the entry, in which this applies. In any other, or once the entry was removed, it was
                 applied before or came too late, and is left out: so a batch can be sent again
    recorded_at  its record time, which must be past the group's last; None: nothing is recorded (journal)
    rests_on     the group's last record time when it was decided: whatever else was recorded since, it is
                 refused (Outrun), and so it is where its entry was ended by another. None: not said
    clear        True: first delete the group: rows of log kinds up to `sequence` (the entry's own row stays),
                 all rows of other kinds. If nothing but the entry is pending, the group loses its name. Such
                 a change puts nothing but the entry's row: the others may go after it, in portions
    drops, puts, patches    then rows are dropped, put and patched, in this order; keys of a kind are distinct
    erases       what is dropped or replaced must not stay readable: `Store.compact` cleans the files (R25)
    durable      False: a power cut (not a kill) may lose it, because a model can be asked again
    """

    group: str
    sequence: int
    ledger: Kind
    states: frozenset[int]
    recorded_at: Instant | None = None
    rests_on: Instant | None = None
    clear: bool = False
    drops: Mapping[Kind, Sequence[Key]] = field(default_factory=dict)
    puts: Mapping[Kind, Sequence[Row]] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()
    erases: bool = False
    durable: bool = True

    @property
    def unsettles(self) -> bool:
        """Whether it is counted in `GroupHead.removals`: not what only adds words and vectors of new rows.

        But a statement said before, whose evidence is retracted, gets another vector: that is counted.
        """
        own = self.ledger is EPISODES and self.states <= _OPEN
        return (
            self.clear
            or any(keys and kind.computed for kind, keys in self.drops.items())
            or any(
                rows and kind.computed and not (own and self._adds(kind, rows))
                for kind, rows in self.puts.items()
            )
        )

    def _adds(self, kind: Kind, rows: Iterable[Row]) -> bool:
        """Whether all these rows are of what this entry is the first to say."""
        if kind is STATEMENT_VECTORS:
            return {row[0] for row in rows} <= {row[0] for row in self.puts.get(BIRTHS, ())}
        place = kind.names.index("sequence")
        return all(row[place] == self.sequence for row in rows)


_OPEN = frozenset({ACCEPTED, EXTRACTED})  # the states of an episode that has not ended


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A declared read of one kind: some of its columns, of all its rows or by the values of one column.

    A scan may be begun behind a place: values of the first columns of its order; the others count as lowest.
    A store makes one statement of each, once.
    """

    name: str
    kind: Kind
    columns: tuple[str, ...] = ()  # () = all, in the order of the kind, without the computed ones
    # None: a scan of the group in the kind's order. Else the rows whose `by` is one of the values asked for,
    # in the order of the values, those of one value in the kind's order. `by` begins the key or a declared
    # index. ("sequence", "ordinal"): the values are such pairs.
    by: str | tuple[str, ...] | None = None
    since: str = ""  # a scan in the order of this int column, then of the key, by a declared index

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of the columns that are read."""
        return self.columns or self.kind.names

    @property
    def place(self) -> tuple[str, ...]:
        """The columns that order a scan."""
        return (self.since, *self.kind.key) if self.since else self.kind.place


ALL: Mapping[str, Read] = {kind.name: Read(f"all {kind.name}", kind) for kind in KINDS}
# What derivation needs of episodes, and what names them; no text.
EPISODE_HEADS = Read(
    "episode heads",
    EPISODES,
    ("sequence", "id", "client_id", "source", "reference_time", "state", "ended_at", "retired_at", "kind"),
)
EPISODE_HEADS_AT = Read("episode heads at sequences", EPISODES, EPISODE_HEADS.columns, by="sequence")
EPISODES_AT = Read("episodes at sequences", EPISODES, by="sequence")
EPISODES_IN_STATE = Read("episodes in states", EPISODES, by="state")
# Whose id, client id and content a draft meets; no text.
TAKEN_BY = ("sequence", "id", "client_id", "source", "content_sha256", "retired_at", "state")
TAKEN = Read("taken", EPISODES, TAKEN_BY)
TAKEN_IDS = Read("taken ids", EPISODES, TAKEN_BY, by="id")
TAKEN_CLIENT_IDS = Read("taken client ids", EPISODES, TAKEN_BY, by="client_id")
TAKEN_IN_SOURCES = Read("taken in sources", EPISODES, TAKEN_BY, by="source")
SUPPORTERS = Read("supporters", EPISODES, ("id", "client_id"), by="id")
OPERATIONS_AT = Read("operations at sequences", OPERATIONS, by="sequence")
OPERATIONS_IN_STATE = Read("operations in states", OPERATIONS, by="state")
EXTRACTIONS_AT = Read("extractions at sequences", EXTRACTIONS, by="sequence")
ANSWERS_TO = Read("answers to requests", ANSWERS, by="request")
USES_BY = Read("uses by sequences", ANSWER_USES, by="sequence")
USES_OF = Read("uses of requests", ANSWER_USES, by="request")
BIRTHS_OF = Read("births by id", BIRTHS, by="id")
MENTIONS_IN = Read("mentions in episodes", MENTIONS, by="sequence")
MENTIONS_OF = Read("mentions of entities", MENTIONS, ("entity", "surface", "sequence"), by="entity")
MENTIONED = Read("names by entity", MENTIONS, ("sequence", "entity", "surface"))
EVIDENCE_IN = Read("evidence in episodes", EVIDENCE, by="sequence")
_PLACE = ("sequence", "ordinal")
EVIDENCE_SHOWN = Read("shown by evidence", EVIDENCE, (*_PLACE, "shown"), by=_PLACE)
STATEMENTS_BY_PLACE = Read("statements by place", EVIDENCE, (*_PLACE, "statement"))
_WORDING = ("statement", "sequence", "text")
EVIDENCE_OF = Read("evidence of statements", EVIDENCE, _WORDING, by="statement")
STATEMENTS_SHOWN = Read("shown by statements", EVIDENCE, ("statement", "shown", "sequence"), by="statement")
RELATIONS_BY_PLACE = Read(
    "relations by place", EVIDENCE, (*_PLACE, "statement", "relation", "is_reversed", "shown")
)
WORDINGS_OF = Read(
    "wordings of statements", EVIDENCE, (*_PLACE, "statement", "relation", "text"), by="statement"
)
NAMED = Read("entities of a folded name", NAMES, ("folded", "entity"), by="folded")
STATEMENT_VECTORS_OF = Read("vectors of statements", STATEMENT_VECTORS, by="id")
ENTITY_IDS = Read("ids of entities", ENTITIES, ("id",), by="id")
ENTITIES_OF = Read("entities by id", ENTITIES, by="id")
SHOWN_OF = Read("shown by entities", SHOWN_ENTITIES, by="recorded")
FACTS_OF = Read("facts by id", FACTS, by="id")
FACTS_OF_STATEMENTS = Read("facts of statements", FACTS, by="statement")
FACT_ENDS = Read("ends of facts", FACTS, ("id", "statement", "source", "target"))
# What was committed from a record time on, in the order of these, each row with its own first: episodes and
# operations that ended, facts that opened and that expired.
SINCE = tuple(
    Read(f"{kind.name} since {columns[0]}", kind, columns, since=columns[0])
    for kind, columns in (
        (EPISODES, ("ended_at", "state", "sequence", "id", "client_id")),
        (OPERATIONS, ("recorded_at", "state", "sequence", "kind")),
        (FACTS, ("created_at", "id")),
        (FACTS, ("expired_at", "id")),
    )
)
# What an index of the words and vectors of a group is built from, and kept up to date with.
_WORDS = ("sequence", "id", "source", "speaker", "reference_time", "state", "words")
EPISODE_WORDS = Read("words of episodes", EPISODES, _WORDS)
EPISODE_WORDS_AT = Read("words of episodes at sequences", EPISODES, _WORDS, by="sequence")
EVIDENCE_WORDS = Read("words of evidence", EVIDENCE, (*_PLACE, "statement", "words"))
EVIDENCE_WORDS_IN = Read("words of evidence in episodes", EVIDENCE, EVIDENCE_WORDS.columns, by="sequence")
NAME_WORDS = Read("words of names", NAMES, (*_PLACE, "entity", "surface", "words"))
NAME_WORDS_OF = Read("words of names of entities", NAMES, NAME_WORDS.columns, by="entity")
EPISODE_SIGNS = Read("signs of episodes", EPISODE_VECTORS, ("sequence", "weights", "signs"))
EPISODE_SIGNS_AT = Read("signs at sequences", EPISODE_VECTORS, EPISODE_SIGNS.columns, by="sequence")
EPISODE_VECTORS_AT = Read("vectors of episodes", EPISODE_VECTORS, by="sequence")
STATEMENT_SIGNS = Read("signs of statements", STATEMENT_VECTORS, ("id", "weights", "signs"))
STATEMENT_SIGNS_OF = Read("signs of statements by id", STATEMENT_VECTORS, STATEMENT_SIGNS.columns, by="id")
_SURFACE = ("entity", "surface")
NAME_SIGNS = Read("signs of names", NAME_VECTORS, (*_SURFACE, "signs"))
NAME_SIGNS_OF = Read("signs of names of entities", NAME_VECTORS, (*_SURFACE, "signs"), by="entity")
NAME_VECTORS_OF = Read("vectors of names of entities", NAME_VECTORS, (*_SURFACE, "vector"), by="entity")
COMMUNITIES_OF_RUN = Read("communities of a run", COMMUNITIES, by="run")
COMMUNITIES_AT = Read("communities by id", COMMUNITIES, by=("run", "id"))
COMMUNITY_SOURCES = Read("sources of communities", COMMUNITIES, ("run", "id", "sources"))
READS: tuple[Read, ...] = (*ALL.values(), *SINCE, *(one for one in vars().values() if isinstance(one, Read)))
# Those that are run over all groups at once.
EVERYWHERE: tuple[Read, ...] = (ALL["holds"], EPISODES_IN_STATE)
