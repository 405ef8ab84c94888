"""Statistics of the maps that enter the trainable tail of a backbone, as further features for the teacher.

The last stages of a network trained on ImageNet keep what separates its classes. Texture, colour and layout, which
separate others (weather, drawings, signs), are still in the maps before them. These are cached for distillation, so
their statistics cost no pass through the backbone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import adaptive_avg_pool2d

from unissl.features.extract import CachedFeatures
from unissl.features.scaler import Features
from unissl.utils.mmap_rows import take_rows

GRID = 2
"""Cells of the layout in each direction."""
BLOCK = 512


def inner_features(cached: CachedFeatures) -> Features:
    """Mean, standard deviation and means in ``GRID`` x ``GRID`` cells of each of the c channels of the clean views:
    (N, (2 + GRID^2) c). Rows that were not extracted are zero, and take no memory."""
    assert cached.maps is not None
    maps = cached.maps[:, 0]
    rows = np.arange(len(maps)) if cached.rows is None else cached.rows
    features = np.zeros((len(maps), (2 + GRID**2) * maps.shape[-1]), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        inner = torch.from_numpy(take_rows(maps, block)).float().permute(0, 3, 1, 2)
        cells = adaptive_avg_pool2d(inner, GRID).flatten(1)
        statistics = [inner.mean(dim=(2, 3)), inner.std(dim=(2, 3), correction=0), cells]
        features[block] = torch.cat(statistics, 1).numpy()
    return features
