"""The pictures of the page, as far as there are data for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from unissl.evaluation.calibration import Bin
from unissl.plots import charts, curves
from unissl.plots.projection import project_2d
from unissl.plots.svg import inline_svg
from unissl.report.load_run import RunRecord
from unissl.report.samples import MAP_IMAGES, Samples


def draw_page(record: RunRecord, seen: Samples | None, bins: Sequence[Bin]) -> dict[str, Markup]:
    """The pictures of the page, by name."""
    summary, names = record.summary, record.names
    drawn: dict[str, tuple[Any, str]] = {}
    if "pool" in summary:
        drawn["mix"] = (charts.class_mix(summary["pool"], names), "Bars: images of the pool by predicted class")
    if "accuracy" in summary:
        runs = {record.title: record.metrics}
        if record.reference is not None:
            runs["labels only"] = record.reference.metrics
        drawn["accuracy"] = (curves.accuracy_curves(runs), "Line: test accuracy by training step")
    matrix = confusion_matrix(record)
    if matrix is not None:
        shown = {"confusion_matrix": matrix, "class_names": names}
        drawn["confusion"] = (charts.confusion(shown, title=False), "Matrix: true classes against predicted ones")
    drawn["losses"] = (curves.loss_curves(record.metrics), "Lines: loss terms by training step")
    selected = curves.selected_curve(record.metrics)
    if selected is not None:
        drawn["selected"] = (selected, "Line: share of pseudo-labels in use by training step")
    if bins:
        drawn["reliability"] = (charts.reliability_diagram(bins), "Points: share of right answers by confidence")
    if seen is not None:
        labelled = min(len(seen.features), MAP_IMAGES // 2)
        features = np.concatenate([seen.features[:labelled], seen.pool_features])
        said = [seen.said.classes[:labelled], *([] if seen.pool_said is None else [seen.pool_said.classes])]
        given = np.arange(len(features)) < labelled
        figure = charts.feature_map(project_2d(features), np.concatenate(said), given, names)
        drawn["map"] = (figure, "Points: images, near each other where the model sees them alike")
    return {name: Markup(inline_svg(figure, name, alt)) for name, (figure, alt) in drawn.items()}


def confusion_matrix(record: RunRecord) -> list[list[int]] | None:
    """Of the test images or, without any, of the labels that cross-validation left out."""
    if "confusion_matrix" in record.summary:
        matrix: list[list[int]] = record.summary["confusion_matrix"]
        return matrix
    if record.answers is None:
        return None
    counts = np.zeros((len(record.names),) * 2, dtype=np.int64)
    np.add.at(counts, (record.answers.truth, record.answers.said), 1)
    return [[int(count) for count in row] for row in counts]
