"""Pictures that a run leaves in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unissl.record import own_folder
from unissl.report import charts, curves


def draw_files(folder: Path, summary: Mapping[str, Any], metrics: curves.Metrics) -> list[Path]:
    """Every picture that there are data for, as SVG and PNG."""
    own_folder(folder.parent, folder.name).mkdir(exist_ok=True)
    figures = {"learning_curves": curves.learning_curves(metrics)}
    if "pool" in summary:
        figures["pseudo_labels"] = charts.pseudo_label_histogram(summary)
    if "confusion_matrix" in summary:
        figures["confusion_matrix"] = charts.confusion(summary)
    return [path for name, figure in figures.items() for path in charts.save(figure, folder / name)]
