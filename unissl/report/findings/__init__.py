"""What a finished run shows, in plain sentences that say what to do.

Nothing here looks at the truth of the pool: what is said about it follows from the model and the given labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unissl.evaluation.calibration import Bin
from unissl.report.findings.finding import Finding
from unissl.report.findings.labels import (
    Duplicates,
    contradicted,
    doubtful_labels,
    harmless_copies,
    labels_disagree,
    leaked_tests,
    leaks_test,
    left_out,
    showing_little,
    single_labels,
    two_labels,
)
from unissl.report.findings.pool import absent_classes, collapse, missing_from_pool, unlike_the_rest, worth_of_pool
from unissl.report.findings.training import few_images, miscalibrated, too_short
from unissl.report.headline import Headline
from unissl.report.outliers import Outliers


def collect_findings(
    names: Sequence[str],
    *,
    head: Headline | None = None,
    predicted: Sequence[int] | None = None,
    outsiders: Outliers | None = None,
    doubtful: int = 0,
    checked: int = 0,
    labelled: Sequence[int] = (),
    curve: Sequence[float] = (),
    calibration_error: float | None = None,
    bins: Sequence[Bin] = (),
    skipped: Sequence[Mapping[str, str]] = (),
    remarks: Sequence[Mapping[str, Any]] = (),
    duplicates: Sequence[Duplicates] = (),
) -> list[Finding]:
    """Everything there is to say about a run, problems first. What is not known is left out."""
    head = head or Headline()
    fallen = collapse(predicted, names) if predicted else None
    leaks, clashes = sum(map(leaks_test, duplicates)), sum(map(labels_disagree, duplicates))
    harmless = sum(not leaks_test(group) and not labels_disagree(group) for group in duplicates)
    found = [
        fallen,
        leaked_tests(leaks),
        two_labels(clashes),
        contradicted(remarks),
        None if head.gain is None else worth_of_pool(head.gain, head.gain_interval),
        doubtful_labels(doubtful, checked),
        None if fallen or not predicted else missing_from_pool(absent_classes(predicted), predicted, names),
        None if outsiders is None else unlike_the_rest(outsiders),
        too_short(curve, head.images),
        miscalibrated(calibration_error, bins),
        few_images(head.images, head.source == "cross-validation"),
        single_labels(labelled, names) if labelled else None,
        left_out(skipped),
        showing_little(remarks),
        harmless_copies(harmless),
    ]
    return sorted((f for f in found if f is not None), key=lambda f: f.level == "notice")
