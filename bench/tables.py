"""Figures as lines of aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

Column = tuple[str, str, str]  # the field, its heading, how it is formatted


def aligned(columns: Sequence[Column], rows: Sequence[object]) -> list[str]:
    """Return a line of headings and one for each row; None, a figure that was not measured, is "-"."""
    cells = [[heading for _, heading, _ in columns]]
    for row in rows:
        figures = [(getattr(row, name), form) for name, _, form in columns]
        cells.append(["-" if figure is None else format(figure, form) for figure, form in figures])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
