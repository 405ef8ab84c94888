"""One page about a finished run that opens anywhere: no script, no network, everything inside the file.

The page is made from the run folder alone. The images are loaded again for the galleries, the map and the check of the
labels; where they are gone, the page says so and does without.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from unissl.data import Dataset
from unissl.errors import UserError
from unissl.evaluation.calibration import Bin, calibration_error, reliability
from unissl.plots import charts
from unissl.report import formatting as words
from unissl.report import galleries, tables
from unissl.report import label_issues as label_doubts
from unissl.report import page_charts as pictures
from unissl.report.findings import collect_findings
from unissl.report.findings.pool import absent_classes
from unissl.report.headline import headline
from unissl.report.load_run import RunRecord, read_record
from unissl.report.outliers import Outliers, by_score
from unissl.report.samples import Samples, collect_samples
from unissl.report.skipped_files import group_skipped_files
from unissl.run_folder import RunFolder, write_text

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


class Written(NamedTuple):
    """Where the page is, and why it is without images if it is."""

    path: Path
    reason: str


def write_report(folder: RunFolder, out: Path | None = None, dataset: Dataset | None = None) -> Written:
    """Write the page, by default as report.html into the run folder. ``dataset`` saves loading it again."""
    if not folder.finished:
        raise UserError(f"{folder.path} holds no finished run; train one, or finish it with `unissl train --resume`.")
    record = read_record(folder)
    seen, reason = None, ""
    try:
        seen = collect_samples(record, dataset)
    except UserError as error:
        reason = str(error)
    target = out or folder.path / "report.html"
    write_text(target, render(record, seen, reason))
    return Written(target, reason)


def render(record: RunRecord, seen: Samples | None, reason: str) -> str:
    """The page as text. ``reason`` says why there are no images, if there are none."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=presentable
    )
    environment.filters |= {"percent": words.percent, "signed": words.signed, "counted": words.counted}
    template = environment.from_string(files("unissl.report").joinpath("page.html.jinja").read_text(encoding="utf-8"))
    summary, names = record.summary, record.names
    predicted = summary["pool"]["predicted"] if "pool" in summary else None
    rivals, leads = label_issues(seen, absent_classes(predicted) if predicted else [])
    strange = outliers_of(record, seen)
    bins, error = calibration(record)
    head = headline(record)
    skipped, remarks = summary.get("skipped", []), summary.get("image_issues", [])
    return template.render(
        record=record,
        reason=reason,
        head=head,
        findings=collect_findings(
            names,
            head=head,
            predicted=predicted,
            outsiders=strange,
            doubtful=int((leads > label_doubts.MIN_LEAD).sum()),
            checked=len(leads),
            labelled=summary["labelled"],
            curve=curve_of(record),
            calibration_error=error,
            bins=bins,
            skipped=skipped,
            remarks=remarks,
            duplicates=summary.get("duplicates", []),
        ),
        classes=tables.class_rows(record),
        confusions=tables.frequent_confusions(pictures.confusion_matrix(record), names),
        calibration_error=error,
        charts=pictures.draw_page(record, seen, bins),
        pictures=shown_images(record, seen, rivals, leads, strange),
        strange=strange,
        trouble=group_skipped_files(skipped),
        remarks=remarks,
        duplicates=tables.duplicate_rows(record),
        pixelated=seen is not None and seen.album.is_coarse,
        card=tables.reproducibility(record),
        most_rows=tables.MAX_ROWS,
        most_files=tables.MAX_FILES,
    )


def presentable(value: Any) -> Any:
    return charts.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def calibration(record: RunRecord) -> tuple[list[Bin], float | None]:
    """Confidence against right answers on the test images, and the mean gap between the two: that of labels which had
    no part in fitting the temperature, where the summary knows it."""
    answers = record.answers
    if answers is None or answers.confidence is None:
        return [], None
    bins = reliability(answers.confidence, answers.right)
    stored = record.summary.get("calibration")
    return bins, calibration_error(bins) if stored is None else float(stored["ece_after"])


def label_issues(seen: Samples | None, absent: Sequence[int]) -> tuple[Rows, Floats]:
    """For each labelled image the class it may really be of, and how strongly that is felt."""
    if seen is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    votes = None
    if seen.pool_said is not None:
        votes = label_doubts.neighbour_votes(seen.features, seen.pool_features, seen.pool_said.probs)
    return label_doubts.find_label_issues(seen.labels, seen.said.probs, votes, absent)


def outliers_of(record: RunRecord, seen: Samples | None) -> Outliers | None:
    """Strange images of the pool: by the vectors where there are any, else by the scores of the method."""
    if seen is not None and seen.outsiders is not None:
        return seen.outsiders
    return None if record.pool is None else by_score(record.pool["outlier_score"], record.pool["class_index"])


def shown_images(
    record: RunRecord, seen: Samples | None, rivals: Rows, leads: Floats, strange: Outliers | None
) -> dict[str, Any]:
    """The galleries, where there are images to show."""
    nothing: dict[str, Any] = {"doubtful": [], "strange": [], "more_strange": [], "classes": []}
    if seen is None:
        return nothing
    album, names, pool = seen.album, record.names, record.pool
    found = nothing | {
        "doubtful": galleries.label_issue_gallery(album, seen.labelled, seen.labels, rivals, leads, names),
    }
    if pool is not None and strange is not None:
        first, more = galleries.outlier_gallery(album, pool["row"], strange, names)
        found |= {"strange": first, "more_strange": more, "classes": galleries.class_galleries(album, pool, names)}
    return found


def curve_of(record: RunRecord) -> list[float]:
    """Accuracies on the way; that of a student, whose training is another one, is no part of it."""
    evaluations = [line for line in record.metrics if line["kind"] == "eval" and "student" not in line]
    return [line["accuracy"] for line in evaluations if "accuracy" in line]
