"""bench reading, comparisons: how well a real model reads labelled messages, and compares sentences."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench.commands.options import choice, count, file, listed, out_option, progress, show
from kgray.cli.frame import Call, command


@command("How well a real model reads labelled messages.")
@click.option("--url", required=True, help="A server with OpenAI's interface, mostly ending in /v1.")
@click.option("--model", default="default", show_default=True, help="The model's name at the server.")
@file("--set", "Labelled messages, JSON lines. Default: the project's own.")
@choice("--part", "all", "development", "kept")
@choice("--extraction", "combined", "separate")
@choice("--resolution", "batched", "per_node")
@count("--limit", None, "Only the first N messages.")
@file("--replies", "Replies to the plain prompt, which are kept there and not asked for again.")
@out_option
def reading(
    call: Call,
    url: str,
    model: str,
    part: str,
    limit: int | None,
    replies: Path | None,
    out: Path | None,
    **pipeline: Any,  # noqa: ANN401
) -> None:
    """Read labelled messages with a real model, through kgray and with a plain prompt, and score both.

    A key of the server is taken from KGRAY_MODEL_API_KEY. The JSON document lists the facts of each message
    as right, optional, wrong and missed.

      python -m bench reading --url http://127.0.0.1:8080/v1 --part development --out reading.json
    """
    from bench.labelled_set import run as measured
    from bench.labelled_set.files import SHIPPED_SET, load_set
    from bench.labelled_set.scores import report
    from bench.labelled_set.tables import table

    path = pipeline.pop("set") or SHIPPED_SET
    readings = measured.run(
        load_set(path, part, limit),
        base_url=url,
        model=model,
        api_key=os.environ.get("KGRAY_MODEL_API_KEY"),
        pipeline=pipeline,
        replies=replies,
        progress=progress,
    )
    parts, rows = report(readings)
    document = {
        "set": path.name,
        "model": model,
        **pipeline,
        "parts": [scores.document() for scores in parts],
        "messages": rows,
        "graphs": {item.conversation.id: [asdict(fact) for fact in item.engine.graph] for item in readings},
    }
    show(call, document, out, lambda: table(parts))


@command("How well a real model compares labelled sentences.")
@click.option("--url", required=True, help="A server with OpenAI's interface, mostly ending in /v1.")
@click.option("--model", default="default", show_default=True, help="The model's name at the server.")
@file("--set", "Labelled questions, JSON lines. Default: the project's own.")
@listed("--forms", "shipped", "Of the reply: shipped, lists, words, rows.", "NAME,...")
@count("--together", 1, "Questions a request.")
@count("--limit", None, "Only the first N questions.")
@out_option
def comparisons(
    call: Call,
    url: str,
    model: str,
    forms: str,
    together: int,
    limit: int | None,
    out: Path | None,
    **files: Path | None,
) -> None:
    """Have a model compare labelled sentences, in several forms of the reply, and score its answers.

    A key of the server is taken from KGRAY_MODEL_API_KEY.

      python -m bench comparisons --url http://127.0.0.1:8080/v1 --forms shipped,lists,words,rows
    """
    from bench.labelled_set import comparisons as measured
    from kgray.models.openai_api.client import Endpoint
    from kgray.settings.checks import Secret

    chosen = forms.split(",")
    if unknown := set(chosen) - {"shipped", *measured.FORMS}:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: not a form", param_hint="--forms")
    path = files["set"] or measured.SHIPPED_SET
    key = os.environ.get("KGRAY_MODEL_API_KEY")
    results = measured.run_forms(
        measured.load_comparisons(path)[:limit],
        chosen,
        Endpoint(base_url=url, name=model, key=Secret(key) if key else None, timeout_s=measured.TIMEOUT_S),
        together=together,
        progress=progress,
    )
    document = {"set": path.name, "model": model, "together": together, "forms": list(map(asdict, results))}
    show(call, document, out, lambda: measured.table(results))


COMMANDS = (reading, comparisons)
