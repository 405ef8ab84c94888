"""Figures as files of a run folder, and as inline SVG of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from unissl.plots import charts, curves
from unissl.plots.charts import BLUE, ORANGE, ignore_missing_glyphs
from unissl.utils.atomic import require_real_folder

THEMED = {"#000000": "currentColor", BLUE: f"var(--blue, {BLUE})", ORANGE: f"var(--orange, {ORANGE})"}
"""Colours that a page may change for its light and dark theme."""


def write_charts(folder: Path, summary: Mapping[str, Any], metrics: curves.Metrics) -> list[Path]:
    """Write every chart that there are data for, as SVG and PNG; the paths."""
    require_real_folder(folder.parent, folder.name).mkdir(exist_ok=True)
    figures = {"learning_curves": curves.learning_curves(metrics)}
    if "pool" in summary:
        figures["pseudo_labels"] = charts.class_distribution(summary["pool"], summary["class_names"])
    if "confusion_matrix" in summary:
        figures["confusion_matrix"] = charts.confusion(summary)
    return [path for name, figure in figures.items() for path in charts.save(figure, folder / name)]


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """A figure as an element of a page: text stays text, colours are the page's, ids are unique by ``name``."""
    memory = io.StringIO()
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}), ignore_missing_glyphs():
        figure.savefig(memory, format="svg", transparent=True, metadata=no_metadata)
    root = ElementTree.fromstring(memory.getvalue())
    root.remove(root[0])  # a style that would apply to the whole page
    elements = list(root.iter())
    used = {value[1:] for e in elements for key, value in e.items() if key.endswith("href")}
    used |= {e.attrib["clip-path"][5:-1] for e in elements if "clip-path" in e.attrib}
    for element in elements:
        element.tag = element.tag.rpartition("}")[2]
        values = {key.rpartition("}")[2]: value for key, value in element.items()}
        if values.get("id") not in used:
            values.pop("id", None)
        element.attrib = {key: _for_page(key, value, name) for key, value in values.items()}
    for key in ("width", "height", "version"):
        del root.attrib[key]
    root.attrib |= {"class": "chart", "role": "img", "aria-label": alt}
    return ElementTree.tostring(root, encoding="unicode")


def _for_page(key: str, value: str, name: str) -> str:
    """An attribute with the ids of this figure, and without fonts and fixed colours."""
    if key in ("id", "href", "clip-path"):
        return re.sub(r"^(#|url\(#)?", rf"\g<1>{name}-", value)
    if key == "style":
        value = re.sub(r"font-family:[^;]*;\s*", "", value)
        for colour, themed in THEMED.items():
            value = value.replace(colour, themed)
    return value
