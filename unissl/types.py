"""The values that travel between the packages: frozen, almost without logic.

The flow is one-way: ``ImageTable -> Split -> Batch -> Outputs -> Losses``, then ``Prediction``.
No type from ``Split`` onwards has a field for the true labels of unlabelled images, so that a leak
of truth into training is a type error and not a matter of discipline.

Sizes used everywhere: B labelled batch, U unlabelled batch, C classes, D features, K anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

UNLABELLED = -1
"""The label of an unlabelled image."""
OOD = -2
"""The label of an out-of-distribution image in the open-set setting."""
MISSING_WORDS = frozenset(("nan", "NaN", "NAN", "NaT", "NA", "<NA>", "N/A", "n/a", "#N/A", "None", "null", "NULL"))
"""What programs write for a missing value; as text it may be a class or a missing label, so it is refused as either."""

Rows = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Pixels = npt.NDArray[np.uint8]

Source = Literal["labelled", "unlabelled", "heldout"]


def is_unlabelled(value: object) -> bool:
    """Whether a caller's label means none: -1, None, or a value that differs from itself as NaN and NaT do; pandas' NA
    does not even say whether."""
    if value is None or type(value).__name__ == "NAType":
        return True
    if isinstance(value, int | float | np.number) and value == UNLABELLED:
        return True
    return isinstance(value, float | np.generic | datetime) and bool(value != value)


@dataclass(frozen=True)
class ImageTable:
    """Images of one size with their labels, the result of every data source.

    ``images`` is uint8 of shape (N, H, W, channels), possibly memory-mapped; ``labels`` is int64 (N,) with
    ``UNLABELLED`` and ``OOD``. ``files`` has the source of each row, ``skipped`` lists ``(file, reason)`` of unreadable
    images, and ``issues`` maps a message to files that are used in spite of it. ``content`` is a hash of the images,
    computed when they were decoded. ``originals`` yields the images before they were resized, as paths, bytes of
    files or open images, in the order of the rows.
    """

    images: Pixels
    labels: Labels
    class_names: tuple[str, ...]
    files: tuple[str, ...] | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    content: str | None = None
    originals: Callable[[], Iterator[str | bytes | Image.Image]] | None = None
    issues: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Rows | None = None
    """A number per image, equal for images that folds and hold-outs must not separate; None: every image by itself."""

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            raise ValueError("images must be uint8 of shape (N, H, W, channels)")
        if self.labels.shape != (len(self.images),) or self.labels.dtype != np.int64:
            raise ValueError("labels must be int64, one per image")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


@dataclass(frozen=True)
class Split:
    """Which rows of a table are labelled, with which class, and which rows are the unlabelled pool.

    ``heldout`` are labelled rows that no loss sees, for methods that calibrate themselves on labels.
    """

    labelled: Rows
    labels: Labels
    unlabelled: Rows
    num_classes: int
    heldout: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    heldout_labels: Labels = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def labelled_counts(self) -> tuple[int, ...]:
        return tuple(int(n) for n in np.bincount(self.labels, minlength=self.num_classes))


@dataclass(frozen=True)
class DataInfo:
    """What a method knows at construction. Counts are those of the *training* labels only."""

    num_classes: int
    feat_dim: int
    num_unlabelled: int
    labelled_counts: tuple[int, ...]
    tap_dims: Mapping[str, int] = field(default_factory=dict)
    """Channels of each inner feature map that the method requests."""
    image_shape: tuple[int, ...] = (3, 32, 32)
    """Channels, height and width of an image; the feature dimension if training uses cached features."""

    def log_prior(self) -> Tensor:
        """log pi_l, the log class shares of the labelled set, (C,)."""
        counts = torch.tensor(self.labelled_counts, dtype=torch.float64)
        return (counts / counts.sum()).log().to(torch.get_default_dtype())


@dataclass(frozen=True)
class Stream:
    """One batch that a method requests in every step: its source, whose batch size is configured, and its views."""

    source: Source
    views: tuple[str, ...]


@dataclass(frozen=True)
class StreamBatch:
    """The images of one stream in one step.

    ``views[name]`` is float (n, channels, H, W), normalised; ``index`` is the position of each image in its
    source; ``target`` is soft (n, C) and exists for labelled and held-out sources only.
    """

    views: Mapping[str, Tensor]
    index: Tensor
    target: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def targets(self) -> Tensor:
        """The soft target, for streams that have one."""
        if self.target is None:
            raise ValueError("an unlabelled stream has no targets")
        return self.target


Batch = Mapping[str, StreamBatch]


@dataclass(frozen=True)
class Step:
    """Position in the budget: iteration 0..total-1, and the period it lies in, of ``periods`` of equal length."""

    iteration: int
    total: int
    period: int
    periods: int

    @property
    def fraction(self) -> float:
        """Fraction of the budget used before this step; methods define their phases by it."""
        return self.iteration / self.total


@dataclass(frozen=True)
class Outputs:
    """Outputs of a network for a batch: primary logits (n, C), pooled features (n, D), inner feature maps by name."""

    logits: Tensor
    feat: Tensor
    taps: Mapping[str, Tensor] = field(default_factory=dict)

    def split(self, sizes: list[int]) -> list[Outputs]:
        """Split along the batch, the inverse of the concatenation of streams."""
        logits, feats = torch.split(self.logits, sizes), torch.split(self.feat, sizes)
        taps = {name: torch.split(tap, sizes) for name, tap in self.taps.items()}
        return [
            Outputs(logits[i], feats[i], {name: parts[i] for name, parts in taps.items()}) for i in range(len(sizes))
        ]


@dataclass(frozen=True)
class Losses:
    """Named, unweighted loss terms; their weights (1 where missing); detached scalars to log."""

    terms: Mapping[str, Tensor]
    weights: Mapping[str, float] = field(default_factory=dict)
    logs: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def total(self) -> Tensor:
        """The optimised sum, always derived from terms and weights."""
        return torch.stack([self.weights.get(name, 1.0) * term for name, term in self.terms.items()]).sum()


@dataclass(frozen=True)
class Prediction:
    """Outputs of a method at test: logits (n, C), features (n, D), and, if it has a detector, outlier scores (n,),
    higher for images that resemble no class."""

    logits: Tensor
    features: Tensor
    outlier: Tensor | None = None
