"""Compiled CPU kernels for training: Winograd convolutions, and BatchNorm + activation + convolution fused.

The package is optional. ``UNISSL_DISABLE_KERNELS=1`` runs plain torch layers instead, as do GPUs, evaluation, small
maps, and systems where the kernels cannot be compiled; results are equal to rounding.

To delete it: remove this folder, ``tests/unit/nets/kernels`` and its use in ``tests/unit/bench``, and replace the two
names below in :mod:`unissl.nets.base`, their only importer: ``Conv3x3(i, o)`` by ``nn.Conv2d(i, o, 3, padding=1,
bias=False)``, and ``apply_norm_act_conv`` by ``conv(activation(norm(x)))``. Training on a CPU is then slower
(docs/performance.md); state_dict keys stay as they are.
"""

from unissl.nets.kernels.norm_act_conv import apply_norm_act_conv
from unissl.nets.kernels.winograd import SWITCH, Conv3x3

__all__ = ["SWITCH", "Conv3x3", "apply_norm_act_conv"]
