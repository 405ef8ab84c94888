"""Find duplicate images: equal pixels, or the same image saved again, rescaled, brightened or cropped.

A copy of a test image among the training images inflates the measured accuracy; copies of a labelled image with two
labels mean that one label is wrong; copies within the pool only count double.

Exact copies have equal decoded pixels. Near copies are found in two stages, neither of which compares everything with
everything. The *sketch* of an image is the coarsest part of its brightness: 15 cosine coefficients, scaled to length 1,
so that brightness and contrast do not matter. Close sketches are neighbours in a k-d tree; to find crops, each image is
also searched with the sketches of five slightly cropped views of itself. Neighbours are then compared in detail: the
brightness steps between adjacent cells of a 16 x 16 grid must correlate. That keeps different photos of the same kind
apart, whose coarse brightness (an object before a white wall) is often alike. Mirrored, turned and
heavily cropped copies are not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import numpy.typing as npt

from unissl.types import ImageTable
from unissl.utils.mmap_rows import take_rows

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Part = Literal["test", "labelled", "pool"]
Kind = Literal["exact", "near"]

SIDE = 32
"""Cells on a side of the thumbnail that all comparisons start from."""
GRID = 16
WAVES = 4
RADIUS = 0.15
"""Distance of sketches up to which images are compared in detail."""
MIN_CORRELATION = 0.85
"""Correlation of brightness steps from which on two images count as the same."""
MIN_STD = 3.0
"""Standard deviation of brightness below which an image is too uniform to compare."""
NEIGHBOURS = 5
"""How many images each view is compared with: a bound on the work where thousands of frames show the same scene."""
CROP = 0.05
MAX_COMPARED = 100_000
"""Images among which near copies are searched: a bound on memory (4 KB each) and time where pools are very large.
Equal pixels are found among all."""
CHUNK = 1024
LUMINANCE = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True)
class Copy:
    """One image of a group: its part of the data, its row in that table, and its label or None."""

    part: Part
    row: int
    label: int | None


@dataclass(frozen=True)
class DuplicateGroup:
    """Copies of one image; "exact" if all of them have equal pixels. Test images come first, then labelled ones."""

    kind: Kind
    copies: tuple[Copy, ...]

    @property
    def leaks_test(self) -> bool:
        """Whether a test image is also a training image."""
        parts = {copy.part for copy in self.copies}
        return "test" in parts and len(parts) > 1

    @property
    def labels_disagree(self) -> bool:
        return len({copy.label for copy in self.copies if copy.label is not None}) > 1


def find_duplicates(
    train: ImageTable, test: ImageTable | None = None, labelled: Rows | None = None
) -> tuple[DuplicateGroup, ...]:
    """All groups of two images or more, the most severe first: test leaks, conflicting labels, the rest.

    ``labelled`` are the rows of ``train`` whose labels training uses, by default all that have one; other labels are
    ignored.
    """
    rows = np.flatnonzero(train.labels >= 0) if labelled is None else labelled
    known = dict(zip(rows.tolist(), train.labels[rows].tolist(), strict=True))
    copies = [Copy("labelled" if row in known else "pool", row, known.get(row)) for row in range(len(train))]
    tables = [train.images]
    if test is not None:
        copies += [Copy("test", row, int(label) if label >= 0 else None) for row, label in enumerate(test.labels)]
        tables.append(test.images)
    exact = _equal_pixels(tables)
    compared = _choose_compared(np.unique(exact), copies)
    near = compared[_near_pairs(_thumbnails(tables, compared), np.arange(len(compared)))]
    groups = [_group(rows, exact, copies) for rows in _connected(exact, near)]
    return tuple(sorted(groups, key=_severity))


def _group(rows: Sequence[int], exact: Rows, copies: Sequence[Copy]) -> DuplicateGroup:
    order: list[Part] = ["test", "labelled", "pool"]
    members = sorted((copies[row] for row in rows), key=lambda copy: (order.index(copy.part), copy.row))
    return DuplicateGroup("exact" if len({exact[row] for row in rows}) == 1 else "near", tuple(members))


def _severity(group: DuplicateGroup) -> tuple[bool, bool, bool, int]:
    return not group.leaks_test, not group.labels_disagree, group.kind == "near", group.copies[0].row


def _equal_pixels(tables: Sequence[npt.NDArray[np.uint8]]) -> Rows:
    """For each image the first one with the same pixels, counted through all tables."""
    first: dict[bytes, int] = {}
    images = (image for table in tables for block in _blocks(len(table)) for image in take_rows(table, block))
    hashes = (blake2b(np.ascontiguousarray(image).data, digest_size=16).digest() for image in images)
    return np.array([first.setdefault(key, row) for row, key in enumerate(hashes)], dtype=np.int64)


def _blocks(count: int) -> Iterator[Rows]:
    """0..count-1 in turn, some at a time."""
    return (np.arange(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def _choose_compared(rows: Rows, copies: Sequence[Copy]) -> Rows:
    """Rows among which near copies are searched: at most ``MAX_COMPARED``, with an evenly spaced part of the pool."""
    if len(rows) <= MAX_COMPARED:
        return rows
    in_pool = np.array([copies[row].part == "pool" for row in rows])
    others, pool = rows[~in_pool][:MAX_COMPARED], rows[in_pool]
    room = MAX_COMPARED - len(others)
    spread = pool[np.linspace(0, len(pool) - 1, room).astype(np.int64)] if room else pool[:0]
    return np.sort(np.concatenate([others, spread]))


def _thumbnails(tables: Sequence[npt.NDArray[np.uint8]], rows: Rows) -> Floats:
    """Brightness of SIDE x SIDE cells of the ascending ``rows``, counted through all tables, (n, SIDE, SIDE)."""
    thumbnails = np.empty((len(rows), SIDE, SIDE), dtype=np.float32)
    row, before = 0, 0
    for table in tables:
        chosen = rows[(rows >= before) & (rows < before + len(table))] - before
        before += len(table)
        down, across = _cells(SIDE, table.shape[1]), _cells(SIDE, table.shape[2])
        weights = np.array(LUMINANCE if table.shape[3] == 3 else [1 / table.shape[3]] * table.shape[3], np.float32)
        for start in range(0, len(chosen), CHUNK):
            chunk = take_rows(table, chosen[start : start + CHUNK])
            brightness = sum(chunk[..., c] * weight for c, weight in enumerate(weights))
            thumbnails[row : row + len(chunk)] = down @ brightness @ across.T
            row += len(chunk)
    return thumbnails


def _cells(count: int, size: int, low: float = 0.0, high: float = 1.0) -> Floats:
    """The matrix (count, size) that averages the pixels between two fractions of the side over equal cells."""
    edges = np.linspace(low * size, high * size, count + 1)
    pixel = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixel + 1) - np.maximum(edges[:-1, None], pixel)
    weights = overlap.clip(min=0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


@dataclass(frozen=True)
class _View:
    """The whole image, or a crop: upper and left edge and side, as fractions of the side of the image."""

    top: float = 0.0
    left: float = 0.0
    share: float = 1.0

    def grid(self, thumbnails: Floats) -> Floats:
        """Brightness of GRID x GRID cells."""
        down = _cells(GRID, SIDE, self.top, self.top + self.share)
        across = _cells(GRID, SIDE, self.left, self.left + self.share)
        return np.asarray(down @ thumbnails @ across.T)

    def sketch(self, thumbnails: Floats) -> Floats:
        """The coarsest cosine coefficients without the mean, of length 1, (N, WAVES * WAVES - 1)."""
        waves = np.cos(np.pi * np.arange(WAVES)[:, None] * (2 * np.arange(GRID) + 1) / (2 * GRID)).astype(np.float32)
        waves /= np.linalg.norm(waves, axis=1, keepdims=True)
        coefficients = waves @ self.grid(thumbnails) @ waves.T
        return _unit(np.asarray(coefficients.reshape(len(thumbnails), -1)[:, 1:], dtype=np.float32))

    def steps(self, thumbnails: Floats) -> Floats:
        """Differences between adjacent cells, of length 1."""
        grid, n = self.grid(thumbnails), len(thumbnails)
        return _unit(np.hstack([np.diff(grid, axis=1).reshape(n, -1), np.diff(grid, axis=2).reshape(n, -1)]))


WHOLE = _View()
CROPS = (
    *(_View(top, left, 1 - CROP) for top in (0, CROP) for left in (0, CROP)),
    _View(CROP / 2, CROP / 2, 1 - CROP),
)


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-6), dtype=np.float32)


def _near_pairs(thumbnails: Floats, rows: Rows) -> Rows:
    """Pairs (M, 2) among ``rows`` that are the same image."""
    from scipy.spatial import cKDTree

    rows = rows[[bool(thumbnails[row].std() >= MIN_STD) for row in rows]]
    near = [np.zeros((0, 2), dtype=np.int64)]
    if len(rows) < 2:
        return near[0]
    count = min(NEIGHBOURS + 1, len(rows))  # an image is its own nearest neighbour
    tree = cKDTree(_sketches(thumbnails, rows, WHOLE))
    for view in (WHOLE, *CROPS):
        distances, others = tree.query(_sketches(thumbnails, rows, view), k=count, distance_upper_bound=RADIUS)
        one, rank = np.nonzero(np.isfinite(distances))
        other = others[one, rank]
        pairs = np.stack([rows[one], rows[other]], axis=1)[one != other]
        for start in range(0, len(pairs), CHUNK):
            near.append(_same_image(thumbnails, pairs[start : start + CHUNK], view))
    return np.concatenate(near)


def _sketches(thumbnails: Floats, rows: Rows, view: _View) -> Floats:
    chunks = (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
    return np.concatenate([view.sketch(thumbnails[chunk]) for chunk in chunks])


def _same_image(thumbnails: Floats, pairs: Rows, view: _View) -> Rows:
    """The pairs whose first image, seen through ``view``, equals the whole second image."""
    steps, others = view.steps(thumbnails[pairs[:, 0]]), WHOLE.steps(thumbnails[pairs[:, 1]])
    return np.asarray(pairs[(steps * others).sum(axis=1) >= MIN_CORRELATION])


def _connected(exact: Rows, near: Rows) -> list[list[int]]:
    """Connected components of rows with equal pixels or the same image; single images are left out."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    copies = np.flatnonzero(exact != np.arange(len(exact)))
    edges = np.concatenate([np.stack([copies, exact[copies]], axis=1), near])
    shape = (len(exact), len(exact))
    graph = coo_array((np.ones(len(edges), dtype=np.int8), (edges[:, 0], edges[:, 1])), shape=shape)
    component = connected_components(graph, directed=False)[1]
    groups: dict[int, list[int]] = {}
    for row in np.unique(edges).tolist():
        groups.setdefault(int(component[row]), []).append(row)
    return list(groups.values())
