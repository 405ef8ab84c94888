"""Leave-one-out accuracy of the nearest class mean, a measure of how well features separate a few labels.

With unit rows x_i of classes y_i and m_c^(-i) the mean of the rows of class c without row i:

    yhat_i = argmax_c  x_i . m_c^(-i) / |m_c^(-i)|

There is nothing to fit, so that leaving each row out costs nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot


def leave_one_out_correct(x: Tensor, labels: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Number of rows of (n, D) with yhat_i = y_i, and of all rows whose class has others: only these are predicted."""
    unit = normalize(x, dim=1)
    classes, inverse = np.unique(labels, return_inverse=True)
    label = torch.from_numpy(inverse)
    sums = one_hot(label, len(classes)).to(unit).T @ unit
    rows = torch.arange(len(unit))
    close = unit @ normalize(sums, dim=1).T
    close[rows, label] = (unit * normalize(sums[label] - unit, dim=1)).sum(1)
    others = torch.bincount(label)[label] > 1
    return int((close.argmax(1) == label)[others].sum()), int(others.sum())
