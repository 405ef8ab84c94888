"""Fixed geometric anchors, Eq. (5): K points on the unit sphere of R^d that are as far apart as they can be.

Two regimes, because a regular simplex of K points needs K - 1 dimensions:

* K <= d + 1: a true simplex, ``P = sqrt(K/(K-1)) V Q^T``. V (K, K-1) spans the range of the centring matrix
  ``O = I - 11^T/K``; the orthonormal columns of Q (d, K-1) orient the simplex in R^d. The paper's case is K = d + 1.
* K > d + 1: no simplex exists. We take a unit-norm tight frame, ``P^T P = (K/d) I``, since the paper states that every
  anchor has unit length and the plain formula would give rows of unequal length. The affinity scale is then
  ``s = c/(c + lambda)^2`` with ``c = K/d``: 0.565 for K = 200, d = 128, lambda = 0.1 (the plain formula has 0.823).

Everything is computed in float64 from explicit formulas and a seeded CPU generator, so that machines agree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def simplex_anchors(dim: int, count: int | None = None, seed: int = 0) -> Tensor:
    """Anchors P (K, d), Eq. (5); ``count`` is K and d + 1 by default.

    Rows have norm 1 and, for K <= d + 1, inner products -1/(K-1). They sum to 0, except when K > d + 1 and both K and d
    are odd, where a centred unit-norm tight frame need not exist (K = d + 2 is impossible).
    """
    count = dim + 1 if count is None else count
    if dim < 1 or count < 2:
        raise ValueError(f"anchors need at least one dimension and two points, not dim={dim} and count={count}")
    if count <= dim + 1:
        scale = math.sqrt(count / (count - 1))
        anchors = scale * _centred_basis(count) @ _orthonormal(dim, count - 1, seed).T  # Eq. (5)
    else:
        anchors = _harmonic_frame(dim, count) @ _orthonormal(dim, dim, seed).T
    return anchors.to(torch.get_default_dtype())


def _centred_basis(count: int) -> Tensor:
    """V (K, K-1): Helmert's eigenvectors of the centring matrix; ``eigh`` would leave their choice to the machine."""
    index = torch.arange(1, count, dtype=torch.float64, device="cpu")  # j of column j
    norm = (index * (index + 1)).sqrt()
    row = torch.arange(count, device="cpu")[:, None]
    above, on = row < index, row == index
    return above / norm - on * (index / norm)


def _orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    """Q: orthonormal columns, from the QR decomposition of a Gaussian matrix with the diagonal of R made positive."""
    generator = torch.Generator("cpu").manual_seed(seed)
    gaussian = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    unique: Tensor = q * r.diagonal().sign()
    return unique


def _harmonic_frame(dim: int, count: int) -> Tensor:
    """Cosine and sine of the frequencies 1, 2, ... sampled at K points: equal row norms, orthogonal columns.

    An odd d takes one more column of equal absolute values: alternating signs where K is even, constant otherwise.
    """
    time = torch.arange(count, dtype=torch.float64, device="cpu")[:, None]
    frequency = torch.arange(1, dim // 2 + 1, dtype=torch.float64, device="cpu")
    angle = 2 * math.pi / count * time * frequency
    columns = [math.sqrt(2) * angle.cos(), math.sqrt(2) * angle.sin()]
    if dim % 2:
        columns.append(1 - 2 * (time % 2) if count % 2 == 0 else torch.ones_like(time))
    return torch.cat(columns, 1) / math.sqrt(dim)
