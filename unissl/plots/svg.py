"""A matplotlib figure as a part of a page."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from unissl.plots.charts import BLUE, ORANGE, rare_letters_allowed

THEMED = {"#000000": "currentColor", BLUE: f"var(--blue, {BLUE})", ORANGE: f"var(--orange, {ORANGE})"}
"""Colours that a page may change, so that pictures fit light and dark."""


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """A picture to stand inside a page: text as text, the page's colours, and no id that another picture has."""
    memory = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}), rare_letters_allowed():
        figure.savefig(memory, format="svg", transparent=True, metadata=nothing)
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
    """An attribute with its ids made the picture's own, and its style without fonts and fixed colours."""
    if key in ("id", "href", "clip-path"):
        return re.sub(r"^(#|url\(#)?", rf"\g<1>{name}-", value)
    if key == "style":
        value = re.sub(r"font-family:[^;]*;\s*", "", value)
        for colour, themed in THEMED.items():
            value = value.replace(colour, themed)
    return value
