"""The tables of the page, row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from unissl.report.findings.labels import labels_disagree, leaks_test
from unissl.report.galleries import most_uncertain_classes
from unissl.report.load_run import RunRecord
from unissl.run.schema import Card, require
from unissl.run_folder import read_json

MAX_ROWS = 40
"""Lines of a table."""
MAX_FILES = 30
"""Files that are named for one reason."""


def class_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Each class in numbers; of many classes those with the most uncertain images."""
    summary, names, pool = record.summary, record.names, record.pool
    shown: Sequence[int] = range(len(names))
    if len(names) > MAX_ROWS and pool is not None:
        shown = most_uncertain_classes(pool["class_index"], pool["confidence"], len(names), MAX_ROWS)
    predicted = summary["pool"]["predicted"] if "pool" in summary else None
    recalls = summary.get("per_class_recall")
    return [
        {
            "name": names[c],
            "labels": summary["labelled"][c],
            "pool": None if predicted is None else predicted[c],
            "share": None if predicted is None else predicted[c] / max(1, sum(predicted)),
            "recall": None if recalls is None else recalls[c],
        }
        for c in shown[:MAX_ROWS]
    ]


def frequent_confusions(found: Sequence[Sequence[int]] | None, names: Sequence[str]) -> list[dict[str, Any]]:
    """The pairs of classes that are mistaken most often, from a matrix of true against predicted classes."""
    if found is None:
        return []
    matrix = np.array(found)
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    pairs = [np.unravel_index(place, wrong.shape) for place in np.argsort(-wrong, axis=None, kind="stable")[:8]]
    return [
        {"true": names[t], "given": names[g], "count": int(wrong[t, g]), "share": wrong[t, g] / matrix[t].sum()}
        for t, g in pairs
        if wrong[t, g]
    ]


def duplicate_rows(record: RunRecord) -> list[dict[str, str]]:
    """Groups of copies as lines of a table, as far as the summary lists them."""
    rows = []
    for group in record.summary.get("duplicates", []):
        names = []
        for copy in group["copies"]:
            label = "" if copy.get("label") is None else f" = {record.names[copy['label']]}"
            names.append(f"{copy.get('file') or 'row ' + str(copy['row'])} ({copy['part']}{label})")
        remarks = ["test image learnt from"] if leaks_test(group) else []
        remarks += ["labels disagree"] if labels_disagree(group) else []
        rows.append({"kind": group["kind"], "images": ", ".join(names), "remark": "; ".join(remarks)})
    return rows


def reproducibility(record: RunRecord) -> dict[str, Any]:
    """What somebody needs to make the run again."""
    summary, manifest = record.summary, require(Card, read_json(record.folder.manifest), record.folder.manifest)
    split = record.folder.split
    return {
        "command": summary.get("command") or "unissl train --config config.toml --out again",
        "config": record.folder.config.read_text(encoding="utf-8"),
        "facts": {
            "method": summary["method"],
            "network": f"{summary['net']}, {summary['parameters']:,} parameters",
            "data": summary["data"],
            "classes": f"{len(record.names):,}",
            "labelled images": f"{sum(summary['labelled']):,}",
            "held-out labels": f"{summary.get('calibration_images', 0):,}",
            "unlabelled images": f"{summary.get('pool', {}).get('images', 0):,}",
            "test images": f"{summary['test_images']:,}",
            "image size": f"{manifest['width']} × {manifest['height']}, {manifest['channels']} channel(s)",
            "seed": summary["seed"],
            "steps": f"{summary['steps']:,}",
            "time": f"{summary['seconds']:,.0f} s",
            "configuration": summary["config"],
            "split": hashlib.sha256(split.read_bytes()).hexdigest()[:16] if split.exists() else "not kept",
        },
        "versions": summary.get("versions") or {"unissl": manifest["unissl"]},
    }
