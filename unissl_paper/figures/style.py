"""Style of the figures: sizes of a two-column page, small type, few lines, colours that colour-blind readers can tell
apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unissl.errors import UserError
from unissl.plots.charts import ignore_missing_glyphs
from unissl.utils.atomic import write_atomically

BLACK, GREY, LIGHT = "#000000", "#8b949e", "#d0d4d9"
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The colours of Okabe and Ito without yellow, which is too faint for thin lines on white."""
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
COLUMN, PAGE = 3.35, 6.9
"""Widths in inches: a column, and a page of two."""
RC_PARAMS: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "patch.linewidth": 0,
    "pdf.fonttype": 42,
    "svg.hashsalt": "unissl",
}
CHARACTERS_PER_INCH = 17
"""Of a legend, about."""
FORMATS = (".svg", ".pdf", ".png")


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure and its caption: definitions, seeds, sources of the numbers."""

    figure: Figure
    caption: str


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw and save inside, with the font sizes of a page."""
    with matplotlib.rc_context(RC_PARAMS), ignore_missing_glyphs():
        yield


def panels(rows: int, columns: int, width: float, height: float, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey="row" if share_y else False)
    return figure, [ax for line in axes for ax in line]


def style_of(index: int) -> tuple[str, str | tuple[int, tuple[int, ...]]]:
    """Colour and dashes of a series; dashes distinguish series without colours."""
    return HUES[index % len(HUES)], DASHES[(index // len(HUES)) % len(DASHES)]


def label_panels(axes: Sequence[Axes]) -> None:
    """Put (a), (b), ... before the titles, for the caption."""
    for number, ax in enumerate(axes):
        ax.set_title(f"({chr(ord('a') + number)}) {ax.get_title()}".rstrip())


def legend_outside(
    figure: Figure,
    handles: Sequence[Any],
    labels: Sequence[str],
    location: Literal["outside lower center", "outside upper center"] = "outside lower center",
) -> None:
    """Put the legend outside the panels, in as many columns as fit."""
    width = int(figure.get_figwidth() * CHARACTERS_PER_INCH)
    columns = max(1, min(len(labels), width // (max(len(label) for label in labels) + 7)))
    figure.legend(handles, labels, loc=location, ncols=columns)


def check_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"A figure is written as {', '.join(FORMATS)}, not as {path.name!r}; change the end of --out.")


def save(drawn: CaptionedFigure, path: Path) -> None:
    """Write the figure with its caption as metadata, where no file is yet; the same figure gives the same bytes."""
    check_format(path)
    kind = path.suffix.lower()[1:]
    kinds: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Description": drawn.caption},
        "pdf": {"CreationDate": None, "Subject": drawn.caption},
        "png": {"Description": drawn.caption},
    }

    def write(partial: Path) -> None:
        drawn.figure.savefig(partial, format=kind, metadata=kinds[kind], dpi=200)

    write_atomically(path, write, overwrite=False)
