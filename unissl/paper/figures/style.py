"""How the figures look: sizes of a two-column page, small type, few lines, colours for colour-blind eyes too."""

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
from unissl.plots.charts import rare_letters_allowed
from unissl.run_folder import write_atomically

BLACK, GREY, LIGHT = "#000000", "#8b949e", "#d0d4d9"
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The colours of Okabe and Ito; without their yellow, which a thin line on white does not bear."""
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
COLUMN, PAGE = 3.35, 6.9
"""Widths in inches: a column, and a page of two."""
LETTERS: Any = {
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
LETTERS_PER_INCH = 17
"""Of a legend, roughly."""
FORMATS = (".svg", ".pdf", ".png")


@dataclass(frozen=True)
class Drawn:
    """A figure and what a reader must know to read it: definitions, seeds, where numbers come from."""

    figure: Figure
    caption: str


@contextmanager
def small_print() -> Iterator[None]:
    """Draw and save inside, so that the letters have the sizes of a page."""
    with matplotlib.rc_context(LETTERS), rare_letters_allowed():
        yield


def panels(rows: int, columns: int, width: float, height: float, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey="row" if share_y else False)
    return figure, [ax for line in axes for ax in line]


def style_of(place: int) -> tuple[str, str | tuple[int, tuple[int, ...]]]:
    """Colour and dashes of the series at this place: a second sign for each, since colour alone may not be seen."""
    return HUES[place % len(HUES)], DASHES[(place // len(HUES)) % len(DASHES)]


def letter(axes: Sequence[Axes]) -> None:
    """(a), (b), ... before the titles, so that a caption can speak of them."""
    for number, ax in enumerate(axes):
        ax.set_title(f"({chr(ord('a') + number)}) {ax.get_title()}".rstrip())


def legend_outside(
    figure: Figure,
    handles: Sequence[Any],
    labels: Sequence[str],
    where: Literal["outside lower center", "outside upper center"] = "outside lower center",
) -> None:
    """Beside the panels, in as many columns as the figure is wide enough for."""
    room = int(figure.get_figwidth() * LETTERS_PER_INCH)
    columns = max(1, min(len(labels), room // (max(len(label) for label in labels) + 7)))
    figure.legend(handles, labels, loc=where, ncols=columns)


def refuse_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"A figure is written as {', '.join(FORMATS)}, not as {path.name!r}; change the end of --out.")


def save(drawn: Drawn, path: Path) -> None:
    """The same figure gives the same bytes; the caption is kept inside the file."""
    refuse_format(path)
    kind = path.suffix.lower()[1:]
    kinds: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Description": drawn.caption},
        "pdf": {"CreationDate": None, "Subject": drawn.caption},
        "png": {"Description": drawn.caption},
    }
    write_atomically(path, lambda draft: drawn.figure.savefig(draft, format=kind, metadata=kinds[kind], dpi=200))
