"""bench retrieval, questions, conflicts: evidence in searches and contexts, and facts that have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.commands.options import (
    choice,
    count,
    file,
    listed,
    numbers,
    out_option,
    progress,
    rate,
    seed_option,
    show,
)
from kgray.cli.frame import Call, command


@command("Evidence in searches and contexts, beside BM25.")
@seed_option
@count("--conversations", 10, "Made-up ones; 0: the hand-made one alone.", minimum=0)
@count("--turns", 500, "Of each.")
@count("--questions", 100, "To each.")
@choice("--embedder", "hashing", "minilm")
@listed("--budgets", "500,950,1000,1500", "Tokens of the contexts.")
@file("--rows", "Every question of every system with what it found, as JSON lines.")
@out_option
def retrieval(call: Call, budgets: str, rows: Path | None, out: Path | None, **plan: Any) -> None:  # noqa: ANN401
    """Ask conversations questions whose evidence is known: kgray, and BM25 and cosine over the messages.

    Ingested stores stay in the folder for temporary files until the code that ingests changes.

      python -m bench retrieval --conversations 10 --out retrieval.json --rows rows.jsonl
    """
    import json

    from bench import retrieval as measured

    chosen_budgets = tuple(numbers("--budgets", budgets, apart=1))
    document = measured.run(measured.RetrievalPlan(budgets=chosen_budgets, **plan), progress=progress)
    details = document.pop("rows")
    if rows is not None:
        lines = [f"{json.dumps(row, ensure_ascii=False)}\n" for row in details]
        rows.write_text("".join(lines), encoding="utf-8")
    show(call, document, out, lambda: measured.table(document))


@command("Questions about states that have changed.")
@seed_option
@count("--worlds", 2, "Of each of the two kinds.")
@count("--messages", 300, "Of each.")
@choice("--embedder", "hashing", "minilm")
@out_option
def questions(call: Call, out: Path | None, **plan: Any) -> None:  # noqa: ANN401
    """Ask about states that have changed, in three phrases each, now and as of a moment before the change.

    Two kinds of worlds are read perfectly: the generated one, and another with other relations and words.

      python -m bench questions --worlds 2 --out questions.json
    """
    from bench.changed import run as measured

    document = measured.run(measured.QuestionPlan(**plan), progress=progress)
    show(call, document, out, lambda: measured.table(document))


@command("Numbered facts of which later ones replace earlier ones.")
@seed_option
@count("--facts", 500, "In all.")
@rate("--conflicts", 0.3, "Of the facts, the share that replaces an earlier one.")
@count("--questions", 100, "Of each kind, at most.")
@choice("--embedder", "hashing", "minilm")
@out_option
def conflicts(call: Call, out: Path | None, **plan: Any) -> None:  # noqa: ANN401
    """Ask for facts that were replaced, single-hop and two-hop, beside BM25 and vectors over the messages.

    Single-hop: the fact that holds is the first hit. Two-hop: a context of 300 tokens has both facts that
    hold, and no replaced one above them.

      python -m bench conflicts --facts 500 --conflicts 0.3
    """
    from bench.changed import conflicts as measured

    document = measured.run(measured.ConflictPlan(**plan), progress=progress)
    show(call, document, out, lambda: measured.table(document))


COMMANDS = (retrieval, questions, conflicts)
