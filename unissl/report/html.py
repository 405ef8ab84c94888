"""One HTML page about a finished run, in a single file without scripts and without requests to the network.

The page is rendered from the run folder. Galleries, the embedding map and the check of the labels also need the images;
where these are gone, the page says why and leaves the sections out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from unissl.errors import UserError
from unissl.plots import charts, curves
from unissl.plots.embedding import embedding_map, project_2d
from unissl.plots.output import inline_svg
from unissl.report import formatting, galleries
from unissl.report.data import ReportData
from unissl.report.findings import collect_findings
from unissl.report.load_run import RunRecord, read_record
from unissl.report.samples import MAX_POINTS, Samples, collect_samples
from unissl.run.inputs import RunInputs
from unissl.run.schema import selective_accuracies
from unissl.run_folder import RunFolder
from unissl.utils.atomic import open_regular, write_text
from unissl.utils.bounded_io import open_file, read_text

GENERATOR = '<meta name="generator" content="unissl report">'
"""Marks a file as a report, which may be overwritten."""
MAX_HEAD = 4096
"""Bytes at the start of a file that are searched for the mark."""
MAX_ROWS = 40
"""Rows of a table."""
MAX_FILES = 30
"""Files that are named for one reason."""
MAX_CONFUSIONS = 8


def write_report(folder: RunFolder, out: Path | None = None, inputs: RunInputs | None = None) -> tuple[Path, str]:
    """Write the page, by default as report.html in the run folder; an earlier report is overwritten. Returns its path,
    and why it has no images if it has none.

    With ``inputs`` no image is loaded and no feature is computed again.
    """
    if not folder.finished:
        raise UserError(f"{folder.path} holds no finished run; train one, or finish it with `unissl train --resume`.")
    if out is not None:
        is_overwritable(out)
    record, samples, reason = read_record(folder), None, ""
    try:
        samples = collect_samples(record, inputs)
    except UserError as error:
        reason = str(error)
    path = out or folder.report
    page = render(ReportData.of(record, samples, reason))
    write_text(path, page, overwrite=out is None or is_overwritable(out))  # it may have changed meanwhile
    return path, reason


def is_overwritable(path: Path) -> bool:
    """Whether ``path`` is a report; raises if it is anything else."""
    if not path.exists():
        return False
    is_report = False
    if path.is_file():
        with open_regular(path, "rb") as file:
            is_report = GENERATOR.encode() in file.read(MAX_HEAD)
    if not is_report:
        raise UserError(f"{path} exists and is not a report of unissl; choose another --out.")
    return True


def render(data: ReportData) -> str:
    """The page as text."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=make_printable
    )
    environment.filters |= {name: getattr(formatting, name) for name in ("percent", "signed", "counted")}
    template = environment.from_string(files("unissl.report").joinpath("page.html.jinja").read_text(encoding="utf-8"))
    record = data.record
    return template.render(
        data=data,
        record=record,
        summary=data.summary,
        headline=data.headline,
        generator=Markup(GENERATOR),
        findings=collect_findings(data),
        classes=class_rows(record),
        confusions=frequent_confusions(confusion_matrix(record), record.names),
        charts=draw_charts(data),
        galleries=make_galleries(data),
        duplicates=duplicate_rows(data),
        selective=selective_accuracies(data.summary),
        facts=run_facts(record),
        config=read_text(record.folder.config),
        command=data.summary.get("command") or "unissl train --config config.toml --out reproduced",
        versions=data.summary.get("versions") or {"unissl": record.manifest.unissl},
        pixelated=data.samples is not None and data.samples.thumbnails.is_coarse,
        max_rows=MAX_ROWS,
        max_files=MAX_FILES,
    )


def make_printable(value: Any) -> Any:
    return charts.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


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
        figures["accuracy"] = (curves.panel(curves.draw_accuracy, runs), "Line: test accuracy by training step")
    matrix = confusion_matrix(record)
    if matrix is not None:
        table = {"confusion_matrix": matrix, "class_names": names}
        figures["confusion"] = (charts.confusion(table, title=False), "Matrix: true classes against predicted ones")
    figures["losses"] = (curves.panel(curves.draw_losses, record.metrics), "Lines: loss terms by training step")
    if selected := curves.selected_by_step(record.metrics):
        figures["selected"] = (
            curves.panel(curves.draw_selected, selected),
            "Line: fraction of pseudo-labels in use by training step",
        )
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


