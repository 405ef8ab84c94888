"""How far a few labels go: the nearest class mean, asked about each labelled row as if its own label were not there.

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


def right_when_left_out(x: Tensor, labels: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Number of rows of (n, D) with yhat_i = y_i, and of all whose class has others: only these can be asked about."""
    unit = normalize(x, dim=1)
    classes, own = np.unique(labels, return_inverse=True)
    mine = torch.from_numpy(own)
    sums = one_hot(mine, len(classes)).to(unit).T @ unit
    rows = torch.arange(len(unit))
    close = unit @ normalize(sums, dim=1).T
    close[rows, mine] = (unit * normalize(sums[mine] - unit, dim=1)).sum(1)
    others = torch.bincount(mine)[mine] > 1
    return int((close.argmax(1) == mine)[others].sum()), int(others.sum())
