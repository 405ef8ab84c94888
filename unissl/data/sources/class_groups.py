"""A class map, which assigns fine classes to groups: on each line a class (a wnid such as n01440764, or the number that
arrays use for it) and the name of its group, separated by a comma, a tab or spaces. Empty lines and lines after # are
skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from unissl.errors import UserError, shortened
from unissl.utils.bounded_io import read_text

BETWEEN = re.compile(r"\s*[,;\t]\s*|\s+")
EXAMPLE = "a line is a class and its group, for example: n01440764 fish"


def read_groups(path: Path) -> dict[str, str]:
    """Class -> group."""
    try:
        text = read_text(path).removeprefix("\ufeff")
    except OSError as error:
        raise UserError(f"The group file {path} cannot be read ({error.strerror}); check the path.") from None
    except ValueError:
        raise UserError(f"The group file {path} is no UTF-8 text; {EXAMPLE}.") from None
    groups: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, *rest = BETWEEN.split(line.strip(), maxsplit=1)
        if not name or not rest or not rest[0]:
            raise UserError(f"Line {number} of the group file {path} has one word ({shortened(name)!r}); {EXAMPLE}.")
        if groups.setdefault(name, rest[0]) != rest[0]:
            raise UserError(
                f"Line {number} of the group file {path} puts {shortened(name)} into {shortened(rest[0])!r}, and an"
                f" earlier one into {shortened(groups[name])!r}; correct one of them."
            )
    if not groups:
        raise UserError(f"The group file {path} is empty; {EXAMPLE}.")
    return groups


def group_of(name: str, groups: Mapping[str, str], wnids: Mapping[str, str], path: Path) -> str:
    """The group of a class, by its name or, for the number in an array, by its wnid."""
    group = groups.get(name) or groups.get(wnids.get(name, ""))
    if group is None:
        hint = ""
        if name.isdecimal() and not wnids:
            hint = ", or put map_clsloc.txt, which has the wnid of each number, next to the arrays"
        raise UserError(f"The group file {path} has no group for the class {shortened(name)}; add a line for it{hint}.")
    return group
