"""Text in the cells of a CSV file: no spreadsheet takes it for a formula, and it is read back unchanged.

A spreadsheet computes a cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break. Such text is written
with an apostrophe before it, and so is text that has apostrophes before such a character. The reader of label files
removes one apostrophe from exactly these cells, so every text survives; ``'tis`` is neither changed nor read otherwise.
"""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def to_cell(text: str) -> str:
    """Text as it is written: with one more apostrophe if it begins like a formula."""
    return "'" + text if _FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """The text that :func:`to_cell` has written as ``cell``."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell
