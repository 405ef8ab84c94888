"""Batches of a method's streams, from an image table and a split.

Nothing here has state: the batch of a step is a function of (seed, step). Resuming therefore needs no position in
the data beyond the step number, and any number of processes draws the same images and the same views.

Each source is walked in passes. Pass number p of a stream is one permutation of its source, keyed by (seed, stream, p),
and batches are consecutive pieces of the endless row of passes: every image occurs once per pass, and a batch may be
larger than its source.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from unissl.config import Settings
from unissl.distributed.rows import all_gather_rows, local_slice
from unissl.ops.losses import one_hot
from unissl.types import Batch, Rows, Source, Split, Stream, StreamBatch

Promoted = tuple[Tensor, Tensor] | None
"""Positions in the pool (k,) and soft targets (k, C) of images promoted to the labelled set (``Method.promoted``)."""


MAX_BATCH = 1 << 20
"""Images per batch: more are a slip of the finger, which would be counted for hours before memory runs out."""


class BatchConfig(Settings):
    labelled: int = Field(default=64, ge=1, le=MAX_BATCH)
    """Labelled images per step, over all processes."""
    unlabelled: int = Field(default=448, ge=1, le=MAX_BATCH)
    """Unlabelled images per step, over all processes."""
    evaluation: int = Field(default=256, ge=1, le=MAX_BATCH)
    """Images per batch in evaluation."""


@dataclass(frozen=True)
class Subset:
    """The rows of one source and, for labelled ones, a soft target (n, C) for each."""

    rows: Rows
    targets: Tensor | None = None


def subsets(split: Split) -> dict[Source, Subset]:
    """The sources of a split; the unlabelled one has no targets."""
    return {
        "labelled": Subset(split.labelled, one_hot(torch.from_numpy(split.labels), split.num_classes)),
        "unlabelled": Subset(split.unlabelled),
        "heldout": Subset(split.heldout, one_hot(torch.from_numpy(split.heldout_labels), split.num_classes)),
    }


class Views(Protocol):
    """Random views of the rows of a table: of images (``augment.image_views``) or of features."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one view."""
        ...

    def __len__(self) -> int: ...

    def __call__(
        self, view: str, rows: Rows, *, seed: int = 0, step: int = 0, stream: str = "", positions: slice | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Batches:
    """Batches by step number."""

    views: Views
    subsets: Mapping[Source, Subset]
    streams: Mapping[str, Stream]
    config: BatchConfig
    seed: int
    device: torch.device

    def at(self, step: int, promoted: Promoted = None) -> Batch:
        """The batches of a step. ``promoted`` are images of the pool that count as labelled."""
        return whole(self.share_at(step, promoted))

    def share_at(self, step: int, promoted: Promoted = None) -> Batch:
        """The same with the views of this process's rows alone; :func:`whole` gathers those of all processes."""
        return {name: self._stream_at(name, stream, step, promoted) for name, stream in self.streams.items()}

    def _stream_at(self, name: str, stream: Stream, step: int, promoted: Promoted) -> StreamBatch:
        subset = self._source(stream.source, promoted)
        size = self.config.unlabelled if stream.source == "unlabelled" else self.config.labelled
        positions = draw_positions(self.seed, name, len(subset.rows), step * size, size)
        return self._batch(subset, positions, stream.views, step=step, stream=name)

    def scan_shares(
        self, source: Source, view: str = "none", seed_step: int = 0, promoted: Promoted = None
    ) -> Iterator[StreamBatch]:
        """Every image of a source once and in order, in one view of this process's rows alone; random views are keyed
        by ``seed_step``."""
        subset = self._source(source, promoted)
        for start in range(0, len(subset.rows), self.config.evaluation):
            positions = np.arange(start, min(start + self.config.evaluation, len(subset.rows)))
            yield self._batch(subset, positions, (view,), start, step=seed_step, stream=f"scan-{source}")

    def _source(self, source: Source, promoted: Promoted) -> Subset:
        subset = self.subsets[source]
        if promoted is None or source != "labelled" or subset.targets is None:
            return subset
        positions, targets = promoted
        rows = np.concatenate([subset.rows, self.subsets["unlabelled"].rows[positions.cpu().numpy()]])
        return Subset(rows, torch.cat([subset.targets, targets.to(subset.targets)]))

    def _batch(
        self, subset: Subset, positions: Rows, views: tuple[str, ...], start: int = 0, **address: Any
    ) -> StreamBatch:
        """The images at ``positions`` of a subset; ``start`` is the place of the first, which keys its random views."""
        index, local = torch.from_numpy(positions), local_slice(len(positions))
        rows, places = subset.rows[positions[local]], slice(start + local.start, start + local.stop)
        made = {view: self.views(view, rows, seed=self.seed, positions=places, **address) for view in views}
        target = None if subset.targets is None else subset.targets[index].to(self.device)
        return StreamBatch(made, index.to(self.device), target)


def whole(shares: Batch) -> Batch:
    """Batches with the views of all rows, from those with this process's rows; one collective for everything."""
    names = [(name, view) for name, stream in shares.items() for view in stream.views]
    views = all_gather_rows(
        [shares[name].views[view] for name, view in names], [len(shares[name]) for name, _ in names]
    )
    gathered = dict(zip(names, views, strict=True))
    return {
        name: replace(stream, views={view: gathered[name, view] for view in stream.views})
        for name, stream in shares.items()
    }


def draw_positions(seed: int, stream: str, size: int, start: int, count: int) -> Rows:
    """Entries ``start .. start+count`` of the endless row of permutations of ``range(size)``."""
    parts, position = [], start
    while position < start + count:
        number, offset = divmod(position, size)
        part = _permutation(seed, stream, size, number)[offset : offset + start + count - position]
        parts.append(part)
        position += len(part)
    return np.concatenate(parts)


@lru_cache(maxsize=8)
def _permutation(seed: int, stream: str, size: int, number: int) -> Rows:
    key = np.random.SeedSequence([seed, zlib.crc32(stream.encode()), number])
    return np.random.Generator(np.random.Philox(key)).permutation(size)
