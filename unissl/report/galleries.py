"""Images of the report: which ones are worth a look, and how they get into the page."""

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
from unissl.report.formatting import percent
from unissl.report.label_issues import MIN_LEAD
from unissl.report.outliers import Outliers
from unissl.types import ImageTable

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Pool = Mapping[str, npt.NDArray[Any]]
"""Columns of predictions.parquet: row, class_index, confidence, outlier."""

PER_CLASS, MOST_CLASSES = 4, 20
"""Surest and least sure images of a class; classes that are shown."""
MOST_DOUBTS, MOST_STRANGE, LEAST_STRANGE = 24, 48, 12
MAX_TINY = 1_000
"""Further strange images, shown without words."""
SIDE = 112
"""Pixels of a thumbnail that is made from a file."""
TINY = 52
"""Pixels of a thumbnail that is one of many."""
SMALL = 48
"""Images below this side are kept as they are, without loss; larger ones become JPEG."""
QUALITY, TINY_QUALITY = 78, 60


@dataclass(frozen=True)
class Thumbnail:
    """An image inside the page: a data URI, what a blind reader hears, and what stands below it."""

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class ClassGallery:
    """Images of the pool that were given one class."""

    name: str
    count: int
    surest: list[Thumbnail]
    least_sure: list[Thumbnail]


class Thumbnails:
    """Thumbnails of a table. Rows of a folder come from their files, since a classifier's own view may be tiny."""

    def __init__(self, table: ImageTable, root: str | None) -> None:
        self.table = table
        self.root = root if table.files is not None else None

    def pictures(self, rows: Sequence[int], captions: Sequence[str], spoken: str = "") -> list[Thumbnail]:
        """One picture per row with its caption; ``spoken`` is what only those hear who do not see its place."""
        better = self._from_files(rows)
        return [
            Thumbnail(
                data_uri(better.get(row, self.table.images[row])), f"{self.name(row)}: {spoken}{caption}", caption
            )
            for row, caption in zip(rows, captions, strict=True)
        ]

    def tiny(self, rows: Sequence[int], spoken: Sequence[str]) -> list[Thumbnail]:
        """Small pictures from the table, to be seen by the hundred."""
        return [
            Thumbnail(data_uri(self.table.images[row], TINY, TINY_QUALITY), f"{self.name(row)}: {words}", "")
            for row, words in zip(rows, spoken, strict=True)
        ]

    @property
    def is_coarse(self) -> bool:
        """Whether the pictures are so small that a browser should show their pixels and not blur them."""
        return self.root is None and self.table.images.shape[1] < SMALL

    def name(self, row: int) -> str:
        """What to call an image: its file where it has one."""
        return self.table.files[row] if self.table.files is not None and self.table.files[row] else f"image {row}"

    def _from_files(self, rows: Sequence[int]) -> Mapping[int, npt.NDArray[np.uint8]]:
        files, height = self.table.files, self.table.images.shape[1]
        if self.root is None or files is None or height >= SIDE:
            return {}
        paths = {os.path.join(self.root, files[row]): row for row in rows if files[row]}
        pixels, kept, _ = read_images(list(paths), SIDE, 3)
        return {paths[path]: image for path, image in zip(kept, pixels, strict=True)}


def data_uri(pixels: npt.NDArray[np.uint8], side: int = SIDE, quality: int | None = None) -> str:
    """An image (h, w, channels) as text that a page can hold; small ones without loss unless a quality is named."""
    height, width, channels = pixels.shape
    image = Image.fromarray(pixels[..., 0] if channels == 1 else np.ascontiguousarray(pixels[..., :3]))
    if max(height, width) > side:
        image.thumbnail((side, side))
    kind = "png" if quality is None and max(height, width) < SMALL else "jpeg"
    memory = io.BytesIO()
    image.save(memory, kind, **({"optimize": True} if kind == "png" else {"quality": quality or QUALITY}))
    return f"data:image/{kind};base64,{base64.b64encode(memory.getvalue()).decode()}"


def label_issue_gallery(
    album: Thumbnails, rows: Rows, labels: Rows, rivals: Rows, leads: Floats, names: Sequence[str]
) -> list[Thumbnail]:
    """Labelled images whose label is in doubt, the most doubtful first."""
    order = [i for i in np.argsort(-leads, kind="stable")[:MOST_DOUBTS] if leads[i] > MIN_LEAD]
    captions = [f"given {names[labels[i]]}, looks like {names[rivals[i]]}" for i in order]
    return album.pictures([int(rows[i]) for i in order], captions)


def outlier_gallery(
    album: Thumbnails, rows: Rows, outsiders: Outliers, names: Sequence[str]
) -> tuple[list[Thumbnail], list[Thumbnail]]:
    """Images of the pool that look least like any class, some even if none is flagged; then the other flagged ones,
    tiny and as many as a page can hold."""
    order = np.argsort(-outsiders.score, kind="stable")
    first = order[: min(MOST_STRANGE, max(LEAST_STRANGE, outsiders.count))]
    captions = [f"score {outsiders.score[i]:.2f}; nearest {names[outsiders.nearest[i]]}" for i in first]
    more = order[len(first) : min(outsiders.count, len(first) + MAX_TINY)]
    return (
        album.pictures([int(row) for row in rows[first]], captions),
        album.tiny([int(row) for row in rows[more]], [f"nearest {names[outsiders.nearest[i]]}" for i in more]),
    )


def class_galleries(album: Thumbnails, pool: Pool, names: Sequence[str]) -> list[ClassGallery]:
    """The surest and least sure images of each class; of many classes those with the most uncertain images."""
    classes, confidence = pool["class_index"], pool["confidence"]
    found = []
    for c in most_uncertain_classes(classes, confidence, len(names), MOST_CLASSES):
        surest, least = extremes(classes, confidence, c, PER_CLASS)
        shown = [
            album.pictures(
                [int(row) for row in pool["row"][part]],
                [f"{percent(confidence[i], 0)} sure" for i in part],
                f"called {names[c]}, ",
            )
            for part in (surest, least)
        ]
        found.append(ClassGallery(names[c], int((classes == c).sum()), *shown))
    return found


def extremes(classes: Rows, confidence: Floats, which: int, count: int) -> tuple[Rows, Rows]:
    """Positions of the surest and of the least sure images of a class, without overlap; the surest go first."""
    members = np.flatnonzero(classes == which)
    ordered = members[np.argsort(-confidence[members], kind="stable")]
    surest = ordered[: min(count, (len(ordered) + 1) // 2)]
    return surest, ordered[len(surest) :][::-1][:count]


def most_uncertain_classes(classes: Rows, confidence: Floats, num_classes: int, count: int) -> list[int]:
    """The classes with the most expected mistakes (missing confidence, summed), in class order."""
    missing = np.bincount(classes, weights=1 - confidence, minlength=num_classes)
    present = np.bincount(classes, minlength=num_classes) > 0
    ranked = [int(c) for c in np.argsort(-missing, kind="stable") if present[c]]
    return sorted(ranked[:count])
