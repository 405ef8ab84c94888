"""What is to be known about the images and labels that were given: doubtful, scarce, copied or unreadable ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unissl.data.folder.labels import CONTRADICTED
from unissl.data.images.issues import LOW_INFORMATION
from unissl.report.findings.finding import Finding
from unissl.report.formatting import counted, listing
from unissl.report.skipped_files import group_skipped_files

Duplicates = Mapping[str, Any]
"""Images that show the same: kind "exact" or "near", and copies, each with part (test, labelled, pool), row, label."""


def doubtful_labels(count: int, total: int) -> Finding | None:
    if not count:
        return None
    return Finding(
        "problem" if count > 0.1 * total else "notice",
        f"{count} of {total} given labels disagree with their neighbours",
        "The model, or the unlabelled images that look most alike to it, say another class than the given label.",
        "Look at them under “Labels to check”; correct the wrong ones and train again.",
    )


def single_labels(labelled: Sequence[int], names: Sequence[str]) -> Finding | None:
    alone = [name for name, count in zip(names, labelled, strict=True) if count == 1]
    if not alone:
        return None
    return Finding(
        "notice",
        f"{counted(len(alone), 'class has', 'classes have')} a single label",
        f"One image is all that was told about {listing(alone)}; where it is unusual or mislabelled, so is the class.",
        "Label two or three more images of each.",
    )


def leaks_test(group: Duplicates) -> bool:
    """Whether a test image is also learnt from."""
    parts = {copy["part"] for copy in group["copies"]}
    return "test" in parts and len(parts) > 1


def labels_disagree(group: Duplicates) -> bool:
    return len({copy["label"] for copy in group["copies"] if copy.get("label") is not None}) > 1


def leaked_tests(groups: int) -> Finding | None:
    if not groups:
        return None
    return Finding(
        "problem",
        f"Test images are learnt from in {counted(groups, 'case')}",
        "They are, or are nearly, the same as labelled or unlabelled images, so the accuracy is flattered.",
        "Take the copies listed under “Files” out of one side and train again.",
    )


def two_labels(groups: int) -> Finding | None:
    if not groups:
        return None
    return Finding(
        "problem",
        f"The same image has different labels in {counted(groups, 'case')}",
        "At most one of the labels can be right.",
        "See “Files”; correct or remove the wrong ones and train again.",
    )


def harmless_copies(groups: int) -> Finding | None:
    if not groups:
        return None
    return Finding(
        "notice",
        f"{counted(groups, 'image is', 'images are')} there more than once",
        "The copies are on the same side and agree; they only count double.",
        "Nothing has to be done; “Files” lists them.",
    )


def left_out(skipped: Sequence[Mapping[str, str]]) -> Finding | None:
    if not skipped:
        return None
    kinds = group_skipped_files(skipped)
    told = "; ".join(f"{kind.count:,} × {kind.reason}" for kind in kinds[:3])
    more = f"; and {counted(len(kinds) - 3, 'other reason')}" if len(kinds) > 3 else ""
    return Finding(
        "notice",
        f"{counted(len(skipped), 'file or folder was', 'files or folders were')} left out",
        f"The run went on without {'it' if len(skipped) == 1 else 'them'}: {told}{more}.",
        "See every reason under “Files”; repair or remove what is listed there.",
    )


def count_contradicted(remarks: Sequence[Mapping[str, Any]]) -> int:
    """Files that have several labels, by the remarks of a summary."""
    return sum(item["count"] for item in remarks if item["remark"].startswith(CONTRADICTED))


def contradicted(remarks: Sequence[Mapping[str, Any]]) -> Finding | None:
    count = count_contradicted(remarks)
    if not count:
        return None
    return Finding(
        "problem",
        f"{counted(count, 'file has', 'files have')} several labels in the label file",
        "Which of them is right cannot be known from here, so these images were used without a label.",
        "Keep one label for each file listed under “Files” and train again.",
    )


def showing_little(remarks: Sequence[Mapping[str, Any]]) -> Finding | None:
    little = [item for item in remarks if item["remark"] in LOW_INFORMATION]
    if not little:
        return None
    return Finding(
        "notice",
        "Some images show little, or are used in part",
        "; ".join(f"{item['count']:,} × {item['remark'].replace(';', ',')}" for item in little) + ".",
        "Look at those listed under “Files”, and take out what is not meant to be learnt from.",
    )
