"""The plain way, GRI: whole n x n matrices, differentiated by autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def plain_contrast(
    z_weak: Tensor,
    z_strong: Tensor,
    anchors: Tensor,
    ridge: float,
    steps: int,
    bias: float,
    t_sim: float,
    t_graph: float,
) -> tuple[Tensor, Tensor]:
    """L_con of SAGE over the pairs of different nodes, and the part ``tr(G) / (t n (n-1))`` that a diagonal would add.

    The thin form of ``unissl.ops.graph`` leaves that constant out of its value; it has no gradient along the sphere.
    """
    z = torch.cat([z_weak, z_strong])
    nodes, batch = len(z), len(z_weak)
    with torch.no_grad():
        gram = anchors @ anchors.T + ridge * torch.eye(len(anchors), dtype=z.dtype)
        a = torch.linalg.solve(gram, anchors @ z.T).T
        affinity = a @ a.T / t_graph
        same = torch.arange(nodes) % batch
        affinity = affinity + bias * (same[:, None] == same[None, :])
        transition = affinity.softmax(1)
        consensus = transition
        for _ in range(steps - 1):
            consensus = consensus @ transition
        left_out = consensus.diagonal().sum() / (t_sim * nodes * (nodes - 1))
    similarity = z @ z.T / t_sim
    pairs = ~torch.eye(nodes, dtype=torch.bool)
    return functional.binary_cross_entropy_with_logits(similarity[pairs], consensus[pairs]), left_out
