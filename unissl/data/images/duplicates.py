"""Find duplicate images: equal pixels, or the same image saved again, rescaled, brightened or cropped.

A copy of a test image among the training images inflates the measured accuracy; copies of a labelled image with two
labels mean that one label is wrong; copies within the pool only count double.

Exact copies have equal decoded pixels. Near copies are found in three stages, none of which compares everything with
everything. The *sketch* of an image is the coarsest part of its brightness: 15 cosine coefficients, scaled to length 1,
so that brightness and contrast do not matter. Close sketches are neighbours in a k-d tree; to find crops, each image is
also searched with the sketches of ten slightly cropped views of itself. Neighbours are candidates if the brightness
steps between adjacent cells of a 16 x 16 grid correlate. Candidates are registered to each other and compared pixel by
pixel (:mod:`unissl.data.images.registration`), the most similar first; a pair that is in one group already is skipped.
Mirrored, turned and heavily cropped copies are not searched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from unissl.data.images import registration
from unissl.data.images.registration import Boxes, Floats, brightness, reduce_cells, reduce_images, reduce_plane
from unissl.types import ImageTable, Rows
from unissl.utils.mmap_rows import take_rows

Tables = Sequence[npt.NDArray[np.uint8]]
Part = Literal["test", "labelled", "pool"]
Kind = Literal["exact", "near"]

SIDE = 32
"""Cells on a side of the thumbnail that all comparisons start from."""
GRID = 16
WAVES = 4
RADIUS = 0.22
"""Distance of sketches up to which images are neighbours."""
MIN_CORRELATION = 0.5
"""Correlation of brightness steps from which on neighbours are candidates."""
MIN_STD = 3.0
"""Standard deviation of brightness below which an image is too uniform to compare."""
MIN_SIDE = 16
"""Pixels on a side below which images have too little detail to compare: two handwritten digits of 8 x 8 may agree."""
NEIGHBOURS = 5
"""How many neighbours of each view are considered, and how many candidates of each image are compared pixel by pixel: a
bound on the work where thousands of frames show the same scene."""
CROP = 0.05
MAX_COMPARED = 100_000
"""Images among which near copies are searched: a bound on memory (4 KB each) and time where pools are very large.
Equal pixels are found among all."""
CHUNK = 1024
PAIRS = 256
"""Pairs that are registered at once."""


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
    near = _near_pairs(tables, compared)
    groups = [_group(rows, exact, copies) for rows in _connected(exact, near)]
    return tuple(sorted(groups, key=_severity))


def _group(rows: set[int], exact: Rows, copies: Sequence[Copy]) -> DuplicateGroup:
    order: list[Part] = ["test", "labelled", "pool"]
    members = sorted((copies[row] for row in rows), key=lambda copy: (order.index(copy.part), copy.row))
    return DuplicateGroup("exact" if len({exact[row] for row in rows}) == 1 else "near", tuple(members))


def _severity(group: DuplicateGroup) -> tuple[bool, bool, bool, int]:
    return not group.leaks_test, not group.labels_disagree, group.kind == "near", group.copies[0].row


def _equal_pixels(tables: Tables) -> Rows:
    """For each image the first one with the same pixels, counted through all tables."""
    first: dict[bytes, int] = {}
    images = (image for table in tables for rows in _chunks(np.arange(len(table))) for image in take_rows(table, rows))
    hashes = (blake2b(np.ascontiguousarray(image).data, digest_size=16).digest() for image in images)
    return np.array([first.setdefault(key, row) for row, key in enumerate(hashes)], dtype=np.int64)


def _chunks(rows: Rows) -> Iterator[Rows]:
    """Some rows at a time."""
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def _by_table(tables: Tables, rows: Rows) -> Iterator[tuple[npt.NDArray[np.uint8], Rows]]:
    """Each table and the rows within it of the ascending ``rows``, which are counted through all tables."""
    before = 0
    for table in tables:
        yield table, rows[(rows >= before) & (rows < before + len(table))] - before
        before += len(table)


def _choose_compared(rows: Rows, copies: Sequence[Copy]) -> Rows:
    """Rows among which near copies are searched: at most ``MAX_COMPARED``, with an evenly spaced part of the pool."""
    if len(rows) <= MAX_COMPARED:
        return rows
    in_pool = np.array([copies[row].part == "pool" for row in rows])
    others, pool = rows[~in_pool][:MAX_COMPARED], rows[in_pool]
    room = MAX_COMPARED - len(others)
    spread = pool[np.linspace(0, len(pool) - 1, room).astype(np.int64)] if room else pool[:0]
    return np.sort(np.concatenate([others, spread]))


def _thumbnails(tables: Tables, rows: Rows) -> Floats:
    """Brightness of SIDE x SIDE cells of the ascending ``rows``, counted through all tables, (n, SIDE, SIDE)."""
    thumbnails = np.empty((len(rows), SIDE, SIDE), dtype=np.float32)
    done = 0
    for table, chosen in _by_table(tables, rows):
        for chunk in _chunks(chosen):
            thumbnails[done : done + len(chunk)] = reduce_plane(brightness(take_rows(table, chunk)), SIDE)
            done += len(chunk)
    return thumbnails


class _View(NamedTuple):
    """The whole image, or a crop: upper and left edge, height and width, as fractions of the sides of the image."""

    top: float = 0.0
    left: float = 0.0
    height: float = 1.0
    width: float = 1.0

    def grid(self, thumbnails: Floats) -> Floats:
        """Brightness of GRID x GRID cells."""
        down = reduce_cells(GRID, SIDE, self.top, self.top + self.height)
        across = reduce_cells(GRID, SIDE, self.left, self.left + self.width)
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
    *(_View(top, left, 1 - CROP, 1 - CROP) for top in (0, CROP) for left in (0, CROP)),
    *(_View(top, 0, 1 - CROP, 1) for top in (0, CROP)),
    *(_View(0, left, 1, 1 - CROP) for left in (0, CROP)),
    _View(CROP / 2, CROP / 2, 1 - CROP, 1 - CROP),
    _View(CROP, CROP, 1 - 2 * CROP, 1 - 2 * CROP),
)


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-6), dtype=np.float32)


def _near_pairs(tables: Tables, rows: Rows) -> Rows:
    """Pairs (M, 2) among ``rows``, counted through all tables, that show the same photo, enough to connect all."""
    from scipy.cluster.hierarchy import DisjointSet

    near = [np.zeros((0, 2), dtype=np.int64)]
    if min(size for table in tables for size in table.shape[1:3]) < MIN_SIDE:
        return near[0]
    candidates, boxes = _candidates(_thumbnails(tables, rows))
    pairs = rows[candidates]
    groups = DisjointSet(np.unique(pairs).tolist())
    open_pairs = (i for i, pair in enumerate(pairs.tolist()) if not groups.connected(*pair))
    while chunk := list(islice(open_pairs, PAIRS)):
        same = pairs[chunk][registration.show_same_photo(*_reduced(tables, pairs[chunk]), boxes[chunk])]
        near.append(same)
        for one, other in same.tolist():
            groups.merge(one, other)
    return np.concatenate(near)


def _reduced(tables: Tables, pairs: Rows) -> tuple[Floats, Floats]:
    """First and second images of the pairs, reduced to planes of cells."""
    side = min(registration.SIDE, *(size for table in tables for size in table.shape[1:3]))
    rows, position = np.unique(pairs, return_inverse=True)
    parts = _by_table(tables, rows)
    planes = [reduce_images(take_rows(table, chosen), side) for table, chosen in parts if len(chosen)]
    least = min(plane.shape[1] for plane in planes)  # a grey table next to a coloured one
    images = np.concatenate([plane[:, :least] for plane in planes])[position.reshape(pairs.shape)]
    return images[:, 0], images[:, 1]


def _candidates(thumbnails: Floats) -> tuple[Rows, Boxes]:
    """Pairs of rows (M, 2), the most similar first, with the part of the first image that the second may show (M, 4):
    neighbours whose brightness steps correlate, of each image the ``NEIGHBOURS`` most similar ones."""
    from scipy.spatial import cKDTree

    rows = np.flatnonzero([thumbnail.std() >= MIN_STD for thumbnail in thumbnails])
    if len(rows) < 2:
        return np.zeros((0, 2), dtype=np.int64), np.zeros((0, 4))
    count = min(NEIGHBOURS + 1, len(rows))  # an image is its own nearest neighbour
    tree = cKDTree(_sketches(thumbnails, rows, WHOLE))
    pairs, correlations, views = [], [], []
    for number, view in enumerate((WHOLE, *CROPS)):
        distances, others = tree.query(_sketches(thumbnails, rows, view), k=count, distance_upper_bound=RADIUS)
        one, rank = np.nonzero(np.isfinite(distances))
        other = others[one, rank]
        pairs.append(np.stack([rows[one], rows[other]], axis=1)[one != other])
        correlations.append(_correlations(thumbnails, pairs[-1], view))
        views.append(np.full(len(pairs[-1]), number))
    return _most_similar(np.concatenate(pairs), np.concatenate(correlations), np.concatenate(views))


def _most_similar(pairs: Rows, correlations: Floats, views: Rows) -> tuple[Rows, Boxes]:
    """Each pair once, in its best view, and of each image the ``NEIGHBOURS`` best pairs."""
    order = np.argsort(-correlations, kind="stable")
    order = order[correlations[order] >= MIN_CORRELATION]
    _, first = np.unique(np.sort(pairs[order], axis=1), axis=0, return_index=True)
    order = order[np.sort(first)]
    used: Counter[int] = Counter()
    kept = []
    for position, (one, other) in zip(order.tolist(), pairs[order].tolist(), strict=True):
        if min(used[one], used[other]) < NEIGHBOURS:
            used.update((one, other))
            kept.append(position)
    return pairs[kept], np.array([WHOLE, *CROPS])[views[kept]]


def _sketches(thumbnails: Floats, rows: Rows, view: _View) -> Floats:
    return np.concatenate([view.sketch(thumbnails[chunk]) for chunk in _chunks(rows)])


def _correlations(thumbnails: Floats, pairs: Rows, view: _View) -> Floats:
    """Of the brightness steps of the first images, seen through ``view``, with those of the whole second ones."""
    steps = ((view.steps(thumbnails[c[:, 0]]), WHOLE.steps(thumbnails[c[:, 1]])) for c in _chunks(pairs))
    return np.concatenate([np.zeros(0, np.float32), *((one * other).sum(axis=1) for one, other in steps)])


def _connected(exact: Rows, near: Rows) -> list[set[int]]:
    """Connected components of rows with equal pixels or the same image; single images are left out."""
    from scipy.cluster.hierarchy import DisjointSet

    copies = np.flatnonzero(exact != np.arange(len(exact)))
    edges = np.concatenate([np.stack([copies, exact[copies]], axis=1), near])
    groups = DisjointSet(np.unique(edges).tolist())
    for one, other in edges.tolist():
        groups.merge(one, other)
    return list(groups.subsets())