def confusion_matrix(record: RunRecord) -> npt.NDArray[np.int64] | None:
    """Rows true and columns predicted (C, C), of the test images or, without any, of the cross-validation."""
    if "confusion_matrix" in record.summary:
        return np.array(record.summary["confusion_matrix"], dtype=np.int64)
    if record.predictions is None:
        return None
    counts = np.zeros((len(record.names),) * 2, dtype=np.int64)
    np.add.at(counts, (record.predictions.truth, record.predictions.predicted), 1)
    return counts


def make_galleries(data: ReportData) -> dict[str, Any]:
    """Thumbnails by gallery; empty ones where there is nothing to show."""
    sections: dict[str, Any] = {"label_issues": [], "outliers": [], "more_outliers": [], "classes": []}
    samples, names, pool, issues = data.samples, data.names, data.record.pool, data.label_issues
    if samples is None:
        return sections
    shown = samples.thumbnails
    sections["label_issues"] = galleries.label_issue_gallery(shown, samples.rows, samples.labels, issues, names)
    if pool is not None and data.outliers is not None:
        first, more = galleries.outlier_gallery(shown, pool["row"], data.outliers, names)
        classes = galleries.class_galleries(shown, pool, names)
        sections |= {"outliers": first, "more_outliers": more, "classes": classes}
    return sections


def class_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Labels, predictions and recall of each class; of many classes those with the most uncertain images."""
    summary, names, pool = record.summary, record.names, record.pool
    rows: Sequence[int] = range(len(names))
    if len(names) > MAX_ROWS and pool is not None:
        rows = galleries.most_uncertain_classes(pool["class_index"], pool["confidence"], len(names), MAX_ROWS)
    predicted = summary["pool"]["predicted"] if "pool" in summary else None
    recalls = summary.get("per_class_recall")
    return [
        {
            "name": names[c],
            "labels": summary["labelled"][c],
            "pool": None if predicted is None else predicted[c],
            "fraction": None if predicted is None else predicted[c] / max(1, sum(predicted)),
            "recall": None if recalls is None else recalls[c],
        }
        for c in rows[:MAX_ROWS]
    ]


def frequent_confusions(matrix: npt.NDArray[np.int64] | None, names: Sequence[str]) -> list[dict[str, Any]]:
    """The most frequent pairs of a true and a wrong class in a confusion matrix (C, C)."""
    if matrix is None:
        return []
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    cells = [np.unravel_index(i, wrong.shape) for i in np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSIONS]]
    return [
        {"true": names[t], "predicted": names[p], "count": int(wrong[t, p]), "fraction": wrong[t, p] / matrix[t].sum()}
        for t, p in cells
        if wrong[t, p]
    ]


def duplicate_rows(data: ReportData) -> list[dict[str, Any]]:
    """Groups of duplicates, with their files, issues and thumbnails."""
    rows: list[dict[str, Any]] = []
    for group, stored in zip(data.duplicates, data.summary.get("duplicates", []), strict=True):
        thumbnails: list[galleries.Thumbnail] = []
        if data.samples is not None and len(rows) < MAX_ROWS:
            thumbnails = galleries.duplicate_gallery(data.samples.thumbnails, data.samples.test_thumbnails, group)
        images = []
        for copy, entry in zip(group.copies, stored["copies"], strict=True):
            label = "" if copy.label is None else f" = {data.names[copy.label]}"
            images.append(f"{entry.get('file') or f'row {copy.row}'} ({copy.part}{label})")
        found = {"test image in training": group.leaks_test, "labels disagree": group.labels_disagree}
        issue = "; ".join(text for text, applies in found.items() if applies)
        rows.append({"kind": group.kind, "images": ", ".join(images), "issue": issue, "thumbnails": thumbnails})
    return rows


def run_facts(record: RunRecord) -> dict[str, str]:
    """What identifies a run."""
    summary, manifest, split_hash = record.summary, record.manifest, "no split file"
    if record.folder.split.exists():
        with open_file(record.folder.split) as file:
            split_hash = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return {
        "method": summary["method"],
        "network": f"{summary['net']}, {summary['parameters']:,} parameters",
        "data": summary["data"],
        "classes": f"{len(record.names):,}",
        "labelled images": f"{sum(summary['labelled']):,}",
        "calibration images": f"{summary.get('calibration_images', 0):,}",
        "unlabelled images": f"{summary.get('pool', {}).get('images', 0):,}",
        "test images": f"{summary['test_images']:,}",
        "image size": f"{manifest.width} × {manifest.height}, {formatting.counted(manifest.channels, 'channel')}",
        "seed": str(summary["seed"]),
        "steps": f"{summary['steps']:,}",
        "time": f"{summary['seconds']:,.0f} s",
        "config hash": summary["config"],
        "split hash": split_hash,
    }
