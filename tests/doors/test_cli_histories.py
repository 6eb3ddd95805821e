"""Random histories of commands: documented exit codes, and no change by a command with exit code 2."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.doors.shell import Answer, Shell, triple, triples_row

NAMES = ["Ann Lee", "Anna Lee", "Bob Hill", "Acme", "Beta"]
VERBS = ["add", "add", "bad", "conflict", "replace", "add_again", "merge", "merge", "distinct", "split"]
VERBS += ["undo", "retract", "remove", "remove", "retry", "status", "history", "search", "context"]


@dataclass
class Session:
    """A group, its accepted rows, and the expected answer of the next command."""

    kgray: Shell
    rng: random.Random
    live: dict[str, dict[str, Any]] = field(default_factory=dict)  # client id -> its line
    retracted: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        dumped = self.kgray("dump", "--group", "team")
        assert dumped.code == 0
        return [row for row in map(json.loads, dumped.out.splitlines()) if row["type"] == kind]

    def line(self, client_id: str) -> dict[str, Any]:
        source, target = self.rng.sample(NAMES, 2)
        relation = self.rng.choice(["KNOWS", "WORKS_AT", "REPORTS_TO"])
        at = f"2026-01-{self.rng.randint(1, 28):02}"
        note = f"as told in {self.rng.randrange(10**6)}"
        return triples_row(
            client_id, at, triple(source, relation, target, text=f"{source} and {target}, {note}")
        )

    def run(self, *args: str) -> Answer:
        return self.kgray(*args, "--group", "team")

    def add(self, *rows: Any, option: str | None = None) -> Answer:
        path = self.kgray.write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return self.run("add", path, *([option] if option else []))

    def random_command(self, number: int) -> tuple[str, Answer, set[int]]:
        """Run a random command; return its name, its answer and the right exit codes."""
        verb = self.rng.choice(VERBS)
        return verb, *getattr(self, f"_{verb}")(number)

    def _add(self, number: int) -> tuple[Answer, set[int]]:
        self.live[f"c{number}"] = self.line(f"c{number}")
        return self.add(self.live[f"c{number}"]), {0}

    def _bad(self, number: int) -> tuple[Answer, set[int]]:
        self.live[f"c{number}"] = self.line(f"c{number}")
        return self.add({"text": ""}, self.live[f"c{number}"]), {1}

    def _conflict(self, number: int) -> tuple[Answer, set[int]]:
        if not self.live:
            return self._add(number)
        return self.add(self.line(self.rng.choice(sorted(self.live)))), {1}

    def _replace(self, number: int) -> tuple[Answer, set[int]]:
        if not self.live:
            return self._add(number)
        chosen = self.rng.choice(sorted(self.live))
        self.live[chosen] = self.line(chosen)
        return self.add(self.live[chosen], option="--replace"), {0}

    def _add_again(self, number: int) -> tuple[Answer, set[int]]:
        if not self.retracted:
            return self._add(number)
        chosen, row = self.retracted.popitem()
        self.live[chosen] = row
        return self.add(row, option="--again"), {0}

    def _pair(self, verb: str) -> tuple[Answer, set[int]]:
        ids = {name: row["id"] for row in self.rows("entity") for name in (row["name"], *row["aliases"])}
        first, second = self.rng.choice(NAMES), self.rng.choice(NAMES)
        apart = [set(row["entities"]) for row in self.rows("merge") if row["kind"] == "distinct"]
        two = {ids.get(first), ids.get(second)}
        answer = self.run(verb, first, second)
        if None in two or len(two) < 2 or two in apart:
            return answer, {2}
        return answer, {0, 2} if apart else {0}  # other ids of the pair may be distinct, too

    def _merge(self, _: int) -> tuple[Answer, set[int]]:
        return self._pair("merge")

    def _distinct(self, _: int) -> tuple[Answer, set[int]]:
        return self._pair("distinct")

    def _split(self, _: int) -> tuple[Answer, set[int]]:
        results = [row for row in self.rows("entity") if row["aliases"]]
        if not results:
            return self.run("split", "Ann Lee", "--surface", "Ann Lee"), {2}
        return self.run("split", results[0]["id"], "--surface", results[0]["aliases"][0]), {0}

    def _undo(self, number: int) -> tuple[Answer, set[int]]:
        sequences = [row["sequence"] for row in self.rows("merge")]
        chosen = self.rng.choice([*sequences, number])
        return self.run("undo", str(chosen)), {0, 2} if chosen in sequences else {2}

    def _withdraw(self, verb: str) -> tuple[Answer, set[int]]:
        """Choose an existing id, or an unknown id."""
        existing = {**self.live, **self.retracted}
        chosen = self.rng.choice([*sorted(existing), "nobody"])
        if chosen in self.live:
            self.retracted[chosen] = self.live.pop(chosen)
        if verb == "remove":
            self.retracted.pop(chosen, None)
        return self.run(verb, "--episode", chosen, "--yes"), {0} if chosen in existing else {1}

    def _retract(self, _: int) -> tuple[Answer, set[int]]:
        return self._withdraw("retract")

    def _remove(self, _: int) -> tuple[Answer, set[int]]:
        return self._withdraw("remove")

    def _retry(self, _: int) -> tuple[Answer, set[int]]:
        return self.run("retry"), {0}

    def _status(self, _: int) -> tuple[Answer, set[int]]:
        return self.run("status"), {0}

    def _history(self, _: int) -> tuple[Answer, set[int]]:
        names = {name for row in self.rows("entity") for name in (row["name"], *row["aliases"])}
        name = self.rng.choice(NAMES)
        return self.run("history", name), {0} if name in names else {2}

    def _search(self, _: int) -> tuple[Answer, set[int]]:
        return self.run("search", self.rng.choice(NAMES)), {0}

    def _context(self, _: int) -> tuple[Answer, set[int]]:
        return self.run("context", "who works at Acme?"), {0}


@pytest.mark.parametrize("seed", [0, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_every_command_of_a_history_has_its_documented_result(kgray, seed):
    session = Session(Shell(kgray.folder), random.Random(seed))  # the rules answer every question
    assert session.add(session.line("first")).code == 0
    for number in range(1, 16):
        output_before = session.kgray("dump", "--group", "team", "--hash").out
        verb, answer, codes = session.random_command(number)
        assert answer.code in codes, (verb, answer)
        if answer.code == 2:
            assert session.kgray("dump", "--group", "team", "--hash").out == output_before, verb
            assert answer.err.count("\n") == 1, (verb, answer)
        committed = {row["client_id"] for row in session.rows("episode")}
        assert committed == {"first", *session.live}, verb
    assert session.kgray("doctor", "--json").json["checks"][-1]["ok"] is True
