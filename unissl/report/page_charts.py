"""The charts of the page, as far as there are data for them."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from unissl.plots import charts, curves
from unissl.plots.embedding import embedding_map, project_2d
from unissl.plots.output import inline_svg
from unissl.report.data import ReportData
from unissl.report.load_run import RunRecord
from unissl.report.samples import MAX_POINTS, Samples
from unissl.types import Labels


def draw_charts(data: ReportData) -> dict[str, Markup]:
    """Inline SVG by the name of the chart."""
    record, summary, names = data.record, data.summary, data.names
    figures: dict[str, tuple[Figure, str]] = {}
    if "pool" in summary:
        figures["distribution"] = (
            charts.class_distribution(summary["pool"], names, title=False),
            "Bars: unlabelled images by predicted class",
        )
    if "accuracy" in summary:
        runs = {record.method.title: record.metrics}
        if record.baseline is not None:
            runs["labels-only baseline"] = record.baseline.metrics
        figures["accuracy"] = (curves.accuracy_curves(runs), "Line: test accuracy by training step")
    matrix = confusion_matrix(record)
    if matrix is not None:
        table = {"confusion_matrix": matrix, "class_names": names}
        figures["confusion"] = (charts.confusion(table, title=False), "Matrix: true classes against predicted ones")
    figures["losses"] = (curves.loss_curves(record.metrics), "Lines: loss terms by training step")
    selected = curves.selected_curve(record.metrics)
    if selected is not None:
        figures["selected"] = (selected, "Line: fraction of pseudo-labels in use by training step")
    if data.bins:
        figures["reliability"] = (charts.reliability_diagram(data.bins), "Points: accuracy by confidence")
    if data.samples is not None:
        figures["embedding"] = (draw_embedding(data.samples, names), "Points: images, placed by similarity of features")
    return {name: Markup(inline_svg(figure, name, alt)) for name, (figure, alt) in figures.items()}


def draw_embedding(samples: Samples, names: list[str]) -> Figure:
    labelled = min(len(samples.features), MAX_POINTS // 2)
    features = np.concatenate([samples.features[:labelled], samples.pool_features])
    classes = [samples.predictions.classes[:labelled]]
    if samples.pool_predictions is not None:
        classes.append(samples.pool_predictions.classes)
    return embedding_map(project_2d(features), np.concatenate(classes), np.arange(len(features)) < labelled, names)


def confusion_matrix(record: RunRecord) -> Labels | None:
    """Rows true and columns predicted (C, C), of the test images or, without any, of the cross-validation."""
    if "confusion_matrix" in record.summary:
        return np.array(record.summary["confusion_matrix"], dtype=np.int64)
    if record.predictions is None:
        return None
    counts = np.zeros((len(record.names),) * 2, dtype=np.int64)
    np.add.at(counts, (record.predictions.truth, record.predictions.predicted), 1)
    return counts
