"""Random histories of all events that can happen to a group, and the checks that hold after each step.

A history is a list of steps: it can be printed, cut short and played again. Each episode brings a word of its
own, in its wordings and sometimes in a relation's name, and the judge quotes the texts of the request: so
traces of a removed episode can be looked for in every stored row.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from kgray.domain import times
from kgray.domain.records import Extraction
from kgray.errors import InvalidAnswer
from kgray.graph.group import GroupGraph
from kgray.graph.repair import differences
from kgray.graph.stored import records_of
from kgray.ports import Answer, ExtractionRequest, Judged, QuestionRequest
from kgray.schema import kinds
from kgray.storage.ledger import retry_failed
from tests.graph.engine import Engine, ReadsItself, WildJudge, reading

PEOPLE = ["Alice", "Alice Smith", "A. Smith", "Bob", "Bob Jones", "Robert"]
ORGANIZATIONS = ["Acme", "Acme Inc", "Beta", "IBM"]
RELATIONS = ["WORKS_AT", "MANAGES", "REPORTS_TO", "LIKES", "DISLIKES", "MARRIED_TO", "WORKS_FOR", "COSTS"]
RELATIONS += ["HUMS_TO", "WAVES_AT", "LEANS_ON"]  # the ontology lists none of these: the judge compares them
FIELD = "HAS_STAGE"  # like a field of a record (R17)
CORRECTIONS = ["merge", "merge", "distinct", "split", "undo"]
CORRECTIONS += ["retract", "remove", "remove", "replace", "retry"]
WORD = re.compile(r"(?<![a-z0-9])w\d+z")  # the unique word of an episode; a truncated word does not count
Step = tuple[Any, ...]
Row = dict[str, Any]


class Quoting(WildJudge):
    """A judge whose reasons quote the texts of the request."""

    async def judge(self, request: QuestionRequest) -> Judged:
        """Answer each question, with a reason."""
        judged = await super().judge(request)
        pairs = zip(request.questions, judged.answers, strict=True)
        answers: tuple[Answer, ...] = tuple(
            {**answer, "reason": " / ".join((q.item, *q.candidates, *q.cards))} for q, answer in pairs
        )
        return Judged(answers=answers, calls=1)


class Refuses(ReadsItself):
    """A reader that fails on the episodes whose client ids it is given."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Parse the text, unless it is refused."""
        if request.episode.client_id in self.refused:
            raise InvalidAnswer("no extraction", raw="?")
        extraction = await super().extract(request)
        facts = (replace(fact, only=fact.relation == FIELD) for fact in extraction.facts)
        return replace(extraction, facts=tuple(facts))


def history(seed: int, steps: int = 12) -> list[Step]:
    """Return a random history; equal seeds give equal histories."""
    rng = random.Random(seed)
    drawn: list[Step] = []
    for number in range(steps):
        if number < 2 or rng.random() < 0.5:
            drawn.append(episode(rng, number))
        else:
            drawn.append((rng.choice(CORRECTIONS), rng.randrange(30), rng.randrange(30)))
    return drawn


def episode(rng: random.Random, number: int) -> Step:
    """Return the step that adds an episode: its day, its facts, and whether its reader fails."""
    facts = []
    for _ in range(rng.randint(1, 3)):
        source, target = rng.sample(PEOPLE + ORGANIZATIONS, 2)
        relation = rng.choice([*RELATIONS, f"TOLD_BY_W{number}Z"])
        # A wording with digits names a variant; one without says an end or a denial of them all (R6).
        distinct_words = rng.choice([f" w{number}z", f" w{number}z", "", " part-time"])
        fact = {
            "source": source,
            "relation": relation,
            "fact": f"{source}{distinct_words} {relation} {target}",
        }
        fact["kind"] = rng.choice(["holds", "holds", "holds", "ended", "denied", "happened"])
        if rng.random() < 0.9:
            fact["target"] = target
        else:
            fact |= {"relation": FIELD, "kind": "holds"} if rng.random() < 0.5 else {}
            fact["value"] = rng.choice([100, "done"])
        facts.append(fact)
    return ("add", rng.randrange(12), facts, rng.random() < 0.1)


