"""eval: measures searches, contexts and answers on the user's data set."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from kgray.cli import printing
from kgray.cli.frame import Call, command, finished, together
from kgray.errors import SettingsError, Stopped

if TYPE_CHECKING:
    from kgray.evals.answers import Way
    from kgray.evals.retrieval import Conversation, Dataset
    from kgray.memory import AsyncMemory

_COLUMNS = {  # measures; the first with its interval and a bar
    "retrieval": (
        "fraction@10 fraction@5 fraction@20 any@10 all@10 ndcg@10 mrr context@1000 nothing fact@10 stale@10"
    ).split(),
    "answers": "correct tokens judge_accepts_right judge_accepts_wrong".split(),
}
_PATH = click.Path(path_type=Path)
_READER_INPUTS = click.Choice(("memory", "full", "summaries", "recursive"))
_options = together(
    click.option("--conversations", type=click.IntRange(min=1), metavar="N", help="Only the first N."),
    click.option("--rows", type=_PATH, metavar="OUT", help="Each question, as JSON lines."),
    click.option(
        "--way", type=_READER_INPUTS, default="memory", help="Answers: the reader's input. Default: memory."
    ),
    click.option("--as", "paper", type=click.Choice(("zep",)), help="Answers: the settings of a paper."),
    click.option(
        "--tokens", type=click.IntRange(min=64), metavar="N", help="Size of the context. Default: 1500."
    ),
    click.option("--recipe", metavar="R", help="Search recipe of the context. Default: hybrid."),
    click.option(
        "--limit", type=click.IntRange(1, 100), metavar="N", help="Hits of each scope in the context."
    ),
    click.option("--template", type=click.Choice(("kgray", "paper")), help="Template of the context."),
    click.option("--judge", type=_PATH, metavar="FILE", help="Answers: settings of the judging model."),
    click.option(
        "--at-once", type=click.IntRange(1, 256), default=16, metavar="N", help="Parallel questions."
    ),
)


@command("Recall or answers on a data set of yours.", name="eval")
@click.argument("kind", type=click.Choice(("retrieval", "answers")))
@click.argument("file", type=_PATH)
@_options
def evaluate(
    call: Call, kind: str, file: Path, conversations: int | None, rows: Path | None, **options: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Measure searches and contexts, or a model's answers, on a file of LoCoMo, LongMemEval or DMR.

    JSON lines of messages and questions work too. Conversations are ingested into a separate store below
    eval/ in the data folder and stay there: the same command again only asks the questions. An interrupted
    run of answers continues.

      kgray eval retrieval locomo10.json --data eval-data
      kgray eval answers longmemeval_s.json --as zep --judge judge.toml
      kgray eval answers longmemeval_s.json --way full --at-once 1
    """
    from kgray.evals.retrieval import ask_all, read_dataset, report
    from kgray.memory.opening import open_with

    dataset = read_dataset(file, most=conversations)
    for note in dataset.notes:
        printing.note(f"{note}: left out")
    place = call.folder / "eval" / f"{file.stem}-{_digest(file.read_bytes())}"
    if kind == "answers":
        questions, rows_of_questions = _answers(call, dataset, place, **options)
    else:
        with closing(open_with(call.settings(), place, create=True)) as memory:
            questions = finished(ask_all(memory, _ingested(memory, dataset, place)))
        rows_of_questions = [question.as_dict() for question in questions]
    if rows is not None:
        lines = "\n".join([*(json.dumps(row, ensure_ascii=False) for row in rows_of_questions), ""])
        rows.write_text(lines, encoding="utf-8")
    document = report(questions, whole=kind == "answers")
    if not call.emitted(document):
        _print(document, kind)


def _answers(
    call: Call, dataset: Dataset, place: Path, *, way: str, judge: Path | None, at_once: int, **context: Any  # noqa: ANN401
) -> tuple[Any, Any]:  # fmt: skip
    from kgray.evals.answers import Examination, Raw, as_asked, context_of
    from kgray.memory.opening import open_with
    from kgray.runtime.wiring import build_answerer, build_prompt_files
    from kgray.settings import load

    recipe = context_of(dataset, **context)
    # The judge's file has all its settings: variables that choose the reader must not choose the judge.
    chosen = [call.settings(), call.settings() if judge is None else load(judge, environ={})]
    if any(settings.model.backend not in {"openai", "vllm"} for settings in chosen):
        raise SettingsError(
            'answers need a language model as reader and judge: model.backend = "openai", or "vllm" with Ray.'
        )
    identity = repr([(settings.model.base_url, settings.model.name) for settings in chosen] + [recipe])
    with closing(open_with(chosen[0], place, create=True)) as memory:
        talks = [(talk.name, talk) for talk in dataset.conversations]
        talks = _ingested(memory, dataset, place) if way == "memory" else talks
        raw = Raw(place / f"answers-{way}-{_digest(identity.encode())}.jsonl")
        printing.note(f"raw answers are kept in {raw.path}")
        reader = memory.answerer()
        exam = Examination(
            reader=reader, judge=reader if judge is None else build_answerer(chosen[1]), raw=raw,
            way=cast("Way", way), context=recipe, files=build_prompt_files(chosen[0]), at_once=at_once,
        )  # fmt: skip
        rows = finished(exam.answer(memory, talks))
    if errors := [row["error"] for row in rows if "error" in row]:
        count = printing.counted(len(errors), "question")
        printing.note(f"{count} without an answer, which counts as wrong: {errors[0]}")
    return as_asked(rows), rows


def _ingested(memory: AsyncMemory, dataset: Dataset, place: Path) -> list[tuple[str, Conversation]]:
    """Ingest the missing conversations; return all conversations with their groups."""
    talks = []
    for number, talk in enumerate(dataset.conversations, 1):
        group = f"{place.name[-8:]}-{number}"
        talks.append((group, talk))
        counts = finished(memory.status(group=group)).groups.get(group)
        if counts is None or counts.committed + counts.failed < len(talk.messages):
            printing.note(f"ingesting conversation {number} of {len(dataset.conversations)}")
            report = finished(memory.add_many((message.row() for message in talk.messages), group=group))
            if report.stopped:
                raise Stopped(f"stopped while ingesting ({report.reason or 'asked to'}); run it again")
            if report.refused or report.failed:
                printing.note(f"{report.refused} refused and {report.failed} failed messages of {talk.name}")
    return talks


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def _print(document: dict[str, Any], kind: str) -> None:
    parts = {"overall": document["overall"], **document["by_type"]}
    first, *columns_after = _COLUMNS[kind]
    columns = [name for name in columns_after if any(name in part["measures"] for part in parts.values())]
    rows = []
    for name, part in parts.items():
        measures, row = part["measures"], [name, str(part["questions"]), "-", "", ""]
        if mean := measures.get(first):
            bar = "\u2588" * round(20 * mean["mean"])
            row[2:] = [f"{mean['mean']:.3f}", f"{mean['low']:.2f} - {mean['high']:.2f}", bar]
        cells = [measures[each]["mean"] if each in measures else None for each in columns]
        row += ["-" if cell is None else f"{cell:.{0 if cell > 1 else 3}f}" for cell in cells]
        rows.append(row)
    printing.table(rows, head=("type", "questions", first, "95 %", "", *columns))
    for name, at in document["overall"].get("ms", {}).items():
        middle = f"median {at['p50']:.0f} ms, interquartile range {at['iqr']:.0f} ms"
        printing.note(f"{name}: {middle}, p95 {at['p95']:.0f} ms")
