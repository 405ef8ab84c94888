"""Given labels that may be wrong: those that the model, or the most similar unlabelled images, speak against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

NEIGHBOURS = 10
"""Images of the pool that are asked about a label."""
MIN_LEAD = 0.3
"""Lead of another class over the given one that makes a label doubtful."""


def neighbour_votes(features: Floats, pool_features: Floats, pool_probs: Floats) -> Floats:
    """For each image the mean probabilities of the images of the pool that are nearest by angle, (n, C)."""
    angles = unit(features) @ unit(pool_features).T
    count = min(NEIGHBOURS, len(pool_features))
    nearest = np.argpartition(-angles, count - 1, axis=1)[:, :count]
    return np.asarray(pool_probs[nearest].mean(1), dtype=np.float32)


def unit(rows: Floats) -> Floats:
    """Rows of length 1; a row of zeros stays one."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def find_label_issues(
    labels: Labels, own: Floats, votes: Floats | None, absent: Sequence[int]
) -> tuple[Labels, Floats]:
    """For each given label its strongest rival, and the rival's lead by the model or by the neighbours in the pool.

    Where the pool seems not to contain a class, its images have no neighbours of their kind, and these are not asked.
    """
    rival, lead = _lead(labels, own)
    if votes is not None:
        other, other_lead = _lead(labels, votes)
        better = (other_lead > lead) & ~np.isin(labels, list(absent))
        rival, lead = np.where(better, other, rival), np.where(better, other_lead, lead)
    return rival, lead


def _lead(labels: Labels, probs: Floats) -> tuple[Labels, Floats]:
    rows, rest = np.arange(len(labels)), probs.copy()
    rest[rows, labels] = -np.inf
    rival = np.asarray(rest.argmax(1), dtype=np.int64)
    return rival, np.asarray(rest[rows, rival] - probs[rows, labels], dtype=np.float32)