@dataclass
class Played:
    """An engine with a history, and the observations made during it.

    dumps       (record time, stored sequences, rows of the dump) after each step
    erased      sequences of removed episodes
    """

    engine: Engine
    reader: Refuses
    dumps: list[tuple[int, set[int], list[Row]]] = field(default_factory=list)
    erased: set[int] = field(default_factory=set)

    def play(self, steps: list[Step]) -> None:
        """Carry the steps out one by one, and check after each."""
        for number, step in enumerate(steps):
            self.carry_out(number, step)
            self.engine.check()
            assert differences(self.engine.store, self.engine.named()) == []
            self._nothing_erased_is_stored()
            self._distinct_entities_stay_apart()
            # Each step checks the dump before it; a removal, a replacement and the last step check all dumps.
            check_all = step[0] in {"remove", "replace"} or number == len(steps) - 1
            self._earlier_dumps_are_reproduced(self.dumps if check_all else self.dumps[-1:])
            snapshot = self.engine.last_recorded(), self._sequences(), rows(self.engine.dump())
            self.dumps.append(snapshot)

    def carry_out(self, number: int, step: Step) -> None:
        """Carry a step out; the first step has number 0."""
        kind = step[0]
        if kind in {"add", "replace", "retry"}:
            getattr(self, f"_{kind}")(number, step)
            return
        self._correct(kind, step[1], step[2])

    def _add(self, number: int, step: Step) -> None:
        _, at, facts, fails = step
        if fails:
            self.reader.refused.add(f"e{number}")
        self.engine.add(reading(at, [], facts, client_id=f"e{number}"))

    def _replace(self, number: int, step: Step) -> None:
        facts = [{"source": "Bob", "relation": "LIKES", "target": "tea", "fact": f"Bob w{number}z likes tea"}]
        chosen = f"e{step[1] % number}"
        self.engine.add(reading(step[2] % 12, [], facts, client_id=chosen), replace=True)

    def _retry(self, _number: int, _step: Step) -> None:
        self.reader.refused.clear()
        retry_failed(self.engine.store, self.engine.named(), [], now=times.now())
        self.engine.run()

    def _correct(self, kind: str, a: int, b: int) -> None:
        # Sorted by birth and by sequence, not by id: a history is the same in every group.
        entities = [e.id for e in sorted(self.engine.view().all_entities(), key=lambda e: e.born)]
        results = sorted(of_type(rows(self.engine.dump()), "episode"), key=lambda row: row["sequence"])
        episodes = [row["id"] for row in results]
        if kind in {"merge", "distinct"} and entities:
            self.engine.ask(kind, entities=(entities[a % len(entities)], entities[b % len(entities)]))
        elif kind == "split" and entities:
            entity = entities[a % len(entities)]
            surfaces = sorted(self.engine.view().graph.entities[entity].surfaces)
            self.engine.ask("split", entities=(entity,), surfaces=(surfaces[b % len(surfaces)],))
        elif kind == "undo":
            self.engine.ask("undo", target=self._correction(a))
        elif kind in {"retract", "remove"} and episodes:
            earlier = self._sequences()
            self.engine.ask(kind, episodes=(episodes[a % len(episodes)],))
            self.erased |= earlier - self._sequences()

    def _correction(self, a: int) -> int:
        results = [row[0] for row in self._rows("operations") if row[1] in {"merge", "distinct", "split"}]
        return int(results[a % len(results)]) if results else a

    def _ids_of_splits(self) -> set[str]:
        """Return the ids that splits in force made."""
        records = records_of(self.engine.store, self.engine.named(), within=[])
        return {operation.made for operation in records.operations}

    def _sequences(self) -> set[int]:
        return {row[0] for row in self._rows("episodes")}

    def _rows(self, kind: str) -> list[tuple[Any, ...]]:
        return list(self.engine.store.rows(kinds.BY_NAME[kind].all, self.engine.named()))

    def _nothing_erased_is_stored(self) -> None:
        """R25: no row has a word that no stored text has; the answers are the journal's business."""
        texts = json.dumps([row[4] for row in self._rows("episodes")]).casefold()
        stored = [self._rows(kind.name) for kind in kinds.KINDS if kind is not kinds.ANSWERS]
        packed = [column for row in self._rows("records") for column in row[3:7] if column is not None]
        stored.append([msgpack.unpackb(column) for column in packed])
        everywhere = json.dumps(stored, default=lambda _: "").casefold()  # without vectors and words
        assert set(WORD.findall(everywhere)) - set(WORD.findall(texts)) == set()

    def _distinct_entities_stay_apart(self) -> None:
        """R16, R25: two entities of a distinction in force are never shown as one, and both are stored.

        Each entity is followed through the merges that came after the distinction. A mention that was
        recorded as one of the two may belong elsewhere: an earlier split had moved it.
        """
        born = GroupGraph.build(records_of(self.engine.store, self.engine.named())).births
        steps = sorted(of_type(rows(self.engine.dump()), "merge"), key=lambda row: row["sequence"])
        for distinct in (row for row in steps if row["kind"] == "distinct"):
            first, second = distinct["entities"]
            for row in steps:
                if row["kind"] == "merge" and row["sequence"] > distinct["sequence"]:
                    merged = min(row["entities"], key=lambda entity: born[entity])
                    first, second = (merged if e in row["entities"] else e for e in (first, second))
            assert first != second
            assert set(distinct["entities"]) <= born.keys() | self._ids_of_splits()

    def _earlier_dumps_are_reproduced(self, dumps: list[tuple[int, set[int], list[Row]]]) -> None:
        """R4: a dump with an earlier known_at equals the dump at that time, except for later removals."""
        for known_at, stored, earlier in dumps:
            current = rows(self.engine.dump(known_at))
            if stored.isdisjoint(self.erased):
                assert current == earlier
                continue
            removed_ids = {
                r["id"] for r in earlier if r["type"] == "episode" and r["sequence"] in self.erased
            }
            for kind in ("episode", "mention", "evidence"):
                expected = [
                    r for r in of_type(earlier, kind) if r.get("episode", r.get("id")) not in removed_ids
                ]
                assert plain(of_type(current, kind)) == plain(expected)
            self._relations_are_kept(current, earlier, removed_ids)

    @staticmethod
    def _relations_are_kept(current: list[Row], earlier: list[Row], removed_ids: set[str]) -> None:
        """R25: declarations of the remaining names stay in force while later episodes remain."""
        remaining = [
            r["sequence"]
            for r in of_type(earlier, "episode")
            if r["id"] not in removed_ids and r["state"] == "committed"
        ]
        erased = [r["sequence"] for r in of_type(earlier, "episode") if r["id"] in removed_ids]
        if max(remaining, default=0) < max(erased, default=0):
            return
        names = {row["name"] for row in of_type(current, "relation")}
        assert of_type(current, "relation") == [
            row for row in of_type(earlier, "relation") if row["name"] in names
        ]


def rows(lines: list[str]) -> list[Row]:
    """Return the rows of a dump."""
    return [json.loads(line) for line in lines]


def of_type(dump: list[Row], kind: str) -> list[Row]:
    """Return the rows of one type."""
    return [row for row in dump if row["type"] == kind]


def plain(dump: list[Row]) -> list[Row]:
    """Return the rows without the statement, which may have the id of an erased one, in a fixed order."""
    return sorted(({k: v for k, v in row.items() if k != "statement"} for row in dump), key=json.dumps)


def played(make: Callable[..., Engine], steps: list[Step]) -> Played:
    """Play a history on a new engine."""
    reader = Refuses()
    engine = make(judge=Quoting(), extractor=reader)
    result = Played(engine, reader)
    result.play(steps)
    return result
