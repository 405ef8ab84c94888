"""Given labels that may be wrong: the model, or the most similar unlabelled images, predict another class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

from unissl.types import Floats, Labels

NEIGHBOURS = 10
"""Unlabelled images that vote on a label."""
MIN_LEAD = 0.3
"""Lead of another class over the given one from which on a label may be wrong."""


@dataclass(frozen=True)
class LabelIssues:
    """For each given label (n,) the strongest other class and its lead in probability over the given one."""

    rivals: Labels
    leads: Floats

    @property
    def checked(self) -> int:
        return len(self.leads)

    @property
    def flagged(self) -> Labels:
        """Positions of the labels that may be wrong, the largest lead first."""
        order = np.argsort(-self.leads, kind="stable")
        return np.asarray(order[self.leads[order] > MIN_LEAD], dtype=np.int64)


NO_LABELS = LabelIssues(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))


def neighbour_votes(features: Floats, pool_features: Floats, pool_probs: Floats) -> Floats:
    """For each image the mean probabilities (n, C) of its nearest neighbours in the pool, by cosine similarity."""
    neighbours = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(pool_features)), metric="cosine").fit(pool_features)
    nearest = neighbours.kneighbors(features, return_distance=False)
    return np.asarray(pool_probs[nearest].mean(1), dtype=np.float32)


def find_label_issues(labels: Labels, probs: Floats, votes: Floats | None, absent: Sequence[int]) -> LabelIssues:
    """Compare labels (n,) with the model's probabilities (n, C) and the votes (n, C) of the neighbours in the pool.

    Images of a class that is ``absent`` from the pool have no neighbours of their class, so their votes do not count.
    """
    rivals, leads = _lead(labels, probs)
    if votes is not None:
        vote_rivals, vote_leads = _lead(labels, votes)
        larger = (vote_leads > leads) & ~np.isin(labels, list(absent))
        rivals, leads = np.where(larger, vote_rivals, rivals), np.where(larger, vote_leads, leads)
    return LabelIssues(rivals, leads)


def _lead(labels: Labels, probs: Floats) -> tuple[Labels, Floats]:
    rows, others = np.arange(len(labels)), probs.copy()
    others[rows, labels] = -np.inf
    rivals = np.asarray(others.argmax(1), dtype=np.int64)
    return rivals, np.asarray(others[rows, rivals] - probs[rows, labels], dtype=np.float32)
