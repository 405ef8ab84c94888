"""Findings about the given images and labels: wrong, few, duplicate or unreadable ones."""

from __future__ import annotations

from unissl.data.images.issues import LOW_INFORMATION
from unissl.report.data import ReportData
from unissl.report.findings import Finding, finding
from unissl.report.formatting import counted, listing
from unissl.run.schema import conflicting_files

MAX_WRONG = 0.1
"""Fraction of possible label errors above which they are a problem."""
MAX_REASONS = 3


@finding
def leaked_test_images(data: ReportData) -> Finding | None:
    groups = sum(group.leaks_test for group in data.duplicates)
    if not groups:
        return None
    return Finding(
        "problem",
        f"Test images are also training images in {counted(groups, 'case')}",
        "They are duplicates, or near duplicates, of labelled or unlabelled images, so the accuracy is too high.",
        "Remove the duplicates listed under “Files” from one of the two sets and train again.",
    )


@finding
def conflicting_duplicates(data: ReportData) -> Finding | None:
    groups = sum(group.labels_disagree for group in data.duplicates)
    if not groups:
        return None
    return Finding(
        "problem",
        f"The same image has different labels in {counted(groups, 'case')}",
        "At most one of the labels can be right.",
        "See “Files”; correct or remove the wrong labels and train again.",
    )


@finding
def conflicting_labels(data: ReportData) -> Finding | None:
    """Files that have several labels in the label file."""
    count = conflicting_files(data.summary)
    if not count:
        return None
    return Finding(
        "problem",
        f"{counted(count, 'file has', 'files have')} conflicting labels in the label file",
        "The right label is unknown, so these images were treated as unlabelled.",
        "Keep one label for each file listed under “Files” and train again.",
    )


@finding
def possible_label_errors(data: ReportData) -> Finding | None:
    count, checked = len(data.label_issues.flagged), data.label_issues.checked
    if not count:
        return None
    return Finding(
        "problem" if count > MAX_WRONG * checked else "notice",
        f"{count} of {checked} given labels may be wrong",
        "The model, or the most similar unlabelled images, predict another class than the given label.",
        "Check them under “Possible label errors”; correct the wrong ones and train again.",
    )


@finding
def single_labels(data: ReportData) -> Finding | None:
    names = [name for name, count in zip(data.names, data.summary["labelled"], strict=True) if count == 1]
    if not names:
        return None
    return Finding(
        "notice",
        f"{counted(len(names), 'class has', 'classes have')} a single label",
        f"The class is learnt from one image ({listing(names)}); if that is unusual or mislabelled, so is the class.",
        "Label two or three more images of each.",
    )


@finding
def skipped_files(data: ReportData) -> Finding | None:
    groups, count = data.skipped, sum(len(files) for _, files in data.skipped)
    if not count:
        return None
    reasons = "; ".join(f"{len(files):,} × {reason}" for reason, files in groups[:MAX_REASONS])
    more = f"; and {counted(len(groups) - MAX_REASONS, 'other reason')}" if len(groups) > MAX_REASONS else ""
    return Finding(
        "notice",
        f"{counted(count, 'file or folder was', 'files or folders were')} skipped",
        f"They could not be used: {reasons}{more}.",
        "See all reasons under “Files”; repair or remove the files.",
    )


@finding
def uninformative_images(data: ReportData) -> Finding | None:
    issues = [item for item in data.image_issues if item["issue"] in LOW_INFORMATION]
    if not issues:
        return None
    return Finding(
        "notice",
        "Some images contain little information, or only a part of them is used",
        "; ".join(f"{item['count']:,} × {item['issue'].replace(';', ',')}" for item in issues) + ".",
        "Check the images listed under “Files” and remove those that should not be trained on.",
    )


@finding
def harmless_duplicates(data: ReportData) -> Finding | None:
    groups = sum(not group.leaks_test and not group.labels_disagree for group in data.duplicates)
    if not groups:
        return None
    return Finding(
        "notice",
        f"{counted(groups, 'image has', 'images have')} duplicates",
        "None of them is a test image that is also a training image, and their labels agree; they only count twice.",
        "No action is needed; “Files” lists them.",
    )
