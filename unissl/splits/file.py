"""A split as a JSON file: row numbers, and labels of the labelled rows only.

The file records which labels a run may use. It is validated when it is read, as every untrusted file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from unissl.errors import UserError, shortened
from unissl.types import Split
from unissl.utils.atomic import write_text
from unissl.utils.bounded_io import MAX_SPLIT_BYTES, parse_json, read_text

FORMAT = "unissl-split"
VERSION = 1
ROW_LISTS = ("labelled", "labels", "unlabelled")
HELD_OUT = ("heldout", "heldout_labels")
"""Written only if labels are held out."""


def write_split(split: Split, path: Path, *, overwrite: bool = True) -> None:
    """One key per line; the order of the rows is kept, since batches are drawn by position."""
    tree: dict[str, Any] = {"format": FORMAT, "version": VERSION, "num_classes": split.num_classes}
    keys = (*ROW_LISTS, *HELD_OUT) if len(split.heldout) else ROW_LISTS
    tree |= {key: getattr(split, key).tolist() for key in keys}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in tree.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n", overwrite=overwrite)


def read_split(path: Path, num_rows: int | None = None) -> Split:
    """The split that :func:`write_split` wrote; ``num_rows`` is the length of its table."""
    tree = _load(path)
    problem = _problem(tree, num_rows)
    if problem:
        raise UserError(f"{path} cannot be used as a split: {problem}; make it again with 'unissl split'.")
    rows = {key: np.array(tree[key], dtype=np.int64) for key in (*ROW_LISTS, *HELD_OUT) if key in tree}
    return Split(num_classes=tree["num_classes"], **rows)


def _load(path: Path) -> dict[str, Any]:
    try:
        tree = parse_json(read_text(path, MAX_SPLIT_BYTES))
    except OSError as error:
        raise UserError(f"Cannot read the split {path} ({error.strerror}); check the path.") from None
    except ValueError:
        tree = None
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise UserError(f"{path} is not a split of unissl; make one with 'unissl split'.")
    if tree.get("version") != VERSION:
        raise UserError(
            f"{path} has version {shortened(repr(tree.get('version')))}, this unissl reads {VERSION}; update unissl."
        )
    return tree


def _problem(tree: dict[str, Any], num_rows: int | None) -> str | None:
    """The first mistake, in words, or None."""
    lists = (*ROW_LISTS, *HELD_OUT) if set(HELD_OUT) & set(tree) else ROW_LISTS
    if set(tree) != {"format", "version", "num_classes", *lists}:
        return "it does not have exactly the keys of a split"
    if not _is_count(tree["num_classes"]) or tree["num_classes"] < 2:
        return "num_classes is not a whole number of at least 2"
    for key in lists:
        if not isinstance(tree[key], list) or not all(_is_count(value) for value in tree[key]):
            return f"{key} is not a list of whole numbers from 0"
    labelled, labels, unlabelled = (tree[key] for key in ROW_LISTS)
    heldout, heldout_labels = (tree.get(key, []) for key in HELD_OUT)
    if len(labelled) != len(labels) or len(heldout) != len(heldout_labels):
        return f"it has {len(labelled) + len(heldout)} labelled rows but {len(labels) + len(heldout_labels)} labels"
    if len(set(labels)) != tree["num_classes"] or max(labels) >= tree["num_classes"]:
        return f"the labels are not the classes 0 .. {tree['num_classes'] - 1}, each at least once"
    if not set(heldout_labels) <= set(labels):
        return "a held-out label is not a class of the labelled rows"
    labelled = labelled + heldout
    if len(set(labelled)) < len(labelled) or len(set(unlabelled)) < len(unlabelled):
        return "it lists a row twice"
    if not set(labelled).isdisjoint(unlabelled):
        return "a row is both labelled and unlabelled"
    if num_rows is not None and max([*labelled, *unlabelled]) >= num_rows:
        return f"it names row {max([*labelled, *unlabelled])}, but the data have {num_rows} rows"
    return None


def _is_count(value: object) -> bool:
    """Whether a value is a possible row index; JSON's true is none, though Python's bool is an int."""
    return type(value) is int and 0 <= value < 2**63
