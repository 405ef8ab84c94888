"""Galleries of the report: which images are shown, and their thumbnails as data URIs."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from unissl.data import read_images
from unissl.data.images.duplicates import DuplicateGroup
from unissl.report.formatting import percent
from unissl.report.label_issues import LabelIssues
from unissl.report.outliers import Outliers
from unissl.types import Floats, ImageTable, Pixels, Rows
from unissl.utils.mmap_rows import take_row

Pool = Mapping[str, npt.NDArray[Any]]
"""Columns of predictions.parquet: row, class_index, confidence, outlier_score."""

PER_CLASS, MAX_CLASSES = 4, 20
"""Most and least confident images of a class; classes that are shown."""
MAX_LABEL_ISSUES, MIN_OUTLIERS, MAX_OUTLIERS = 24, 12, 48
MAX_TINY = 1_000
"""Further outliers, shown without captions."""
SIDE = 112
"""Pixels of a thumbnail."""
TINY, COPY = 52, 96
"""Pixels of a thumbnail without caption, and of one of a duplicate."""
MAX_COPIES = 6
"""Images that are shown of a group of duplicates."""
SMALL = 48
"""Images below this side become lossless PNG, larger ones JPEG."""
QUALITY, TINY_QUALITY = 78, 60


@dataclass(frozen=True)
class Thumbnail:
    """An image inside the page: data URI, alternative text and caption."""

    source: str
    alt: str
    caption: str


class Thumbnails:
    """Thumbnails of a table; of a folder they are decoded from the files, since the table may hold tiny images."""

    def __init__(self, table: ImageTable, root: str | None) -> None:
        self.table = table
        self.root = root if table.files is not None else None

    def with_captions(self, rows: Sequence[int], captions: Sequence[str], alt: str = "") -> list[Thumbnail]:
        """One thumbnail per row; ``alt`` comes before the caption in the alternative text."""
        decoded = self._from_files(rows)
        return [
            Thumbnail(
                data_uri(decoded.get(row, take_row(self.table.images, row))),
                f"{self.name(row)}: {alt}{caption}",
                caption,
            )
            for row, caption in zip(rows, captions, strict=True)
        ]

    def tiny(self, rows: Sequence[int], alts: Sequence[str], side: int = TINY) -> list[Thumbnail]:
        """Small thumbnails of the table's images, without captions."""
        return [
            Thumbnail(data_uri(take_row(self.table.images, row), side, TINY_QUALITY), f"{self.name(row)}: {alt}", "")
            for row, alt in zip(rows, alts, strict=True)
        ]

    @property
    def is_coarse(self) -> bool:
        """Whether the images are so small that a browser should enlarge them without smoothing."""
        return self.root is None and self.table.images.shape[1] < SMALL

    def name(self, row: int) -> str:
        """The file of an image, or its row."""
        return self.table.files[row] if self.table.files is not None and self.table.files[row] else f"image {row}"

    def _from_files(self, rows: Sequence[int]) -> Mapping[int, Pixels]:
        files, height = self.table.files, self.table.images.shape[1]
        if self.root is None or files is None or height >= SIDE:
            return {}
        paths = {os.path.join(self.root, files[row]): row for row in rows if files[row]}
        pixels, readable, _ = read_images(list(paths), SIDE, 3)
        return {paths[path]: image for path, image in zip(readable, pixels, strict=True)}


def data_uri(pixels: Pixels, side: int = SIDE, quality: int | None = None) -> str:
    """A uint8 image (h, w, channels) as a data URI: PNG if it is small and no ``quality`` is given, otherwise JPEG."""
    height, width, channels = pixels.shape
    image = Image.fromarray(pixels[..., 0] if channels == 1 else np.ascontiguousarray(pixels[..., :3]))
    if max(height, width) > side:
        image.thumbnail((side, side))
    kind = "png" if quality is None and max(height, width) < SMALL else "jpeg"
    memory = io.BytesIO()
    image.save(memory, kind, **({"optimize": True} if kind == "png" else {"quality": quality or QUALITY}))
    return f"data:image/{kind};base64,{base64.b64encode(memory.getvalue()).decode()}"


