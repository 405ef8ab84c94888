"""A table as text cells, and its formats: Markdown, CSV, LaTeX (booktabs), HTML."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from unissl.utils.csv_cells import to_cell

Format = Literal["md", "csv", "latex", "html"]
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "→": r"$\to$",
    "–": "--",
    "—": "---",
}
STYLE = (
    "table{border-collapse:collapse}thead{border-bottom:1px solid}"
    "th,td{padding:.2em .6em;text-align:right}th.w,td.w{text-align:left}"
)
EMPTY = "-"
"""Text of a cell without a number."""


@dataclass(frozen=True)
class Sheet:
    """Cells are plain text; the first ``words`` columns are words, the others are numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    words: int = 1

    def __post_init__(self) -> None:
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError("every row must have as many cells as the head")


@dataclass(frozen=True)
class Tables:
    """Output of a command: sheets for people, and the same numbers one per line for programs."""

    sheets: tuple[Sheet, ...]
    tidy: Sheet


def format_mean(mean: float, sd: float | None, digits: int = 2) -> str:
    """``81.20 ± 1.35``, or the mean alone without a deviation."""
    return f"{mean:.{digits}f}" if sd is None else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def csv_rows(rows: Sequence[Sequence[object]]) -> tuple[tuple[str, ...], ...]:
    """Values as text for programs: None as an empty cell, floats with six decimals."""

    def text(value: object) -> str:
        if value is None:
            return ""
        return f"{value:.6f}" if isinstance(value, float) else str(value)

    return tuple(tuple(text(value) for value in row) for row in rows)


def render(tables: Tables, form: Format) -> str:
    """All sheets in one text; CSV is the tidy sheet alone, a number per line."""
    if form == "csv":
        return _csv(tables.tidy)
    if form == "html":
        body = "\n".join(_html(sheet) for sheet in tables.sheets)
        title = html.escape(tables.sheets[0].title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
        )
    one: Callable[[Sheet], str] = _markdown if form == "md" else _latex
    return "\n".join(one(sheet) for sheet in tables.sheets)


def _markdown(sheet: Sheet) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"

    rule = line(tuple("---" if column < sheet.words else "---:" for column in range(len(sheet.head))))
    notes = "".join(f"- {note}\n" for note in sheet.notes)
    table = "\n".join([line(sheet.head), rule, *(line(row) for row in sheet.rows)])
    return f"**{sheet.title}**\n\n{table}\n" + (f"\n{notes}" if notes else "")


def _csv(sheet: Sheet) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    # Numbers keep their sign; words are no formulas.
    words = (tuple(map(to_cell, row[: sheet.words])) + row[sheet.words :] for row in sheet.rows)
    writer.writerows([sheet.head, *words])
    return text.getvalue()


def _latex(sheet: Sheet) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return " & ".join(_escaped(cell) for cell in cells) + r" \\"

    columns = "l" * sheet.words + "r" * (len(sheet.head) - sheet.words)
    notes = [rf"\par\footnotesize {_escaped(note)}" for note in sheet.notes]
    parts = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{_escaped(sheet.title)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        line(sheet.head),
        r"\midrule",
        *(line(row) for row in sheet.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text.replace("\n", " "))


def _html(sheet: Sheet) -> str:
    def line(tag: str, cells: tuple[str, ...]) -> str:
        kinds = (' class="w"' if column < sheet.words else "" for column in range(len(cells)))
        parts = (f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(parts)}</tr>"

    rows = "\n".join(line("td", row) for row in sheet.rows)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in sheet.notes)
    return (
        f"<h2>{html.escape(sheet.title)}</h2>\n<table><thead>{line('th', sheet.head)}</thead>\n<tbody>\n{rows}\n"
        f"</tbody></table>\n" + (f"<ul>{notes}</ul>" if notes else "")
    )