def label_issue_gallery(
    thumbnails: Thumbnails, rows: Rows, labels: Rows, issues: LabelIssues, names: Sequence[str]
) -> list[Thumbnail]:
    """Labelled images whose label may be wrong, the largest lead first."""
    order = issues.flagged[:MAX_LABEL_ISSUES]
    captions = [f"labelled {names[labels[i]]}, predicted {names[issues.rivals[i]]}" for i in order]
    return thumbnails.with_captions(rows[order].tolist(), captions)


def duplicate_gallery(train: Thumbnails, test: Thumbnails | None, group: DuplicateGroup) -> list[Thumbnail]:
    """The images of a group of duplicates; test images come first, and at least one training image is among them."""
    tested = [copy for copy in group.copies if copy.part == "test"]
    others = [copy for copy in group.copies if copy.part != "test"]
    shown = [*tested[: max(MAX_COPIES - len(others), MAX_COPIES // 2)], *others][:MAX_COPIES]
    tables = [(test if copy.part == "test" else train, copy) for copy in shown]
    return [
        thumbnail
        for table, copy in tables
        if table is not None and copy.row < len(table.table)
        for thumbnail in table.tiny([copy.row], [copy.part], COPY)
    ]


def outlier_gallery(
    thumbnails: Thumbnails, rows: Rows, outliers: Outliers, names: Sequence[str]
) -> tuple[list[Thumbnail], list[Thumbnail]]:
    """Images of the pool with the highest outlier scores, some even if none is flagged; then the other flagged ones,
    tiny and as many as a page can hold."""
    order = np.argsort(-outliers.score, kind="stable")
    first = order[: min(MAX_OUTLIERS, max(MIN_OUTLIERS, outliers.count))]
    captions = [f"score {outliers.score[i]:.2f}; nearest {names[outliers.nearest[i]]}" for i in first]
    more = order[len(first) : min(outliers.count, len(first) + MAX_TINY)]
    alts = [f"nearest {names[outliers.nearest[i]]}" for i in more]
    return thumbnails.with_captions(rows[first].tolist(), captions), thumbnails.tiny(rows[more].tolist(), alts)


def class_galleries(thumbnails: Thumbnails, pool: Pool, names: Sequence[str]) -> list[dict[str, Any]]:
    """The most and the least confident images of each class; of many classes those with the most uncertain images."""
    classes, confidence = pool["class_index"], pool["confidence"]
    galleries = []
    for c in most_uncertain_classes(classes, confidence, len(names), MAX_CLASSES):
        most, least = (
            thumbnails.with_captions(
                pool["row"][part].tolist(),
                [f"confidence {percent(confidence[i], 0)}" for i in part],
                f"predicted {names[c]}, ",
            )
            for part in confidence_extremes(classes, confidence, c, PER_CLASS)
        )
        count = int((classes == c).sum())
        galleries.append({"name": names[c], "count": count, "most_confident": most, "least_confident": least})
    return galleries


def confidence_extremes(classes: Rows, confidence: Floats, which: int, count: int) -> tuple[Rows, Rows]:
    """Positions of the most and of the least confident images of a class, without overlap."""
    members = np.flatnonzero(classes == which)
    ordered = members[np.argsort(-confidence[members], kind="stable")]
    most = ordered[: min(count, (len(ordered) + 1) // 2)]
    return most, ordered[len(most) :][::-1][:count]


def most_uncertain_classes(classes: Rows, confidence: Floats, num_classes: int, count: int) -> list[int]:
    """The classes with the most expected errors (the sum of one minus the confidence), in class order."""
    uncertainty = np.bincount(classes, weights=1 - confidence, minlength=num_classes)
    present = np.bincount(classes, minlength=num_classes) > 0
    ranked = [int(c) for c in np.argsort(-uncertainty, kind="stable") if present[c]]
    return sorted(ranked[:count])
